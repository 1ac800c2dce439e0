"""Compiled passes over the edges before and after the backward pass of the tiles."""

from dagnn.kernels.code_descent import descend
from dagnn.kernels.code_tiles import Shape, is_given
from dagnn.kernels.code_writer import CodeWriter, Value


def write_gather(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: the weights in the order of the edges by source, ``out_weight[e] = weight[slot]``."""
    code = shape.writer(module, name)
    code.fields("pieces", "num_edges", "weight", "out_weight", "out_slots")
    with code.pieces() as piece:
        start, stop = _range(code, piece)
        with code.loop(start, stop) as edge:
            slot = code.index_at(code.field("out_slots"), edge)
            weight = code.load(code.at(code.field("weight"), slot, code.size), code.number)
            code.store(weight, code.at(code.field("out_weight"), edge, code.size))
    code.finish()


def write_finish(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: the sums of all pieces, in order, go to the gradients, and from there into the weights.

    ``accumulate`` adds to what the gradients hold; ``descend`` then takes a step of plain gradient descent.
    """
    code = shape.writer(module, name)
    build = code.build
    code.fields(
        "pieces", "num_nodes", "num_edges", "edge_sums", "node_sums", "num_sums", "out_slots", "weight", "bias",
        "live_bias_slots", "grad_weight", "grad_bias", "accumulate", "descend", "lr",
    )  # fmt: skip
    with code.pieces() as piece:
        start, stop = _range(code, piece)
        vectors_end = build.add(start, build.and_(build.sub(stop, start), code.i64(-shape.lanes)))
        # First the sums, vector by vector, in place; then their delivery, number by number.
        for first, end, step, kind in (
            (start, vectors_end, shape.lanes, code.vector),
            (vectors_end, stop, 1, code.number),
        ):
            with code.loop(first, end, step) as edge:
                total = _total(code, "edge_sums", "num_edges", edge, kind)
                code.store(total, code.at(code.field("edge_sums"), edge, code.size), code.size)
        with code.loop(start, stop) as edge:
            slot = code.index_at(code.field("out_slots"), edge)
            total = code.load(code.at(code.field("edge_sums"), edge, code.size), code.number)
            _deliver(code, total, "grad_weight", "weight", slot)
        with (
            build.if_then(build.icmp_signed("==", piece, code.i64(0))),
            build.if_then(is_given(code, "grad_bias")),
            code.loop(code.i64(0), code.field("num_nodes")) as node,
        ):
            slot = code.index_at(code.field("live_bias_slots"), node)
            with build.if_then(build.icmp_signed(">=", slot, code.i64(0))):
                total = _total(code, "node_sums", "num_nodes", node, code.number)
                _deliver(code, total, "grad_bias", "bias", slot)
    code.finish()


def _range(code: CodeWriter, piece: Value) -> tuple[Value, Value]:
    """The edges of a piece: an equal share of them, next to each other."""
    build, count, pieces = code.build, code.field("num_edges"), code.field("pieces")
    start = build.sdiv(build.mul(piece, count), pieces)
    return start, build.sdiv(build.mul(build.add(piece, code.i64(1)), count), pieces)


def _total(code: CodeWriter, sums: str, length: str, index: Value, kind: Value) -> Value:
    """``sums[0][index] + sums[1][index] + ...``, in this order."""
    build = code.build
    first = code.at(code.field(sums), index, code.size)
    stride = build.mul(code.field(length), code.i64(code.size))
    total = code.variable(kind)
    build.store(code.load(first, kind, code.size), total)
    with code.loop(code.i64(1), code.field("num_sums")) as number:
        more = code.load(code.offset(first, stride, number), kind, code.size)
        build.store(build.fadd(build.load(total), more), total)
    return build.load(total)


def _deliver(code: CodeWriter, value: Value, gradient: str, parameter: str, slot: Value) -> None:
    build = code.build
    address = code.at(code.field(gradient), slot, code.size)
    before = code.load(address, code.number)
    value = build.select(is_given(code, "accumulate"), build.fadd(before, value), value)
    code.store(value, address)
    with build.if_then(is_given(code, "descend")):
        descend(code, value, code.at(code.field(parameter), slot, code.size))
