"""The compiled forward pass of a tile: rows in and out of the batch, then every node in order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import activated
from dagnn.kernels.emit.writer import I64, CodeWriter, Value
from dagnn.kernels.network import Shape
from dagnn.kernels.network.aggregation import SCALED, by_aggregation, messages, scale_of, write_aggregate

# Edges in flight times vectors of a row: enough sums side by side to hide the latency of a multiply-add.
_SUMS_IN_FLIGHT = 4
# How many edges ahead rows are prefetched where they come from beyond the second-level cache: this took 12 %
# off the pass over 10,000 nodes and 35 % off that over 100,000. From that cache they come in time by themselves: with
# 1,000 nodes, prefetching cost 10 %.
AHEAD = 16
# How far ahead rows of the batch are prefetched, where nodes do not stay in that cache. A tile reads up to 64 rows of x
# side by side, more than the processor's own prefetcher follows: this took a fifth to a third off a pass over 14,628
# nodes, 11,876 of them inputs, whose x comes from the third-level cache.
_BYTES_AHEAD = 256


def write_forward(module: Value, shape: Shape, name: str, *, summed: bool) -> None:
    """The function ``name``: values of nodes ``first .. last - 1`` of every tile that the worker takes.

    ``summed``: the sums over the edges lie in the rows already (a matrix product put them there); only add the bias and
    activate. Otherwise gather, over the edges ``in_offsets[v] .. in_offsets[v + 1] - 1``.
    """
    code = shape.writer(module, name)
    code.fields(
        "pieces", "batch", "live_nodes", "first", "last", "values", "slopes", "row_bytes", "tile_bytes", "codes",
        "in_offsets", "in_sources", "weight", "bias", "bias_index", "x", "chosen", "num_inputs", "input_rows", "y",
        "num_outputs", "output_rows", *(("kinds", "scales") if shape.aggregations else ()),
    )  # fmt: skip
    with code.pieces() as tile:
        shift = code.build.mul(tile, code.field("tile_bytes"))
        base, slopes = (code.build.add(code.field(field), shift) for field in ("values", "slopes"))
        with code.build.if_then(is_given(code, "x")):
            x, columns, rows = (code.field(field) for field in ("x", "num_inputs", "input_rows"))
            read_rows(code, tile, base, x, columns, rows, code.field("chosen"), repeat_last=True)
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
    elif shape.aggregations:
        z = _aggregated(code, shape, base, node, bias)
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
    # Several edges at a time, each into sums of its own: one sum would wait for every multiply-add before the next.
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


def _aggregated(code: CodeWriter, shape: Shape, base: Value, node: Value, bias: Value) -> list[Value]:
    """bias + scale times the aggregate of the node's messages: one value per vector."""
    build = code.build
    places = [code.variable(code.vector) for _ in range(shape.vectors)]

    def compute(name: str | None) -> None:
        if name is None:
            z = _gathered(code, shape, base, node, bias)
        elif name == SCALED:
            scale = scale_of(code, node)
            z = [code.multiply_add(scale, y, bias) for y in _gathered(code, shape, base, node, code.constant(0))]
        else:
            scale = scale_of(code, node)
            found = write_aggregate(code, name, node, shape.vectors, partial(messages, code, shape, base))
            z = [code.multiply_add(scale, value, bias) for value in found]
        for place, value in zip(places, z, strict=True):
            build.store(value, place)

    by_aggregation(code, shape, node, compute)
    return [build.load(place) for place in places]


def ask_for_row(code: CodeWriter, shape: Shape, base: Value, nodes: str, edge: Value, ahead: int) -> None:
    """Prefetch the row of the node at the other end of a later edge.

    ``nodes``: these nodes, by edge; the array must have ``ahead`` more entries than there are edges.
    """
    later = code.index_at(code.field(nodes), code.build.add(edge, code.i64(ahead)))
    code.prefetch(shape.row_start(code, base, later), shape.tile * shape.size)


