"""A compiled network: under autograd, without it, and as one operator for ``torch.compile``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dagnn.errors import DtypeError, GraphError
from dagnn.kernels import reference
from dagnn.kernels.autograd import added_to, are_first, is_plain, is_plain_leaf, only_adds, with_memory, written
from dagnn.kernels.network import passes
from dagnn.kernels.network.passes import Gradients, Saved
from dagnn.kernels.network.plan import NetworkPlan, plan_of


def run_network(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """The same as `reference.run_network`, for tensors on the CPU of one floating dtype."""
    if not x.shape[0]:
        return reference.run_network(plan.levels, x, edge_weight, bias)
    check_sizes(plan, edge_weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or edge_weight.requires_grad or bias.requires_grad):
        y: Tensor = _apply(x, edge_weight, bias, plan)
        return y
    y, _ = passes.forward(plan.compiled, x.contiguous(), edge_weight.contiguous(), bias.contiguous())
    return y


def accumulate(
    plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor, grad_y: Tensor, lr: float | None = None
) -> bool:
    """Forward and backward in one go, without autograd, into the ``.grad`` of the two parameters.

    Args:
        lr: then also a step of plain gradient descent on what is accumulated, in the same pass.

    Returns:
        False, with nothing changed, where a parameter has hooks, is frozen, or has a gradient of another form.
    """
    if not (is_plain_leaf(edge_weight) and is_plain_leaf(bias)):
        return False
    if x.shape[0]:
        x, grad_y = x.contiguous(), grad_y.contiguous()
        with torch.no_grad(), added_to((edge_weight, bias), may_overwrite=True) as ((weight, of_bias), accumulate):
            _, saved = passes.forward(plan.compiled, x, edge_weight, bias)
            into = Gradients(weight, of_bias, accumulate, lr)
            passes.backward(plan.compiled, grad_y, saved, edge_weight, bias, into, needs_x=False)
            if lr is not None:
                written(edge_weight, bias)
    return True


def replace_gradients(
    plan: NetworkPlan,
    x: Tensor,
    rows: Tensor,
    edge_weight: Tensor,
    bias: Tensor,
    gradient_of: Callable[[Tensor], Tensor],
) -> None:
    """One forward and backward pass without autograd, whose gradients replace the ``.grad`` of both parameters.

    Args:
        x: contiguous ``[samples, inputs]``.
        rows: contiguous int64 ``[B]``, the samples of the batch; B at least 1. Nothing checks that x has them.
        edge_weight, bias: contiguous leaves with a ``.grad`` of their own form.
        gradient_of: of the outputs ``[B, outputs]``, contiguous, from the outputs, in whose memory it may be.
    """
    weight, own_bias = edge_weight.detach(), bias.detach()
    check_sizes(plan, weight, own_bias)
    assert edge_weight.grad is not None
    assert bias.grad is not None
    y, saved = passes.forward(plan.compiled, x, weight, own_bias, rows)
    into = Gradients(edge_weight.grad, bias.grad, accumulate=False)
    passes.backward(plan.compiled, gradient_of(y), saved, weight, own_bias, into, needs_x=False)


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: NetworkPlan) -> Tensor:
        weight, own_bias = edge_weight.contiguous(), bias.contiguous()
        y, saved = passes.forward(plan.compiled, x.contiguous(), weight, own_bias)
        ctx.plan = plan
        # Not saved tensors: nobody else can see these values or write to them. The inputs are: autograd raises if the
        # user has written to them since.
        ctx.saved = saved
        ctx.save_for_backward(x, edge_weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, edge_weight, bias = ctx.saved_tensors
        check_sizes(ctx.plan, edge_weight, bias)
        plain = is_plain(grad_y)
        if not plain:
            grad_y = with_memory(grad_y)
            plain = is_plain(grad_y)
        if torch.is_grad_enabled() or not plain:
            return by_reference(ctx, grad_y, x, edge_weight, bias)
        check_dtype(grad_y, edge_weight)
        check_dtype(grad_y, bias)
        return _compiled_backward(ctx, grad_y, edge_weight, bias, ctx.saved)


# What `Function.apply` calls when no transform of ``torch.func`` is active, as is the case here. Its check for one took
# a hundredth of a step.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Network).apply


def _compiled_backward(
    ctx: Any, grad_y: Tensor, edge_weight: Tensor, bias: Tensor, saved: Saved
) -> tuple[Tensor | None, ...]:
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    weight, own_bias, grad_y = edge_weight.contiguous(), bias.contiguous(), grad_y.contiguous()
    if not are_first(edge_weight, bias) and only_adds(
        (edge_weight, bias), [node for node, _ in ctx.next_functions[1:3]]
    ):
        # Autograd would only add these to ``.grad``. Added here, the sums need no memory of their own.
        with added_to((edge_weight, bias), may_overwrite=True) as ((of_weight, of_bias), accumulate):
            into = Gradients(of_weight, of_bias, accumulate)
            grad_x = passes.backward(ctx.plan.compiled, grad_y, saved, weight, own_bias, into, needs_x=needs_x)
        return grad_x, None, None, None
    into = Gradients(torch.empty_like(weight), torch.empty_like(own_bias), accumulate=False)
    grad_x = passes.backward(ctx.plan.compiled, grad_y, saved, weight, own_bias, into, needs_x=needs_x)
    return grad_x, into.weight if needs_weight else None, into.bias if needs_bias else None, None


def check_sizes(plan: NetworkPlan, edge_weight: Tensor, bias: Tensor) -> None:
    """Raise a GraphError for parameters of another size: compiled code would read past the end of one too short."""
    if edge_weight.numel() != plan.num_edges or bias.numel() != plan.num_biases:
        raise GraphError(
            f"the network has {plan.num_edges} edges and {plan.num_biases} biases, got {edge_weight.numel()} and "
            f"{bias.numel()} values: after prune or grow, run the forward pass again before going backward."
        )


def check_dtype(grad_y: Tensor, parameter: Tensor) -> None:
    """Raise a DtypeError where ``net.float()`` or ``net.cuda()`` between the passes gave a parameter other memory."""
    if parameter.dtype != grad_y.dtype or parameter.device != grad_y.device:
        raise DtypeError(
            f"the forward pass ran in {grad_y.dtype} on {grad_y.device}, but the network is now {parameter.dtype} "
            f"on {parameter.device}: run the forward pass again before going backward."
        )


def by_reference(ctx: Any, grad_y: Tensor, x: Tensor, edge_weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiable gradients: those of the reference, which runs forward once more."""
    levels = ctx.plan.levels
    # Typed as if there always were a third result.
    pull: Any = torch.func.vjp(lambda *inputs: reference.run_network(levels, *inputs), x, edge_weight, bias)[1]
    gradients = pull(grad_y)
    return (*(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad[:3], strict=True)), None)


