"""Attention to operands, compiled, forward and backward: scores of nodes, their softmax over operands, its gradient.

All of it is about numbers, one for a node or an edge. What cells do with lines of numbers is in `cell_code`, which
reads ``edge_weights``. This is the only way back that is not derived from a formula: through a number that multiplies a
line, a gradient needs a sum over columns, which formulas do not have.
"""

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import exp
from dagnn.kernels.emit.writer import I32, Value
from dagnn.kernels.sweep.node_blocks import Row
from dagnn.kernels.sweep.packed import PackedWriter


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
