"""`LevelPlan`: every node and edge once, in an order that a sweep can follow."""

import pytest
import torch
from hypothesis import given
from strategies import dags

from dagnn.graph import Dag
from dagnn.kernels import plan_levels
from dagnn.kernels.level_plans import gather_sources


@pytest.mark.parametrize("direction", ["up", "down"])
@given(dag=dags())
def test_a_plan_finds_the_source_of_every_edge(direction, dag):
    edges = dag.edges if direction == "up" else dag.edges.flip(1)
    levels = dag.levels if direction == "up" else dag.heights
    plan = plan_levels(edges, levels)
    assert sorted(plan.node_order.tolist()) == list(range(dag.num_nodes))
    assert sorted(plan.edge_order.tolist()) == list(range(dag.num_edges))
    assert torch.equal(plan.place[plan.node_order], torch.arange(dag.num_nodes))

    nodes = torch.split(plan.node_order, plan.nodes_per_level)
    runs = [
        torch.split(part, plan.edges_per_level)
        for part in (plan.edge_order, plan.source_in_level, plan.target_in_level)
    ]
    assert len(nodes) == len(plan.feeds) == (0 if dag.num_nodes == 0 else int(levels.max()) + 1)
    for level, (own, feed) in enumerate(zip(nodes, plan.feeds, strict=True)):
        assert levels[own].tolist() == [level] * len(own)
        assert all(source_level < level for source_level, _ in feed)
        if feed:
            edge, source_row, target_row = (run[level] for run in runs)
            assert torch.equal(gather_sources(nodes, feed, source_row), edges[edge, 0])
            assert torch.equal(own[target_row], edges[edge, 1])


def test_the_rank_orders_nodes_inside_a_level():
    levels = torch.tensor([0, 0, 1, 0])
    plan = plan_levels(torch.tensor([[0, 2]]), levels, rank=torch.tensor([2, 0, 5, 1]))
    assert plan.node_order.tolist() == [1, 3, 0, 2]


def test_runs_number_as_many_as_pairs_of_levels_not_edges():
    width = 20
    edges = [(i, width + j) for i in range(width) for j in range(width)]
    assert plan_levels(*(lambda dag: (dag.edges, dag.levels))(Dag(edges))).feeds == ((), ((0, width * width),))


def test_a_plan_for_another_device_is_the_same_plan():
    dag = Dag([(0, 1), (1, 2), (0, 2)])
    plan = plan_levels(dag.edges, dag.levels)
    moved = plan.to(torch.device("meta"))
    assert moved.edge_order.is_meta and moved.target_in_level.is_meta and moved.place.is_meta
    assert (moved.feeds, moved.nodes_per_level) == (plan.feeds, plan.nodes_per_level)
