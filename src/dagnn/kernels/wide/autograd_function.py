"""Compiled networks of wide nodes: their tables in memory and both passes; and any such passes under autograd."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph.edges import offsets_of
from dagnn.kernels.autograd import Borrowed, is_plain, is_plain_on_gpu, with_memory
from dagnn.kernels.emit.functions import keeps_slope
from dagnn.kernels.emit.native import Frame, NativeFunction, Target, compiled, host_target
from dagnn.kernels.emit.workers import num_workers, run
from dagnn.kernels.wide.node_code import OUT_EDGE, RECORD, WideShape, write_products
from dagnn.kernels.wide.pass_code import write_backward, write_forward
from dagnn.kernels.wide.plan import WideParameters, WidePlan, WideResult, WideState, ranges, run_reference

# Multiply-adds of a level from which threads share its nodes: some 20 us of one.
_SHARED_WORK = 1 << 18


class WideGradients(NamedTuple):
    """Gradients of x ``[B, columns]``, where it was asked for, and of the parameters."""

    x: Tensor | None
    weight: Tensor
    bias: Tensor
    scale: Tensor | None
    shift: Tensor | None


class Saved(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes:
        memory: values, what activations gave where that is not the value, and slopes; rows of the batch each.
        mean, variance: what the norms used; None for none.
        mask: factors of dropout, rows of the batch.
    """

    memory: Borrowed
    mean: Tensor | None
    variance: Tensor | None
    mask: Tensor | None
    own_statistics: bool


