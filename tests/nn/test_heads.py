"""Pools and heads: which rows they read, and graphs without nodes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import EdgeHead, GraphHead, GraphPool, NodeHead

BATCH = DagBatch.from_dags([Dag([(0, 1), (0, 2)]), Dag([], 0), Dag([], 1)])
X = torch.tensor([[1.0, -1.0], [2.0, -5.0], [6.0, 0.0], [-3.0, -4.0]])


def test_pools_by_hand():
    assert GraphPool("sum")(X, BATCH).tolist() == [[9, -6], [0, 0], [-3, -4]]
    assert GraphPool("mean")(X, BATCH).tolist() == [[3, -2], [0, 0], [-3, -4]]
    assert GraphPool("max")(X, BATCH).tolist() == [[6, 0], [0, 0], [-3, -4]]
    assert GraphPool("sum")(X[:3], Dag([(0, 1), (0, 2)])).tolist() == [[9, -6]]


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
@settings(max_examples=15)
@given(graphs=st.lists(dags(), max_size=5))
def test_a_pool_equals_a_loop_over_graphs(how, graphs):
    batch = DagBatch.from_dags(graphs)
    x = torch.randn(batch.num_nodes, 2, dtype=torch.float64)
    pooled = GraphPool(how)(x, batch)
    assert pooled.shape == (len(graphs), 2)
    for row, part in zip(pooled, x.split([g.num_nodes for g in graphs]) if graphs else [], strict=True):
        expected = {"sum": part.sum, "mean": part.mean, "max": part.amax}[how](0) if len(part) else torch.zeros(2)
        torch.testing.assert_close(row, expected.double())


def test_the_gradient_of_a_maximum_goes_to_the_winner_and_ties_share_it():
    x = torch.tensor([[1.0, 7.0], [5.0, 7.0], [5.0, 7.0], [2.0, 3.0]], requires_grad=True)
    GraphPool("max")(x, BATCH).sum().backward()
    third = pytest.approx(1 / 3)
    assert x.grad.tolist() == [[0, third], [0.5, third], [0.5, third], [1, 1]]


def test_heads_read_their_rows():
    nodes, edges, graphs = (head.double() for head in (NodeHead(2, 3), EdgeHead(2, 3), GraphHead(2, 3, "max")))
    x = X.double()
    torch.testing.assert_close(nodes(x)[2], nodes(x[2:3])[0])
    for row, (u, v) in zip(edges(x, BATCH), BATCH.edges.tolist(), strict=True):
        torch.testing.assert_close(row, edges.layers(torch.cat([x[u], x[v]])))
    torch.testing.assert_close(graphs(x, BATCH), graphs.layers(GraphPool("max")(x, BATCH)))


def test_shapes_without_nodes_edges_or_graphs():
    empty = DagBatch.from_dags([])
    none = torch.empty(0, 2)
    assert NodeHead(2, 3)(none).shape == (0, 3)
    assert EdgeHead(2, 3)(none, empty).shape == (0, 3)
    assert GraphHead(2, 3)(none, empty).shape == (0, 3)
    assert GraphHead(2, 3)(none, Dag([], 0)).shape == (1, 3)


def test_bad_arguments_and_calls():
    with pytest.raises(ConfigError, match="aggregate must be one of sum, mean, max, got 'last'"):
        GraphPool("last")
    with pytest.raises(ConfigError, match="out_features must be a whole number of at least 1, got -1"):
        EdgeHead(2, -1)
    with pytest.raises(GraphError, match=r"= \[4, 2\], got \[3, 2\]"):
        GraphHead(2, 3)(X[:3], BATCH)
    with pytest.raises(GraphError, match=r"= \[4, 2\], got \[4, 1\]"):
        NodeHead(2, 3)(X[:, :1])
    with pytest.raises(DtypeError, match=r"x must be torch.float32"):
        NodeHead(2, 3)(X.double())
    with pytest.raises(GraphError, match="graph must be a Dag or a DagBatch, got list"):
        GraphPool()(X, [Dag([], 4)])
