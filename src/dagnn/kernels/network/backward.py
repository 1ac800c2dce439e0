"""The compiled backward pass of a tile: every node, in reverse, pulls from its children. No scatter, no atomics."""

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import keeps_slope, sgd_step, through
from dagnn.kernels.emit.writer import I8, I64, CodeWriter, Value
from dagnn.kernels.network import INPUT, Shape
from dagnn.kernels.network.aggregation import SCALED, by_aggregation, scale_of, write_edge_rows
from dagnn.kernels.network.forward import ask_for_row, by_activation, is_given, read_rows, write_rows

# How many edges ahead rows are prefetched. The work on one row fills the processor's window, so that by itself it never
# gets to the loads of the next: this took 14 to 20 % off the pass over 10,000 nodes, whose rows come from the
# third-level cache, and 14 % off that over 1,000.
AHEAD = 8
_BIT = ir.IntType(1)


def write_backward(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: deltas and sums of nodes ``last - 1 .. first`` for the pieces that the worker takes."""
    code = shape.writer(module, name)
    build = code.build
    code.fields(
        "pieces", "tiles_per_piece", "tiles", "batch", "num_nodes", "live_nodes", "first", "last", "values", "slopes",
        "deltas", "row_bytes", "tile_bytes", "delta_tile_bytes", "delta_worker_bytes", "codes", "out_offsets",
        "out_targets", "out_weight", "seeded", "num_edges", "edge_sums", "node_sums", "num_inputs", "input_rows",
        "num_outputs", "output_rows", "grad_y", "grad_x",
        *(("in_offsets", "in_sources", "weight", "kinds", "scales", "edge_rows") if shape.aggregations else ()),
    )  # fmt: skip
    # Without dense blocks, deltas are scratch of a worker and not of a tile: they stay in its caches from tile to tile.
    worker = code.ticket("next_worker")
    own_deltas = code.offset(code.field("deltas"), code.field("delta_worker_bytes"), worker)
    with code.pieces() as piece:
        # Sums go by piece, not by worker: pieces follow from the batch alone, so the bits do not depend on the threads.
        sums = _Sums(code, piece)
        first_tile = build.mul(piece, code.field("tiles_per_piece"))
        end = build.add(first_tile, code.field("tiles_per_piece"))
        end = build.select(build.icmp_signed("<", end, code.field("tiles")), end, code.field("tiles"))
        with code.loop(first_tile, end) as tile:
            sums.is_first = build.icmp_signed("==", tile, first_tile)
            shift = build.mul(tile, code.field("tile_bytes"))
            base, slopes = (build.add(code.field(field), shift) for field in ("values", "slopes"))
            deltas = code.offset(own_deltas, code.field("delta_tile_bytes"), tile)
            with build.if_then(is_given(code, "grad_y")):
                grad_y, columns, rows = (code.field(field) for field in ("grad_y", "num_outputs", "output_rows"))
                read_rows(code, tile, deltas, grad_y, columns, rows, code.i64(0), repeat_last=False)
            with code.loop(code.i64(0), build.sub(code.field("last"), code.field("first"))) as count:
                place = build.sub(build.sub(code.field("last"), code.i64(1)), count)
                node = code.index_at(code.field("live_nodes"), place)
                _write_node(code, shape, base, slopes, deltas, node, sums)
            with build.if_then(is_given(code, "grad_x")):
                grad_x, columns, rows = (code.field(field) for field in ("grad_x", "num_inputs", "input_rows"))
                write_rows(code, tile, deltas, grad_x, columns, rows)
    code.finish()


class _Sums:
    """Where the sums of a piece over its tiles go. The first tile writes them, the others add."""

    def __init__(self, code: CodeWriter, piece: Value) -> None:
        build = code.build
        self._code = code
        edges, nodes = build.mul(piece, code.field("num_edges")), build.mul(piece, code.field("num_nodes"))
        self._of_edges = code.at(code.field("edge_sums"), edges, code.size)
        self._of_nodes = code.at(code.field("node_sums"), nodes, code.size)
        self.is_first: Value = None
        zeros = code.variable(code.vector)
        with build.goto_entry_block():
            code.store(code.constant(0), zeros)
        self._zeros = build.ptrtoint(zeros, I64)

    def add_to_edges(self, edge: Value, value: Value) -> None:
        """``value`` is a number for the edge, or a vector of numbers for it and those after it."""
        self._add(self._code.at(self._of_edges, edge, self._code.size), value)

    def add_to_node(self, node: Value, value: Value) -> None:
        self._add(self._code.at(self._of_nodes, node, self._code.size), value)

    def _add(self, address: Value, value: Value) -> None:
        code, build = self._code, self._code.build
        # The first tile adds to zeros of the cache: the memory behind ``address`` would be read for nothing.
        before = code.load(build.select(self.is_first, self._zeros, address), value.type, code.size)
        code.store(build.fadd(before, value), address, code.size)


def _write_node(
    code: CodeWriter, shape: Shape, base: Value, slopes: Value, deltas: Value, node: Value, sums: _Sums
) -> None:
    build = code.build
    row = [code.load_vector(address) for address in shape.row(code, base, node)]
    if not shape.skips_inputs:
        _write_whole_node(code, shape, base, slopes, deltas, node, row, sums)
        return
    is_input = build.icmp_signed("==", code.byte_at(code.field("codes"), node), ir.Constant(I8, INPUT))
    is_unread = build.icmp_signed("==", code.field("grad_x"), code.i64(0))
    with build.if_else(build.and_(is_input, is_unread)) as (alone, whole):
        with alone:  # nobody asks for the gradient of the node itself
            _pull(code, shape, deltas, node, row, None, sums)
        with whole:
            _write_whole_node(code, shape, base, slopes, deltas, node, row, sums)


def _write_whole_node(
    code: CodeWriter,
    shape: Shape,
    base: Value,
    slopes: Value,
    deltas: Value,
    node: Value,
    row: list[Value],
    sums: _Sums,
) -> None:
    build = code.build
    delta_row = shape.row(code, deltas, node)
    gradient = [code.variable(code.vector) for _ in range(shape.vectors)]
    for place in gradient:
        build.store(code.constant(0), place)
    seeded = build.trunc(code.byte_at(code.field("seeded"), node), _BIT)
    with build.if_then(seeded):
        # Outputs, and sources of a dense block, have a gradient in their row by now. Other rows hold an earlier tile's.
        for place, address in zip(gradient, delta_row, strict=True):
            build.store(code.load_vector(address), place)

    _pull(code, shape, deltas, node, row, gradient, sums)

    def keep() -> None:
        for place, address in zip(gradient, delta_row, strict=True):
            code.store_vector(build.load(place), address)

    def through_activation(name: str) -> None:
        total = None
        slope_row = shape.row(code, slopes, node)
        for k in range(shape.vectors):
            g = build.load(gradient[k])
            if keeps_slope(name):
                delta = build.fmul(g, code.load_vector(slope_row[k]))
            else:
                delta = through(code, name, g, row[k])
            code.store_vector(delta, delta_row[k])
            total = delta if total is None else build.fadd(total, delta)
        sums.add_to_node(node, code.sum(total))

    by_activation(code, shape, code.byte_at(code.field("codes"), node), through_activation, keep)
    if shape.aggregations:
        _to_messages(code, shape, base, deltas, node)


def _to_messages(code: CodeWriter, shape: Shape, base: Value, deltas: Value, node: Value) -> None:
    """From the gradient of a node's sum, in its row, to that of its messages, for its sources to pull."""
    delta_row = shape.row(code, deltas, node)

    def pass_on(name: str | None) -> None:
        if name is None:
            return
        scale = scale_of(code, node)
        scaled = [code.build.fmul(scale, code.load_vector(address)) for address in delta_row]
        if name == SCALED:
            for value, address in zip(scaled, delta_row, strict=True):
                code.store_vector(value, address)
        else:
            write_edge_rows(code, shape, name, base, deltas, node, scaled)

    by_aggregation(code, shape, node, pass_on)


def _pull(
    code: CodeWriter,
    shape: Shape,
    deltas: Value,
    node: Value,
    row: list[Value],
    gradient: list[Value] | None,
    sums: _Sums,
) -> None:
    """Adds weight times delta over the edges out of a node to its gradient, and their dot products to ``sums``.

    Without ``gradient`` the dot products only, with the same bits.
    """
    # Both in one visit of the target's row: each loaded vector is used twice.
    build = code.build

    def product(edge: Value) -> Value:
        """The lanes whose sum is the edge's dot product."""
        target = code.index_at(code.field("out_targets"), edge)
        if gradient is not None:
            weight = code.splat(code.load(code.at(code.field("out_weight"), edge, shape.size), code.number))
        dot = None
        for k, address in enumerate(shape.row(code, deltas, target)):
            delta = code.load_vector(address)
            if gradient is not None:
                build.store(code.multiply_add(weight, delta, build.load(gradient[k])), gradient[k])
            dot = build.fmul(delta, row[k]) if dot is None else code.multiply_add(delta, row[k], dot)
        return dot

    start = code.offset_at(code.field("out_offsets"), node)
    stop = code.offset_at(code.field("out_offsets"), build.add(node, code.i64(1)))
    for together in _groups(shape):
        whole = build.add(start, build.and_(build.sub(stop, start), code.i64(-together)))
        with code.loop(start, whole, together) as edge:
            edges = [build.add(edge, code.i64(number)) for number in range(together)]
            products: list[Value] = []
            for four in (edges[first : first + 4] for first in range(0, together, 4)):
                products += map(product, four[: len(four) // 2])
                # In the middle of four: before or after them, prefetches get in the way of loads and cost a third more
                # time.
                for one in four:
                    ask_for_row(code, shape, deltas, "out_targets", one, AHEAD)
                products += map(product, four[len(four) // 2 :])
            value = code.sums(products) if together > 1 else code.sum(products[0])
            sums.add_to_edges(edge, value)
        start = whole


def _groups(shape: Shape) -> list[int]:
    """How many edges are reduced together: as many as there are lanes if they fit in the registers, then 4, then 1."""
    # 32 registers of 64 bytes hold 16 products beside row and gradient; 16 registers of less hold 4.
    largest = shape.lanes if shape.target.vector_bytes == 64 else min(4, shape.lanes)
    return sorted({largest, min(4, shape.lanes), 1}, reverse=True)


def write_gather(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: the weights in the order of the edges by source, ``out_weight[e] = weight[index]``."""
    code = shape.writer(module, name)
    code.fields("pieces", "num_edges", "weight", "out_weight", "out_index")
    with code.pieces() as piece:
        start, stop = _range(code, piece)
        with code.loop(start, stop) as edge:
            index = code.index_at(code.field("out_index"), edge)
            weight = code.load(code.at(code.field("weight"), index, code.size), code.number)
            code.store(weight, code.at(code.field("out_weight"), edge, code.size))
    code.finish()


def write_finish(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: the sums of all pieces, in order, go to the gradients, and from there into the weights.

    With ``accumulate`` they are added to what the gradients hold; with ``takes_step`` the weights then move by
    ``-lr * gradient``.
    """
    code = shape.writer(module, name)
    build = code.build
    code.fields(
        "pieces", "num_nodes", "num_edges", "edge_sums", "node_sums", "num_sums", "out_index", "weight", "bias",
        "live_bias_index", "grad_weight", "grad_bias", "accumulate", "takes_step", "lr",
    )  # fmt: skip
    with code.pieces() as piece:
        start, stop = _range(code, piece)
        vectors_end = build.add(start, build.and_(build.sub(stop, start), code.i64(-shape.lanes)))
        # First the sums, vector by vector, in place; then their delivery, number by number, since the weights of edges
        # sorted by source are scattered.
        for first, end, step, kind in (
            (start, vectors_end, shape.lanes, code.vector),
            (vectors_end, stop, 1, code.number),
        ):
            with code.loop(first, end, step) as edge:
                total = _total(code, "edge_sums", "num_edges", edge, kind)
                code.store(total, code.at(code.field("edge_sums"), edge, code.size), code.size)
        with code.loop(start, stop) as edge:
            index = code.index_at(code.field("out_index"), edge)
            total = code.load(code.at(code.field("edge_sums"), edge, code.size), code.number)
            _deliver(code, total, "grad_weight", "weight", index)
        # The biases are few: one worker delivers them all.
        with (
            build.if_then(build.icmp_signed("==", piece, code.i64(0))),
            build.if_then(is_given(code, "grad_bias")),
            code.loop(code.i64(0), code.field("num_nodes")) as node,
        ):
            index = code.index_at(code.field("live_bias_index"), node)
            with build.if_then(build.icmp_signed(">=", index, code.i64(0))):
                total = _total(code, "node_sums", "num_nodes", node, code.number)
                _deliver(code, total, "grad_bias", "bias", index)
    code.finish()


def _range(code: CodeWriter, piece: Value) -> tuple[Value, Value]:
    """The edges of a piece: an equal share of them, next to each other."""
    build, count, pieces = code.build, code.field("num_edges"), code.field("pieces")
    start = build.sdiv(build.mul(piece, count), pieces)
    return start, build.sdiv(build.mul(build.add(piece, code.i64(1)), count), pieces)


def _total(code: CodeWriter, sums: str, length: str, index: Value, kind: Value) -> Value:
    """``sums[0][index] + sums[1][index] + ...``, in this order: threads that finish in another one change no bit."""
    build = code.build
    first = code.at(code.field(sums), index, code.size)
    stride = build.mul(code.field(length), code.i64(code.size))
    total = code.variable(kind)
    build.store(code.load(first, kind, code.size), total)
    with code.loop(code.i64(1), code.field("num_sums")) as number:
        more = code.load(code.offset(first, stride, number), kind, code.size)
        build.store(build.fadd(build.load(total), more), total)
    return build.load(total)


def _deliver(code: CodeWriter, value: Value, gradient: str, parameter: str, index: Value) -> None:
    build = code.build
    address = code.at(code.field(gradient), index, code.size)
    before = code.load(address, code.number)
    value = build.select(is_given(code, "accumulate"), build.fadd(before, value), value)
    code.store(value, address)
    with build.if_then(is_given(code, "takes_step")):
        sgd_step(code, value, code.at(code.field(parameter), index, code.size))