class CompiledWide:
    """A plan in the memory that the compiled functions read, for one processor."""

    def __init__(self, plan: WidePlan, target: Target) -> None:
        self.plan, self.target = plan, target
        count, widths, row_first = len(plan.widths), plan.widths, plan.row_first[:-1]
        self.num_rows = int(plan.row_first[-1])
        inner = plan.activations[plan.num_inputs :]
        names = tuple(sorted(set(inner)))
        self.keeps_slopes = any(map(keeps_slope, names))
        self._names, self._widths = names, tuple(sorted(set(widths.tolist())))
        code_of = {name: code for code, name in enumerate(names)}
        codes = np.array([0] * plan.num_inputs + [code_of[name] for name in inner], np.int64)
        passed_from, passed_to = plan.residuals
        self.has_residuals = len(passed_from) > 0
        pass_first = offsets_of(np.bincount(passed_to, minlength=count))
        by_source = np.argsort(passed_from, kind="stable")
        pull_first = offsets_of(np.bincount(passed_from, minlength=count))
        has_more = (plan.norm_first >= 0) | (plan.drop_row >= 0) | (np.diff(pass_first) > 0)
        self.has_more = bool(has_more.any())

        rows = ranges(row_first[plan.sources], widths[plan.sources])
        row_offsets = offsets_of(widths[plan.sources])[plan.in_offsets]
        target_of = np.repeat(np.arange(count), np.diff(plan.in_offsets))
        # Where the block of each edge begins: behind those of the sources before it.
        blocks = offsets_of(widths[plan.sources] * widths[target_of])
        block_first = blocks[:-1] - blocks[plan.in_offsets[target_of]] + plan.weight_first[target_of]
        by_edge_source = np.argsort(plan.sources, kind="stable")
        out_offsets = offsets_of(np.bincount(plan.sources, minlength=count))
        out = np.stack([row_first[target_of], widths[target_of], block_first], axis=1)[by_edge_source]
        assert out.shape[1] == len(OUT_EDGE)
        seeded = np.zeros(count, np.int64)
        seeded[plan.reads] = 1
        columns = {
            "row": row_first,
            "width": widths,
            "weight": plan.weight_first,
            "bias": plan.bias_first,
            "norm": plan.norm_first,
            "drop": plan.drop_row,
            "code": codes,
            "has_more": has_more,
            "in_first": row_offsets[:-1],
            "in_last": row_offsets[1:],
            "out_first": out_offsets[:-1],
            "out_last": out_offsets[1:],
            "pass_first": pass_first[:-1],
            "pass_last": pass_first[1:],
            "pull_first": pull_first[:-1],
            "pull_last": pull_first[1:],
            "seeded": seeded,
        }
        self._arrays: dict[str, NDArray[np.generic]] = {
            "node_table": np.ascontiguousarray(np.stack([columns[name] for name in RECORD], axis=1), np.int64),
            "source_rows": rows.astype(np.int32),
            "out_table": np.ascontiguousarray(out, np.int64),
            "passed_from": row_first[passed_from].astype(np.int32),
            "passed_to": passed_to[by_source].astype(np.int32),
            "zeros": np.zeros(int(widths.max(initial=1)), np.float64),
        }
        self._frame = Frame()
        self._frame.set(
            num_inputs=plan.num_inputs,
            **{name: array.__array_interface__["data"][0] for name, array in self._arrays.items()},
        )
        # The levels behind the inputs: (first node, end, weights into it).
        levels = plan.levels[plan.num_inputs :]
        bounds = [*(np.flatnonzero(np.diff(levels, prepend=-1)) + plan.num_inputs).tolist(), count]
        work = np.concatenate([[0], np.cumsum(plan.fan_in * widths)])
        self._levels = [(first, last, int(work[last] - work[first])) for first, last in pairwise(bounds)]
        reads = plan.read_rows
        self._reads = torch.from_numpy(reads)
        self._reads_first = (
            int(reads[0]) if len(reads) and np.array_equal(reads, reads[0] + np.arange(len(reads))) else -1
        )

    def functions(self, double: bool) -> Mapping[str, NativeFunction]:
        return _functions(WideShape(double, self.target, self._widths, self._names, self.plan.normalise))

    def _row_length(self, batch: int, double: bool) -> int:
        lanes = self.target.vector_bytes // (8 if double else 4)
        return -(-batch // lanes) * lanes

    def forward(self, x: Tensor, parameters: WideParameters, state: WideState) -> tuple[WideResult, Saved]:
        """Values of the nodes that are read. All tensors contiguous and of one dtype; x has at least one row."""
        plan, batch, double = self.plan, x.shape[0], x.dtype == torch.float64
        length = self._row_length(batch, double)
        memory = Borrowed((1 + self.has_more + self.keeps_slopes) * self.num_rows * length, x.dtype)
        values = memory.numbers[: self.num_rows * length].view(self.num_rows, length)
        values[: plan.columns, :batch] = x.t()
        values[: plan.columns, batch:] = 0
        own = plan.normalise == "batch" and state.mean is None
        mean, variance, mask = state.mean, state.variance, state.mask
        if own:
            mean, variance = x.new_empty(plan.sizes[2]), x.new_empty(plan.sizes[2])
        if mask is not None and length > batch:
            mask = torch.nn.functional.pad(mask, (0, length - batch))
        saved = Saved(memory, mean, variance, mask, own)
        frame = self._prepared(parameters, saved, batch, length, double)
        function = self.functions(double)["forward"]
        for first, last, is_shared in self._steps(batch):
            frame.set(first=first)
            run(function, frame, last - first, is_shared=is_shared)
        if self._reads_first >= 0:
            read = values[self._reads_first : self._reads_first + len(self._reads), :batch].clone()
        else:
            read = values.index_select(0, self._reads)[:, :batch].contiguous()
        return WideResult(read, mean if own else None, variance if own else None), saved

    def backward(self, gradient: Tensor, parameters: WideParameters, saved: Saved, *, needs_x: bool) -> WideGradients:
        """Gradients for that of the values that were read, ``[rows read, B]``."""
        plan, batch, double = self.plan, gradient.shape[1], gradient.dtype == torch.float64
        length = self._row_length(batch, double)
        scratch = Borrowed((1 + self.has_residuals) * self.num_rows * length, gradient.dtype)
        whole = self.num_rows * length
        of_values = scratch.numbers[:whole].view(self.num_rows, length)
        padded = torch.nn.functional.pad(gradient, (0, length - batch)) if length > batch else gradient
        of_values.index_copy_(0, self._reads, padded)
        frame = self._prepared(parameters, saved, batch, length, double)
        into = WideGradients(
            None,
            torch.empty_like(parameters.weight),
            torch.empty_like(parameters.bias),
            *(None if each is None else torch.empty_like(each) for each in (parameters.scale, parameters.shift)),
        )
        # Where values are passed on, their gradients are needed after the node; else those of the sums replace them.
        deltas = scratch.numbers[whole:] if self.has_residuals else scratch.numbers
        frame.set_addresses(
            deltas=deltas, value_gradients=scratch.numbers, grad_weight=into.weight, grad_bias=into.bias,
            grad_scale=into.scale, grad_shift=into.shift,
        )  # fmt: skip
        function = self.functions(double)["backward"]
        for first, last, is_shared in reversed(self._steps(batch)):
            frame.set(last=last)
            run(function, frame, last - first, is_shared=is_shared)
        if not needs_x:
            return into
        frame.set(last=plan.num_inputs)
        run(function, frame, plan.num_inputs, is_shared=self._is_shared(batch, self._levels_work))
        return into._replace(x=of_values[: plan.columns, :batch].t().contiguous())

    @property
    def _levels_work(self) -> int:
        return sum(work for *_, work in self._levels)

    def _is_shared(self, batch: int, work: int) -> bool:
        return work * batch >= _SHARED_WORK and num_workers(2) > 1

    def _steps(self, batch: int) -> list[tuple[int, int, bool]]:
        """(first node, end, whether threads share them): all at once on one thread, else level by level."""
        if not self._levels:
            return []
        if not self._is_shared(batch, self._levels_work):
            return [(self._levels[0][0], self._levels[-1][1], False)]
        return [(first, last, self._is_shared(batch, work)) for first, last, work in self._levels]

    def _prepared(self, parameters: WideParameters, saved: Saved, batch: int, length: int, double: bool) -> Frame:
        size = 8 if double else 4
        whole = self.num_rows * length * size
        values = saved.memory.numbers.data_ptr()
        hidden = values + whole * self.has_more
        frame = self._frame.copy(
            batch=batch,
            row_bytes=length * size,
            row_vectors=length * size // self.target.vector_bytes,
            values=values,
            hidden=hidden,
            slopes=hidden + whole,
            own_statistics=int(saved.own_statistics),
        )
        frame.set_addresses(
            weight=parameters.weight, bias=parameters.bias, scale=parameters.scale, shift=parameters.shift,
            means=saved.mean, variances=saved.variance, mask=saved.mask,
        )  # fmt: skip
        return frame


@cache
def _functions(shape: WideShape) -> Mapping[str, NativeFunction]:
    """``forward`` and ``backward``."""
    module = ir.Module("dagnn")
    write_products(module, shape)
    write_forward(module, shape, "forward")
    write_backward(module, shape, "backward")
    return compiled(str(module), ("forward", "backward"), shape.target)


def run_wide(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """The same as `run_reference`, for tensors on the CPU of one floating dtype."""
    return run_by(compiled_plan(plan), x, parameters, state)


def compiled_plan(plan: WidePlan) -> CompiledWide:
    """The plan for the processor at hand. Made once."""
    found: CompiledWide | None = plan.__dict__.get("_compiled")
    if found is None:
        found = plan.__dict__["_compiled"] = CompiledWide(plan, host_target())
    return found


class Engine(Protocol):
    """A plan on one device, with two passes over plain tensors there; see `CompiledWide`."""

    plan: WidePlan

    def forward(self, x: Tensor, parameters: WideParameters, state: WideState) -> tuple[WideResult, Any]: ...

    def backward(self, gradient: Tensor, parameters: WideParameters, saved: Any, *, needs_x: bool) -> WideGradients: ...


def run_by(engine: Engine, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """The same as `run_reference`, by these passes, under autograd where it is on."""
    if not x.shape[0]:
        return run_reference(engine.plan, x, parameters, state)
    check_sizes(engine.plan, parameters)
    tensors = (x, *parameters)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors):
        values, mean, variance = _Wide.apply(x, *parameters, engine, state)  # type: ignore[no-untyped-call]
        return WideResult(values, mean, variance)
    return engine.forward(x.contiguous(), contiguous(parameters), state)[0]


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        engine: Engine,
        state: WideState,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        parameters = contiguous(WideParameters(weight, bias, scale, shift))
        result, saved = engine.forward(x.contiguous(), parameters, state)
        ctx.engine, ctx.state, ctx.saved = engine, state, saved
        # Running statistics too: autograd raises if a later pass in training mode has moved them.
        ctx.save_for_backward(x, weight, bias, scale, shift, state.mean, state.variance)
        ctx.set_materialize_grads(False)
        if result.mean is not None and result.variance is not None:
            ctx.mark_non_differentiable(result.mean, result.variance)
        return result.values, result.mean, result.variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        gradient = gradients[0]
        x, weight, bias, scale, shift, *_ = ctx.saved_tensors
        if gradient is None:
            return (None,) * 7
        parameters = WideParameters(weight, bias, scale, shift)
        check_sizes(ctx.engine.plan, parameters)
        plain = _is_plain(gradient)
        if not plain:
            gradient = with_memory(gradient)
            plain = _is_plain(gradient)
        if torch.is_grad_enabled() or not plain:
            return *_by_reference(ctx, gradient, x, parameters), None, None
        if weight.dtype != gradient.dtype or weight.device != gradient.device:
            raise DtypeError(
                f"the forward pass ran in {gradient.dtype} on {gradient.device}, but the network is now "
                f"{weight.dtype} on {weight.device}: run the forward pass again before going backward."
            )
        needs = ctx.needs_input_grad
        found = ctx.engine.backward(gradient.contiguous(), contiguous(parameters), ctx.saved, needs_x=needs[0])
        return *(each if needed else None for each, needed in zip(found, needs[:5], strict=True)), None, None


def _is_plain(gradient: Tensor) -> bool:
    return is_plain(gradient) if gradient.is_cpu else is_plain_on_gpu(gradient)


def _by_reference(ctx: Any, gradient: Tensor, x: Tensor, parameters: WideParameters) -> tuple[Tensor | None, ...]:
    """Differentiable gradients: those of the reference, which runs forward once more."""
    given = [each for each in (x, *parameters) if each is not None]

    def values(x: Tensor, *own: Tensor) -> Tensor:
        return run_reference(ctx.engine.plan, x, WideParameters(*own), ctx.state).values

    pull: Any = torch.func.vjp(values, *given)[1]
    found = (*pull(gradient), *(None for _ in range(5 - len(given))))
    return tuple(each if needed else None for each, needed in zip(found, ctx.needs_input_grad[:5], strict=True))


def contiguous(parameters: WideParameters) -> WideParameters:
    return WideParameters(*(None if each is None else each.contiguous() for each in parameters))  # type: ignore[arg-type]


def check_sizes(plan: WidePlan, parameters: WideParameters) -> None:
    """Raise a GraphError for parameters of another size: compiled code would read past the end of one too short."""
    weights, biases, norms, _ = plan.sizes
    expected = [weights, biases, *([norms] * 2 if parameters.scale is not None else [])]
    given = [each.numel() for each in parameters if each is not None]
    if given != expected:
        raise GraphError(
            f"the network has {weights} weights, {biases} biases and {norms} entries of norms, got {given} values: "
            "after prune or grow, run the forward pass again before going backward."
        )
