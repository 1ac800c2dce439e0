"""``torch.ops.dagnn.network``: a compiled network as one operator that ``torch.compile`` does not look into.

Traced as the reference is, a graph of 2,000 levels would be 10,000 operations. The operator keeps nothing between its
passes: backward runs the forward pass again.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dagnn.errors import DtypeError, GraphError
from dagnn.kernels.network import NetworkPlan, plan_of


@torch.library.custom_op("dagnn::network", mutates_args=())
def _forward(x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str) -> Tensor:
    from dagnn.kernels import compiled_network  # here: it needs llvmlite

    if not len(x):
        return x.new_empty(0, len(plan_of(plan).outputs))
    _check(plan_of(plan), x, edge_weight, bias)
    y, _ = compiled_network.forward(plan_of(plan).compiled, x.contiguous(), edge_weight.contiguous(), bias.contiguous())
    return y


@torch.library.custom_op("dagnn::network_backward", mutates_args=())
def _backward(grad_y: Tensor, x: Tensor, edge_weight: Tensor, bias: Tensor, plan: str) -> tuple[Tensor, Tensor, Tensor]:
    from dagnn.kernels import compiled_network

    if not len(x):
        return torch.zeros_like(x), torch.zeros_like(edge_weight), torch.zeros_like(bias)
    _check(plan_of(plan), x, edge_weight, bias, grad_y)
    compiled, weight, own_bias = plan_of(plan).compiled, edge_weight.contiguous(), bias.contiguous()
    _, saved = compiled_network.forward(compiled, x.contiguous(), weight, own_bias)
    into = compiled_network.Gradients(torch.empty_like(weight), torch.empty_like(own_bias), accumulate=False)
    grad_x = compiled_network.backward(compiled, grad_y.contiguous(), saved, weight, own_bias, into, needs_x=True)
    assert grad_x is not None
    return grad_x, into.weight, into.bias


def _check(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor, grad_y: Tensor | None = None) -> None:
    """Anybody can call ``torch.ops.dagnn.network``, and compiled code reads wherever the plan sends it."""
    from dagnn.kernels import network_function

    network_function.check_sizes(plan, edge_weight, bias)
    for name, rows, columns in (("x", x, len(plan.inputs)), ("grad_y", grad_y, len(plan.outputs))):
        if rows is not None and rows.shape != (len(x), columns):
            raise GraphError(f"{name} must have the shape {[len(x), columns]}, got {list(rows.shape)}.")
    dtypes = {tensor.dtype for tensor in (x, edge_weight, bias, grad_y) if tensor is not None}
    if len(dtypes) > 1 or x.dtype not in (torch.float32, torch.float64):
        names = ", ".join(sorted(map(str, dtypes)))
        raise DtypeError(f"a network computes in torch.float32 or torch.float64, all of one, got {names}.")


def run_network(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """The same as `reference.run_network`, as one operator."""
    y: Tensor = _forward(x, edge_weight, bias, plan.fingerprint)
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
    gradients = _backward(grad_y, x, edge_weight, bias, ctx.plan)  # type: ignore[attr-defined]
    return (*gradients, None)


_forward.register_fake(_fake_forward)
_backward.register_fake(_fake_backward)
_forward.register_autograd(_differentiate, setup_context=_remember)
