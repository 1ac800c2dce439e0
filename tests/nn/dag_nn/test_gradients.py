"""Gradients of a `DagNN` by name and by hand: accumulate, read, step; and nothing of it in eval mode."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.nn import DagNN, Embedding

EDGES = [("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y")]


def network(**options) -> DagNN:
    torch.manual_seed(0)
    return DagNN(Dag(EDGES, outputs=["y", "a"]), dtype=torch.float64, **options)


X = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)
G = torch.tensor([[1.0, 0.0], [-2.0, 0.5], [0.25, 3.0]], dtype=torch.float64)


def same_gradients(net: DagNN, other: DagNN) -> None:
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-12)


# ---- read and write by name ----


@settings(max_examples=25)
@given(dags(min_nodes=2, named=None), st.integers(0, 9))
def test_gradients_by_name_are_finite_differences(dag, seed):
    torch.manual_seed(seed)
    net = DagNN(dag, dtype=torch.float64)
    x = torch.randn(3, len(dag.inputs), dtype=torch.float64)

    def loss() -> torch.Tensor:
        return net(x).square().sum()

    loss().backward()
    for (u, v), grad in net.edge_grads().items():
        index, eps = net._layout.index_of(u, v), 1e-6
        with torch.no_grad():
            net.edge_weight[index] += eps
            above = loss().item()
            net.edge_weight[index] -= 2 * eps
            below = loss().item()
            net.edge_weight[index] += eps
        assert grad == pytest.approx((above - below) / (2 * eps), rel=1e-5, abs=1e-7)
        assert net.grad_of(u, v) == net.get_edge_grad(u, v) == grad


def test_without_a_backward_every_edge_gradient_is_zero():
    net = network()
    assert net.edge_grads() == dict.fromkeys(EDGES, 0.0)
    assert net.grad_of("x", "a") == 0.0


def test_accumulate_edge_grad_sums_numbers_and_tensors_on_top_of_autograd():
    net = network()
    net.accumulate_edge_grad("x", "y", 2.0)
    net.accumulate_edge_grad("x", "y", torch.tensor(0.5))
    assert net.edge_grads() == {**dict.fromkeys(EDGES, 0.0), ("x", "y"): 2.5}

    net.zero_grad()
    net(X).sum().backward()
    before = net.edge_grads()
    net.accumulate_edge_grad("a", "y", -1.0)
    assert net.edge_grads() == {**before, ("a", "y"): before["a", "y"] - 1.0}


def test_a_frozen_weight_accumulates_nothing():
    net = network()
    net.edge_weight.requires_grad_(False)
    net.accumulate_edge_grad("x", "y", 2.0)
    assert net.edge_weight.grad is None


def test_unnamed_nodes_are_called_by_number():
    net = DagNN(Dag([(0, 2), (1, 2)]))
    net.accumulate_edge_grad(1, 2, 3.0)
    assert net.edge_grads() == {(0, 2): 0.0, (1, 2): 3.0}


def test_nothing_of_a_gradient_is_saved(tmp_path):
    net = network()
    net(X).sum().backward()
    net.save(tmp_path / "net")
    assert set(net.state_dict()) == {"edge_weight", "bias", "_extra_state"}
    loaded = DagNN.load(tmp_path / "net")
    assert not loaded.has_gradients()


# ---- backward by hand ----


def test_backward_accumulate_is_backward_with_that_output_gradient():
    net, twin = network(), network()
    x, x_twin = X.clone().requires_grad_(), X.clone().requires_grad_()
    net(x)
    net.backward_accumulate(G)
    twin(x_twin).backward(G)
    same_gradients(net, twin)
    torch.testing.assert_close(x.grad, x_twin.grad, rtol=1e-12, atol=1e-12)


def test_two_calls_sum_also_with_autograd():
    net, twin = network(), network()
    y = net(X)
    net.backward_accumulate(G)
    net.backward_accumulate(G)
    (3 * y * G).sum().backward()
    twin(X).backward(5 * G)
    same_gradients(net, twin)


def test_backward_accumulate_after_a_forward_pass_without_a_graph():
    net, twin = network(), network()
    with torch.no_grad():
        net(X)
        net.backward_accumulate(G)
    twin(X).backward(G)
    same_gradients(net, twin)


def test_backward_accumulate_reaches_the_modules_before():
    table = Embedding(3, 1).double()
    net = network()
    net(table(torch.tensor([0, 2, 2])))
    net.backward_accumulate(G)
    net.backward_accumulate(G)
    again = table(torch.tensor([0, 2, 2]))
    (expected,) = torch.autograd.grad(net(again), table.weight, 2 * G)
    torch.testing.assert_close(table.weight.grad, expected, rtol=1e-12, atol=1e-12)


def test_backward_and_update_is_accumulate_and_step_and_warns():
    net, twin = network(), network()
    net(X)
    with pytest.warns(DeprecationWarning, match="backward_and_update is deprecated: call backward_accumulate"):
        net.backward_and_update(G, lr=0.1)
    twin(X)
    twin.backward_accumulate(G)
    twin.step(0.1)
    # One pass multiplies and adds with one rounding; PyTorch's own step does so on some processors only.
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-15, atol=1e-15)
    same_gradients(net, twin)  # gradients stay until zero_grad


# ---- eval mode ----


def test_calls_that_feed_gradients_by_hand_do_nothing_in_eval_mode():
    net = network()
    net(X)
    net.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.backward_accumulate(G)
    net.accumulate_edge_grad("x", "y", 1.0)
    with pytest.warns(DeprecationWarning):
        net.backward_and_update(G, lr=0.1)
    assert not net.has_gradients()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_an_evaluation_in_between_disturbs_nothing():
    net, twin = network(), network()
    net(X)
    net.eval()
    net(torch.zeros(7, 1, dtype=torch.float64))
    net.train()
    net.backward_accumulate(G)
    twin(X).backward(G)
    same_gradients(net, twin)


# ---- bad input ----


def test_backward_accumulate_without_a_forward_pass():
    with pytest.raises(GraphError, match="there is no forward pass to go back through: call the network in training"):
        network().backward_accumulate(G)


def test_backward_accumulate_of_another_shape_or_dtype():
    net = network()
    net(X)
    with pytest.raises(GraphError, match=r"grad_output must have the shape of the last output, \[3, 2\], got \[3, 1\]"):
        net.backward_accumulate(G[:, :1])
    with pytest.raises(DtypeError, match=r"grad_output must be torch.float64, the dtype of y, got torch.float32"):
        net.backward_accumulate(G.float())


def test_a_gradient_for_an_edge_that_is_not_there():
    with pytest.raises(GraphError, match="there is no edge 'a' -> 'b'"):
        network().accumulate_edge_grad("a", "b", 1.0)


@pytest.mark.fault("graphs_and_networks", 27)
def test_integrated_gradients_are_complete():
    """What attributions of gradients alone rest on: they sum to F(x) - F(baseline)."""
    net = network()
    x, baseline, steps = X, torch.zeros_like(X), 64
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(steps))
    path = (baseline + (nodes.reshape(-1, 1, 1) + 1) / 2 * (x - baseline)).requires_grad_()
    gradient = torch.autograd.grad(net(path).sum(), path)[0]
    attribution = (x - baseline) * (weights.reshape(-1, 1, 1) / 2 * gradient).sum(0)
    difference = (net(x) - net(baseline)).sum(-1)
    torch.testing.assert_close(attribution.sum(-1), difference, rtol=1e-10, atol=1e-10)
