import itertools
import random

import networkx as nx
import numpy as np
import pytest

from dagnn.ged import EditCosts
from dagnn.ged.exact.problem import DELETIONS_PAY, improve, map_cost, new_problem
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import read_pair


def problem_of(a, b, costs=None):
    pair = read_pair(a, b, directed=None, node_label="label", edge_label="label")
    tables = build_tables(pair, costs or EditCosts())
    return new_problem(tables.tables, *tables.graphs)


def some_maps(rng, n1, n2, count):
    for _ in range(count):
        image = np.array(rng.sample(range(n2), n1))
        image[[rng.random() < 0.3 for _ in range(n1)]] = -1
        yield image


@pytest.mark.parametrize("seed", range(5))
def test_cost_of_a_map_is_the_cost_of_its_edits(oracle, seed):
    rng = random.Random(seed)
    a, b = oracle.random_dag(rng, 5), oracle.random_dag(rng, 6)
    problem = problem_of(oracle.to_networkx(a), oracle.to_networkx(b))
    for image in some_maps(rng, 5, 6, 20):
        node_map = {u: v for u, v in enumerate(image.tolist()) if v >= 0}
        assert map_cost(problem, image) == oracle.cost_of_map(a, b, node_map, oracle.Costs())


@pytest.mark.parametrize("substitution", [1, 5])
@pytest.mark.parametrize("seed", range(5))
def test_improved_map_cannot_be_improved_by_one_more_step(oracle, seed, substitution):
    rng = random.Random(seed)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, nodes)) for nodes in (6, 7))
    problem = problem_of(a, b, EditCosts(node_substitution=substitution))
    assert bool(problem.constants[DELETIONS_PAY]) == (substitution > 2)
    for image in some_maps(rng, 6, 7, 5):
        before = map_cost(problem, image)
        after = improve(problem, image, np.zeros(1, dtype=np.int64))
        assert after == map_cost(problem, image) <= before
        images = image.tolist()
        assert len({v for v in images if v >= 0}) == sum(v >= 0 for v in images)
        for u, w in itertools.combinations(range(6), 2):
            swapped = image.copy()
            swapped[u], swapped[w] = image[w], image[u]
            assert map_cost(problem, swapped) >= after
        for u, v in itertools.product(range(6), set(range(7)) - set(images)):
            moved = image.copy()
            moved[u] = v
            assert map_cost(problem, moved) >= after


def test_twins_are_nodes_that_can_be_exchanged():
    star = nx.star_graph(3)
    star.add_node(4)
    problem = problem_of(nx.path_graph(2), star)
    assert problem.twin.tolist() == [-1, -1, 1, 2, -1]
    complete = problem_of(nx.path_graph(2), nx.complete_graph(3))
    assert complete.twin.tolist() == [-1, 0, 1]
    directed = problem_of(nx.DiGraph([(0, 1)]), nx.DiGraph([(0, 1), (0, 2), (1, 2)]))
    assert directed.twin.tolist() == [-1, -1, -1]
