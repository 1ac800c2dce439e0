"""Padded targets, and logits decoded to DAGs."""

import random

import networkx as nx
import numpy as np
import pytest
import torch

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import GedLoss, GraphTargets, decode
from dagnn.ged.targets import acyclic_edges
from dagnn.graph import Dag


def test_dags_are_padded_in_node_order():
    dags = [Dag([(2, 0)], 3, node_attributes={"label": ("b", "a", "b")}), Dag([], 1, node_attributes={"label": ("a",)})]
    targets = GraphTargets.from_dags(dags, 4, node_vocabulary=["a", "b"])
    assert targets.exists.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert targets.labels.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0]]
    assert targets.adjacency.nonzero().tolist() == [[0, 2, 0]]
    assert targets.num_nodes.tolist() == [3, 1]
    assert targets.num_edges.tolist() == [1, 0]


def test_integer_labels_are_read_from_tensors():
    dag = Dag([(0, 1)], node_attributes={"kind": torch.tensor([30, 10])})
    targets = GraphTargets.from_dags([dag], 2, node_vocabulary=[10, 20, 30], node_attribute="kind")
    assert targets.labels.tolist() == [[2, 0]]


def test_parallel_edges_become_one_edge_with_a_tuple_of_labels():
    square = Dag([(0, 1), (0, 1)], edge_attributes={"position": torch.tensor([1, 0])})
    targets = GraphTargets.from_dags([square], 2, edge_vocabulary=[0, 1, (0, 1)], edge_attribute="position")
    assert targets.adjacency.sum().item() == 1
    assert targets.edge_labels[0, 0, 1].item() == 2
    with pytest.raises(GraphError, match="parallel edges"):
        GraphTargets.from_dags([square], 2)
    with pytest.raises(GraphError, match=r"edge 0 -> 1 of target 0 has the label \(0, 1\)"):
        GraphTargets.from_dags([square], 2, edge_vocabulary=[0, 1], edge_attribute="position")


def test_permuting_moves_everything_together():
    dag = Dag([(0, 1), (1, 2)], node_attributes={"label": ("a", "b", "c")}, edge_attributes={"label": ("x", "y")})
    targets = GraphTargets.from_dags([dag], 3, node_vocabulary="abc", edge_vocabulary="xy")
    moved = targets.permuted(torch.tensor([[2, 0, 1]]))
    assert moved.labels.tolist() == [[2, 0, 1]]
    assert moved.adjacency.nonzero().tolist() == [[0, 1, 2], [0, 2, 0]]
    assert moved.edge_labels[0, 2, 0].item() == 1


def test_what_does_not_fit_is_named():
    dag = Dag([(0, 1)], node_attributes={"label": ("a", "b")})
    with pytest.raises(GraphError, match="target 0 has 2 nodes, but there are 1 positions"):
        GraphTargets.from_dags([dag], 1)
    with pytest.raises(GraphError, match="node 1 of target 0 has the label 'b', which is not in the vocabulary of 1"):
        GraphTargets.from_dags([dag], 2, node_vocabulary=["a"])
    with pytest.raises(GraphError, match=r"no node attribute 'kind', only \['label'\]"):
        GraphTargets.from_dags([dag], 2, node_vocabulary=["a"], node_attribute="kind")
    with pytest.raises(ConfigError, match="node_vocabulary lists 'a' twice, at 0 and 2"):
        GraphTargets.from_dags([dag], 2, node_vocabulary=["a", "b", "a"])


def test_padded_targets_are_checked_by_the_loss():
    exists, adjacency = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, 2, dtype=torch.bool)
    logits = torch.zeros(1, 2), None, torch.zeros(1, 2, 2)
    loop = adjacency.clone()
    loop[0, 1, 1] = True
    with pytest.raises(GraphError, match="target 0 has the edge 1 -> 1"):
        GedLoss()(*logits, GraphTargets(exists, loop))
    stray = adjacency.clone()
    stray[0, 0, 1] = True
    with pytest.raises(GraphError, match="edge 0 -> 1, but one of its ends does not exist"):
        GedLoss()(*logits, GraphTargets(torch.tensor([[True, False]]), stray))
    with pytest.raises(DtypeError, match=r"adjacency must be torch.bool, got torch.float32"):
        GedLoss()(*logits, GraphTargets(exists, adjacency.float()))
    with pytest.raises(GraphError, match=r"labels must have the shape \[1, 2\], got \[1, 3\]"):
        GedLoss()(*logits, GraphTargets(exists, adjacency, torch.zeros(1, 3, dtype=torch.int64)))


