"""Costs of any size, against exact rationals: every map of small graphs is tried, with fractions."""

import math
import random
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from dagnn.ged import EditCosts, GedMetric, ged_bounds, ged_matrix, graph_edit_distance, tree_edit_distance
from dagnn.graph import Dag

NAMES = ["node_substitution", "node_deletion", "node_insertion", "edge_substitution", "edge_deletion", "edge_insertion"]
TENS = [0.0, 1e-9, 1e-6, 1e-3, 0.1, 0.35, 0.5, 1.0, 3.0, 7.25, 1e3, 1e6, 1e9, 1e12]


def price(rng, form):
    if form == "tens":
        return rng.choice(TENS)
    if form == "decimals":
        return rng.choice([0.1, 0.2, 0.3, 0.7, 1 / 3, 1.0])
    if form == "close":  # one is as good as the other but for the last bits
        return rng.choice([1.0, 1.0 + 2**-52, 1e12, 2e12 + 2**-10, 2.0, 2.0 - 2**-52])
    if form == "extreme":
        return rng.choice([5e-324, 1e-300, 1e300, 1.0, 0.0, 2**-1074 * 3, 1e150])
    return 10 ** rng.uniform(-9, 12)


def random_case(rng, oracle, largest):
    """Two small graphs of one random kind, and their costs as ours and as fractions."""
    directed, multi, loops = rng.random() < 0.6, rng.random() < 0.4, rng.random() < 0.4
    sizes = {"node": rng.choice([1, 2, 3]), "edge": rng.choice([1, 1, 2, 3])}
    form = rng.choice(["spread", "spread", "spread", "tens", "tens", "decimals", "close", "extreme"])

    def graph():
        nodes, edges, seen = rng.randint(0, largest), [], set()
        for _ in range(rng.randint(0, 2 * largest - 2) if nodes else 0):
            u, v = rng.randrange(nodes), rng.randrange(nodes)
            key = (u, v) if directed else (min(u, v), max(u, v))
            if (u == v and not loops) or (key in seen and (not multi or len(edges) > 5)):
                continue
            seen.add(key)
            edges.append((u, v, rng.randrange(sizes["edge"])))
        return oracle.Graph([rng.randrange(sizes["node"]) for _ in range(nodes)], edges, directed)

    by_label = rng.random() < 0.5
    given, exact = {}, {}
    for name in NAMES:
        size = sizes[name[:4]]
        pairs = name.endswith("substitution")
        if by_label:
            table = np.array([price(rng, form) for _ in range(size ** (1 + pairs))]).reshape((size,) * (1 + pairs))
            given[name] = table
        else:
            given[name] = price(rng, form)
            table = given[name] * (1 - np.eye(size)) if pairs else np.full(size, given[name])
        exact[name] = (
            (lambda a, b, t=table: Fraction(float(t[a, b]))) if pairs else (lambda a, t=table: Fraction(float(t[a])))
        )
    return graph(), graph(), multi, EditCosts(**given), oracle.Costs(**exact), form


def check(seeds, oracle, largest):
    for seed in seeds:
        a, b, multi, costs, exact, form = random_case(random.Random(seed), oracle, largest)
        expected = oracle.brute_force(a, b, exact)
        left, right = oracle.to_networkx(a, multi), oracle.to_networkx(b, multi)

        result = graph_edit_distance(left, right, costs)

        assert result.proved, seed
        assert result.distance == float(expected), (seed, form)
        assert sum(Fraction(edit.cost) for edit in result.edit_path) == expected, (seed, form)
        assert math.fsum(edit.cost for edit in result.edit_path) == result.distance
        rough = graph_edit_distance(left, right, costs, budget=0)
        fast = ged_bounds(left, right, costs, tight=True)
        for lower, upper in ((rough.lower, rough.upper), (fast.lower, fast.upper)):
            # Without a search, bounds that a float cannot tell apart may be one bit high.
            assert lower <= math.nextafter(float(expected), math.inf) and float(expected) <= upper, (seed, form)
        assert math.fsum(edit.cost for edit in rough.edit_path) == rough.upper
        assert 0 <= result.normalized <= 1


@pytest.mark.fault("graph_edit_distance", 1)
def test_distance_is_exact_whatever_the_costs_span(oracle):
    check(range(150), oracle, largest=3)
    check(range(150, 190), oracle, largest=4)


@pytest.mark.slow
def test_distance_is_exact_on_many_pairs(oracle):
    check(range(200, 2200), oracle, largest=4)


