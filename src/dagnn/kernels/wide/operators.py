"""The passes of wide nodes as one operator each, for ``torch.compile``."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dagnn.errors import DtypeError, GraphError
from dagnn.kernels.wide.autograd_function import Engine, WideGradients, check_sizes, compiled_plan, contiguous
from dagnn.kernels.wide.plan import WideParameters, WidePlan, WideResult, WideState, plan_of, run_reference


@torch.library.custom_op("dagnn::wide_network", mutates_args=())
def forward_operator(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    mask: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """`WideResult`; mean and variance are empty where it has none."""
    parameters, state = WideParameters(weight, bias, scale, shift), WideState(mean, variance, mask)
    return run_forward(compiled_plan(plan_of(plan)), x, parameters, state)


@torch.library.custom_op("dagnn::wide_network_backward", mutates_args=())
def backward_operator(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    mask: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`WideGradients`; those of scale and shift are empty where there are none."""
    parameters, state = WideParameters(weight, bias, scale, shift), WideState(mean, variance, mask)
    return run_backward(compiled_plan(plan_of(plan)), gradient, x, parameters, state)


def run_forward(
    engine: Engine, x: Tensor, parameters: WideParameters, state: WideState
) -> tuple[Tensor, Tensor, Tensor]:
    """What `forward_operator` gives, by these passes."""
    _check_tensors(engine.plan, x, parameters, state)
    if len(x):
        values, mean, variance = engine.forward(x.contiguous(), contiguous(parameters), state)[0]
    else:
        values, mean, variance = run_reference(engine.plan, x, parameters, state)
        values = values.clone()
    empty = x.new_empty(0)
    return values, empty if mean is None else mean, x.new_empty(0) if variance is None else variance


def run_backward(
    engine: Engine, gradient: Tensor, x: Tensor, parameters: WideParameters, state: WideState
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `backward_operator` gives, by these passes."""
    _check_tensors(engine.plan, x, parameters, state, gradient)
    if not len(x):
        found = WideGradients(x, *parameters)
        return tuple(x.new_zeros(0 if each is None else each.shape) for each in found)  # type: ignore[return-value]
    parameters = contiguous(parameters)
    # Forward once more: operators exchange tensors only, so the saved values of the first pass are out of reach.
    _, saved = engine.forward(x.contiguous(), parameters, state)
    found = engine.backward(gradient.contiguous(), parameters, saved, needs_x=True)
    return tuple(x.new_empty(0) if each is None else each for each in found)  # type: ignore[return-value]


def _check_tensors(
    plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState, gradient: Tensor | None = None
) -> None:
    """Anybody can call ``torch.ops.dagnn.wide_network``, and compiled code reads wherever the plan sends it."""
    check_sizes(plan, parameters)
    batch, statistics = x.shape[0], (plan.sizes[2],)
    shapes = {"x": (batch, plan.columns), "mean": statistics, "variance": statistics, "mask": (plan.sizes[3], batch)}
    shapes["gradient"] = (len(plan.read_rows), batch)
    given = {"x": x, **state._asdict(), "gradient": gradient}
    for name, tensor in given.items():
        if tensor is not None and tensor.shape != shapes[name]:
            raise GraphError(f"{name} must have the shape {list(shapes[name])}, got {list(tensor.shape)}.")
    if (parameters.scale is None) != (plan.normalise is None) or (parameters.shift is None) != (plan.normalise is None):
        raise GraphError(f"scale and shift belong to a norm, and this network has normalise={plan.normalise!r}.")
    if (state.mean is None) != (state.variance is None):
        raise GraphError("mean and variance must be given both, or neither.")
    dtypes = {each.dtype for each in (x, *parameters, *state, gradient) if each is not None}
    if len(dtypes) > 1 or x.dtype not in (torch.float32, torch.float64):
        names = ", ".join(sorted(map(str, dtypes)))
        raise DtypeError(f"a network computes in torch.float32 or torch.float64, all of one, got {names}.")


def run_operator(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """The same as `run_reference`, as one operator."""
    values, mean, variance = forward_operator(x, *parameters, *state, plan.fingerprint())
    if not plan.takes_statistics(state):
        return WideResult(values, None, None)
    return WideResult(values, mean.detach(), variance.detach())


def unpacked(given: tuple[Any, ...]) -> tuple[WidePlan, WideParameters, WideState]:
    """What an operator gets behind its rows."""
    *tensors, plan = given
    return plan_of(plan), WideParameters(*tensors[:4]), WideState(*tensors[4:])


def _fake_forward(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    plan, _, state = unpacked(given)
    norms = plan.sizes[2] if plan.takes_statistics(state) else 0
    return x.new_empty(len(plan.read_rows), x.shape[0]), x.new_empty(norms), x.new_empty(norms)


def _fake_backward(gradient: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *tensors, _ = given
    return tuple(gradient.new_empty(0 if each is None else each.shape) for each in tensors[:5])


def _remember(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, plan = inputs
    ctx.save_for_backward(*tensors)
    ctx.plan = plan  # type: ignore[attr-defined]


def _differentiate(ctx: FunctionCtx, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors  # type: ignore[attr-defined]
    found = backward_operator(gradient, *tensors, ctx.plan)  # type: ignore[attr-defined]
    own = (None if given is None else each for each, given in zip(found, tensors[:5], strict=True))
    return *own, None, None, None, None


forward_operator.register_fake(_fake_forward)
backward_operator.register_fake(_fake_backward)
forward_operator.register_autograd(_differentiate, setup_context=_remember)
