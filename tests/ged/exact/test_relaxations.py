"""Prices by linear programs bound distances from below, maps by Frank-Wolfe from above."""

import itertools
import random

import numpy as np
import pytest

from dagnn.ged import EditCosts, graph_edit_distance
from dagnn.ged.exact import relaxations as linear_module
from dagnn.ged.exact.assignment import new_room
from dagnn.ged.exact.limits import Watch
from dagnn.ged.exact.problem import DELETIONS_PAY, map_cost, new_problem
from dagnn.ged.exact.relaxations import linear_lower, linear_prices, search_upper
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import read_pair

COSTS = [
    EditCosts(),
    EditCosts(node_substitution=5, edge_deletion=0.5),
    EditCosts(edge_substitution=lambda a, b: abs(a - b) / 3, edge_insertion=lambda label: 1 + label),
]


def random_problem(oracle, seed, costs, nodes=5):
    rng = random.Random(seed)
    graphs = [oracle.random_dag(rng, size, labels=2) for size in (nodes - 1, nodes)]
    for graph in graphs:
        graph.edges = [(u, v, rng.randrange(3)) for u, v, _ in graph.edges]
    options = {"directed": None, "node_label": "label", "edge_label": "label"}
    tables = build_tables(read_pair(*map(oracle.to_networkx, graphs), **options), costs)
    return new_problem(tables.tables, *tables.graphs)


def maps(problem):
    n1, n2 = problem.node.shape
    for image in itertools.permutations(range(n2), n1):
        yield np.array(image)
    if problem.constants[DELETIONS_PAY]:
        for image in itertools.permutations([*range(n2), *[-1] * n1], n1):
            yield np.array(image)


def left_over(problem, prices, u, v, w, x):
    p, q = problem.left[u, w], problem.right[v, x]
    saving = problem.pair[p, q] - problem.pair[p, 0] - problem.pair[0, q]
    paid = prices.left[u, w, v] + prices.left[w, u, x] + prices.right[v, x, u] + prices.right[x, v, w]
    return prices.constants[0] * saving + paid


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_prices_are_valid_for_every_map(oracle, seed, costs):
    problem = random_problem(oracle, seed, costs)
    prices = linear_prices(problem, Watch())
    n1, n2 = problem.node.shape
    assert min(prices.left.min(), prices.right.min()) >= 0
    for (u, w), (v, x) in itertools.product(itertools.permutations(range(n1), 2), itertools.permutations(range(n2), 2)):
        assert left_over(problem, prices, u, v, w, x) >= 0
    for image in itertools.islice(maps(problem), 2000):
        mapped = [(u, v) for u, v in enumerate(image.tolist()) if v >= 0]
        if len({v for _, v in mapped}) < len(mapped):
            continue
        bound = prices.constants[1] + sum(prices.node[u, v] for u, v in mapped)
        bound += sum(left_over(problem, prices, u, v, w, x) for (u, v), (w, x) in itertools.combinations(mapped, 2))
        assert bound <= prices.constants[0] * map_cost(problem, image)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_root_bound_is_below_the_distance_and_near_it(oracle, seed, costs):
    problem = random_problem(oracle, seed, costs)
    exact = min(map_cost(problem, image) for image in maps(problem))
    assert 0.9 * exact <= linear_lower(problem, Watch()) <= exact


def test_large_programs_and_graphs_without_edges_are_left_to_branch_match(oracle, monkeypatch):
    problem = random_problem(oracle, 0, EditCosts())
    monkeypatch.setattr(linear_module, "MOST", 20)
    assert linear_prices(problem, Watch()) is None
    monkeypatch.undo()
    assert linear_prices(problem._replace(left=np.zeros_like(problem.left)), Watch()) is None


def problem_and_distance(oracle, rng, nodes, near):
    a = oracle.random_dag(rng, nodes)
    b = oracle.perturbed(rng, a, 4) if near else oracle.random_dag(rng, nodes)
    left, right = oracle.to_networkx(a), oracle.to_networkx(b)
    pair = read_pair(left, right, directed=None, node_label="label", edge_label="label")
    tables = build_tables(pair, EditCosts())
    return new_problem(tables.tables, *tables.graphs), graph_edit_distance(left, right).distance


@pytest.mark.parametrize(("nodes", "near"), [(10, True), (20, True), (10, False), (12, False)])
def test_frank_wolfe_from_eight_starts_is_half_an_edit_from_the_distance(oracle, nodes, near):
    rng = random.Random(nodes)
    gaps = []
    for _ in range(10):
        problem, distance = problem_and_distance(oracle, rng, nodes, near)
        best, room = np.full(nodes, -1), new_room(nodes)
        upper = search_upper(problem, best, map_cost(problem, best), 0, 8, room, np.zeros(1, dtype=np.int64))
        assert upper == map_cost(problem, best) >= distance
        gaps.append(upper - distance)
    assert np.mean(gaps) <= 0.5


def test_more_starts_are_never_worse_and_the_same_in_every_run(oracle):
    problem, _ = problem_and_distance(oracle, random.Random(0), 12, near=False)
    best, room = np.full(12, -1), new_room(12)
    costs = [map_cost(problem, best)]
    for start in range(8):
        costs.append(search_upper(problem, best, costs[-1], start, start + 1, room, np.zeros(1, dtype=np.int64)))
    assert costs == sorted(costs, reverse=True)
    again = np.full(12, -1)
    assert search_upper(problem, again, costs[0], 0, 8, new_room(12), np.zeros(1, dtype=np.int64)) == costs[-1]
    assert (again == best).all()