def test_certain_logits_decode_to_the_graph():
    dag = Dag(
        [(0, 1), (0, 2), (2, 1)], node_attributes={"label": ("a", "b", "a")}, edge_attributes={"label": (7, 9, 7)}
    )
    targets = GraphTargets.from_dags([dag], 5, node_vocabulary=["a", "b"], edge_vocabulary=[7, 8, 9])
    existence = torch.where(targets.exists, 9.0, -9.0)
    edges = torch.where(targets.adjacency, 9.0, -9.0)
    labels = torch.nn.functional.one_hot(targets.labels, 2).float()
    edge_labels = torch.nn.functional.one_hot(targets.edge_labels, 3).float()
    found = decode(
        existence, labels, edges, edge_labels=edge_labels, node_vocabulary=["a", "b"], edge_vocabulary=[7, 8, 9]
    )
    assert found == [dag]


def test_missing_slots_are_left_out_and_labels_stay_with_their_nodes():
    existence = torch.tensor([[-1.0, 2.0, -3.0, 4.0]])
    labels = torch.eye(4)[None]
    edges = torch.full((1, 4, 4), -1.0)
    edges[0, 3, 1] = edges[0, 0, 1] = 5.0
    (dag,) = decode(existence, labels, edges)
    assert dag.num_nodes == 2
    assert dag.edges.tolist() == [[1, 0]]
    assert dag.node_attributes["label"].tolist() == [1, 3]


def test_weakest_edge_of_a_cycle_is_dropped():
    strength = np.full((3, 3), -1.0)
    strength[0, 1], strength[1, 2], strength[2, 0] = 3.0, 0.5, 2.0
    assert acyclic_edges(strength, 0.0).tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("seed", range(10))
def test_result_is_acyclic_keeps_edges_off_cycles_and_is_maximal(seed):
    rng = random.Random(seed)
    strength = np.array([[rng.uniform(-1, 0.7) for _ in range(9)] for _ in range(9)])
    wanted = nx.DiGraph()
    wanted.add_nodes_from(range(9))
    wanted.add_edges_from((i, j) for i in range(9) for j in range(9) if i != j and strength[i, j] > 0)
    kept = nx.DiGraph()
    kept.add_nodes_from(range(9))
    kept.add_edges_from(map(tuple, acyclic_edges(strength, 0.0).tolist()))
    assert nx.is_directed_acyclic_graph(kept)
    component = {node: i for i, nodes in enumerate(nx.strongly_connected_components(wanted)) for node in nodes}
    for u, v in wanted.edges:
        if component[u] != component[v]:
            assert kept.has_edge(u, v)
        elif not kept.has_edge(u, v):
            assert nx.has_path(kept, v, u)


def test_threshold_is_a_probability():
    existence, edges = torch.full((1, 2), 9.0), torch.full((1, 2, 2), -9.0)
    edges[0, 0, 1] = 1.0  # probability 0.73
    assert decode(existence, None, edges, threshold=0.7)[0].num_edges == 1
    assert decode(existence, None, edges, threshold=0.8)[0].num_edges == 0


def test_nothing_predicted_is_the_empty_graph():
    (dag,) = decode(torch.full((1, 3), -1.0), torch.zeros(1, 3, 2), torch.ones(1, 3, 3), node_vocabulary=["a", "b"])
    assert (dag.num_nodes, dag.num_edges) == (0, 0)
    assert decode(torch.zeros(0, 3), None, torch.zeros(0, 3, 3)) == []


def test_bad_input_is_refused():
    existence, edges = torch.zeros(1, 2), torch.zeros(1, 2, 2)
    with pytest.raises(ConfigError, match=r"threshold is 1\.0"):
        decode(existence, None, edges, threshold=1.0)
    with pytest.raises(GraphError, match=r"got \[1, 2\] and \[1, 2\]"):
        decode(existence, None, existence)
    with pytest.raises(GraphError, match=r"edges has NaN at \[0, 1, 0\]"):
        decode(
            existence, None, edges.index_put((torch.tensor(0), torch.tensor(1), torch.tensor(0)), torch.tensor(np.nan))
        )
    with pytest.raises(ConfigError, match="node_vocabulary has 1 labels, but the logits are over 2"):
        decode(existence, torch.zeros(1, 2, 2), edges, node_vocabulary=["a"])
