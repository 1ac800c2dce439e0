"""What is worked out for a graph: once per graph object, and forgotten with it."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.kernels import graph_plans
from dagnn.kernels.graph_plans import (
    check_direction,
    check_graph,
    dense_places,
    edge_positions,
    graph_of_node,
    num_graphs,
    sweep_plan,
)

CPU = torch.device("cpu")


def test_a_second_epoch_builds_no_plan(monkeypatch):
    built = []
    plan_levels = graph_plans.plan_levels
    monkeypatch.setattr(graph_plans, "plan_levels", lambda *args: built.append(1) or plan_levels(*args))
    graphs = [Dag([(0, 1)]), DagBatch.from_dags([Dag([(0, 1)]), Dag([(0, 1), (1, 2)])])]
    for _ in range(2):
        for graph in graphs:
            assert sweep_plan(graph, "up", CPU) is sweep_plan(graph, "up", CPU)
            assert sweep_plan(graph, "down", CPU) is not sweep_plan(graph, "up", CPU)
    assert len(built) == 4  # two graphs, two directions


def test_equal_graphs_have_plans_of_their_own_and_both_are_forgotten():
    gc.collect()  # what other tests left would go away meanwhile
    before = len(graph_plans._facts)
    graphs = [Dag([(0, 1)]), Dag([(0, 1)])]
    assert sweep_plan(graphs[0], "up", CPU) is not sweep_plan(graphs[1], "up", CPU)
    assert len(graph_plans._facts) == before + 2
    del graphs
    gc.collect()
    assert len(graph_plans._facts) == before


def test_a_new_graph_at_an_old_address_is_not_mistaken():
    for length in range(2, 60):
        graph = Dag([(i, i + 1) for i in range(length)])  # the one before is gone, its address free
        assert len(sweep_plan(graph, "up", CPU).feeds) == length + 1


@given(dag=dags(positions=True))
def test_positions_are_the_attribute(dag):
    assert torch.equal(edge_positions(dag, CPU), dag.edge_attributes["position"])


@given(dag=dags())
def test_without_the_attribute_positions_count_the_edges_into_a_node(dag):
    seen: dict[int, int] = {}
    for position, (_, v) in zip(edge_positions(dag, CPU).tolist(), dag.edges.tolist(), strict=True):
        assert position == seen.get(v, 0)
        seen[v] = position + 1


@given(graphs=st.lists(dags(), max_size=5))
def test_owners_and_dense_places(graphs):
    batch = DagBatch.from_dags(graphs)
    owner = graph_of_node(batch, CPU).tolist()
    place, width = dense_places(batch, CPU)
    assert num_graphs(batch) == len(graphs)
    assert owner == [i for i, graph in enumerate(graphs) for _ in range(graph.num_nodes)]
    assert width == max((graph.num_nodes for graph in graphs), default=0)
    expected = [i * width + v for i, graph in enumerate(graphs) for v in range(graph.num_nodes)]
    assert place.tolist() == expected


def test_a_single_dag_is_one_graph():
    dag = Dag([(0, 1)])
    assert num_graphs(dag) == 1
    assert graph_of_node(dag, CPU).tolist() == [0, 0]


def test_checks():
    with pytest.raises(GraphError, match="graph must be a Dag or a DagBatch, got int"):
        check_graph(3)
    with pytest.raises(ConfigError, match="direction must be 'up'"):
        check_direction("over")
