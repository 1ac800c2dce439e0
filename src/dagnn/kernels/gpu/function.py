"""A network on a GPU: its plan, the launches of its kernels, and the two passes under autograd."""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.cached import made_once
from dagnn.graph.edges import offsets_of
from dagnn.kernels import reference
from dagnn.kernels.autograd import is_plain_on_gpu
from dagnn.kernels.gpu import network as kernels
from dagnn.kernels.gpu.mathematics import activations
from dagnn.kernels.network.aggregation import aggregated
from dagnn.kernels.network.function import (
    backward_operator,
    by_reference,
    check_dtype,
    check_sizes,
    check_tensors,
    forward_operator,
)
from dagnn.kernels.network.plan import NetworkPlan, plan_of

_Tensors = tuple[Tensor, ...]

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
    tiles = -(-batch // kernels.TILE)
    with launching_on(plan.device):
        for grid, first, last in plan.launches(tiles, backward=False, at_once=at_once):
            kernels.forward[grid](
                x, edge_weight, bias, values, sums, plan.level_offsets, plan.input_column, plan.bias_index, plan.codes,
                plan.in_offsets, plan.in_sources, plan.kinds, plan.scales, first, last, batch, plan.num_inputs,
                activated=plan.functions[0], aggregates=plan.aggregates, tile=kernels.TILE, edges=kernels.EDGES,
            )  # fmt: skip
    return values.index_select(0, plan.outputs).t().contiguous(), (values, sums)


def backward(
    plan: GpuPlan, grad_y: Tensor, saved: _Tensors, edge_weight: Tensor, *, at_once: bool | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the weights and the biases."""
    values, sums = saved
    batch = len(grad_y)
    deltas, grad_x = grad_y.new_empty(plan.num_rows, batch), grad_y.new_empty(batch, plan.num_inputs)
    tiles = -(-batch // kernels.TILE)
    grad_weight, grad_bias = grad_y.new_empty(plan.num_edges), grad_y.new_empty(plan.num_biases)
    with launching_on(plan.device):
        for grid, first, last in plan.launches(tiles, backward=True, at_once=at_once):
            kernels.backward[grid](
                grad_y, edge_weight, values, sums, deltas, grad_x, plan.level_offsets, plan.input_column, plan.codes,
                plan.out_offsets, plan.out_edges, plan.delta_rows, plan.output_offsets, plan.output_columns,
                plan.in_offsets, plan.in_sources, plan.kinds, plan.scales, plan.edge_scales, plan.edge_rows, first,
                last, batch, plan.num_inputs, plan.num_outputs,
                pulled=plan.functions[1], aggregates=plan.aggregates, tile=kernels.TILE, edges=kernels.EDGES,
            )  # fmt: skip
        for results, left_rows, right_rows, multiplied in (
            (grad_weight, plan.in_sources, plan.delta_rows, True),
            (grad_bias, plan.bias_nodes, plan.bias_nodes, False),
        ):
            if len(results):
                kernels.sums_over_batch[(-(-len(results) // kernels.SUMS),)](
                    values, left_rows, deltas, right_rows, plan.edge_scales, results, len(results), batch,
                    multiplied=multiplied, scaled=multiplied and plan.aggregates, tile=kernels.TILE, rows=kernels.SUMS,
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
