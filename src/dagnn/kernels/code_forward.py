"""The forward pass of a tile: for every node in order, gather its parents' rows into registers, activate, store once.

Nothing is done per level and tiles do not know of each other: no barrier, no scatter. What limits the speed is the
cache that the gathered rows come from, so a tile is small enough that its values stay in the second-level cache.
"""

from dagnn.kernels.code_activations import activated
from dagnn.kernels.code_rows import read_rows, write_rows
from dagnn.kernels.code_tiles import Shape, ask_for_row, bias_of, by_activation, is_given
from dagnn.kernels.code_writer import CodeWriter, Value

# Edges in flight times vectors of a row: enough sums side by side to hide the latency of a multiply-add.
_SUMS_IN_FLIGHT = 4
# How many edges ahead rows are asked for where they come from further away than the second-level cache: this took 12 %
# off the pass over 10,000 nodes and 35 % off that over 100,000. From that cache they come by themselves in time: with
# 1,000 nodes, asking cost 10 %.
AHEAD = 16


def write_forward(module: Value, shape: Shape, name: str, *, summed: bool) -> None:
    """The function ``name``: values of nodes ``first .. last - 1`` of every tile that the worker takes.

    Args:
        summed: the sums over the edges lie in the rows already (a matrix product put them there); only add the bias
            and activate. Otherwise gather, over the edges ``in_offsets[v] .. in_offsets[v + 1] - 1``.
    """
    code = shape.writer(module, name)
    code.fields(
        "pieces", "batch", "live_nodes", "first", "last", "values", "slopes", "row_bytes", "tile_bytes", "codes",
        "in_offsets", "in_sources", "weight", "bias", "bias_slots", "x", "num_inputs", "input_rows", "y", "num_outputs",
        "output_rows",
    )  # fmt: skip
    with code.pieces() as tile:
        shift = code.build.mul(tile, code.field("tile_bytes"))
        base, slopes = (code.build.add(code.field(field), shift) for field in ("values", "slopes"))
        with code.build.if_then(is_given(code, "x")):
            x, columns, rows = (code.field(field) for field in ("x", "num_inputs", "input_rows"))
            read_rows(code, tile, base, x, columns, rows, repeat_last=True)
        with code.loop(code.field("first"), code.field("last")) as place:
            node = code.index_at(code.field("live_nodes"), place)
            _write_node(code, shape, base, slopes, node, summed)
        with code.build.if_then(is_given(code, "y")):
            write_rows(code, tile, base, code.field("y"), code.field("num_outputs"), code.field("output_rows"))
    code.finish()


def _write_node(code: CodeWriter, shape: Shape, base: Value, slopes: Value, node: Value, summed: bool) -> None:
    row = shape.row(code, base, node)
    bias = code.splat(bias_of(code, node))
    if summed:
        z = [code.build.fadd(code.load_vector(address), bias) for address in row]
    else:
        z = _gathered(code, shape, base, node, bias)

    def activate(name: str) -> None:
        for k in range(shape.vectors):
            y, slope = activated(code, name, z[k])
            code.store_vector(y, row[k])
            if slope is not None:
                with code.build.if_then(is_given(code, "slopes")):
                    code.store_vector(slope, shape.row(code, slopes, node)[k])

    by_activation(code, shape, code.byte_at(code.field("codes"), node), activate)


def _gathered(code: CodeWriter, shape: Shape, base: Value, node: Value, bias: Value) -> list[Value]:
    """bias + the sum over the node's edges of weight times the row of the source: one value per vector."""
    build = code.build
    unroll = max(1, _SUMS_IN_FLIGHT // shape.vectors)
    sums = [[code.variable(code.vector) for _ in range(shape.vectors)] for _ in range(unroll)]
    for number, of_edge in enumerate(sums):
        for place in of_edge:
            build.store(bias if number == 0 else code.constant(0), place)

    def add(edge: Value, into: list[Value]) -> None:
        weight = code.splat(code.load(code.at(code.field("weight"), edge, shape.size), code.number))
        source = code.index_at(code.field("in_sources"), edge)
        if shape.far:
            ask_for_row(code, shape, base, "in_sources", edge, AHEAD)
        for place, address in zip(into, shape.row(code, base, source), strict=True):
            build.store(code.multiply_add(weight, code.load_vector(address), build.load(place)), place)

    start = code.offset_at(code.field("in_offsets"), node)
    stop = code.offset_at(code.field("in_offsets"), build.add(node, code.i64(1)))
    rest = start
    if unroll > 1:
        count = build.sub(stop, start)
        rest = build.add(start, build.and_(count, code.i64(-unroll)))  # a power of two
        with code.loop(start, rest, unroll) as edge:
            for number, of_edge in enumerate(sums):
                add(build.add(edge, code.i64(number)), of_edge)
    with code.loop(rest, stop) as edge:
        add(edge, sums[0])

    result = []
    for k in range(shape.vectors):
        value = build.load(sums[0][k])
        for of_edge in sums[1:]:
            value = build.fadd(value, build.load(of_edge[k]))
        result.append(value)
    return result
