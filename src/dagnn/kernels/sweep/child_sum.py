"""The child-sum TreeLSTM, forward and backward: a forget gate for every edge, one product for every node.

A node's message to the forget gates of the nodes that use it, ``U_f h``, is the same for all of them: it is computed
once, with the node, and not for every edge. Gates of a row, in packs: i, o, u, the gradient of the features' part of
the forget gates (on the way back only), tanh(c).
"""

from dagnn.kernels.emit.functions import sigmoid
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.sweep.node_blocks import FIELDS, GateRows, NodeBlock, each_block
from dagnn.kernels.sweep.packed import PRODUCT, PackedLayout, PackedWriter, call
from dagnn.kernels.sweep.tree_lstm import aggregate_operands, input_cells, input_gradients, lstm_output, wants_projected

GATES = GateRows(fixed=5, per_slot=0)
FORGET = GateRows(fixed=1, per_slot=0)
_F, _SQUASHED = 3, 4


def write_forward(module: Value, layout: PackedLayout, name: str) -> None:
    """The function ``name``: ``y`` and ``states`` of all nodes, and what the way back reads."""
    code = PackedWriter(module, layout, name)
    code.fields(
        *FIELDS, "num_nodes", "projected", "weight", "weight_pack", "forget_weight", "states", "y", "in_places",
        "hidden", "forget_products", "edge_gates",
    )  # fmt: skip
    with each_block(code, GATES) as block:
        with code.build.if_then(block.has_operands):
            aggregate_operands(code, block)
            block.forward_product("product", "weight", code.i64(3), code.field("packs"))
        _gates(code, block)
        _forget_product(code, block, "product", "hidden", "forget_weight", "forget_products")
    code.finish()


def _gates(code: PackedWriter, block: NodeBlock) -> None:
    build = code.build
    with block.each_row() as row, row.each_pack() as pack:
        cells, outs = input_cells(code, row, pack)
        with row.each_slot() as slot, row.each_in_edge(slot) as edge:
            message = row.state("forget_products", pack, code.index_at(code.field("in_places"), edge))
            kept = row.state("states", pack, code.index_at(code.field("in_sources"), edge))
            for half, cell in enumerate(cells):
                own = code.load_half(row.projected(_F, pack), half)
                f = sigmoid(code, build.fadd(own, code.load_half(message, half)))
                # An edge belongs to one node, and so to one block: nobody else writes to its gate.
                code.store_half(f, row.state("edge_gates", pack, edge), half)
                build.store(code.multiply_add(f, code.load_half(kept, half), build.load(cell)), cell)
        for half, cell in enumerate(cells):
            h = lstm_output(code, row, pack, half, outs[half], build.load(cell), code.i64(_SQUASHED))
            # A second time, pack by pack: the product that follows reads neighbouring lines, which ``y`` does not have.
            code.store_half(h, _by_place(code, "hidden", pack, row.place), half)


def write_backward(module: Value, layout: PackedLayout, name: str) -> None:
    """The function ``name``: writes the gates' gradients over the gates, and ``grad_projected`` where it is given.

    ``slot_gradients`` and ``slot_states`` hold the gradients of the summed outputs and of c, for the operands to fetch.
    """
    code = PackedWriter(module, layout, name)
    code.fields(
        *FIELDS, "num_nodes", "back_weight", "back_weight_pack", "back_forget_weight", "states", "grad_y",
        "slot_gradients", "slot_states", "grad_projected", "out_edges", "edge_gates", "forget_gradients",
        "hidden_gradients", "state_gradients",
    )  # fmt: skip
    with each_block(code, GATES, back=True) as block:
        # In this order: the gradient of h needs the message's, through its product, before the gates can use it.
        _fetch(code, block)
        _forget_product(code, block, "product_added", "forget_gradients", "back_forget_weight", "hidden_gradients")
        _gate_gradients(code, block)
        with code.build.if_then(block.has_operands):
            first_slot = code.index_at(code.field("first_slots"), block.first)
            out = code.offset(code.field("slot_gradients"), code.field("state_bytes"), first_slot)
            block.backward_product("product", "back_weight", code.i64(3), out)
    code.finish()


