"""Distances of many pairs, and their mean as a metric."""

import math
import random

import pytest
import torch
import torch.distributed as dist

from dagnn.errors import ConfigError, GraphError
from dagnn.ged import EditCosts, GedMetric, ged_matrix, graph_edit_distance
from dagnn.graph import Dag, DagBatch


@pytest.fixture
def graphs(oracle):
    rng = random.Random(0)
    return [oracle.to_networkx(oracle.random_dag(rng, rng.randint(3, 9), labels=2)) for _ in range(6)]


@pytest.mark.parametrize("costs", [EditCosts(), EditCosts(node_insertion=2, edge_deletion=0.5)])
def test_entries_are_the_distances_of_the_pairs(graphs, costs):
    found = ged_matrix(graphs, costs=costs)
    expected = torch.tensor([[graph_edit_distance(a, b, costs).distance for b in graphs] for a in graphs])
    assert found.proved.all()
    torch.testing.assert_close(found.upper, expected.double())
    torch.testing.assert_close(found.lower, expected.double())


def test_rectangle_is_a_part_of_the_square(graphs):
    square, part = ged_matrix(graphs), ged_matrix(graphs[:2], graphs[2:])
    torch.testing.assert_close(part.upper, square.upper[:2, 2:])
    assert part.upper.shape == (2, 4)
    assert ged_matrix([], graphs).upper.shape == (0, 6)


@pytest.mark.parametrize("budget", [0, 3, 1000])
def test_parallel_result_is_the_serial_one_bit_for_bit(graphs, budget):
    serial, parallel = (ged_matrix(graphs, budget=budget, workers=workers) for workers in (1, 3))
    for name in ("lower", "upper", "proved", "search_nodes"):
        assert torch.equal(getattr(serial, name), getattr(parallel, name))


def test_bad_input_names_the_graph():
    with pytest.raises(ConfigError, match="workers is 0"):
        ged_matrix([], workers=0)
    labelled = Dag([], 1, node_attributes={"label": ("a",)})
    with pytest.raises(GraphError, match=r"graphs\[1\] has the node attribute 'label' and graphs\[0\] has not"):
        ged_matrix([Dag([], 1), labelled])
    with pytest.raises(GraphError, match=r"other\[0\] has the node attribute 'label' and graphs\[0\] has not"):
        ged_matrix([Dag([], 1)], [labelled])


def pairs():
    chain, fork, single = Dag([(0, 1), (1, 2)]), Dag([(0, 1), (0, 2)]), Dag([], 1)
    return [(chain, chain), (chain, fork), (single, chain), (single, single)]


def test_summary_is_the_mean_over_all_batches():
    metric = GedMetric()
    for a, b in pairs():
        metric.update(DagBatch.from_dags([a]), [b])
    summary = metric.compute()
    assert summary.mean_lower == summary.mean_upper == (0 + 2 + 4 + 0) / 4
    assert (summary.proved, summary.exact_match, summary.pairs) == (1.0, 0.5, 4)


def test_merging_and_resetting():
    first, second, both = GedMetric(), GedMetric(), GedMetric()
    for i, (a, b) in enumerate(pairs()):
        (first if i % 2 else second).update([a], [b])
        both.update([a], [b])
    first.merge(second)
    assert first.compute() == both.compute()
    first.reset()
    assert first.compute().pairs == 0
    assert math.isnan(first.compute().mean_upper)


def test_pairs_that_are_not_proved_are_counted(oracle):
    rng = random.Random(0)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, nodes)) for nodes in (12, 13))
    metric = GedMetric(budget=0)
    metric.update([a, a], [a, b])
    expected = graph_edit_distance(a, b, budget=0)
    summary = metric.compute()
    assert summary.proved == summary.exact_match == 0.5
    assert (2 * summary.mean_lower, 2 * summary.mean_upper) == (expected.lower, expected.upper)


def test_ranks_are_added_up(tmp_path):
    metric = GedMetric()
    metric.update(*zip(*pairs(), strict=True))
    alone = metric.compute()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert metric.compute() == alone
    finally:
        dist.destroy_process_group()


def test_bad_input_adds_nothing():
    metric = GedMetric()
    with pytest.raises(GraphError, match="2 predicted graphs cannot be compared with 1 targets"):
        metric.update([Dag([], 1), Dag([], 1)], [Dag([], 1)])
    with pytest.raises(GraphError, match="'label'"):
        metric.update([Dag([], 1), Dag([], 1)], [Dag([], 1), Dag([], 1, node_attributes={"label": ("a",)})])
    assert metric.compute().pairs == 0
    with pytest.raises(ConfigError, match="different options"):
        metric.merge(GedMetric(budget=1))