def by_activation(
    code: CodeWriter,
    shape: Shape,
    activation: Value,
    case: Callable[[str], None],
    otherwise: Callable[[], None] | None = None,
) -> None:
    """``case(name)`` for the code of an activation; ``otherwise`` for an input."""
    code.switch(activation, shape.activations, case, otherwise)


def bias_of(code: CodeWriter, node: Value) -> Value:
    """The bias of a node; 0 where it has none."""
    build = code.build
    index = code.index_at(code.field("bias_index"), node)
    # A select of addresses and one load: no branch for every node, and nothing in front of the array is read.
    none = build.icmp_signed("<", index, code.i64(0))
    nothing = code.variable(code.number)
    code.build.store(ir.Constant(code.number, 0.0), nothing)
    place = code.at(code.field("bias"), index, code.size)
    return code.load(build.select(none, build.ptrtoint(nothing, place.type), place), code.number)


def is_given(code: CodeWriter, name: str) -> Value:
    """Whether an entry of the frame is not 0."""
    return code.build.icmp_signed("!=", code.field(name), code.i64(0))


_ARGUMENTS = ("tile", "base", "matrix", "columns", "rows", "chosen", "batch", "row_bytes", "repeat_last")


def write_read_rows(module: Value, shape: Shape) -> None:
    """The function behind `read_rows`."""
    code, part = _opened(module, shape, "read_rows")
    build, batch = code.build, part["batch"]
    last, repeats = build.sub(batch, code.i64(1)), build.icmp_signed("!=", part["repeat_last"], code.i64(0))
    zero = ir.Constant(code.number, 0.0)
    # Where the row of every lane begins, once: squares only add their column.
    starts = build.ptrtoint(code.variable(ir.ArrayType(I64, shape.tile)), I64)
    own = code.variable(I64)
    is_chosen = build.icmp_signed("!=", part["chosen"], code.i64(0))
    with code.loop(code.i64(0), code.i64(shape.tile)) as lane:
        sample = build.add(part["first_sample"], lane)
        # Behind the end of the batch there may be no memory: those lanes read the last sample.
        sample = build.select(build.icmp_signed("<", sample, batch), sample, last)
        build.store(sample, own)
        row = build.select(is_chosen, code.at(part["chosen"], sample, 8), build.ptrtoint(own, I64))
        code.store(code.offset(part["matrix"], part["stride"], code.load(row, I64)), code.at(starts, lane, 8))
    # Square by square, transposed in registers: number by number, every load would be a cache line of its own.
    with _squares(code, shape, part) as (column, first_lane):
        rows = []
        for number in range(shape.lanes):
            sample = _sample(code, part, first_lane, number)
            inside = build.icmp_signed("<", sample, batch)
            place = code.at(code.offset_at(starts, build.add(first_lane, code.i64(number))), column, shape.size)
            if shape.far:
                code.prefetch(build.add(place, code.i64(_BYTES_AHEAD)), 1)
            vector = code.load(place, code.vector, shape.size)
            rows.append(build.select(build.or_(inside, repeats), vector, code.constant(0)))
        for number, vector in enumerate(code.transposed(rows)):
            row = _row(code, part, build.add(column, code.i64(number)))
            code.store_vector(vector, code.at(row, first_lane, shape.size))
    with (
        code.loop(part["squares_end"], part["columns"]) as column,
        code.loop(code.i64(0), code.i64(shape.tile)) as lane,
    ):
        sample = build.add(part["first_sample"], lane)
        inside = build.icmp_signed("<", sample, batch)
        value = code.load(code.at(code.offset_at(starts, lane), column, shape.size), code.number)
        value = build.select(build.or_(inside, repeats), value, zero)
        code.store(value, code.at(_row(code, part, column), lane, shape.size))
    code.finish()


