"""A compiled network under autograd: first derivatives compiled, everything else by the reference.

Gradients of parameters go straight into ``.grad`` where that is what autograd would do with them next. That is so
when the parameter is a leaf without hooks and the pass is a plain backward: `torch.autograd.grad` gets them returned,
as does anything that listens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.kernels import compiled_network, reference
from dagnn.kernels.compiled_network import Gradients, Saved
from dagnn.kernels.leaf_gradients import are_first, is_plain_leaf, only_adds, turn, written
from dagnn.kernels.network import NetworkPlan
from dagnn.kernels.plain_tensors import is_plain, with_memory


def run_network(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """The same as `reference.run_network`, for tensors on the CPU of one floating dtype."""
    if not x.shape[0]:
        return reference.run_network(plan.levels, x, edge_weight, bias)
    check_sizes(plan, edge_weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or edge_weight.requires_grad or bias.requires_grad):
        y: Tensor = _apply(x, edge_weight, bias, plan)
        return y
    y, _ = compiled_network.forward(plan.compiled, x.contiguous(), edge_weight.contiguous(), bias.contiguous())
    return y


def accumulate(
    plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor, grad_y: Tensor, lr: float | None = None
) -> bool:
    """Forward and backward in one go, without autograd, into the ``.grad`` of the two parameters.

    Args:
        lr: then also a step of plain gradient descent on what is accumulated, in the same pass.

    Returns:
        False, and nothing has happened, if somebody listens to the parameters or one of them is frozen.
    """
    if not (is_plain_leaf(edge_weight) and is_plain_leaf(bias)):
        return False
    if x.shape[0]:
        x, grad_y = x.contiguous(), grad_y.contiguous()
        with torch.no_grad(), turn((edge_weight, bias)):
            _, saved = compiled_network.forward(plan.compiled, x, edge_weight, bias)
            _add(plan, grad_y, saved, edge_weight, bias, lr=lr, needs_x=False)
    return True


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: NetworkPlan) -> Tensor:
        weight, own_bias = edge_weight.contiguous(), bias.contiguous()
        y, saved = compiled_network.forward(plan.compiled, x.contiguous(), weight, own_bias)
        ctx.plan = plan
        ctx.saved = saved  # not a saved tensor: nobody else can see it or write to it
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
            return _by_reference(ctx, grad_y, x, edge_weight, bias)
        _check_dtype(grad_y, edge_weight)
        _check_dtype(grad_y, bias)
        return _compiled_backward(ctx, grad_y, edge_weight, bias, ctx.saved)


# All that `Function.apply` does where no transform of ``torch.func`` is at work, as here. Asking whether one is took a
# hundredth of a step.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Network).apply


def _compiled_backward(
    ctx: Any, grad_y: Tensor, edge_weight: Tensor, bias: Tensor, saved: Saved
) -> tuple[Tensor | None, ...]:
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    weight, own_bias, grad_y = edge_weight.contiguous(), bias.contiguous(), grad_y.contiguous()
    if not are_first(edge_weight, bias) and only_adds(
        (edge_weight, bias), [node for node, _ in ctx.next_functions[1:3]]
    ):
        with turn((edge_weight, bias)):
            return _add(ctx.plan, grad_y, saved, edge_weight, bias, lr=None, needs_x=needs_x), None, None, None
    into = _new_gradients(weight, own_bias)
    grad_x = compiled_network.backward(ctx.plan.compiled, grad_y, saved, weight, own_bias, into, needs_x=needs_x)
    return grad_x, into.weight if needs_weight else None, into.bias if needs_bias else None, None


def _add(
    plan: NetworkPlan,
    grad_y: Tensor,
    saved: Saved,
    edge_weight: Tensor,
    bias: Tensor,
    *,
    lr: float | None,
    needs_x: bool,
) -> Tensor | None:
    """Adds to the ``.grad`` of contiguous parameters, with ``lr`` also steps, in their `turn`; the gradient of x."""
    into = _gradients_of(edge_weight, bias)._replace(lr=lr)
    grad_x = compiled_network.backward(plan.compiled, grad_y, saved, edge_weight, bias, into, needs_x=needs_x)
    edge_weight.grad, bias.grad = into.weight, into.bias
    if into.accumulate:
        written(into.weight, into.bias)
    if lr is not None:
        written(edge_weight, bias)
    return grad_x


def check_sizes(plan: NetworkPlan, edge_weight: Tensor, bias: Tensor) -> None:
    """Compiled code trusts what it is given, and reads past the end of a parameter that is too short.

    Raises:
        GraphError: other parameters than the network's, or those of before a change of its edges.
    """
    if edge_weight.numel() != plan.num_edges or bias.numel() != plan.num_biases:
        raise GraphError(
            f"the network has {plan.num_edges} edges and {plan.num_biases} biases, got {edge_weight.numel()} and "
            f"{bias.numel()} values: after prune or grow, run the forward pass again before going backward."
        )


def _check_dtype(grad_y: Tensor, parameter: Tensor) -> None:
    """``net.float()`` gives new memory to the parameters of a pass that ran in float64, and ``net.cuda()`` does too.

    ``grad_y`` is on the CPU.

    Raises:
        DtypeError: they are not what they were in the forward pass.
    """
    if parameter.dtype != grad_y.dtype or not parameter.is_cpu:
        raise DtypeError(
            f"the forward pass ran in {grad_y.dtype} on {grad_y.device}, but the network is now {parameter.dtype} "
            f"on {parameter.device}: run the forward pass again before going backward."
        )


def _gradients_of(edge_weight: Tensor, bias: Tensor) -> Gradients:
    """The buffers that the parameters hold, to be added to; or new ones, to be written, if neither holds any."""
    held = (edge_weight.grad, bias.grad)
    if held == (None, None):
        return _new_gradients(edge_weight, bias)
    weight, of_bias = (
        torch.zeros_like(parameter) if grad is None else grad
        for parameter, grad in zip((edge_weight, bias), held, strict=True)
    )
    return Gradients(weight, of_bias, accumulate=True)


def _new_gradients(edge_weight: Tensor, bias: Tensor) -> Gradients:
    return Gradients(edge_weight.new_empty(edge_weight.numel()), bias.new_empty(bias.numel()), False)


def _by_reference(ctx: Any, grad_y: Tensor, x: Tensor, edge_weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiable gradients: those of the reference, computed anew."""
    levels = ctx.plan.levels
    # Typed as if there always were a third result.
    pull: Any = torch.func.vjp(lambda *inputs: reference.run_network(levels, *inputs), x, edge_weight, bias)[1]
    gradients = pull(grad_y)
    return (*(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad[:3], strict=True)), None)


__all__ = ["accumulate", "run_network"]