def _fetch(code: PackedWriter, block: NodeBlock) -> None:
    """Gathers what the users of each node left for it: the gradients of h, of c and of its message."""
    build, one = code.build, code.constant(1)
    with block.each_row() as row, row.each_pack() as pack:
        of_h, of_c, of_message = code.places(), code.places(), code.places()
        for half, place in enumerate(of_h):
            build.store(code.load_half(row.state("grad_y", pack), half), place)
        with row.each_out_edge() as edge:
            slot = code.index_at(code.field("out_index"), edge)
            gate = row.state("edge_gates", pack, code.index_at(code.field("out_edges"), edge))
            for half in (0, 1):
                of_aggregate = code.load_half(row.state("slot_gradients", pack, slot), half)
                build.store(build.fadd(build.load(of_h[half]), of_aggregate), of_h[half])
                f = code.load_half(gate, half)
                passed = build.fmul(code.load_half(row.state("slot_states", pack, slot), half), f)
                build.store(build.fadd(build.load(of_c[half]), passed), of_c[half])
                # passed (1 - f) c is the gradient before the gate; c is the node's own and multiplies the sum, below.
                total = code.multiply_add(passed, build.fsub(one, f), build.load(of_message[half]))
                build.store(total, of_message[half])
        for half in (0, 1):
            code.store_half(build.load(of_h[half]), row.state("hidden_gradients", pack, row.place), half)
            code.store_half(build.load(of_c[half]), row.state("state_gradients", pack, row.place), half)
            gradient = build.fmul(build.load(of_message[half]), code.load_half(row.state("states", pack), half))
            code.store_half(gradient, _by_place(code, "forget_gradients", pack, row.place), half)


def _gate_gradients(code: PackedWriter, block: NodeBlock) -> None:
    build, one = code.build, code.constant(1)
    with block.each_row() as row, row.each_pack() as pack:
        whole, forgotten = [], code.places()
        for half in (0, 1):
            of_h = code.load_half(row.state("hidden_gradients", pack, row.place), half)
            of_c = code.load_half(row.state("state_gradients", pack, row.place), half)
            whole.append(input_gradients(code, row, pack, half, of_h, of_c, code.i64(_SQUASHED)))
        with row.each_slot() as slot:
            for half, of_c in enumerate(whole):
                code.store_half(of_c, row.state("slot_states", pack, row.first_slot), half)
            with row.each_in_edge(slot) as edge:
                kept = row.state("states", pack, code.index_at(code.field("in_sources"), edge))
                gate = row.state("edge_gates", pack, edge)
                for half, of_c in enumerate(whole):
                    f = code.load_half(gate, half)
                    passed = build.fmul(build.fmul(of_c, f), code.load_half(kept, half))
                    total = code.multiply_add(passed, build.fsub(one, f), build.load(forgotten[half]))
                    build.store(total, forgotten[half])
        for half, total in enumerate(forgotten):
            code.store_half(build.load(total), row.gate(_F, pack), half)
        with build.if_then(wants_projected(code)):
            for half, total in enumerate(forgotten):
                code.store_half(build.load(total), row.projected(_F, pack, "grad_projected"), half)


def _forget_product(code: PackedWriter, block: NodeBlock, name: str, left: str, right: str, out: str) -> None:
    """The block's rows of ``out``, row-major by place: (``+``)= ``left @ right``."""
    # By place, not by node: the rows of a block are then neighbours, as a product needs them.
    zero, packs = code.i64(0), code.field("packs")
    rows_of_weight = code.build.mul(packs, code.i64(code.layout.width))
    call(
        code,
        name,
        PRODUCT,
        left=_by_place(code, left, zero, block.first),
        left_pack=code.at(zero, code.field("num_nodes"), code.layout.line),
        left_packs=packs,
        right=code.field(right),
        right_pack=code.at(zero, rows_of_weight, code.layout.line),
        right_packs=packs,
        out=code.offset(code.field(out), code.field("state_bytes"), block.first),
        out_row=code.field("state_bytes"),
        out_pack=code.i64(code.layout.line),
        rows=block.rows,
        width=code.field("width"),
    )


def _by_place(code: PackedWriter, field: str, pack: Value, place: Value) -> Value:
    """The line of a matrix in packs that has a row for every place."""
    rows = code.build.mul(pack, code.field("num_nodes"))
    return code.at(code.field(field), code.build.add(rows, place), code.layout.line)
