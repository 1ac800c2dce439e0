"""The GRU cells compiled, forward and backward: over the sum, mean or maximum of messages, or attention to them.

Gates of a row, in packs: r, z, the aggregate's part of the candidate, and the candidate n. The way back writes their
gradients over them.
"""

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import exp, sigmoid, tanh
from dagnn.kernels.emit.writer import I32, Value
from dagnn.kernels.sweep.node_blocks import FIELDS, GateRows, NodeBlock, Row, each_block
from dagnn.kernels.sweep.packed import PackedLayout, PackedWriter
from dagnn.kernels.sweep.tree_lstm import summed_sources, wants_projected

GATES = GateRows(fixed=4, per_slot=0)
COLUMNS = (0, 1, 3)
"""The gates whose gradients are those of the projected features r, z, n."""
_R, _Z, _CANDIDATE, _N = range(4)


def write_forward(module: Value, layout: PackedLayout, name: str, kind: str) -> None:
    """The function ``name``: ``y`` of all nodes; ``operands`` and ``gates`` for the way back.

    Args:
        kind: ``"sum"``, ``"mean"``, ``"max"`` or ``"attention"``.
    """
    code = PackedWriter(module, layout, name)
    code.fields(
        *FIELDS, "projected", "weight", "weight_pack", "bias", "y", "in_places", "extremes", "scores", "score_weight",
        "edge_weights",
    )  # fmt: skip
    with each_block(code, GATES) as block:
        with code.build.if_then(block.has_operands):
            with block.each_row() as row:
                _aggregate_messages(code, row, kind)
            block.forward_product("product", "weight", code.i64(3), code.field("packs"))
        _gates(code, block)
        if kind == "attention":
            with block.each_row() as row:
                _score_node(code, row)
    code.finish()


def write_backward(module: Value, layout: PackedLayout, name: str, kind: str) -> None:
    """The function ``name``: writes the gates' gradients over the gates, and ``grad_projected`` where it is given.

    ``slot_gradients`` holds the gradients of the aggregates, which the operands fetch when their turn comes: no block
    writes to the rows of another.
    """
    code = PackedWriter(module, layout, name)
    code.fields(
        *FIELDS, "back_weight", "back_weight_pack", "y", "grad_y", "slot_gradients", "grad_projected", "out_edges",
        "extremes", "score_weight", "edge_weights", "edge_gradients", "score_gradients",
    )  # fmt: skip
    with each_block(code, GATES, back=True) as block:
        _gate_gradients(code, block, kind)
        with code.build.if_then(block.has_operands):
            first_slot = code.index_at(code.field("first_slots"), block.first)
            out = code.offset(code.field("slot_gradients"), code.field("state_bytes"), first_slot)
            # Added: the slots hold the part of the aggregate that passes by the candidate, through z.
            block.backward_product("product_added", "back_weight", code.i64(3), out)
            with block.each_row() as row:
                _message_gradients(code, row, kind)
    code.finish()


def _gates(code: PackedWriter, block: NodeBlock) -> None:
    build = code.build
    with block.each_row() as row, row.each_pack() as pack:
        for half in (0, 1):
            own = [code.load_half(row.projected(gate, pack), half) for gate in range(3)]
            candidate = code.load_half(code.line(code.field("bias"), pack), half)
            candidate = build.fadd(candidate, row.product(_CANDIDATE, pack, half))
            aggregate = _operand(code, row, pack, half)
            r, z = (sigmoid(code, build.fadd(own[gate], row.product(gate, pack, half))) for gate in (_R, _Z))
            # r after the product, as in torch.nn.GRU: so one product serves all three gates.
            n = tanh(code, code.multiply_add(r, candidate, own[2]))
            for gate, value in ((_R, r), (_Z, z), (_CANDIDATE, candidate), (_N, n)):
                code.store_half(value, row.gate(gate, pack), half)
            code.store_half(code.multiply_add(z, build.fsub(aggregate, n), n), row.state("y", pack), half)


def _gate_gradients(code: PackedWriter, block: NodeBlock, kind: str) -> None:
    build, one = code.build, code.constant(1)
    with block.each_row() as row:
        shared = _shared_gradient(code, row) if kind == "attention" else None
        with row.each_pack() as pack:
            of_h = _fetched(code, row, pack, kind, shared)
            for half in (0, 1):
                gradient = build.load(of_h[half])
                r, z, candidate, n = (code.load_half(row.gate(gate, pack), half) for gate in range(4))
                aggregate = _operand(code, row, pack, half)
                of_n = build.fmul(gradient, build.fsub(one, z))
                of_n = build.fmul(of_n, build.fsub(one, build.fmul(n, n)))
                of_z = build.fmul(build.fmul(gradient, build.fsub(aggregate, n)), build.fmul(z, build.fsub(one, z)))
                of_r = build.fmul(build.fmul(of_n, candidate), build.fmul(r, build.fsub(one, r)))
                gradients = {_R: of_r, _Z: of_z, _CANDIDATE: build.fmul(of_n, r), _N: of_n}
                for gate, value in gradients.items():
                    code.store_half(value, row.gate(gate, pack), half)
                with build.if_then(block.has_operands):
                    place = row.state("slot_gradients", pack, row.first_slot)
                    code.store_half(build.fmul(gradient, z), place, half)
                with build.if_then(wants_projected(code)):
                    for column, gate in enumerate(COLUMNS):
                        code.store_half(gradients[gate], row.projected(column, pack, "grad_projected"), half)


