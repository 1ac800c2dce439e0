"""Accumulation with the library's own networks and graph batches, and with activation checkpointing."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.accumulation.items import count_items
from dagnn.accumulation.partition import split_batch
from dagnn.graph import Dag, DagBatch
from dagnn.nn import DagNN


def assert_gradients_equal(model, reference):
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-11, atol=1e-14)


def test_dag_network_in_ragged_windows_equals_the_full_batch():
    torch.manual_seed(0)
    edges = [(u, v) for v in range(4, 12) for u in range(v) if (3 * u + v) % 4]
    model = DagNN(Dag(edges, num_nodes=12, inputs=list(range(4)), outputs=[10, 11]), activation="tanh").double()
    reference = copy.deepcopy(model)
    loader = [torch.randn(n, 4).double() for n in (3, 1, 5)]
    reference(torch.cat(loader)).square().mean().backward()
    window = next(
        GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1)).windows(loader, micro_batches=3)
    )
    for x in window:
        window.backward(model(x).square().mean())
    assert_gradients_equal(model, reference)


def test_graph_batches_are_counted_and_cut_by_graphs():
    dags = [Dag([(0, 1)], num_nodes=n) for n in (2, 3, 4, 5, 6)]
    batch = {"graphs": DagBatch.from_dags(dags), "targets": torch.arange(5.0)}
    assert count_items(batch) == 5
    pieces = split_batch(batch, 2)
    assert [len(piece["graphs"]) for piece, _ in pieces] == [2, 2, 1]
    assert [piece["graphs"].num_nodes for piece, _ in pieces] == [5, 9, 6]

    weight = nn.Parameter(torch.ones(()).double())
    model = nn.ParameterList([weight])

    def loss_fn(model, micro):
        sizes = torch.bincount(micro["graphs"].graph_of_node).double()
        return (model[0] * sizes - micro["targets"].double()).square().mean()

    accumulate(model, loss_fn, batch, micro_batch_size=2)
    (expected,) = torch.autograd.grad(loss_fn(model, batch), weight)
    assert float(weight.grad) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    reference = copy.deepcopy(model)
    loader = [torch.randn(n, 3).double().requires_grad_() for n in (2, 4)]
    reference(torch.cat(loader)).square().mean().backward()
    window = next(
        GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1)).windows(loader, micro_batches=2)
    )
    for x in window:
        window.backward(checkpoint(model, x, use_reentrant=use_reentrant).square().mean())
    assert_gradients_equal(model, reference)
