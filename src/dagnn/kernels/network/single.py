"""Compiled passes for very small batches: one sample at a time, edges as they lie in the weight vector.

A tile would compute 8 samples for one. Forward pulls, as a tile does. Backward pushes, along the same edges in the
same order: no transpose of the graph, no weights gathered, no gradients scattered. Where the sources of a node are
neighbours, as in a dense layer, a vector of edges is taken at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import activated, keeps_slope, sgd_step, through
from dagnn.kernels.emit.writer import I32, I64, CodeWriter, Value
from dagnn.kernels.network import Shape
from dagnn.kernels.network.aggregation import SCALED, by_aggregation, scale_of, write_aggregate
from dagnn.kernels.network.forward import bias_of, by_activation, is_given

_SUMS_IN_FLIGHT = 4


def write_single_forward(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: values ``[batch, num_nodes]``, sample by sample."""
    code = shape.writer(module, name)
    build = code.build
    code.fields(
        "batch", "num_nodes", "live_nodes", "last", "values", "slopes", "codes", "in_offsets", "in_sources", "weight",
        "bias", "bias_index", "x", "num_inputs", "input_rows", "y", "num_outputs", "output_rows",
        *(("kinds", "scales") if shape.aggregations else ()),
    )  # fmt: skip
    sums = [code.variable(code.number) for _ in range(_SUMS_IN_FLIGHT)]
    with code.loop(code.i64(0), code.field("batch")) as sample:
        shift = build.mul(sample, code.field("num_nodes"))
        values, slopes = (code.at(code.field(field), shift, code.size) for field in ("values", "slopes"))
        _copy(code, sample, "x", "num_inputs", "input_rows", values, inwards=True)
        with code.loop(code.i64(0), code.field("last")) as place:
            node = code.index_at(code.field("live_nodes"), place)
            if shape.aggregations:
                z = _aggregated(code, shape, values, node, sums)
            else:
                z = _gathered(code, values, node, bias_of(code, node), sums)

            def activate(
                name: str, z: Value = z, node: Value = node, values: Value = values, slopes: Value = slopes
            ) -> None:
                y, slope = activated(code, name, code.splat(z))
                code.store(_first(code, y), code.at(values, node, code.size))
                if slope is not None:
                    with build.if_then(is_given(code, "slopes")):
                        code.store(_first(code, slope), code.at(slopes, node, code.size))

            by_activation(code, shape, code.byte_at(code.field("codes"), node), activate)
        _copy(code, sample, "y", "num_outputs", "output_rows", values, inwards=False)
    code.finish()


def write_single_backward(module: Value, shape: Shape, name: str) -> None:
    """The function ``name``: gradients of everything, sample by sample. ``deltas`` is scratch ``[num_nodes]``."""
    code = shape.writer(module, name)
    build = code.build
    code.fields(
        "batch", "num_nodes", "live_nodes", "last", "values", "slopes", "deltas", "codes", "in_offsets", "in_sources",
        "weight", "bias", "bias_index", "num_inputs", "input_rows", "num_outputs", "output_rows", "grad_y", "grad_x",
        "grad_weight", "grad_bias", "accumulate", "takes_step", "lr",
    )  # fmt: skip
    deltas = code.field("deltas")
    # A readable zero of a vector's size, from which first gradients are added to; see `deliver`.
    nothing = code.variable(code.vector)
    build.store(code.constant(0), nothing)
    zeros = build.ptrtoint(nothing, I64)
    with code.loop(code.i64(0), code.field("batch")) as sample:
        adds = build.or_(is_given(code, "accumulate"), build.icmp_signed(">", sample, code.i64(0)))
        # Samples add to the gradients one after another, and the weights move with the last: the ones before still read
        # them.
        is_last = build.icmp_signed("==", build.add(sample, code.i64(1)), code.field("batch"))
        steps = build.and_(is_given(code, "takes_step"), is_last)
        shift = build.mul(sample, code.field("num_nodes"))
        values, slopes = (code.at(code.field(field), shift, code.size) for field in ("values", "slopes"))
        # A push adds to the deltas of its sources, so they begin at 0, unlike those of a tile.
        with code.loop(code.i64(0), code.field("num_nodes")) as node:
            code.store(ir.Constant(code.number, 0.0), code.at(deltas, node, code.size))
        _copy(code, sample, "grad_y", "num_outputs", "output_rows", deltas, inwards=True)
        with code.loop(code.i64(0), code.field("last")) as count:
            place = build.sub(build.sub(code.field("last"), code.i64(1)), count)
            node = code.index_at(code.field("live_nodes"), place)
            _push(code, shape, values, slopes, node, adds, steps, zeros)
        with build.if_then(is_given(code, "grad_x")):
            _copy(code, sample, "grad_x", "num_inputs", "input_rows", deltas, inwards=False)
    code.finish()


