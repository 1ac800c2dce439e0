"""The ordered TreeLSTM, forward and backward: gates, sums over operands and products in one pass over the blocks.

Gates of a row, in packs: i, o, u, a forget gate for each slot, tanh(c). The way back writes the gradients of all but
the last over them. Operands in one slot are summed before they enter: with one forget gate for all of them,
``sum of f c`` is ``f`` times ``sum of c``.
"""

from dagnn.kernels.emit.functions import sigmoid, tanh
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.sweep.node_blocks import FIELDS, GateRows, NodeBlock, Row, each_block
from dagnn.kernels.sweep.packed import PackedLayout, PackedWriter

GATES = GateRows(fixed=4, per_slot=1)
_I, _O, _U, _F = range(4)


def write_forward(module: Value, layout: PackedLayout, name: str) -> None:
    """The function ``name``: ``y`` and ``states`` of all nodes; ``operands`` and ``gates`` for the way back."""
    code = PackedWriter(module, layout, name)
    code.fields(*FIELDS, "projected", "weight", "weight_pack", "states", "y")
    with each_block(code, GATES) as block:
        with code.build.if_then(block.has_operands):
            aggregate_operands(code, block)
            columns = code.build.add(block.slots, code.i64(3))
            left_packs = code.build.mul(block.slots, code.field("packs"))
            block.forward_product("product", "weight", columns, left_packs)
        _gates(code, block)
    code.finish()


def aggregate_operands(code: PackedWriter, block: NodeBlock) -> None:
    """``operands``: for every row and slot the sum of the outputs of its operands."""
    with block.each_row() as row, row.each_slot() as slot, row.each_pack() as pack:
        total = summed_sources(code, row, slot, pack, "y")
        for half, value in enumerate(total):
            code.store_half(code.build.load(value), block.operand(slot, pack, row.row), half)


def summed_sources(code: PackedWriter, row: Row, slot: Value, pack: Value, field: str) -> list[Value]:
    """Variables with the sum over the edges into a slot of a pack of the sources' rows of a matrix."""
    totals = code.places()
    with row.each_in_edge(slot) as edge:
        source = code.index_at(code.field("in_sources"), edge)
        line = row.state(field, pack, source)
        for half, total in enumerate(totals):
            code.build.store(code.build.fadd(code.build.load(total), code.load_half(line, half)), total)
    return totals


def input_cells(code: PackedWriter, row: Row, pack: Value) -> tuple[list[Value], list[Value]]:
    """For each half a variable with ``i u``, to which forget gates add, and the output gate."""
    cells, outs = code.places(), []
    for half, cell in enumerate(cells):
        i, o, u = _input_gates(code, row, pack, half)
        code.build.store(code.build.fmul(i, u), cell)
        outs.append(o)
    return cells, outs


def lstm_output(code: PackedWriter, row: Row, pack: Value, half: int, o: Value, c: Value, last_gate: Value) -> Value:
    """``h = o tanh(c)``; stores it, ``c`` and ``tanh(c)``."""
    squashed = tanh(code, c)  # stored too: the way back would pay for it a second time
    code.store_half(c, row.state("states", pack), half)
    code.store_half(squashed, row.gate(last_gate, pack), half)
    h = code.build.fmul(o, squashed)
    code.store_half(h, row.state("y", pack), half)
    return h


def _input_gates(code: PackedWriter, row: Row, pack: Value, half: int) -> tuple[Value, ...]:
    """The activated i, o, u; also stores them for the way back."""
    values = []
    for gate in (_I, _O, _U):
        z = code.build.fadd(code.load_half(row.projected(gate, pack), half), row.product(gate, pack, half))
        value = tanh(code, z) if gate == _U else sigmoid(code, z)
        code.store_half(value, row.gate(gate, pack), half)
        values.append(value)
    return tuple(values)


def _gates(code: PackedWriter, block: NodeBlock) -> None:
    build = code.build
    with block.each_row() as row, row.each_pack() as pack:
        cells, outs = input_cells(code, row, pack)
        with row.each_slot() as slot:
            # Every operand in a slot has the same forget gate, so their states are summed first: one gate, one product.
            kept = summed_sources(code, row, slot, pack, "states")
            line = row.gate(build.add(slot, code.i64(_F)), pack)
            for half, cell in enumerate(cells):
                z = build.fadd(code.load_half(line, half), code.load_half(row.projected(_F, pack), half))
                f = sigmoid(code, z)
                code.store_half(f, line, half)
                build.store(code.multiply_add(f, build.load(kept[half]), build.load(cell)), cell)
        last_gate = build.add(block.slots, code.i64(_F))
        for half, cell in enumerate(cells):
            lstm_output(code, row, pack, half, outs[half], build.load(cell), last_gate)


