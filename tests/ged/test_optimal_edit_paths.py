"""All edit paths of the least cost: the node maps that brute force and NetworkX find, none twice and none missing."""

import itertools
import math
import random

import networkx as nx
import pytest

from dagnn.errors import ConfigError
from dagnn.ged import EditCosts, graph_edit_distance, optimal_edit_paths
from dagnn.ged.exact import solve
from dagnn.graph import Dag

INTEGERS = {
    "unit": {},
    "asymmetric": {"node_deletion": 2.0, "edge_insertion": 3.0},
    "dear substitution": {"node_substitution": 5.0, "edge_substitution": 2.0},
    "zeros": {"node_insertion": 0.0, "edge_substitution": 0.0, "edge_deletion": 0.0},
    "all zero": dict.fromkeys(
        [f"{part}_{kind}" for part in ("node", "edge") for kind in ("insertion", "deletion", "substitution")], 0.0
    ),
}


def random_graph(oracle, rng, nodes, directed):
    """Labelled, with loops and parallel edges."""
    chance = rng.choice([0.2, 0.5, 0.8])
    ends = [(u, v) for u in range(nodes) for v in range(nodes) if directed or u <= v]
    edges = [(u, v, rng.randrange(2)) for u, v in ends for _ in range(2) if rng.random() < chance / 2]
    return oracle.Graph([rng.randrange(2) for _ in range(nodes)], edges, directed)


def plain(oracle, numbers):
    def constant(name):
        value = numbers.get(name, 1.0)
        return (lambda x, y: value * (x != y)) if name.endswith("substitution") else (lambda x: value)

    names = [f"{part}_{kind}" for part in ("node", "edge") for kind in ("insertion", "deletion", "substitution")]
    return oracle.Costs(**{name: constant(name) for name in names})


def best_maps(oracle, a, b, costs):
    """The least cost, and all maps that have it, as sets of pairs of nodes."""
    found = {}
    for size in range(min(len(a.labels), len(b.labels)) + 1):
        for kept in itertools.combinations(range(len(a.labels)), size):
            for image in itertools.permutations(range(len(b.labels)), size):
                pairs = dict(zip(kept, image, strict=True))
                found.setdefault(oracle.cost_of_map(a, b, pairs, costs), []).append(frozenset(pairs.items()))
    return min(found), found[min(found)]


def pairs_of(found):
    return [frozenset(pair for pair in path.node_map if None not in pair) for path in found.paths]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("costs", INTEGERS)
def test_the_paths_are_those_of_brute_force(oracle, costs, directed):
    rng = random.Random(f"{costs} {directed}")
    for _ in range(30):
        a, b = (random_graph(oracle, rng, rng.randint(0, 4), directed) for _ in range(2))
        least, expected = best_maps(oracle, a, b, plain(oracle, INTEGERS[costs]))
        found = optimal_edit_paths(*(oracle.to_networkx(graph, True) for graph in (a, b)), EditCosts(**INTEGERS[costs]))
        assert found.complete and found.distance == least
        assert sorted(map(sorted, pairs_of(found))) == sorted(map(sorted, expected))
        for path in found.paths:
            assert path.proved and math.fsum(edit.cost for edit in path.edit_path) == least


def test_a_search_by_dual_ascent_finds_the_same(oracle, monkeypatch):
    monkeypatch.setattr(solve, "PATIENCE", 5)
    monkeypatch.setattr(solve, "PATIENT", 10**9)
    rng = random.Random(0)
    searched = 0
    for _ in range(30):
        a, b = (random_graph(oracle, rng, rng.randint(3, 4), True) for _ in range(2))
        _, expected = best_maps(oracle, a, b, oracle.Costs())
        found = optimal_edit_paths(oracle.to_networkx(a, True), oracle.to_networkx(b, True))
        assert found.complete and sorted(map(sorted, pairs_of(found))) == sorted(map(sorted, expected))
        searched += found.paths[0].search_nodes > 5
    assert searched > 20


@pytest.mark.parametrize(
    ("pair", "count"),
    [
        ((nx.petersen_graph(), nx.petersen_graph()), 120),
        ((nx.complete_graph(5), nx.complete_graph(5)), 120),
        ((nx.star_graph(4), nx.star_graph(4)), 24),
        ((nx.empty_graph(0), nx.empty_graph(3)), 1),
        ((nx.empty_graph(0), nx.empty_graph(0)), 1),
        ((nx.path_graph(3), nx.empty_graph(0)), 1),
        ((nx.empty_graph(2), nx.empty_graph(4)), 12),
    ],
)
def test_equal_nodes_are_told_apart(pair, count):
    found = optimal_edit_paths(*pair)
    assert found.complete and len(found.paths) == count


