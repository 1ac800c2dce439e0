import pytest
import torch

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import GedLoss, GraphTargets
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
