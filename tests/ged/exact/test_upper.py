import random

import numpy as np
import pytest

from dagnn.ged import EditCosts, graph_edit_distance
from dagnn.ged.exact.assignment import new_room
from dagnn.ged.exact.problem import map_cost, new_problem
from dagnn.ged.exact.relaxations import search_upper
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import read_pair


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
