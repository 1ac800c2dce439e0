"""What a node of a GRU sweep hears from its operands, and how the gradient finds its way back to them."""

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.code_math import exp
from dagnn.kernels.code_panels import PanelWriter
from dagnn.kernels.code_sweep import Row
from dagnn.kernels.code_tree_lstm import summed_sources
from dagnn.kernels.code_writer import I32, Value


def hear(code: PanelWriter, row: Row, how: str) -> None:
    """``operands`` of a row: the sum, mean or maximum of the outputs of its operands, or weighed by attention."""
    build, zero = code.build, code.i64(0)
    if how == "attention":
        _attend(code, row)
    share = code.splat(_one_over_count(code, row)) if how == "mean" else None
    with row.each_panel() as panel:
        if how == "max":
            totals = _largest(code, row, panel)
        elif how == "attention":
            totals = _weighed(code, row, panel)
        else:
            totals = summed_sources(code, row, zero, panel, "y")
        for half, total in enumerate(totals):
            value = build.load(total)
            if share is not None:
                value = build.fmul(value, share)
            code.store_half(value, row.tile.operand(zero, panel, row.row), half)
            if how == "max":
                code.store_half(value, row.state("extremes", panel, row.first_slot), half)


def let_hear(code: PanelWriter, row: Row, how: str) -> None:
    """Prepares the ``slot_gradients`` of a row for its operands: each takes its share when its turn comes."""
    if how == "attention":
        _attention_gradients(code, row)
    if how in ("sum", "attention"):
        return
    share = code.splat(_one_over_count(code, row)) if how == "mean" else None
    with row.each_panel() as panel:
        place = row.state("slot_gradients", panel, row.first_slot)
        shares = [share, share] if share is not None else _one_over_winners(code, row, panel)
        for half, factor in enumerate(shares):
            code.store_half(code.build.fmul(code.load_half(place, half), factor), place, half)


def score_node(code: PanelWriter, row: Row) -> None:
    """``scores`` of a node, for those that will hear it: ``w h``."""
    build = code.build
    (total,) = code.places(1)
    with row.each_panel() as panel:
        for half in (0, 1):
            weight = code.load_half(code.line(code.field("score_weight"), panel), half)
            h = code.load_half(row.state("y", panel), half)
            build.store(code.multiply_add(weight, h, build.load(total)), total)
    code.store(code.sum(build.load(total)), code.at(code.field("scores"), row.place, code.size), code.size)


def shared_gradient(code: PanelWriter, row: Row) -> Value:
    """The gradient of the node's score, in every lane; also written to ``score_gradients``."""
    build = code.build
    total = _number(code, 0.0)
    with row.each_out_edge() as edge:
        number = code.index_at(code.field("out_edges"), edge)
        build.store(build.fadd(build.load(total), code.number_at(code.field("edge_gradients"), number)), total)
    value = build.load(total)
    code.store(value, code.at(code.field("score_gradients"), row.node, code.size), code.size)
    return code.splat(value)


def _largest(code: PanelWriter, row: Row, panel: Value) -> list[Value]:
    build = code.build
    totals = code.places()
    for total in totals:
        build.store(code.constant(float("-inf")), total)
    with row.each_in_edge() as edge:
        line = row.state("y", panel, code.index_at(code.field("in_sources"), edge))
        for half, total in enumerate(totals):
            value, best = code.load_half(line, half), build.load(total)
            larger = build.fcmp_ordered(">", value, best)
            missing = build.fcmp_unordered("uno", value, value)  # NaN wins, as in PyTorch
            build.store(build.select(build.or_(larger, missing), value, best), total)
    return totals


def _one_over_winners(code: PanelWriter, row: Row, panel: Value) -> list[Value]:
    """1 / (how many operands are the maximum), number by number: equal winners share, as PyTorch documents."""
    build, one = code.build, code.constant(1)
    counts = code.places()
    best = row.state("extremes", panel, row.first_slot)
    with row.each_in_edge() as edge:
        line = row.state("y", panel, code.index_at(code.field("in_sources"), edge))
        for half, count in enumerate(counts):
            wins = build.fcmp_ordered("==", code.load_half(line, half), code.load_half(best, half))
            build.store(build.fadd(build.load(count), build.select(wins, one, code.constant(0))), count)
    return [build.fdiv(one, build.load(count)) for count in counts]


def _one_over_count(code: PanelWriter, row: Row) -> Value:
    count = _number(code, 0.0)
    with row.each_in_edge():
        code.build.store(code.build.fadd(code.build.load(count), code.number_constant(1)), count)
    return code.build.fdiv(code.number_constant(1), code.build.load(count))


def _attend(code: PanelWriter, row: Row) -> None:
    """``edge_weights`` of a row: softmax of its operands' scores."""
    build = code.build
    highest, total = _number(code, float("-inf")), _number(code, 0.0)

    def score(edge: Value) -> Value:
        return code.number_at(code.field("scores"), code.index_at(code.field("in_places"), edge))

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


def _weighed(code: PanelWriter, row: Row, panel: Value) -> list[Value]:
    build = code.build
    totals = code.places()
    with row.each_in_edge() as edge:
        weight = code.splat(code.number_at(code.field("edge_weights"), edge))
        line = row.state("y", panel, code.index_at(code.field("in_sources"), edge))
        for half, total in enumerate(totals):
            build.store(code.multiply_add(weight, code.load_half(line, half), build.load(total)), total)
    return totals


def _attention_gradients(code: PanelWriter, row: Row) -> None:
    """``edge_gradients`` of a row: those of its operands' scores, through the softmax."""
    build = code.build
    mean = _number(code, 0.0)
    with row.each_in_edge() as edge:
        source = code.index_at(code.field("in_sources"), edge)
        (product,) = code.places(1)
        with row.each_panel() as panel:
            gradient, line = row.state("slot_gradients", panel, row.first_slot), row.state("y", panel, source)
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


def _edge(code: PanelWriter, field: str, edge: Value) -> Value:
    return code.at(code.field(field), edge, code.size)


def _number(code: PanelWriter, value: float) -> Value:
    """A variable for a number, with a first value."""
    place = code.variable(code.number)
    code.build.store(code.number_constant(value), place)
    return place
