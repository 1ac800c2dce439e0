"""Levels: the longest path to a node, against the definition and NetworkX, and cycles named."""

from itertools import pairwise

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import any_edge_lists, dags

from dagnn.errors import CycleError, DtypeError, GraphError
from dagnn.graph import topological_levels


@given(dags())
def test_level_is_one_above_the_highest_parent(dag):
    levels = topological_levels(dag.edges, dag.num_nodes).tolist()
    for v in range(dag.num_nodes):
        assert levels[v] == 1 + max((levels[u] for u, w in dag.edges.tolist() if w == v), default=-1)


@given(dags())
def test_levels_are_the_generations_of_networkx(dag):
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(dag.num_nodes))
    graph.add_edges_from(dag.edges.tolist())
    levels = topological_levels(dag.edges, dag.num_nodes)
    for level, generation in enumerate(networkx.topological_generations(graph)):
        assert (levels == level).nonzero().flatten().tolist() == sorted(generation)


@given(any_edge_lists())
def test_a_cycle_is_found_exactly_when_networkx_finds_one_and_is_a_cycle(edges_and_count):
    edges, num_nodes = edges_and_count
    rows = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    graph = networkx.DiGraph(edges)
    if networkx.is_directed_acyclic_graph(graph):
        assert topological_levels(rows, num_nodes).shape == (num_nodes,)
        return
    with pytest.raises(CycleError) as error:
        topological_levels(rows, num_nodes)
    cycle = str(error.value).removeprefix("the edges form a cycle: ").split(".")[0].split(" -> ")
    assert cycle[0] == cycle[-1]
    assert len(set(cycle)) == len(cycle) - 1
    assert all((int(u), int(v)) in edges for u, v in pairwise(cycle))


def test_a_repeated_edge_changes_nothing():
    assert topological_levels(torch.tensor([[0, 1], [0, 1], [1, 2]]), 3).tolist() == [0, 1, 2]


def test_diamond_counts_both_ready_parents_of_a_child():
    assert topological_levels(torch.tensor([[0, 1], [0, 2], [1, 3], [2, 3]]), 4).tolist() == [0, 1, 1, 2]


def test_no_nodes_and_no_edges_have_levels_too():
    none = torch.empty(0, 2, dtype=torch.int64)
    assert topological_levels(none, 0).tolist() == []
    assert topological_levels(none, 3).tolist() == [0, 0, 0]


def test_a_shuffled_chain_of_100_000_nodes_has_every_level_once():
    place = np.random.default_rng(0).permutation(100_000)
    levels = topological_levels(torch.from_numpy(np.stack([place[:-1], place[1:]], 1)), 100_000)
    assert (levels.numpy()[place] == np.arange(100_000)).all()


def test_a_long_cycle_is_shortened_in_the_message():
    ring = torch.tensor([[i, (i + 1) % 1000] for i in range(1000)])
    with pytest.raises(CycleError) as error:
        topological_levels(ring, 1000)
    assert str(error.value) == (
        "the edges form a cycle: 0 -> 1 -> 2 -> 3 -> 4 -> 5 -> ... (992 more) -> 998 -> 999 -> 0. "
        "A DAG has none: remove one of these edges."
    )


@pytest.mark.parametrize(
    ("edges", "num_nodes", "error", "message"),
    [
        ([[0, 1]], 2, DtypeError, "edges must be an int64 tensor or array, got list."),
        (torch.zeros(1, 2), 2, DtypeError, "edges must be int64, got float32: number the nodes"),
        (torch.tensor([[0, 1]]), 2.0, DtypeError, "num_nodes must be an int, got 2.0."),
        (torch.tensor([[0, 1]]), -1, GraphError, "num_nodes must be at least 0 and fit in memory, got -1."),
        (torch.tensor([[0, 1]]), 1, GraphError, "edge 0 is 0 -> 1, but num_nodes=1 allows nodes 0 .. 0"),
        (torch.tensor([[0, 0]]), 1, CycleError, "the edges form a cycle: 0 -> 0 (edge 0)."),
    ],
)
def test_bad_arguments_are_refused(edges, num_nodes, error, message):
    with pytest.raises(error) as caught:
        topological_levels(edges, num_nodes)
    assert str(caught.value).startswith(message)
