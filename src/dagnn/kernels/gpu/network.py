"""Triton kernels of a network with a weight per edge.

A tile is `TILE` samples. Values and gradients are rows ``[nodes, B]``. One program computes the nodes of one or more
levels for one tile: either all levels one after another, with a barrier of the program between them and none of the
grid; or a part of the nodes of one level, a launch for each. Every node pulls, forward from its sources and backward
from its targets, in the order of the edges: nothing is added atomically, and the bits do not depend on the launch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import triton
import triton.language as tl

TILE = 64
EDGES = 32
"""Edges of a node that are read at once: a sum over more is a sum of such sums, in order."""
SUMS = 16
"""Weights or biases whose gradients one program sums; twice as many need 200 registers in float64."""
# How a node aggregates: the first as in `kernels.network.aggregation`, the others follow in the order of its BY_EDGE.
SCALED = tl.constexpr(1)
PRODUCT = tl.constexpr(2)
LARGEST = tl.constexpr(3)
SMALLEST = tl.constexpr(4)


@triton.jit
def _weighted_sum(weight, table, rows, exists, columns, present, batch):
    """The sum of rows of a table ``[rows, B]``, each times its weight."""
    found = tl.load(
        table + rows[:, None] * batch + columns[None, :], mask=exists[:, None] & present[None, :], other=0.0
    )
    return tl.sum(weight[:, None] * found, axis=0)


@triton.jit
def _message(values, edge_weight, in_sources, edge, columns, present, batch):
    source = tl.load(in_sources + edge).to(tl.int64)
    return tl.load(edge_weight + edge) * tl.load(values + source * batch + columns, mask=present, other=0.0)


@triton.jit
def _aggregate(kind, values, edge_weight, in_sources, start, stop, columns, present, batch):
    """The product, the largest, the smallest or the one of largest absolute value of a node's messages."""
    if kind == PRODUCT:
        result = tl.full(columns.shape, 1.0, values.dtype.element_ty)
        for edge in range(start, stop):
            result *= _message(values, edge_weight, in_sources, edge, columns, present, batch)
    else:  # of one message at least: all others of nothing are sums, of 0
        high = _message(values, edge_weight, in_sources, start, columns, present, batch)
        low = high
        for edge in range(start + 1, stop):
            message = _message(values, edge_weight, in_sources, edge, columns, present, batch)
            high = tl.maximum(high, message, propagate_nan=tl.PropagateNan.ALL)
            low = tl.minimum(low, message, propagate_nan=tl.PropagateNan.ALL)
        largest = tl.where((high >= -low) | (high != high), high, low)
        result = tl.where(kind == LARGEST, high, tl.where(kind == SMALLEST, low, largest))
    return result


@triton.jit
def forward(
    x, edge_weight, bias, values, sums, level_offsets, input_column, bias_index, codes, in_offsets, in_sources, kinds,
    scales, first_level, last_level, batch, num_inputs,
    activated: tl.constexpr, aggregates: tl.constexpr, tile: tl.constexpr, edges: tl.constexpr,
):  # fmt: skip
    """Values ``[nodes, B]``, and what their activations were given."""
    columns = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    present = columns < batch
    for level in range(first_level, last_level):
        for node in range(
            tl.load(level_offsets + level) + tl.program_id(1), tl.load(level_offsets + level + 1), tl.num_programs(1)
        ):
            row = tl.cast(node, tl.int64) * batch + columns
            column = tl.load(input_column + node)
            if column >= 0:
                value = tl.load(x + columns * num_inputs + column, mask=present, other=0.0)
            else:
                start = tl.load(in_offsets + node)
                stop = tl.load(in_offsets + node + 1)
                z = tl.zeros([tile], dtype=values.dtype.element_ty)
                kind = 0
                if aggregates:
                    kind = tl.load(kinds + node)
                if kind <= SCALED:
                    for edge in range(start, stop, edges):
                        at = edge + tl.arange(0, edges)
                        exists = at < stop
                        weight = tl.load(edge_weight + at, mask=exists, other=0.0)
                        source = tl.load(in_sources + at, mask=exists, other=0).to(tl.int64)
                        z += _weighted_sum(weight, values, source, exists, columns, present, batch)
                else:
                    z = _aggregate(kind, values, edge_weight, in_sources, start, stop, columns, present, batch)
                if aggregates:
                    z = z * tl.load(scales + node).to(z.dtype)
                place = tl.load(bias_index + node)
                z += tl.load(bias + place, mask=place >= 0, other=0.0)
                tl.store(sums + row, z, mask=present)
                value = activated(tl.load(codes + node), z)
            tl.store(values + row, value, mask=present)
        # What one thread has written, another reads at the next level.
        tl.debug_barrier()