def _aggregated(code: CodeWriter, shape: Shape, values: Value, node: Value, sums: list[Value]) -> Value:
    """bias + scale times the aggregate of the node's messages."""
    build, result = code.build, code.variable(code.number)

    def message(edge: Value) -> list[Value]:
        weight = code.load(code.at(code.field("weight"), edge, code.size), code.number)
        source = code.index_at(code.field("in_sources"), edge)
        return [code.splat(build.fmul(weight, code.load(code.at(values, source, code.size), code.number)))]

    def compute(name: str | None) -> None:
        bias = bias_of(code, node)
        if name is None:
            z = _gathered(code, values, node, bias, sums)
        elif name == SCALED:
            found = _gathered(code, values, node, ir.Constant(code.number, 0.0), sums)
            z = code.multiply_add(_first(code, scale_of(code, node)), found, bias)
        else:
            (vector,) = write_aggregate(code, name, node, 1, message)
            z = code.multiply_add(_first(code, scale_of(code, node)), _first(code, vector), bias)
        build.store(z, result)

    by_aggregation(code, shape, node, compute)
    return build.load(result)


def _gathered(code: CodeWriter, values: Value, node: Value, bias: Value, sums: list[Value]) -> Value:
    build = code.build
    # Four sums side by side: with one, every multiply-add would wait for the one before.
    for number, place in enumerate(sums):
        build.store(bias if number == 0 else ir.Constant(code.number, 0.0), place)

    def add(edge: Value, place: Value) -> None:
        weight = code.load(code.at(code.field("weight"), edge, code.size), code.number)
        source = code.index_at(code.field("in_sources"), edge)
        value = code.load(code.at(values, source, code.size), code.number)
        build.store(code.multiply_add(weight, value, build.load(place)), place)

    start = code.offset_at(code.field("in_offsets"), node)
    stop = code.offset_at(code.field("in_offsets"), build.add(node, code.i64(1)))
    done = code.variable(I64)
    build.store(start, done)
    with _neighbours(code, start, stop) as first:
        build.store(_dot(code, values, start, stop, first, sums[0]), done)
    start = build.load(done)
    rest = build.add(start, build.and_(build.sub(stop, start), code.i64(-len(sums))))
    with code.loop(start, rest, len(sums)) as edge:
        for number, place in enumerate(sums):
            add(build.add(edge, code.i64(number)), place)
    with code.loop(rest, stop) as edge:
        add(edge, sums[0])
    low = build.fadd(build.load(sums[0]), build.load(sums[1]))
    return build.fadd(low, build.fadd(build.load(sums[2]), build.load(sums[3])))


@contextmanager
def _neighbours(code: CodeWriter, start: Value, stop: Value) -> Iterator[Value]:
    """Code that runs where the edges ``start .. stop - 1`` fill a vector and have sources one after another.

    Gives the first of these sources. The sources of a node are sorted and differ, so the first and the last suffice to
    know.
    """
    build = code.build
    count = build.sub(stop, start)
    with build.if_then(build.icmp_signed(">=", count, code.i64(code.lanes))):
        first = code.index_at(code.field("in_sources"), start)
        last = code.index_at(code.field("in_sources"), build.sub(stop, code.i64(1)))
        span = build.add(build.sub(last, first), code.i64(1))
        with build.if_then(build.icmp_signed("==", span, count)):
            yield first


def _dot(code: CodeWriter, values: Value, start: Value, stop: Value, first: Value, total: Value) -> Value:
    """Adds the sum over the edges from ``start`` on to ``total``; returns where the last whole vector ends."""
    build = code.build
    of_start = code.at(values, first, code.size)
    sums = [code.variable(code.vector) for _ in range(_SUMS_IN_FLIGHT)]
    for place in sums:
        build.store(code.constant(0), place)
    done = start
    for together in (len(sums), 1):
        step = together * code.lanes
        end = build.add(done, build.and_(build.sub(stop, done), code.i64(-step)))
        with code.loop(done, end, step) as edge:
            for number in range(together):
                at = build.add(edge, code.i64(number * code.lanes))
                weight = _vector(code, code.at(code.field("weight"), at, code.size))
                value = _vector(code, code.at(of_start, build.sub(at, start), code.size))
                build.store(code.multiply_add(weight, value, build.load(sums[number])), sums[number])
        done = end
    one, other, third, fourth = (build.load(place) for place in sums)
    build.store(
        build.fadd(build.load(total), code.sum(build.fadd(build.fadd(one, other), build.fadd(third, fourth)))), total
    )
    return done


