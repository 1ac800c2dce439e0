"""The compiled passes of wide nodes against the reference, whatever the processor's vectors and the threads."""

import os
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import assert_rounded
from wide_networks import (
    ACTIVATIONS,
    batch_for,
    by_reference,
    drops,
    gradient_for,
    layered,
    parameters_of,
    state_of,
    wide_networks,
)  # fmt: skip

from dagnn import Dag, GraphError, WideDagNN, kernels
from dagnn.kernels.emit.native import PLAIN, host_target
from dagnn.kernels.wide import autograd_function
from dagnn.kernels.wide.autograd_function import CompiledWide, compiled_plan
from dagnn.kernels.wide.node_code import chunks
from dagnn.kernels.wide.plan import WideParameters, WideState, ranges


def by_compiled(net, x, state, gradient, target=None):
    plan = compiled_plan(net._plan) if target is None else CompiledWide(net._plan, target)
    parameters = parameters_of(net)
    result, saved = plan.forward(x, parameters, state)
    found = plan.backward(gradient, parameters, saved, needs_x=True)
    return result, [each for each in found if each is not None]


@settings(deadline=None, max_examples=12)
@given(wide_networks().map(drops), st.sampled_from([1, 2, 16, 19, 70]), st.booleans(), st.booleans())
def test_values_and_gradients_are_those_of_the_reference(net, batch, own_statistics, plain):
    x, gradient = batch_for(net, batch), gradient_for(net, batch)
    state = state_of(net, batch, own_statistics=own_statistics and batch > 1)
    expected, gradients = by_reference(net, x, state, gradient)
    result, found = by_compiled(net, x, state, gradient, PLAIN if plain else None)
    for mine, theirs in zip(result, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
@pytest.mark.parametrize("batch", [3, 40])
def test_float32_is_as_exact_as_rounding_allows(normalise, batch):
    net = layered(torch.float32, normalise=normalise)
    x, gradient, state = batch_for(net, batch), gradient_for(net, batch), state_of(net, batch)
    result, found = by_compiled(net, x, state, gradient)
    double = layered(torch.float64, normalise=normalise)
    double.load_state_dict(net.state_dict())
    wide_state = WideState(mask=None if state.mask is None else state.mask.double())

    def exactly():
        result, gradients = by_reference(double, x.double(), wide_state, gradient.double())
        return [result.values, *gradients]

    assert_rounded([result.values, *found], exactly)


def test_every_activation_and_a_formula_have_their_slopes():
    activation = {40 + k: ACTIVATIONS[k % 8] for k in range(31)} | {41: lambda z: z * torch.sigmoid(2 * z)}
    net = layered(torch.float64, normalise="batch", activation=activation)
    x, gradient = batch_for(net, 21), gradient_for(net, 21)
    expected, gradients = by_reference(net, x, state_of(net, 21), gradient)
    result, found = by_compiled(net, x, state_of(net, 21), gradient)
    torch.testing.assert_close(result.values, expected.values, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7)


def test_a_slope_that_is_no_number_behind_the_last_sample_does_no_harm():
    dag = Dag([("x", "a"), ("a", "y")])
    net = WideDagNN(dag, width={"a": 2}, activation=lambda z: z.log(), dtype=torch.float64)  # log(0) at the padding
    net.set_weights({("x", "a"): [[1.0], [2.0]], ("a", "y"): [[1.0, 1.0]]})
    net.set_biases({"a": [0.0, 0.0], "y": [0.0]})
    x = torch.tensor([[1.0], [4.0], [2.0]], dtype=torch.float64, requires_grad=True)
    net(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 / x.detach())
    torch.testing.assert_close(net.grad_of("x", "a"), torch.tensor([[3.0], [1.5]], dtype=torch.float64))


@pytest.mark.parametrize("normalise", ["batch", "layer"])
def test_threads_change_no_bit(normalise, monkeypatch):
    monkeypatch.setattr(autograd_function, "_SHARED_WORK", 1)
    net = layered(torch.float32, normalise=normalise)
    x, gradient, state = batch_for(net, 33), gradient_for(net, 33), state_of(net, 33)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            result, found = by_compiled(net, x, state, gradient)
            results.append([result.values, *found])
            assert len(compiled_plan(net._plan)._steps(33)) == (1 if threads == 1 else 6)
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_vectors_of_other_widths_give_the_same_up_to_rounding():
    net = layered(torch.float64, normalise="batch")
    x, gradient, state = batch_for(net, 21), gradient_for(net, 21), state_of(net, 21)
    expected, gradients = by_reference(net, x, state, gradient)
    for limit in ("16", "32", "64"):
        host_target.cache_clear()
        with mock.patch.dict(os.environ, {"DAGNN_VECTOR_BYTES": limit}):
            target = host_target()
        host_target.cache_clear()
        result, found = by_compiled(net, x, state, gradient, target)
        for mine, theirs in zip([result.values, *found], [expected.values, *gradients], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


def test_a_pass_between_forward_and_backward_disturbs_nothing():
    net = layered(torch.float64, normalise="batch", dropout=0.0)
    x = batch_for(net, 9)
    net(x).sum().backward()
    alone = net.edge_weight.grad.clone()
    net.zero_grad()
    y = net(x).sum()
    with torch.no_grad():
        net(batch_for(net, 30, seed=1))
    y.backward()
    assert torch.equal(net.edge_weight.grad, alone)


def test_running_statistics_that_move_before_the_backward_pass_are_an_error():
    net = layered(torch.float64, normalise="batch", dropout=0.0).eval()
    y = net(batch_for(net, 9)).sum()
    net.train()(batch_for(net, 9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_parameters_of_before_a_change_are_refused():
    net = layered(torch.float64)
    parameters = WideParameters(net.edge_weight[:-1].detach(), net.bias.detach())
    with pytest.raises(GraphError, match="after prune or grow, run the forward pass again"):
        kernels.run_wide(net._plan, batch_for(net, 2), parameters, WideState())


def test_which_path_runs_is_said_and_can_be_chosen(monkeypatch):
    net = layered(torch.float32)
    assert net.explain() == "compiled: machine code for this processor, forward and backward"
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    assert net.explain() == "reference: plain PyTorch, level by level, because DAGNN_KERNELS=reference"
    assert net.to(torch.bfloat16).explain().startswith("reference")
    assert net(torch.zeros(2, 40, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_parts_of_a_node_cover_its_units():
    for width in range(1, 40):
        parts = chunks(width)
        assert [unit for first, count in parts for unit in range(first, first + count)] == list(range(width))
        assert max(count for _, count in parts) - min(count for _, count in parts) <= 1
        assert max(count for _, count in parts) <= 6
    assert ranges(torch.tensor([3, 0]).numpy(), torch.tensor([2, 1]).numpy()).tolist() == [3, 4, 0]
