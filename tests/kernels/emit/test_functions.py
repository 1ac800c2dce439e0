"""The activations as compiled, against PyTorch's in float64: value, slope, kinks and far ends."""

import pytest
import torch

from dagnn.graph import Dag
from dagnn.kernels import ACTIVATIONS, NEAT_ACTIVATIONS, plan_network
from dagnn.kernels.network import passes
from dagnn.kernels.network.passes import Gradients
from dagnn.kernels.nodes import activation_of

# Units in the last place of the larger of 1 and the result: for a handful of operations, each of them rounded.
UNITS = {torch.float32: 8, torch.float64: 18}


def value_and_slope(name: str, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """From a network of one edge."""
    dag = Dag([(0, 1)])
    plan = plan_network(
        dag.edges, dag.levels, dag.inputs, dag.outputs, torch.tensor([False, False]), ["identity", name]
    )
    one = torch.ones(1, dtype=z.dtype)
    y, saved = passes.forward(plan.compiled, z[:, None].contiguous(), one, one[:0])
    into = Gradients(torch.empty_like(one), one[:0], accumulate=False)
    slope = passes.backward(plan.compiled, torch.ones_like(y), saved, one, one[:0], into, needs_x=True)
    assert slope is not None
    return y[:, 0], slope[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_and_slope(name, dtype):
    z = torch.cat([torch.linspace(-30, 30, 6_001), torch.logspace(-12, 2, 50), -torch.logspace(-12, 2, 50)])
    z = torch.cat([z, torch.tensor([0.0, 19.5, 20.5, 80.0, -80.0, 700.0, -700.0, 1e6, -1e6])]).to(dtype)
    exact = z.double().requires_grad_()
    y = ACTIVATIONS[name](exact)
    (slope,) = torch.autograd.grad(y.sum(), exact)
    for ours, theirs in zip(value_and_slope(name, z), (y.detach(), slope), strict=True):
        # The slopes of silu and gelu have z times a probability, which is rounded, until it is 0 or 1.
        units = UNITS[dtype] * theirs.abs().clamp(min=1) + z.double().abs().clamp(max=40)
        error = (ours.double() - theirs).abs() / units
        assert error.max() <= torch.finfo(dtype).eps, (z[error.argmax()], error.max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(NEAT_ACTIVATIONS))
def test_value_and_slope_of_neat_pythons_activations(name, dtype):
    ends = torch.tensor([0.0, 3.4, -3.4, 1e-7, -12.0, 12.0, 1e3, -1e3])
    z = torch.cat([torch.linspace(-20, 20, 2_001), ends]).to(dtype)
    exact = z.double().requires_grad_()
    y = activation_of(name)(exact)
    (slope,) = torch.autograd.grad(y.sum(), exact)
    for ours, theirs in zip(value_and_slope(name, z), (y.detach(), slope), strict=True):
        # An argument 5 z of up to 60 is rounded, which its function sees through a slope of 5, and its slope of 25.
        units = UNITS[dtype] * theirs.abs().clamp(min=1) + 25 * (5 * z.double()).abs().clamp(max=60)
        error = (ours.double() - theirs).abs() / units
        assert error.max() <= torch.finfo(dtype).eps, (z[error.argmax()], error.max())


@pytest.mark.parametrize("name", ["tanh", "elu"])
def test_small_values_keep_their_relative_precision(name):
    z = torch.logspace(-300, -1, 300, dtype=torch.float64)
    for x in (z, -z):
        y, _ = value_and_slope(name, x)
        torch.testing.assert_close(y, ACTIVATIONS[name](x), rtol=1e-14, atol=0)


@pytest.mark.fault("graphs_and_networks", 28)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_gates_keep_their_last_digits_where_they_are_nearly_shut_or_open(name, dtype):
    z = torch.cat([torch.linspace(-80, 80, 20_001), torch.logspace(-6, 0, 1_000)]).to(dtype)
    for x in (z, -z):
        y, slope = value_and_slope(name, x)
        exact = ACTIVATIONS[name](x.double())
        unit = torch.finfo(dtype).eps
        assert ((y.double() - exact).abs() <= 3 * unit * exact.abs()).all()
        exact_slope = 1 - exact.square() if name == "tanh" else exact * (1 - exact)
        assert ((slope.double() - exact_slope).abs() <= 3 * unit).all()
    y, slope = value_and_slope("tanh", torch.tensor([-30.0, 30.0], dtype=dtype))
    assert y.tolist() == [-1.0, 1.0]
    assert slope.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_infinity_gives_what_pytorch_gives_or_its_limit(name):
    y, _ = value_and_slope(name, torch.tensor([torch.inf, 1.0], dtype=torch.float64))
    assert y[0] == ACTIVATIONS[name](torch.tensor(torch.inf, dtype=torch.float64))
