"""A network with a weight per edge on a GPU: its plan, the launches, both passes under autograd; its Triton kernels.

A tile is `TILE` samples. Values and gradients are rows ``[nodes, B]``. One program computes the nodes of one or more
levels for one tile: either all levels one after another, with a barrier of the program between them and none of the
grid; or a part of the nodes of one level, a launch for each. Every node pulls, forward from its sources and backward
from its targets, in the order of the edges: nothing is added atomically, and the bits do not depend on the launch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.cached import made_once
from dagnn.graph.edges import offsets_of
from dagnn.kernels import reference
from dagnn.kernels.autograd import is_plain_on_gpu
from dagnn.kernels.gpu.mathematics import activations
from dagnn.kernels.network.aggregation import aggregated
from dagnn.kernels.network.autograd_function import (
    backward_operator,
    by_reference,
    check_dtype,
    check_sizes,
    check_tensors,
    forward_operator,
)
from dagnn.kernels.network.plan import NetworkPlan, plan_of

_Tensors = tuple[Tensor, ...]

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
MAX_GRID_Y = 65535
"""CUDA's limit of a grid in all directions but the first, which takes 2^31 - 1: the tiles of the batch are there."""


class GpuPlan:
    """A network as its Triton kernels read it: int32 arrays on a GPU; within Triton's interpreter on the CPU."""

    def __init__(self, plan: NetworkPlan, device: torch.device) -> None:
        count, edges = plan.num_nodes, plan.edges.numpy()
        source, target = edges[:, 0], edges[:, 1]
        inputs, outputs = plan.inputs.numpy(), plan.outputs.numpy()
        is_input = np.zeros(count, dtype=bool)
        is_input[inputs] = True
        degree = np.bincount(target, minlength=count)
        how = aggregated(plan.aggregation, plan.response.numpy(), degree, is_input)
        by_source = np.lexsort((target, source))
        delta_rows = target.copy()
        of_edges = how.edge_rows[target] >= 0
        in_offsets = offsets_of(degree)
        delta_rows[of_edges] = (how.edge_rows[target] + np.arange(len(edges)) - in_offsets[target])[of_edges]
        texts = tuple(dict.fromkeys(plan.activation))
        code = {text: number for number, text in enumerate(texts)}
        input_column = np.full(count, -1)
        input_column[inputs] = np.arange(len(inputs))
        bias_nodes = plan.has_bias.numpy().nonzero()[0]
        bias_index = np.full(count, -1)
        bias_index[bias_nodes] = np.arange(len(bias_nodes))
        level_sizes = np.bincount(plan.node_levels.numpy())

        put = partial(tensor_on, device)
        self.device, self.num_rows = device, how.num_rows
        self.num_nodes, self.num_inputs, self.num_outputs = count, len(inputs), len(outputs)
        self.num_edges, self.num_biases = len(edges), len(bias_nodes)
        self.level_sizes = level_sizes.tolist()
        self.aggregates = bool(how.names)
        self.level_offsets, self.input_column = put(offsets_of(level_sizes)), put(input_column)
        self.bias_index, self.bias_nodes = put(bias_index), put(bias_nodes)
        self.codes = put(np.array([code[text] for text in plan.activation], dtype=np.int64))
        self.in_offsets, self.in_sources = put(in_offsets), put(source)
        self.out_offsets, self.out_edges = put(offsets_of(np.bincount(source, minlength=count))), put(by_source)
        self.delta_rows = put(delta_rows)
        self.output_offsets = put(offsets_of(np.bincount(outputs, minlength=count)))
        self.output_columns, self.outputs = put(np.argsort(outputs, kind="stable")), put(outputs, torch.int64)
        self.kinds, self.edge_rows = put(how.kinds), put(how.edge_rows)
        self.scales = put(how.scales, torch.float64)
        # By-edge aggregates have their factor in the rows of their edges already.
        self.edge_scales = put(np.where(how.edge_rows[target] >= 0, 1.0, how.scales[target]), torch.float64)
        self.texts = texts

    @cached_property
    def functions(self) -> tuple[Any, Any]:
        """The activations, and their gradients."""
        return activations(self.texts)

    def launches(self, tiles: int, *, backward: bool, at_once: bool | None) -> list[tuple[tuple[int, int], int, int]]:
        """Grid, first and last level of each launch, in order; ``at_once``: all levels in one, and None chooses."""
        levels = range(len(self.level_sizes))
        if at_once is None:
            on_gpu = self.device.type == "cuda"
            cores = torch.cuda.get_device_properties(self.device).multi_processor_count if on_gpu else 1
            at_once = self.num_nodes * tiles < len(levels) * cores
        if at_once:
            return [((tiles, 1), 0, len(levels))]
        return [
            ((tiles, min(self.level_sizes[level], MAX_GRID_Y)), level, level + 1)
            for level in (levels[::-1] if backward else levels)
        ]


def gpu_plan(plan: NetworkPlan, device: torch.device) -> GpuPlan:
    """The plan of a network on a GPU, made when it first runs there."""
    return made_once(plan.on_gpu, device, lambda: GpuPlan(plan, device))