@torch.library.custom_op("dagnn::network", mutates_args=())
def forward_operator(x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str) -> Tensor:
    if not len(x):
        return x.new_empty(0, len(plan_of(plan).outputs))
    check_tensors(plan_of(plan), x, edge_weight, bias)
    y, _ = passes.forward(plan_of(plan).compiled, x.contiguous(), edge_weight.contiguous(), bias.contiguous())
    return y


@torch.library.custom_op("dagnn::network_backward", mutates_args=())
def backward_operator(
    grad_y: Tensor, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str
) -> tuple[Tensor, Tensor, Tensor]:
    if not len(x):
        return torch.zeros_like(x), torch.zeros_like(edge_weight), torch.zeros_like(bias)
    check_tensors(plan_of(plan), x, edge_weight, bias, grad_y)
    compiled, weight, own_bias = plan_of(plan).compiled, edge_weight.contiguous(), bias.contiguous()
    # Forward once more: operators exchange tensors only, so the saved values of the first pass are out of reach.
    _, saved = passes.forward(compiled, x.contiguous(), weight, own_bias)
    into = Gradients(torch.empty_like(weight), torch.empty_like(own_bias), accumulate=False)
    grad_x = passes.backward(compiled, grad_y.contiguous(), saved, weight, own_bias, into, needs_x=True)
    assert grad_x is not None
    return grad_x, into.weight, into.bias


def check_tensors(
    plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor, grad_y: Tensor | None = None
) -> None:
    """Anybody can call ``torch.ops.dagnn.network``, and compiled code reads wherever the plan sends it."""
    check_sizes(plan, edge_weight, bias)
    for name, rows, columns in (("x", x, len(plan.inputs)), ("grad_y", grad_y, len(plan.outputs))):
        if rows is not None and rows.shape != (len(x), columns):
            raise GraphError(f"{name} must have the shape {[len(x), columns]}, got {list(rows.shape)}.")
    dtypes = {tensor.dtype for tensor in (x, edge_weight, bias, grad_y) if tensor is not None}
    if len(dtypes) > 1 or x.dtype not in (torch.float32, torch.float64):
        names = ", ".join(sorted(map(str, dtypes)))
        raise DtypeError(f"a network computes in torch.float32 or torch.float64, all of one, got {names}.")


def run_operator(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """The same as `reference.run_network`, as one operator."""
    y: Tensor = forward_operator(x, edge_weight, bias, plan.fingerprint)
    return y


def _fake_forward(x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str) -> Tensor:
    return x.new_empty(x.shape[0], len(plan_of(plan).outputs))


def _fake_backward(
    grad_y: Tensor, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), edge_weight.new_empty(edge_weight.shape), bias.new_empty(bias.shape)


def _remember(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor, str], output: Tensor) -> None:
    *tensors, plan = inputs
    ctx.save_for_backward(*tensors)
    ctx.plan = plan  # type: ignore[attr-defined]


def _differentiate(ctx: FunctionCtx, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, edge_weight, bias = ctx.saved_tensors  # type: ignore[attr-defined]
    gradients = backward_operator(grad_y, x, edge_weight, bias, ctx.plan)  # type: ignore[attr-defined]
    return (*gradients, None)


forward_operator.register_fake(_fake_forward)
backward_operator.register_fake(_fake_backward)
forward_operator.register_autograd(_differentiate, setup_context=_remember)