def _push(
    code: CodeWriter, shape: Shape, values: Value, slopes: Value, node: Value, adds: Value, steps: Value, zeros: Value
) -> None:
    """The delta of a node, and from it the gradients of its bias, of the edges into it and of their sources."""
    build, deltas = code.build, code.field("deltas")
    gradient = code.load(code.at(deltas, node, code.size), code.number)
    delta = code.variable(code.number)
    build.store(gradient, delta)

    def through_activation(name: str) -> None:
        if keeps_slope(name):
            slope = code.load(code.at(slopes, node, code.size), code.number)
            build.store(build.fmul(gradient, slope), delta)
        else:
            y = code.load(code.at(values, node, code.size), code.number)
            build.store(_first(code, through(code, name, code.splat(gradient), code.splat(y))), delta)

    by_activation(code, shape, code.byte_at(code.field("codes"), node), through_activation)
    of_node = build.load(delta)

    def deliver(value: Value, gradient: str, parameter: str, index: Value) -> None:
        address = code.at(code.field(gradient), index, code.size)
        # New memory is only written: reading it first would cost a second page fault.
        before = code.load(build.select(adds, address, zeros), value.type, code.size)
        value = build.fadd(before, value)
        code.store(value, address, code.size)
        with build.if_then(steps):
            sgd_step(code, value, code.at(code.field(parameter), index, code.size))

    index = code.index_at(code.field("bias_index"), node)
    with build.if_then(build.icmp_signed(">=", index, code.i64(0))), build.if_then(is_given(code, "grad_bias")):
        deliver(of_node, "grad_bias", "bias", index)
    start = code.offset_at(code.field("in_offsets"), node)
    stop = code.offset_at(code.field("in_offsets"), build.add(node, code.i64(1)))
    done = code.variable(I64)
    build.store(start, done)
    with _neighbours(code, start, stop) as first:
        of_lanes = code.splat(of_node)
        end = build.add(start, build.and_(build.sub(stop, start), code.i64(-code.lanes)))
        with code.loop(start, end, code.lanes) as edge:
            source = build.add(first, build.sub(edge, start))
            weight = _vector(code, code.at(code.field("weight"), edge, code.size))
            value = _vector(code, code.at(values, source, code.size))
            place = code.at(deltas, source, code.size)
            code.store(code.multiply_add(weight, of_lanes, _vector(code, place)), place, code.size)
            deliver(build.fmul(of_lanes, value), "grad_weight", "weight", edge)
        build.store(end, done)  # what is left, less than a vector, goes through the loop below
    with code.loop(build.load(done), stop) as edge:
        source = code.index_at(code.field("in_sources"), edge)
        weight = code.load(code.at(code.field("weight"), edge, code.size), code.number)
        value = code.load(code.at(values, source, code.size), code.number)
        place = code.at(deltas, source, code.size)
        code.store(code.multiply_add(weight, of_node, code.load(place, code.number)), place)
        deliver(build.fmul(of_node, value), "grad_weight", "weight", edge)


def _copy(
    code: CodeWriter, sample: Value, matrix: str, columns: str, rows: str, values: Value, *, inwards: bool
) -> None:
    """One row of a matrix ``[batch, columns]`` to the nodes ``rows`` of ``values``, or back."""
    count = code.field(columns)
    line = code.at(code.field(matrix), code.build.mul(sample, count), code.size)
    with code.loop(code.i64(0), count) as column:
        outside = code.at(line, column, code.size)
        inside = code.at(values, code.index_at(code.field(rows), column), code.size)
        source, target = (outside, inside) if inwards else (inside, outside)
        code.store(code.load(source, code.number), target)


def _vector(code: CodeWriter, address: Value) -> Value:
    """A vector that begins at any number."""
    # Edges of a node begin anywhere in the weight vector: with the alignment of a vector, this load could crash.
    return code.load(address, code.vector, code.size)


def _first(code: CodeWriter, vector: Value) -> Value:
    return code.build.extract_element(vector, ir.Constant(I32, 0))