def _operand(code: PackedWriter, row: Row, pack: Value, half: int) -> Value:
    """Half of the node's aggregate; 0 for a node without operands."""
    build, has = code.build, row.block.has_operands
    # Such a node has no row in ``operands``, and behind the last row there may be no memory: any readable line will do.
    line = build.select(has, row.block.operand(code.i64(0), pack, row.row), row.gate(_R, pack))
    return build.select(has, code.load_half(line, half), code.constant(0))


def _fetched(code: PackedWriter, row: Row, pack: Value, kind: str, shared: Value | None) -> list[Value]:
    """Variables with the gradient of the output: that of ``y``, and what the users of the node have left for it."""
    build = code.build
    of_h = code.places()
    for half, place in enumerate(of_h):
        value = code.load_half(row.state("grad_y", pack), half)
        if shared is not None:
            weight = code.load_half(code.line(code.field("score_weight"), pack), half)
            value = code.multiply_add(shared, weight, value)
        build.store(value, place)
    with row.each_out_edge() as edge:
        slot = code.index_at(code.field("out_index"), edge)
        attention = None
        if kind == "attention":
            number = code.index_at(code.field("out_edges"), edge)
            attention = code.splat(code.number_at(code.field("edge_weights"), number))
        for half, place in enumerate(of_h):
            value = code.load_half(row.state("slot_gradients", pack, slot), half)
            total = build.load(place)
            if attention is not None:
                total = code.multiply_add(attention, value, total)
            elif kind == "max":
                own = code.load_half(row.state("y", pack), half)
                # The maximum is a copy of one of the outputs, so equality is exact. NaN equals nothing, and gets 0.
                wins = build.fcmp_ordered("==", own, code.load_half(row.state("extremes", pack, slot), half))
                total = build.select(wins, build.fadd(total, value), total)
            else:
                total = build.fadd(total, value)
            build.store(total, place)
    return of_h


def _aggregate_messages(code: PackedWriter, row: Row, kind: str) -> None:
    """``operands`` of a row, its aggregate: the sum, mean, maximum or attention-weighted sum of outputs."""
    build, zero = code.build, code.i64(0)
    if kind == "attention":
        _attend(code, row)
    share = code.splat(_one_over_count(code, row)) if kind == "mean" else None
    with row.each_pack() as pack:
        if kind == "max":
            totals = _largest(code, row, pack)
        elif kind == "attention":
            totals = _weighed(code, row, pack)
        else:
            totals = summed_sources(code, row, zero, pack, "y")
        for half, total in enumerate(totals):
            value = build.load(total)
            if share is not None:
                value = build.fmul(value, share)
            code.store_half(value, row.block.operand(zero, pack, row.row), half)
            if kind == "max":
                # Again by slot, where operands look: on the way back each compares its own output, bit by bit.
                code.store_half(value, row.state("extremes", pack, row.first_slot), half)


def _message_gradients(code: PackedWriter, row: Row, kind: str) -> None:
    """Turns the gradient of a row's aggregate into what each of its operands adds when its turn comes."""
    if kind == "attention":
        _attention_gradients(code, row)
    if kind in ("sum", "attention"):
        return
    # The factor is the same for all operands, so the slot is scaled once and not every edge.
    share = code.splat(_one_over_count(code, row)) if kind == "mean" else None
    with row.each_pack() as pack:
        place = row.state("slot_gradients", pack, row.first_slot)
        shares = [share, share] if share is not None else _one_over_winners(code, row, pack)
        for half, factor in enumerate(shares):
            code.store_half(code.build.fmul(code.load_half(place, half), factor), place, half)


def _score_node(code: PackedWriter, row: Row) -> None:
    """``scores`` of a node, for the nodes that will attend to it: ``w h``."""
    build = code.build
    # Once for each node, though every edge out of it needs it: the nodes that attend are on higher levels and wait.
    (total,) = code.places(1)
    with row.each_pack() as pack:
        for half in (0, 1):
            weight = code.load_half(code.line(code.field("score_weight"), pack), half)
            h = code.load_half(row.state("y", pack), half)
            build.store(code.multiply_add(weight, h, build.load(total)), total)
    code.store(code.sum(build.load(total)), code.at(code.field("scores"), row.place, code.size), code.size)


def _shared_gradient(code: PackedWriter, row: Row) -> Value:
    """The gradient of the node's score, in every lane; also stores it in ``score_gradients``."""
    # The sum over edges that other blocks wrote: those are on higher levels, and done by now.
    build = code.build
    total = _number(code, 0.0)
    with row.each_out_edge() as edge:
        number = code.index_at(code.field("out_edges"), edge)
        build.store(build.fadd(build.load(total), code.number_at(code.field("edge_gradients"), number)), total)
    value = build.load(total)
    code.store(value, code.at(code.field("score_gradients"), row.node, code.size), code.size)
    return code.splat(value)