def write_write_rows(module: Value, shape: Shape) -> None:
    """The function behind `write_rows`."""
    code, part = _opened(module, shape, "write_rows")
    build, batch = code.build, part["batch"]
    # Samples behind the end of the batch go to a vector that nobody reads: no branch for each of them.
    nowhere = build.ptrtoint(code.variable(code.vector), I64)
    with _squares(code, shape, part) as (column, first_lane):
        columns = []
        for number in range(shape.lanes):
            row = _row(code, part, build.add(column, code.i64(number)))
            columns.append(code.load_vector(code.at(row, first_lane, shape.size)))
        for number, vector in enumerate(code.transposed(columns)):
            sample = _sample(code, part, first_lane, number)
            address = code.at(code.offset(part["matrix"], part["stride"], sample), column, shape.size)
            inside = build.icmp_signed("<", sample, batch)
            code.store(vector, build.select(inside, address, nowhere), shape.size)
    left = build.sub(batch, part["first_sample"])
    samples = build.select(build.icmp_signed("<", left, code.i64(shape.tile)), left, code.i64(shape.tile))
    with code.loop(part["squares_end"], part["columns"]) as column, code.loop(code.i64(0), samples) as lane:
        value = code.load(code.at(_row(code, part, column), lane, shape.size), code.number)
        address = code.offset(part["matrix"], part["stride"], build.add(part["first_sample"], lane))
        code.store(value, code.at(address, column, shape.size))
    code.finish()


def read_rows(
    code: CodeWriter,
    tile: Value,
    base: Value,
    matrix: Value,
    columns: Value,
    rows: Value,
    chosen: Value,
    *,
    repeat_last: bool,
) -> None:
    """Columns of a matrix ``[batch, columns]`` become rows of a tile that starts at ``base``.

    ``chosen`` is the address of the int64 numbers of the batch's rows in a longer matrix, or 0.

    Lanes behind the end of the batch repeat the last sample, so that they overflow only where it does; or they are 0,
    as gradients must be, since sums run over all lanes.
    """
    given = (chosen, code.field("batch"), code.field("row_bytes"), code.i64(int(repeat_last)))
    code.build.call(code.module.globals["read_rows"], [tile, base, matrix, columns, rows, *given])


def write_rows(code: CodeWriter, tile: Value, base: Value, matrix: Value, columns: Value, rows: Value) -> None:
    """The inverse of `read_rows`: rows of a tile become columns of a matrix."""
    given = (code.i64(0), code.field("batch"), code.field("row_bytes"), code.i64(0))
    code.build.call(code.module.globals["write_rows"], [tile, base, matrix, columns, rows, *given])


def _opened(module: Value, shape: Shape, name: str) -> tuple[CodeWriter, dict[str, Value]]:
    """The beginning of both functions: arguments by name, and what follows from them."""
    code = shape.writer(module, name, len(_ARGUMENTS))
    part = dict(zip(_ARGUMENTS, code.arguments, strict=True))
    part["first_sample"] = code.build.mul(part["tile"], code.i64(shape.tile))
    part["stride"] = code.build.mul(part["columns"], code.i64(shape.size))
    part["squares_end"] = code.build.and_(part["columns"], code.i64(-shape.lanes))
    return code, part


@contextmanager
def _squares(code: CodeWriter, shape: Shape, part: dict[str, Value]) -> Iterator[tuple[Value, Value]]:
    """Code that runs for each square of a tile: its first column, and the first of its lanes in the tile."""
    with (
        code.loop(code.i64(0), part["squares_end"], shape.lanes) as column,
        code.loop(code.i64(0), code.i64(shape.tile), shape.lanes) as first_lane,
    ):
        yield column, first_lane


def _sample(code: CodeWriter, part: dict[str, Value], first_lane: Value, number: int) -> Value:
    """The sample that lies ``number`` lanes behind ``first_lane``."""
    return code.build.add(part["first_sample"], code.build.add(first_lane, code.i64(number)))


def _row(code: CodeWriter, part: dict[str, Value], column: Value) -> Value:
    """The address of the row that belongs to a column."""
    return code.offset(part["base"], part["row_bytes"], code.index_at(part["rows"], column))
