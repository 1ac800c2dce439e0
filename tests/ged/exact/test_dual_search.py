"""Dual ascent bounds every distance from below, and the search by it finds the distance."""

import random

import networkx as nx
import numpy as np
import pytest

from dagnn.ged import EditCosts
from dagnn.ged.exact.bounds import LIMIT, NODES, ROOT, UPPER
from dagnn.ged.exact.dual_search import (
    MOST_SHARES,
    WEIGHT,
    advance_dual,
    allocate,
    dual_lower,
    fits,
    prepare,
)
from dagnn.ged.exact.problem import DELETED, map_cost, new_problem
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import read_pair

COSTS = {
    "unit": {},
    "deletions pay": {"node_substitution": 5.0, "edge_deletion": 0.5},
    "by label": {
        "edge_substitution": lambda a, b: abs(a - b) / 4,
        "edge_insertion": lambda label: 1 + label,
        "node_deletion": lambda label: 0.25 + label,
    },
    "large": {"node_insertion": 2.0**40, "edge_deletion": 2.0**35 + 1, "node_substitution": 2.0**39 + 1},
    "free": {"node_insertion": 0.0, "edge_substitution": 0.0, "edge_deletion": 0.0},
}


def random_pair(oracle, seed, sizes=(4, 5)):
    rng = random.Random(seed)
    graphs = [oracle.random_dag(rng, size, labels=2) for size in sizes]
    for graph in graphs:
        graph.edges = [(u, v, rng.randrange(3)) for u, v, _ in graph.edges]
    return graphs


def problem_of(oracle, graphs, costs):
    options = {"directed": None, "node_label": "label", "edge_label": "label"}
    tables = build_tables(read_pair(*map(oracle.to_networkx, graphs), **options), EditCosts(**costs))
    return new_problem(tables.tables, *tables.graphs), tables.unit


def searched(problem, *, limit=1 << 60, budget=1 << 60, stop=0):
    search = getattr(allocate, "py_func", allocate)(problem, np.full(1, stop, dtype=np.int64))
    nothing = np.full(len(problem.delete), DELETED)
    prepare(problem, search, nothing, map_cost(problem, nothing), limit, 0)
    return search, advance_dual(problem, search, budget)


def as_function(name, cost):
    return (lambda a, b: cost * (a != b)) if name.endswith("substitution") else (lambda label: cost)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("seed", range(12))
def test_search_finds_the_distance_and_its_map(oracle, seed, costs):
    graphs = random_pair(oracle, seed)
    problem, unit = problem_of(oracle, graphs, COSTS[costs])
    search, done = searched(problem)
    plain = oracle.Costs(
        **{name: cost if callable(cost) else as_function(name, cost) for name, cost in COSTS[costs].items()}
    )
    distance = oracle.brute_force(*graphs, plain)
    assert done and search.numbers[UPPER] * unit == distance == dual_lower(search, done) * unit
    assert map_cost(problem, search.best[0]) == search.numbers[UPPER]


@pytest.mark.parametrize("seed", range(6))
def test_bounds_of_a_search_that_stops_early_are_bounds(oracle, seed):
    problem, _ = problem_of(oracle, random_pair(oracle, seed, (7, 8)), {})
    distance = searched(problem)[0].numbers[UPPER]
    lowers = []
    for budget in (1, 1 + WEIGHT, 1 + 4 * WEIGHT, 1 + 16 * WEIGHT):
        search, done = searched(problem, budget=budget)
        assert search.numbers[NODES] <= budget + WEIGHT
        assert dual_lower(search, done) <= distance <= search.numbers[UPPER]
        lowers.append(dual_lower(search, done))
    assert lowers == sorted(lowers) and lowers[0] > 0


@pytest.mark.parametrize("seed", range(6))
def test_a_limit_only_decides_whether_the_distance_is_within_it(oracle, seed):
    problem, _ = problem_of(oracle, random_pair(oracle, seed, (6, 6)), {})
    distance = int(searched(problem)[0].numbers[UPPER])
    for limit in (distance - 1, distance):
        search, done = searched(problem, limit=limit)
        assert done and search.numbers[LIMIT] == limit
        assert dual_lower(search, done) == min(distance, limit + 1)
        assert (search.numbers[UPPER] == distance) or limit < distance


def test_root_bound_is_higher_than_branch_match():
    # A star and a cycle of n nodes: branch match gives n - 2, the distance is 2 n - 5.
    tables = build_tables(
        read_pair(nx.star_graph(7), nx.cycle_graph(8), directed=None, node_label=None, edge_label=None), EditCosts()
    )
    problem = new_problem(tables.tables, *tables.graphs)
    search, _ = searched(problem, budget=1)
    parts = search.numbers[7]
    assert search.numbers[ROOT] > 8 * parts


def test_stopped_search_keeps_only_what_was_proved(oracle):
    problem, _ = problem_of(oracle, random_pair(oracle, 0), {})
    search, done = searched(problem, stop=1)
    assert not done and dual_lower(search, done) == 0 and search.numbers[NODES] == 0


def test_graphs_too_large_for_its_memory_are_refused():
    for nodes, fine in ((12, True), (60, False)):
        graph = nx.complete_graph(nodes)
        tables = build_tables(read_pair(graph, graph, directed=None, node_label=None, edge_label=None), EditCosts())
        problem = new_problem(tables.tables, *tables.graphs)
        assert fits(problem) is fine
        assert ((nodes * (nodes - 1)) ** 2 * (nodes + 1) <= MOST_SHARES) is fine