def _largest(code: PackedWriter, row: Row, pack: Value) -> list[Value]:
    build = code.build
    totals = code.places()
    for total in totals:
        build.store(code.constant(float("-inf")), total)
    with row.each_in_edge() as edge:
        line = row.state("y", pack, code.index_at(code.field("in_sources"), edge))
        for half, total in enumerate(totals):
            value, best = code.load_half(line, half), build.load(total)
            larger = build.fcmp_ordered(">", value, best)
            missing = build.fcmp_unordered("uno", value, value)  # NaN wins, as in PyTorch
            build.store(build.select(build.or_(larger, missing), value, best), total)
    return totals


def _one_over_winners(code: PackedWriter, row: Row, pack: Value) -> list[Value]:
    """1 / (how many operands are the maximum), number by number: equal winners share, as PyTorch documents."""
    build, one = code.build, code.constant(1)
    counts = code.places()
    best = row.state("extremes", pack, row.first_slot)
    with row.each_in_edge() as edge:
        line = row.state("y", pack, code.index_at(code.field("in_sources"), edge))
        for half, count in enumerate(counts):
            wins = build.fcmp_ordered("==", code.load_half(line, half), code.load_half(best, half))
            build.store(build.fadd(build.load(count), build.select(wins, one, code.constant(0))), count)
    return [build.fdiv(one, build.load(count)) for count in counts]


def _one_over_count(code: PackedWriter, row: Row) -> Value:
    count = _number(code, 0.0)
    with row.each_in_edge():
        code.build.store(code.build.fadd(code.build.load(count), code.number_constant(1)), count)
    return code.build.fdiv(code.number_constant(1), code.build.load(count))


def _attend(code: PackedWriter, row: Row) -> None:
    """``edge_weights`` of a row: softmax of its operands' scores."""
    build = code.build
    highest, total = _number(code, float("-inf")), _number(code, 0.0)

    def score(edge: Value) -> Value:
        return code.number_at(code.field("scores"), code.index_at(code.field("in_places"), edge))

    # Relative to the highest score, as in every softmax: e^score alone overflows float32 from 89 on.
    with row.each_in_edge() as edge:
        value, best = score(edge), build.load(highest)
        build.store(build.select(build.fcmp_ordered("<=", value, best), best, value), highest)
    with row.each_in_edge() as edge:
        difference = code.splat(build.fsub(score(edge), build.load(highest)))
        weight = build.extract_element(exp(code, difference), ir.Constant(I32, 0))
        code.store(weight, _edge(code, "edge_weights", edge), code.size)
        build.store(build.fadd(build.load(total), weight), total)
    with row.each_in_edge() as edge:
        weight = code.number_at(code.field("edge_weights"), edge)
        code.store(build.fdiv(weight, build.load(total)), _edge(code, "edge_weights", edge), code.size)


def _weighed(code: PackedWriter, row: Row, pack: Value) -> list[Value]:
    build = code.build
    totals = code.places()
    with row.each_in_edge() as edge:
        weight = code.splat(code.number_at(code.field("edge_weights"), edge))
        line = row.state("y", pack, code.index_at(code.field("in_sources"), edge))
        for half, total in enumerate(totals):
            build.store(code.multiply_add(weight, code.load_half(line, half), build.load(total)), total)
    return totals


def _attention_gradients(code: PackedWriter, row: Row) -> None:
    """``edge_gradients`` of a row: those of its operands' scores, through the softmax: ``a (g - sum a g)``."""
    build = code.build
    mean = _number(code, 0.0)
    with row.each_in_edge() as edge:
        source = code.index_at(code.field("in_sources"), edge)
        (product,) = code.places(1)
        with row.each_pack() as pack:
            gradient, line = row.state("slot_gradients", pack, row.first_slot), row.state("y", pack, source)
            for half in (0, 1):
                term = code.multiply_add(
                    code.load_half(gradient, half), code.load_half(line, half), build.load(product)
                )
                build.store(term, product)
        of_weight = code.sum(build.load(product))
        code.store(of_weight, _edge(code, "edge_gradients", edge), code.size)
        weighed = build.fmul(of_weight, code.number_at(code.field("edge_weights"), edge))
        build.store(build.fadd(build.load(mean), weighed), mean)
    with row.each_in_edge() as edge:
        above = build.fsub(code.number_at(code.field("edge_gradients"), edge), build.load(mean))
        value = build.fmul(above, code.number_at(code.field("edge_weights"), edge))
        code.store(value, _edge(code, "edge_gradients", edge), code.size)


def _edge(code: PackedWriter, field: str, edge: Value) -> Value:
    return code.at(code.field(field), edge, code.size)


def _number(code: PackedWriter, value: float) -> Value:
    """A variable for a number, with a first value."""
    place = code.variable(code.number)
    code.build.store(code.number_constant(value), place)
    return place