def write_backward(module: Value, layout: PackedLayout, name: str) -> None:
    """The function ``name``: writes the gates' gradients over the gates, and ``grad_projected`` where it is given.

    What goes to the operands waits in ``slot_gradients`` (for h) and ``slot_states`` (for c), where each operand
    fetches it when its turn comes. If nodes pushed, two blocks of one level could add to the same row at once.
    """
    code = PackedWriter(module, layout, name)
    code.fields(
        *FIELDS, "back_weight", "back_weight_pack", "states", "grad_y", "slot_gradients", "slot_states",
        "grad_projected",
    )  # fmt: skip
    with each_block(code, GATES, back=True) as block:
        _gate_gradients(code, block)
        with code.build.if_then(block.has_operands):
            columns = code.build.add(block.slots, code.i64(3))
            first_slot = code.index_at(code.field("first_slots"), block.first)
            out = code.offset(code.field("slot_gradients"), code.field("state_bytes"), first_slot)
            block.backward_product("product", "back_weight", columns, out)
    code.finish()


def _gate_gradients(code: PackedWriter, block: NodeBlock) -> None:
    build = code.build
    with block.each_row() as row, row.each_pack() as pack:
        # Pull: the edges out of a node have a fixed order, and so have these sums.
        from_h, from_c = code.places(), code.places()
        for half, place in enumerate(from_h):
            build.store(code.load_half(row.state("grad_y", pack), half), place)
        with row.each_out_edge() as edge:
            slot = code.index_at(code.field("out_index"), edge)
            for field, places in (("slot_gradients", from_h), ("slot_states", from_c)):
                line = row.state(field, pack, slot)
                for half, place in enumerate(places):
                    build.store(build.fadd(build.load(place), code.load_half(line, half)), place)

        last_gate = build.add(block.slots, code.i64(_F))
        for half in (0, 1):
            of_c = input_gradients(code, row, pack, half, build.load(from_h[half]), build.load(from_c[half]), last_gate)
            build.store(of_c, from_c[half])

        # The features enter every forget gate of the node, so their part of the gradient is a sum over its slots.
        forgotten = code.places()
        with row.each_slot() as slot:
            kept = summed_sources(code, row, slot, pack, "states")
            line = row.gate(build.add(slot, code.i64(_F)), pack)
            number = build.add(row.first_slot, slot)
            for half, of_c in enumerate(from_c):
                f, gradient = code.load_half(line, half), build.load(of_c)
                passed = build.fmul(gradient, f)
                code.store_half(passed, row.state("slot_states", pack, number), half)
                of_z = build.fmul(build.fmul(passed, build.load(kept[half])), build.fsub(code.constant(1), f))
                code.store_half(of_z, line, half)
                build.store(build.fadd(build.load(forgotten[half]), of_z), forgotten[half])
        with build.if_then(wants_projected(code)):
            for half, total in enumerate(forgotten):
                code.store_half(build.load(total), row.projected(_F, pack, "grad_projected"), half)


def input_gradients(
    code: PackedWriter, row: Row, pack: Value, half: int, of_h: Value, of_c: Value, last_gate: Value
) -> Value:
    """Writes the gradients of i, o, u before their activations over the gates; returns the whole gradient of c."""
    # The slopes follow from the stored values: sigmoid' = s (1 - s) and tanh' = 1 - t^2. Nothing else is kept.
    build, one = code.build, code.constant(1)
    i, o, u = (code.load_half(row.gate(gate, pack), half) for gate in (_I, _O, _U))
    squashed = code.load_half(row.gate(last_gate, pack), half)
    through_tanh = build.fsub(one, build.fmul(squashed, squashed))
    of_c = code.multiply_add(build.fmul(of_h, o), through_tanh, of_c)
    of_i = build.fmul(build.fmul(of_c, u), build.fmul(i, build.fsub(one, i)))
    of_o = build.fmul(build.fmul(of_h, squashed), build.fmul(o, build.fsub(one, o)))
    of_u = build.fmul(build.fmul(of_c, i), build.fsub(one, build.fmul(u, u)))
    for gate, gradient in ((_I, of_i), (_O, of_o), (_U, of_u)):
        code.store_half(gradient, row.gate(gate, pack), half)
    # Where nodes share rows of features, the address is 0 here, and `write_table` sums the gates in a pass of its own.
    with build.if_then(wants_projected(code)):
        for gate, gradient in ((_I, of_i), (_O, of_o), (_U, of_u)):
            code.store_half(gradient, row.projected(gate, pack, "grad_projected"), half)
    return of_c


def wants_projected(code: PackedWriter) -> Value:
    """Whether this pass writes the gradient of the projected features to its rows."""
    return code.build.icmp_signed("!=", code.field("grad_projected"), code.i64(0))
