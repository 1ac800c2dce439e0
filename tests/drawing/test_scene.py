"""The part of a graph that is shown: the most important nodes, and how they are joined through hidden ones."""

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.drawing.scene import part_of, strengths
from dagnn.errors import GraphError
from dagnn.graph import Dag
from dagnn.graph.as_scene import scene_of


@settings(max_examples=60, deadline=None)
@given(dags(max_nodes=9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_shown_nodes_are_joined_as_they_are_in_the_whole_graph(dag, top, random):
    values = [random.random() for _ in range(dag.num_nodes)]
    scene = scene_of(dag, {"value": values})

    part = part_of(scene, top)

    shown = set(part.nodes.tolist())
    assert shown == set(sorted(range(dag.num_nodes), key=lambda v: -values[v])[:top])
    whole = networkx.DiGraph()
    whole.add_nodes_from(range(dag.num_nodes))
    whole.add_edges_from(map(tuple, scene.edges.tolist()))
    small = networkx.DiGraph()
    small.add_nodes_from(shown)
    small.add_edges_from(map(tuple, scene.edges[part.edges].tolist()))
    assert set(small.edges) == {(u, v) for u, v in whole.edges if u in shown and v in shown}
    small.add_edges_from(part.detours)
    reached = networkx.transitive_closure(small)
    assert set(reached.edges) == {(u, v) for u, v in networkx.transitive_closure(whole).edges if {u, v} <= shown}
    for u, v in part.detours:  # no join that the others already mean
        small.remove_edge(u, v)
        assert not networkx.has_path(small, u, v)
        small.add_edge(u, v)


def test_levels_of_the_part_have_no_gaps_and_keep_their_order():
    scene = scene_of(Dag([("a", "b"), ("b", "c"), ("c", "d")]), {"value": {"a": 1, "c": 2, "d": 3}})

    part = part_of(scene, 3)

    assert part.nodes.tolist() == [0, 2, 3] and part.levels.tolist() == [0, 1, 2] and part.detours == [(0, 2)]


def test_without_numbers_of_nodes_their_edges_count():
    dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])

    assert strengths(scene_of(dag, None, {"w": {("a", "c"): -3.0, ("b", "c"): 1.0}})).tolist() == [3.0, 4.0, 1.0, 0.0]
    assert strengths(scene_of(dag)).tolist() == [1.0, 3.0, 1.0, 1.0]
    assert strengths(scene_of(dag, {"v": [1.0, -2.0, np.nan, np.inf]})).tolist() == [1.0, 2.0, -1.0, -1.0]


@pytest.mark.parametrize("top", [0, -1, True, 2.0, "all"])
def test_top_must_be_a_count(top):
    with pytest.raises(GraphError, match="top must be a whole number of at least 1, or None for all nodes"):
        part_of(scene_of(Dag([("a", "b")])), top)
