"""The graphs of the benchmark are what it says, and both sides agree on them."""

import pytest

from benchmarks.dag_build import against_networkx, networkx_levels, random_edges
from dagnn.graph import Dag


@pytest.mark.parametrize("reach", [3, 200])
def test_edges_are_distinct_and_acyclic(reach):
    edges = random_edges(400, 200, reach)

    assert len(edges) == len({tuple(edge) for edge in edges.tolist()}) == 400
    assert Dag(edges, 200).num_edges == 400


def test_small_reach_is_deep():
    assert Dag(random_edges(400, 200, 3), 200).levels.max() > 4 * Dag(random_edges(400, 200, 200), 200).levels.max()


@pytest.mark.parametrize("reach", [12, 10_000])
def test_both_sides_agree(reach):
    against_networkx(1000, "case", reach).check()


def test_networkx_gives_the_generations():
    assert networkx_levels([(0, 1), (1, 2), (0, 2)], 4) == [[0, 3], [1], [2]]