def tensor_on(device: torch.device, values: NDArray[Any], dtype: torch.dtype = torch.int32) -> Tensor:
    """A part of a plan as kernels read it."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)


def launching_on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, which need not be that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def forward(
    plan: GpuPlan, x: Tensor, edge_weight: Tensor, bias: Tensor, *, at_once: bool | None = None
) -> tuple[Tensor, _Tensors]:
    """Outputs ``[B, outputs]``, and what `backward` needs; all tensors contiguous, of one dtype and device, B > 0."""
    batch = len(x)
    values, sums = x.new_empty(plan.num_nodes, batch), x.new_empty(plan.num_nodes, batch)
    tiles = -(-batch // TILE)
    with launching_on(plan.device):
        for grid, first, last in plan.launches(tiles, backward=False, at_once=at_once):
            forward_kernel[grid](
                x, edge_weight, bias, values, sums, plan.level_offsets, plan.input_column, plan.bias_index, plan.codes,
                plan.in_offsets, plan.in_sources, plan.kinds, plan.scales, first, last, batch, plan.num_inputs,
                activated=plan.functions[0], aggregates=plan.aggregates, tile=TILE, edges=EDGES,
            )  # fmt: skip
    return values.index_select(0, plan.outputs).t().contiguous(), (values, sums)


def backward(
    plan: GpuPlan, grad_y: Tensor, saved: _Tensors, edge_weight: Tensor, *, at_once: bool | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the weights and the biases."""
    values, sums = saved
    batch = len(grad_y)
    deltas, grad_x = grad_y.new_empty(plan.num_rows, batch), grad_y.new_empty(batch, plan.num_inputs)
    tiles = -(-batch // TILE)
    grad_weight, grad_bias = grad_y.new_empty(plan.num_edges), grad_y.new_empty(plan.num_biases)
    with launching_on(plan.device):
        for grid, first, last in plan.launches(tiles, backward=True, at_once=at_once):
            backward_kernel[grid](
                grad_y, edge_weight, values, sums, deltas, grad_x, plan.level_offsets, plan.input_column, plan.codes,
                plan.out_offsets, plan.out_edges, plan.delta_rows, plan.output_offsets, plan.output_columns,
                plan.in_offsets, plan.in_sources, plan.kinds, plan.scales, plan.edge_scales, plan.edge_rows, first,
                last, batch, plan.num_inputs, plan.num_outputs,
                pulled=plan.functions[1], aggregates=plan.aggregates, tile=TILE, edges=EDGES,
            )  # fmt: skip
        for results, left_rows, right_rows, multiplied in (
            (grad_weight, plan.in_sources, plan.delta_rows, True),
            (grad_bias, plan.bias_nodes, plan.bias_nodes, False),
        ):
            if len(results):
                sums_over_batch[(-(-len(results) // SUMS),)](
                    values, left_rows, deltas, right_rows, plan.edge_scales, results, len(results), batch,
                    multiplied=multiplied, scaled=multiplied and plan.aggregates, tile=TILE, rows=SUMS,
                )  # fmt: skip
    return grad_x, grad_weight, grad_bias


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: NetworkPlan) -> Tensor:
        of_gpu = gpu_plan(plan, x.device)
        y, ctx.saved = forward(of_gpu, x.contiguous(), edge_weight.contiguous(), bias.contiguous())
        ctx.plan, ctx.of_gpu = plan, of_gpu
        ctx.save_for_backward(x, edge_weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, edge_weight, bias = ctx.saved_tensors
        check_sizes(ctx.plan, edge_weight, bias)
        check_dtype(grad_y, edge_weight)
        check_dtype(grad_y, bias)
        if torch.is_grad_enabled() or not is_plain_on_gpu(grad_y):
            return by_reference(ctx, grad_y, x, edge_weight, bias)
        found = backward(ctx.of_gpu, grad_y.contiguous(), ctx.saved, edge_weight.contiguous())
        needed = zip(found, ctx.needs_input_grad[:3], strict=True)
        return (*(gradient if is_needed else None for gradient, is_needed in needed), None)


def run_network(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """The same as `reference.run_network`, for tensors on one GPU of one floating dtype."""
    if not len(x):
        return reference.run_network(plan.levels, x, edge_weight, bias)
    check_sizes(plan, edge_weight, bias)
    y: Tensor = _Network.apply(x, edge_weight, bias, plan)  # type: ignore[no-untyped-call]
    return y


@forward_operator.register_kernel("cuda")
def _(x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str) -> Tensor:
    if not len(x):
        return x.new_empty(0, len(plan_of(plan).outputs))
    check_tensors(plan_of(plan), x, edge_weight, bias)
    of_gpu = gpu_plan(plan_of(plan), x.device)
    return forward(of_gpu, x.contiguous(), edge_weight.contiguous(), bias.contiguous())[0]


@backward_operator.register_kernel("cuda")
def _(grad_y: Tensor, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str) -> tuple[Tensor, Tensor, Tensor]:
    if not len(x):
        return torch.zeros_like(x), torch.zeros_like(edge_weight), torch.zeros_like(bias)
    check_tensors(plan_of(plan), x, edge_weight, bias, grad_y)
    of_gpu, weight = gpu_plan(plan_of(plan), x.device), edge_weight.contiguous()
    # Forward once more, as on the CPU: operators exchange tensors only.
    _, saved = forward(of_gpu, x.contiguous(), weight, bias.contiguous())
    return backward(of_gpu, grad_y.contiguous(), saved, weight)


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
def forward_kernel(
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
def backward_kernel(
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