@pytest.mark.slow
def test_distance_is_exact_by_linear_prices(oracle, monkeypatch):
    monkeypatch.setattr("dagnn.ged.exact.solve.PATIENCE", 0)
    check(range(2200, 3000), oracle, largest=4)


def one(label):
    return Dag([], 1, node_attributes={"label": (label,)})


@pytest.mark.fault("graph_edit_distance", 1)
@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"node_substitution": 1e10}, 2.0),
        ({"node_insertion": 0.35, "node_deletion": 0.35, "node_substitution": 1e9}, 0.7),
        ({"node_substitution": 1e-7}, 1e-7),
        ({"node_substitution": 1e-7, "edge_deletion": 1e12}, 1e-7),
        ({"node_substitution": 5e-324, "node_deletion": 1e308}, 5e-324),
        ({"node_substitution": 1e300, "node_deletion": 1e-300, "node_insertion": 1e-9}, 1e-9),
    ],
)
def test_large_costs_do_not_hide_small_ones(costs, expected):
    costs = EditCosts(**costs)
    result = graph_edit_distance(one("a"), one("b"), costs)
    assert result.proved and result.distance == expected
    assert ged_matrix([one("a")], [one("b")], costs).distance.item() == expected
    assert ged_bounds(one("a"), one("b"), costs) == (expected, expected)
    assert tree_edit_distance(one("a"), one("b"), costs) == expected
    metric = GedMetric(costs)
    metric.update([one("a")], [one("b")])
    assert metric.compute().mean_upper == metric.compute().mean_lower == expected


@pytest.mark.fault("graph_edit_distance", 1)
def test_a_small_relabelling_beside_large_costs_is_found():
    large = dict.fromkeys(NAMES, 1e7) | {"node_substitution": 0.001}
    a, b = (Dag([(0, 1)], node_attributes={"label": labels}) for labels in (("a", "b"), ("c", "b")))
    result = graph_edit_distance(a, b, EditCosts(**large))
    assert result.proved and result.distance == 0.001
    assert [str(edit) for edit in result.edit_path] == ["substitute node 0 [a] by 0 [c] (0.001)"]


def test_deletions_that_pay_less_than_a_unit_are_found():
    a, b = nx.Graph([(1, 2)]), nx.Graph([(2, 2), (0, 1), (2, 3), (1, 3)])
    a.add_node(0)
    nx.set_node_attributes(a, "x", "label")
    nx.set_node_attributes(b, "y", "label")
    # Two nodes become others for the edge between them (6); the third is deleted, two nodes and three edges inserted.
    found = graph_edit_distance(a, b, EditCosts(node_substitution=3, edge_deletion=1e30))
    assert found.proved and found.distance == 12


def test_sums_beyond_all_floats_are_not_proved():
    result = graph_edit_distance(Dag([], 3), Dag([], 0), EditCosts(node_deletion=1e308))
    assert not result.proved and result.upper == math.inf and result.lower < math.inf
    assert graph_edit_distance(Dag([], 3), Dag([], 3), EditCosts(node_deletion=1e308)).distance == 0


def test_matrix_of_asymmetric_tiny_costs_is_not_mirrored():
    costs = EditCosts(node_insertion=2e-9, node_deletion=1e-9, edge_insertion=1e12 / 3, edge_deletion=1e12)
    graphs = [Dag([], 1), Dag([], 2), Dag([(0, 1)])]
    found = ged_matrix(graphs, costs=costs)
    assert found.proved.all()
    assert found.distance[0, 1] == 2e-9 and found.distance[1, 0] == 1e-9
    assert found.distance[1, 2] == 2e-9 + 1e12 / 3 and found.distance[2, 1] == 1e-9 + 1e12


def test_irrational_costs_are_exact_on_larger_graphs(oracle):
    rng = random.Random(4)
    costs = EditCosts(node_substitution=2**0.5, edge_deletion=math.pi, edge_insertion=math.e)
    for _ in range(3):
        a = oracle.random_dag(rng, 12)
        b = oracle.perturbed(rng, a, 4)
        result = graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(b), costs)
        assert result.proved
        assert math.fsum(edit.cost for edit in result.edit_path) == result.distance


def test_parallel_edges_of_wide_costs_are_matched_exactly():
    a = nx.MultiDiGraph([(0, 1, {"label": 0.0}), (0, 1, {"label": 5e9})])
    b = nx.MultiDiGraph([(0, 1, {"label": 5e9}), (0, 1, {"label": 1e-6})])
    costs = EditCosts(edge_substitution=lambda x, y: abs(x - y), edge_insertion=1e11, edge_deletion=1e11)
    assert graph_edit_distance(a, b, costs).distance == 1e-6