@triton.jit
def _edge_gradients(
    kind, values, edge_weight, in_sources, start, stop, deltas, first_row, gradient, columns, present, batch
):
    """The gradient of each message of a node, in its rows for edges."""
    if kind == PRODUCT:
        # Each edge gets the product of all messages before it, then that of all behind it: no division by one of them.
        product = tl.full(gradient.shape, 1.0, gradient.dtype)
        for edge in range(start, stop):
            row = tl.cast(first_row + edge - start, tl.int64) * batch + columns
            tl.store(deltas + row, product, mask=present)
            product *= _message(values, edge_weight, in_sources, edge, columns, present, batch)
        tl.debug_barrier()  # a tile may be spread over the threads in another way when it is read again
        behind = gradient
        for back in range(stop - start):
            edge = stop - 1 - back
            row = tl.cast(first_row + edge - start, tl.int64) * batch + columns
            tl.store(deltas + row, tl.load(deltas + row, mask=present, other=0.0) * behind, mask=present)
            behind *= _message(values, edge_weight, in_sources, edge, columns, present, batch)
    else:
        best = _aggregate(kind, values, edge_weight, in_sources, start, stop, columns, present, batch)
        winners = tl.zeros_like(gradient)
        for edge in range(start, stop):
            message = _message(values, edge_weight, in_sources, edge, columns, present, batch)
            winners += tl.where(message == best, 1.0, 0.0).to(gradient.dtype)
        # Equal winners share evenly. Where a NaN has won there are none, and 0 / 0 passes the NaN on, as PyTorch does.
        for edge in range(start, stop):
            row = tl.cast(first_row + edge - start, tl.int64) * batch + columns
            message = _message(values, edge_weight, in_sources, edge, columns, present, batch)
            share = tl.where(message == best, gradient, tl.zeros_like(gradient)) / winners
            tl.store(deltas + row, share, mask=present)


@triton.jit
def backward(
    grad_y, edge_weight, values, sums, deltas, grad_x, level_offsets, input_column, codes, out_offsets, out_edges,
    delta_rows, output_offsets, output_columns, in_offsets, in_sources, kinds, scales, edge_scales, edge_rows,
    first_level, last_level, batch, num_inputs, num_outputs,
    pulled: tl.constexpr, aggregates: tl.constexpr, tile: tl.constexpr, edges: tl.constexpr,
):  # fmt: skip
    """The gradient of what each activation was given, ``[rows, B]``, and of x; levels from the last one down."""
    columns = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    present = columns < batch
    for back in range(first_level, last_level):
        level = last_level - 1 - (back - first_level)
        for node in range(
            tl.load(level_offsets + level) + tl.program_id(1), tl.load(level_offsets + level + 1), tl.num_programs(1)
        ):
            gradient = tl.zeros([tile], dtype=values.dtype.element_ty)
            for k in range(tl.load(output_offsets + node), tl.load(output_offsets + node + 1)):
                output = tl.load(output_columns + k)
                gradient += tl.load(grad_y + columns * num_outputs + output, mask=present, other=0.0)
            stop = tl.load(out_offsets + node + 1)
            for k in range(tl.load(out_offsets + node), stop, edges):
                at = k + tl.arange(0, edges)
                exists = at < stop
                edge = tl.load(out_edges + at, mask=exists, other=0)
                weight = tl.load(edge_weight + edge, mask=exists, other=0.0)
                if aggregates:
                    weight = weight * tl.load(edge_scales + edge, mask=exists, other=0.0).to(weight.dtype)
                target = tl.load(delta_rows + edge, mask=exists, other=0).to(tl.int64)
                gradient += _weighted_sum(weight, deltas, target, exists, columns, present, batch)
            column = tl.load(input_column + node)
            if column >= 0:
                tl.store(grad_x + columns * num_inputs + column, gradient, mask=present)
            else:
                row = tl.cast(node, tl.int64) * batch + columns
                z = tl.load(sums + row, mask=present, other=0.0)
                gradient = pulled(tl.load(codes + node), z, gradient)
                tl.store(deltas + row, gradient, mask=present)
                if aggregates:
                    kind = tl.load(kinds + node)
                    if kind > SCALED:
                        of_aggregate = gradient * tl.load(scales + node).to(gradient.dtype)
                        _edge_gradients(
                            kind, values, edge_weight, in_sources, tl.load(in_offsets + node),
                            tl.load(in_offsets + node + 1), deltas, tl.load(edge_rows + node), of_aggregate, columns,
                            present, batch,
                        )  # fmt: skip
        tl.debug_barrier()


@triton.jit
def sums_over_batch(
    left, left_rows, right, right_rows, scales, results, count, batch,
    multiplied: tl.constexpr, scaled: tl.constexpr, tile: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """``results[i] = scales[i] * sum over samples of left[left_rows[i]] * right[right_rows[i]]``, tile after tile."""
    at = tl.program_id(0) * rows + tl.arange(0, rows)
    exists = at < count
    right_row = tl.load(right_rows + at, mask=exists, other=0).to(tl.int64)
    total = tl.zeros([rows], dtype=right.dtype.element_ty)
    if multiplied:
        left_row = tl.load(left_rows + at, mask=exists, other=0).to(tl.int64)
    for first in range(0, batch, tile):
        columns = first + tl.arange(0, tile)
        mask = exists[:, None] & (columns < batch)[None, :]
        found = tl.load(right + right_row[:, None] * batch + columns[None, :], mask=mask, other=0.0)
        if multiplied:
            found = found * tl.load(left + left_row[:, None] * batch + columns[None, :], mask=mask, other=0.0)
        total += tl.sum(found, axis=1)
    if scaled:
        total = total * tl.load(scales + at, mask=exists, other=0.0).to(total.dtype)
    tl.store(results + at, total, mask=exists)
