"""Sums that a sweep compiles beside the formula of its cell: over all nodes; and attention, weighted over operands.

**Over all nodes**: gradients of weights, of a table of projected features and of a bias.
The work is divided by what is summed into: every sum has one worker, which takes the nodes in order. So no two workers
add to one place, and the bits do not depend on the number of threads.

**Attention**, forward and backward: scores of nodes, their softmax over operands, its gradient.
All of it is about numbers, one for a node or an edge. What cells do with lines of numbers is in `cell_code`, which
reads ``edge_weights``. This is the only way back that is not derived from a formula: through a number that multiplies a
line, a gradient needs a sum over columns, which formulas do not have.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import exp, sgd_step
from dagnn.kernels.emit.writer import I32, Value
from dagnn.kernels.network.forward import is_given
from dagnn.kernels.sweep.node_blocks import FIELDS, GateRows, NodeBlock, Row
from dagnn.kernels.sweep.packed import OUTER, PackedLayout, PackedWriter, call
from dagnn.kernels.sweep.plan import CLASS_FIELDS

# Packs of a weight's rows and columns in one piece of work, and nodes that go through it at a time: the lines of
# those nodes stay in the first- and second-level caches, whatever the number of nodes.
LEFT_PART, RIGHT_PART = 4, 8
_NODES = 128
_FEW_NODES = 32  # that are summed before their sum is added to that of all


def write_weight(module: Value, layout: PackedLayout, name: str, gates: GateRows, columns: int) -> None:
    """The function ``name``: ``grad_weight += operands.T @ gradients``, and with ``takes_step`` a step of ``weight``.

    The gradients are those of the first ``columns + slots * per_slot`` gates.
    A piece is a part of the matrix of one operator; ``grad_weight [operators, rows, columns]`` is row-major.
    """
    code = PackedWriter(module, layout, name)
    code.fields(
        "pieces", "class_table", "class_first", "packs", "operands", "gates", "grad_weight", "weight_stride",
        "left_packs", "right_packs", "left_parts", "right_parts", "weight", "takes_step", "lr",
    )  # fmt: skip
    build, zero, one = code.build, code.i64(0), code.i64(1)
    row_bytes = code.at(zero, code.field("packs"), layout.line)
    out_row = code.at(zero, code.field("right_packs"), layout.line)
    parts = build.mul(code.field("left_parts"), code.field("right_parts"))
    with code.pieces() as piece:
        operator, part = build.sdiv(piece, parts), build.srem(piece, parts)
        left_first = build.mul(build.sdiv(part, code.field("right_parts")), code.i64(LEFT_PART))
        right_first = build.mul(build.srem(part, code.field("right_parts")), code.i64(RIGHT_PART))
        gradient = code.offset(code.field("grad_weight"), code.field("weight_stride"), operator)
        first_class = code.offset_at(code.field("class_first"), operator)
        last_class = code.offset_at(code.field("class_first"), build.add(operator, one))
        with code.loop(first_class, last_class) as node_class:
            entry = code.at(code.field("class_table"), node_class, 8 * len(CLASS_FIELDS))
            rows, slots, operand_row, gate_row = (code.offset_at(entry, code.i64(k)) for k in range(4))
            gate_rows = build.add(
                build.mul(gate_row, code.i64(gates.fixed)), build.mul(operand_row, code.i64(gates.per_slot))
            )
            operand_rows = build.mul(operand_row, code.i64(gates.operands))
            left_base = code.offset(code.field("operands"), row_bytes, operand_rows)
            right_base = code.offset(code.field("gates"), row_bytes, gate_rows)
            pack_bytes = code.at(zero, rows, layout.line)
            width = build.add(code.i64(columns), build.mul(slots, code.i64(gates.per_slot)))
            # Classes have different numbers of slots: a part of the matrix may lie behind what this class has.
            lefts = build.mul(build.mul(slots, code.i64(gates.operands)), code.field("packs"))
            left_last = _least(code, build.add(left_first, code.i64(LEFT_PART)), lefts)
            right_last = _least(
                code, build.add(right_first, code.i64(RIGHT_PART)), build.mul(width, code.field("packs"))
            )
            with (
                code.loop(zero, rows, _NODES) as first,
                code.loop(left_first, left_last) as left,
                code.loop(right_first, right_last) as right,
            ):
                out = code.offset(gradient, out_row, build.mul(left, code.i64(layout.width)))
                call(
                    code,
                    "outer",
                    OUTER,
                    left=code.at(code.offset(left_base, pack_bytes, left), first, layout.line),
                    right=code.at(code.offset(right_base, pack_bytes, right), first, layout.line),
                    out=code.line(out, right),
                    out_row=out_row,
                    left_row=code.i64(layout.line),
                    right_row=code.i64(layout.line),
                    rows=_least(code, code.i64(_NODES), build.sub(rows, first)),
                )
        # In the same piece: it alone writes to this part of the gradient, which is complete and still in the caches.
        # Also where no node has an operand: the gradient may hold something from before.
        with build.if_then(is_given(code, "takes_step")):
            lefts = build.add(left_first, code.i64(LEFT_PART)), code.field("left_packs")
            rights = build.add(right_first, code.i64(RIGHT_PART)), code.field("right_packs")
            left_bound, right_bound = _least(code, *lefts), _least(code, *rights)
            moved = code.offset(code.field("weight"), code.field("weight_stride"), operator)
            width = code.i64(layout.width)
            with (
                code.loop(build.mul(left_first, width), build.mul(left_bound, width)) as row,
                code.loop(right_first, right_bound) as right,
            ):
                sums, weights = (code.line(code.offset(base, out_row, row), right) for base in (gradient, moved))
                for half in (0, 1):
                    sgd_step(code, code.load_half(sums, half), code.half(weights, half))
    code.finish()


def write_table(
    module: Value, layout: PackedLayout, name: str, gates: GateRows, columns: Sequence[Callable[..., Value]]
) -> None:
    """The function ``name``: ``grad_projected[feature row of a node] += `` its gradients, for all nodes in order.

    A piece is one pack of the table: nodes that share a row of features are never added by two workers. For each column
    of the table, one of ``columns`` gives the number of its gate, from the code and the block.
    """
    code = PackedWriter(module, layout, name)
    code.fields(*FIELDS, "grad_projected", "num_blocks")
    build = code.build
    with code.pieces() as piece:
        column, pack = build.sdiv(piece, code.field("packs")), build.srem(piece, code.field("packs"))
        place = code.line(code.field("grad_projected"), piece)
        for number, gate in enumerate(columns):
            with (
                build.if_then(build.icmp_signed("==", column, code.i64(number))),
                code.loop(code.i64(0), code.field("num_blocks")) as index,
            ):
                block = NodeBlock(code, index, gates)
                with block.each_row() as row:
                    feature = code.index_at(code.field("feature_rows"), row.place)
                    into = code.offset(place, code.field("projected_bytes"), feature)
                    line = row.gate(gate(code, block), pack)
                    for half in (0, 1):
                        code.add_to_half(code.load_half(line, half), into, half)
    code.finish()


def write_bias(
    module: Value, layout: PackedLayout, name: str, gates: GateRows, vectors: Sequence[Callable[..., Value]]
) -> None:
    """The function ``name``: ``grad_bias = `` the sum over all nodes of a gate, that of the vector ``first``.

    A piece is one pack of it.
    """
    code = PackedWriter(module, layout, name)
    code.fields(*FIELDS, "grad_bias", "num_blocks", "first")
    build = code.build
    with code.pieces() as pack:
        for number, gate in enumerate(vectors):
            with build.if_then(build.icmp_signed("==", code.field("first"), code.i64(number))):
                totals, parts, errors = code.places(), code.places(), code.places()
                with code.loop(code.i64(0), code.field("num_blocks")) as index:
                    block = NodeBlock(code, index, gates)
                    with block.each_row() as row:
                        line = row.gate(gate(code, block), pack)
                        for half, part in enumerate(parts):
                            build.store(build.fadd(build.load(part), code.load_half(line, half)), part)
                    _move(code, parts, totals, errors)
                for half, total in enumerate(totals):
                    code.store_half(build.load(total), code.line(code.field("grad_bias"), pack), half)
    code.finish()


def write_score(module: Value, layout: PackedLayout, name: str) -> None:
    """The function ``name``: ``grad_score = `` the sum of ``score_gradients[node] * y[node]``. A piece is one pack."""
    code = PackedWriter(module, layout, name)
    code.fields("pieces", "num_nodes", "y", "state_bytes", "score_gradients", "grad_score")
    with code.pieces() as pack:
        totals, parts, errors = code.places(), code.places(), code.places()
        with code.loop(code.i64(0), code.field("num_nodes"), _FEW_NODES) as first:
            last = _least(code, code.build.add(first, code.i64(_FEW_NODES)), code.field("num_nodes"))
            with code.loop(first, last) as node:
                factor = code.splat(code.number_at(code.field("score_gradients"), node))
                line = code.line(code.offset(code.field("y"), code.field("state_bytes"), node), pack)
                for half, part in enumerate(parts):
                    value = code.multiply_add(factor, code.load_half(line, half), code.build.load(part))
                    code.build.store(value, part)
            _move(code, parts, totals, errors)
        for half, total in enumerate(totals):
            code.store_half(code.build.load(total), code.line(code.field("grad_score"), pack), half)
    code.finish()


def _move(code: PackedWriter, parts: Sequence[Value], totals: Sequence[Value], errors: Sequence[Value]) -> None:
    """Add sums over a few nodes to those over all, and start again; what the addition loses, the next one makes good.

    Kahan's summation: the plain one was off by up to twice as much as PyTorch's.
    """
    build = code.build
    for part, total, error in zip(parts, totals, errors, strict=True):
        added, before = build.fsub(build.load(part), build.load(error)), build.load(total)
        after = build.fadd(before, added)
        build.store(build.fsub(build.fsub(after, before), added), error)
        build.store(after, total)
        build.store(code.constant(0), part)


def _least(code: PackedWriter, one: Value, other: Value) -> Value:
    return code.build.select(code.build.icmp_signed("<", one, other), one, other)


def attend(code: PackedWriter, row: Row) -> None:
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


def score_node(code: PackedWriter, row: Row) -> None:
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


def shared_gradient(code: PackedWriter, row: Row) -> Value:
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


def attention_gradients(code: PackedWriter, row: Row) -> None:
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
