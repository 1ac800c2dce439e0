"""Compiled networks of wide nodes under autograd."""

from typing import Any

import torch
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.kernels.autograd import is_plain, with_memory
from dagnn.kernels.emit.native import host_target
from dagnn.kernels.wide import reference
from dagnn.kernels.wide.passes import CompiledWide
from dagnn.kernels.wide.plan import WidePlan
from dagnn.kernels.wide.reference import WideParameters, WideResult, WideState


def run_wide(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """The same as `reference.run_wide`, for tensors on the CPU of one floating dtype."""
    if not x.shape[0]:
        return reference.run_wide(plan, x, parameters, state)
    _check_sizes(plan, parameters)
    tensors = (x, *parameters)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors):
        values, mean, variance = _Wide.apply(x, *parameters, plan, state)  # type: ignore[no-untyped-call]
        return WideResult(values, mean, variance)
    return compiled_plan(plan).forward(x.contiguous(), _contiguous(parameters), state)[0]


def compiled_plan(plan: WidePlan) -> CompiledWide:
    """The plan for the processor at hand. Made once."""
    found: CompiledWide | None = plan.__dict__.get("_compiled")
    if found is None:
        found = plan.__dict__["_compiled"] = CompiledWide(plan, host_target())
    return found


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        plan: WidePlan,
        state: WideState,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        parameters = _contiguous(WideParameters(weight, bias, scale, shift))
        result, saved = compiled_plan(plan).forward(x.contiguous(), parameters, state)
        ctx.plan, ctx.state, ctx.saved = plan, state, saved
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
        _check_sizes(ctx.plan, parameters)
        plain = is_plain(gradient)
        if not plain:
            gradient = with_memory(gradient)
            plain = is_plain(gradient)
        if torch.is_grad_enabled() or not plain:
            return *_by_reference(ctx, gradient, x, parameters), None, None
        if weight.dtype != gradient.dtype or not weight.is_cpu:
            raise DtypeError(
                f"the forward pass ran in {gradient.dtype} on {gradient.device}, but the network is now "
                f"{weight.dtype} on {weight.device}: run the forward pass again before going backward."
            )
        needs = ctx.needs_input_grad
        found = compiled_plan(ctx.plan).backward(
            gradient.contiguous(), _contiguous(parameters), ctx.saved, needs_x=needs[0]
        )
        return *(each if needed else None for each, needed in zip(found, needs[:5], strict=True)), None, None


def _by_reference(ctx: Any, gradient: Tensor, x: Tensor, parameters: WideParameters) -> tuple[Tensor | None, ...]:
    """Differentiable gradients: those of the reference, which runs forward once more."""
    given = [each for each in (x, *parameters) if each is not None]

    def values(x: Tensor, *own: Tensor) -> Tensor:
        return reference.run_wide(ctx.plan, x, WideParameters(*own), ctx.state).values

    pull: Any = torch.func.vjp(values, *given)[1]
    found = (*pull(gradient), *(None for _ in range(5 - len(given))))
    return tuple(each if needed else None for each, needed in zip(found, ctx.needs_input_grad[:5], strict=True))


def _contiguous(parameters: WideParameters) -> WideParameters:
    return WideParameters(*(None if each is None else each.contiguous() for each in parameters))  # type: ignore[arg-type]


def _check_sizes(plan: WidePlan, parameters: WideParameters) -> None:
    """Compiled code does not check sizes: it would read past the end of a parameter that is too short.

    Raises:
        GraphError: other parameters than the network's, or those of before a change of its edges.
    """
    weights, biases, norms, _ = plan.sizes
    expected = [weights, biases, *([norms] * 2 if parameters.scale is not None else [])]
    given = [each.numel() for each in parameters if each is not None]
    if given != expected:
        raise GraphError(
            f"the network has {weights} weights, {biases} biases and {norms} entries of norms, got {given} values: "
            "after prune or grow, run the forward pass again before going backward."
        )