def test_the_paths_are_those_of_networkx():
    rng = random.Random(1)
    for _ in range(12):
        a, b = (nx.gnm_random_graph(rng.randint(2, 4), rng.randint(1, 4), rng.randrange(99)) for _ in range(2))
        for graph in (a, b):
            nx.set_node_attributes(graph, {node: rng.choice("xy") for node in graph}, "label")
        paths, cost = nx.optimal_edit_paths(a, b, node_match=lambda x, y: x["label"] == y["label"])
        found = optimal_edit_paths(a, b)
        theirs = {frozenset(pair for pair in nodes if None not in pair) for nodes, _ in paths}
        assert found.distance == cost and set(pairs_of(found)) == theirs


def test_costs_that_floats_round_count_as_the_same():
    three_tenths = EditCosts(node_deletion=0.3, edge_deletion=0.1, node_insertion=10, edge_insertion=10)
    # Deleting node 3 and its loop-free self costs 0.3; deleting the three edges between the others as much.
    a, b = nx.Graph([(0, 1), (0, 2), (1, 2)]), nx.empty_graph(3)
    assert len(optimal_edit_paths(a, b, three_tenths).paths) == 6
    labels = EditCosts(
        node_substitution=lambda x, y: {("a", "c"): 0.1, ("b", "d"): 0.2, ("a", "d"): 0.3}.get((x, y), 0)
    )
    left = Dag([], 2, node_attributes={"label": ["a", "b"]})
    right = Dag([], 2, node_attributes={"label": ["c", "d"]})
    found = optimal_edit_paths(left, right, labels)
    assert found.complete and len(found.paths) == 2


def test_costs_beyond_64_bits_are_compared_exactly(oracle):
    rng = random.Random(2)
    numbers = {"node_deletion": 1e-9, "edge_deletion": 2.0**-60, "node_insertion": 1.0, "edge_insertion": 1e12}
    for _ in range(20):
        a, b = (random_graph(oracle, rng, 3, True) for _ in range(2))
        found = optimal_edit_paths(*(oracle.to_networkx(graph, True) for graph in (a, b)), EditCosts(**numbers))
        _, expected = best_maps(oracle, a, b, plain(oracle, numbers))
        assert found.complete and set(expected) <= set(pairs_of(found))
        assert len({path.upper for path in found.paths}) == 1


def test_a_limit_gives_the_first_paths_and_says_that_there_are_more():
    a, b = nx.complete_graph(4), nx.complete_graph(5)
    every = optimal_edit_paths(a, b, limit=120)
    assert every.complete and len(every.paths) == 120
    maps = [path.node_map for path in every.paths]
    for limit in (1, 7, 119):
        found = optimal_edit_paths(a, b, limit=limit)
        assert not found.complete and [path.node_map for path in found.paths] == maps[:limit]
    assert maps[0] == graph_edit_distance(a, b).node_map


def test_a_budget_that_ends_gives_what_is_known(oracle):
    rng = random.Random(3)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, 12)) for _ in range(2))
    unproved = optimal_edit_paths(a, b, budget=5)
    assert not unproved.complete and len(unproved.paths) == 1 and not unproved.paths[0].proved
    with pytest.warns(UserWarning, match="the graph edit distance is between"):
        assert unproved.distance == unproved.paths[0].upper
    a = b = nx.complete_graph(6)
    some, every = optimal_edit_paths(a, b, budget=500), optimal_edit_paths(a, b)
    assert not some.complete and some.paths[0].proved and 1 < len(some.paths) < len(every.paths) == 720
    assert {path.node_map for path in some.paths} < {path.node_map for path in every.paths}
    assert not optimal_edit_paths(a, b, seconds=0).complete


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, None])
def test_a_limit_that_is_none_is_named(limit):
    with pytest.raises(ConfigError, match=r"limit is .*: it must be a whole number of paths, at least 1\."):
        optimal_edit_paths(Dag([(0, 1)]), Dag([(0, 1)]), limit=limit)
