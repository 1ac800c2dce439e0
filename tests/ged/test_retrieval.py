"""Search over a collection: the answer is that of the sorted row of the full matrix, in every stage of its bounds."""

import math
import random

import networkx as nx
import pytest
import torch

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import EditCosts, ged_matrix, ged_range, ged_search
from dagnn.graph import Dag

COSTS = [
    EditCosts(),
    EditCosts(node_insertion=2, edge_deletion=0.5, edge_insertion=3, node_substitution=9),
    EditCosts(node_substitution=0.1, edge_insertion=0.3, edge_deletion=0.2, node_deletion=1e-9),
    EditCosts(node_substitution=lambda a, b: abs(a - b) / 3, node_deletion=lambda a: 1 + a, edge_substitution=0.7),
]


def molecules(count, seed=0, directed=False, most=9):
    """Connected graphs with labels on nodes and edges, some self-loops, and an empty graph."""
    rng = random.Random(seed)
    made = [nx.DiGraph() if directed else nx.Graph() for _ in range(count)]
    for graph in made[1:]:
        nodes = rng.randint(1, most)
        graph.add_nodes_from((v, {"label": rng.choice([0, 0, 0, 1, 2])}) for v in range(nodes))
        edges = [(v, rng.randrange(v)) for v in range(1, nodes)]
        edges += [(rng.randrange(nodes), rng.randrange(nodes)) for _ in range(rng.randint(0, 2))]
        graph.add_edges_from((u, v, {"label": rng.choice("sssd")}) for u, v in edges)
    rng.shuffle(made)
    return made


def row(query, graphs, costs):
    """Distances from ``query``, proved."""
    found = ged_matrix([query], graphs, costs)
    assert found.proved.all()
    return found.upper[0]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("costs", COSTS)
def test_the_nearest_are_those_of_the_sorted_row(costs, directed):
    graphs = molecules(60, directed=directed)
    for query in molecules(2, seed=1, directed=directed, most=11):
        distances = row(query, graphs, costs)
        order = distances.argsort(stable=True)
        for k in (1, 7, 60, 100):
            found = ged_search(query, graphs, k, costs)
            assert found.complete and not len(found.undecided)
            assert found.index.tolist() == order[:k].tolist()
            assert torch.equal(found.distance, distances[order[:k]]) and torch.equal(found.lower, found.upper)
            assert sum(found.settled) == 60


@pytest.mark.parametrize("costs", COSTS)
def test_the_graphs_within_a_radius_are_those_of_the_sorted_row(costs):
    graphs, query = molecules(60), molecules(2, seed=3)[0]
    distances = row(query, graphs, costs)
    for radius in (0, float(distances.median()), 4, math.inf):
        found = ged_range(query, graphs, radius, costs)
        order = [place for place in distances.argsort(stable=True).tolist() if distances[place] <= radius]
        assert found.complete and found.index.tolist() == order
        assert torch.equal(found.distance, distances[order])


def test_of_graphs_at_one_distance_the_first_ones_are_taken():
    chain, fork, edge = Dag([(0, 1), (1, 2)]), Dag([(0, 1), (0, 2)]), Dag([(0, 1)])
    found = ged_search(edge, [fork, chain, fork, edge, chain], 3)
    assert found.index.tolist() == [3, 0, 1] and found.distance.tolist() == [0, 2, 2]


def test_three_edits_at_a_tenth_are_within_three_tenths():
    a, b = (Dag([], 3, node_attributes={"label": tuple(labels)}) for labels in ("xxx", "abc"))
    costs = EditCosts(node_substitution=0.1)
    assert ged_range(a, [b], 0.3, costs).index.tolist() == [0]
    assert ged_range(a, [b], 0.2999, costs).index.tolist() == []


@pytest.mark.parametrize("budget", [0, 3, 250, 10_000])
def test_the_answer_does_not_depend_on_threads_and_its_bounds_hold(budget):
    graphs, query = molecules(40, most=12), molecules(2, seed=5, most=12)[0]
    one, three = (ged_search(query, graphs, 5, budget=budget, workers=workers) for workers in (1, 3))
    for name in ("index", "lower", "upper", "undecided"):
        assert torch.equal(getattr(one, name), getattr(three, name))
    assert (one.complete, one.settled) == (three.complete, three.settled)
    distances = row(query, graphs, EditCosts())
    assert (one.lower <= distances[one.index]).all() and (distances[one.index] <= one.upper).all()
    nearest = set(distances.argsort(stable=True)[:5].tolist())
    assert nearest <= {*one.index.tolist(), *one.undecided.tolist()}


def test_what_no_budget_decides_is_said():
    rng = random.Random(0)
    graphs = [nx.gnp_random_graph(12, 0.4, seed=rng.randrange(99)) for _ in range(6)]
    found = ged_search(graphs[0], graphs[1:], 2, budget=0)
    assert not found.complete and len(found.undecided)
    with pytest.warns(UserWarning, match="the search is not complete"):
        assert torch.equal(found.distance, found.upper)
    assert ged_search(graphs[0], graphs[1:], 2).complete


def test_without_time_all_is_undecided():
    graphs = molecules(20)
    found = ged_search(graphs[1], graphs, 3, seconds=0)
    assert not found.complete and found.undecided.tolist() == list(range(20))
    assert (found.lower <= row(graphs[1], graphs, EditCosts())[found.index]).all()
    assert found.upper.tolist() == [math.inf] * 3


def test_progress_ends_at_all_graphs():
    graphs, seen = molecules(20), []
    ged_search(graphs[1], graphs, 3, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20, 20) and seen == sorted(set(seen))


def test_an_empty_collection_has_no_nearest():
    found = ged_search(Dag([], 1), [], 3)
    assert found.complete and found.index.shape == found.distance.shape == (0,)
    assert ged_range(Dag([], 1), [], 3).index.shape == (0,)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"k": 0}, ConfigError, "k is 0: it must be a whole number of graphs, at least 1"),
        ({"k": True}, ConfigError, "k is True"),
        ({"workers": 0}, ConfigError, "workers is 0"),
        ({"progress": 1}, ConfigError, "progress is 1"),
        ({"budget": -1}, ConfigError, "budget is -1"),
        ({"database": Dag([], 1)}, DtypeError, r"database must be a list of graphs, got one Dag: write \[graph\]"),
        ({"database": 3}, DtypeError, "database must be a list of graphs"),
        ({"query": 3}, DtypeError, "query must be a Dag"),
        ({"database": [nx.Graph([(0, 1)])]}, GraphError, r"query is directed and database\[0\] is undirected"),
    ],
)
def test_bad_input_is_refused_by_name(given, error, text):
    with pytest.raises(error, match=text):
        ged_search(**{"query": Dag([], 1), "database": [Dag([], 1)], **given})


@pytest.mark.parametrize("radius", [-1, None, math.nan, "1"])
def test_a_radius_that_is_no_number_is_refused(radius):
    with pytest.raises(ConfigError, match="radius is"):
        ged_range(Dag([], 1), [Dag([], 1)], radius)
