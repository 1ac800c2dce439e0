import random
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import torch

from dagnn.errors import DtypeError
from dagnn.ged import EditCosts
from dagnn.ged.exact.tables import _constant_tables, build_tables
from dagnn.ged.labelled import label_key, read_pair
from dagnn.graph import Dag


def tables_of(a, b, **costs):
    return build_tables(read_pair(a, b, directed=None, node_label="label", edge_label="label"), EditCosts(**costs))


@pytest.mark.parametrize(
    ("costs", "unit"),
    [
        ({}, Fraction(1)),
        ({"node_insertion": 4, "node_deletion": 6, "edge_insertion": 2, "edge_deletion": 8}, Fraction(2)),
        ({"node_insertion": 0.375, "edge_deletion": 0.25}, Fraction(1, 8)),
    ],
)
def test_unit_divides_all_costs(costs, unit):
    found = tables_of(nx.path_graph(2), nx.path_graph(3), **costs)
    assert found.unit == unit and not found.error
    assert found.tables.insert[0] * unit == Fraction(costs.get("node_insertion", 1))


def test_decimals_are_units_but_for_their_last_bit():
    found = tables_of(nx.path_graph(2), nx.path_graph(3), node_insertion=0.1, edge_deletion=0.25, node_deletion=1 / 3)
    assert found.tables.insert[0] == 6 and found.tables.delete[0] == 20
    assert 0 < found.error <= Fraction(1, 2**51)
    tenth = 6 * found.unit
    assert tenth <= Fraction(0.1) <= tenth * (1 + found.error)


def test_costs_without_a_common_unit_get_a_small_one():
    found = tables_of(nx.path_graph(2), nx.path_graph(3), node_insertion=2**0.5, node_deletion=1e-3)
    for cost, units in ((2**0.5, found.tables.insert[0]), (1e-3, found.tables.delete[0])):
        below = int(units) * Fraction(found.unit)
        assert below <= Fraction(cost) <= below * (1 + found.error)
    assert found.error < 1e-12


def test_what_costs_fit_exactly_is_kept_exactly():
    found = tables_of(nx.path_graph(2), nx.path_graph(3), node_insertion=2.0**40, node_deletion=2.0**-10)
    assert not found.error and found.unit == Fraction(1, 2**10)


def test_parallel_edges_are_matched_as_cheaply_as_possible():
    a = nx.MultiDiGraph([(0, 1, {"label": 1}), (0, 1, {"label": 5})])
    b = nx.MultiDiGraph([(0, 1, {"label": 6}), (0, 1, {"label": 2}), (0, 1, {"label": 9})])
    found = tables_of(a, b, edge_substitution=lambda x, y: abs(x - y) / 2, edge_insertion=7)
    p, q = found.graphs[0].pairs[0, 1], found.graphs[1].pairs[0, 1]
    assert found.tables.pair[p, q] * found.unit == 0.5 + 0.5 + 7
    assert found.reversed.pair[q, p] == found.tables.pair[p, q]


def test_edge_substitution_never_exceeds_deletion_and_insertion():
    a, b = nx.DiGraph([(0, 1, {"label": "x"})]), nx.DiGraph([(0, 1, {"label": "y"})])
    found = tables_of(a, b, edge_substitution=100)
    assert found.tables.pair[found.graphs[0].pairs[0, 1], found.graphs[1].pairs[0, 1]] * found.unit == 2


def test_symmetric_costs_are_recognised():
    assert tables_of(nx.path_graph(2), nx.path_graph(3)).symmetric
    assert not tables_of(nx.path_graph(2), nx.path_graph(3), node_insertion=2).symmetric
    labelled = nx.path_graph(2)
    nx.set_node_attributes(labelled, {0: 0, 1: 1}, "label")
    assert not tables_of(labelled, labelled, node_substitution=np.array([[0.0, 1.0], [2.0, 0.0]])).symmetric


def test_label_keys_are_equal_for_equal_content():
    assert label_key(torch.tensor([1.0, 2.0])) == label_key(np.array([1.0, 2.0])) == label_key([1.0, 2.0])
    assert label_key("a") != label_key("b")
    assert label_key(torch.tensor(3)) == label_key(3)
    with pytest.raises(DtypeError, match="a label must be hashable, an array, a list or a mapping, got set"):
        label_key({1})


def test_constants_and_functions_of_the_same_value_give_the_same_tables(oracle):
    rng = random.Random(3)
    constant = EditCosts(node_insertion=1.5, edge_substitution=0.25)
    by_label = EditCosts(
        node_insertion=lambda label: 1.5,
        node_substitution=lambda a, b: float(a != b),
        edge_substitution=lambda a, b: 0.25 * (a != b),
    )
    for nodes in (0, 1, 3, 6, 6):
        pair = read_pair(
            *(oracle.to_networkx(oracle.random_dag(rng, nodes, labels=3)) for _ in range(2)),
            directed=None,
            node_label="label",
            edge_label="label",
        )
        kept, made = build_tables(pair, constant), build_tables(pair, by_label)
        assert kept.unit == made.unit
        for part in ("tables", "reversed", "nodes", "edges"):
            assert all(np.array_equal(x, y) for x, y in zip(getattr(kept, part), getattr(made, part), strict=True))


def test_tables_of_many_labels_are_not_kept():
    graph = Dag([], 200, node_attributes={"label": list(range(200))})
    pair = read_pair(graph, graph, directed=None, node_label="label", edge_label="label")

    before = _constant_tables.cache_info().currsize
    assert len(build_tables(pair, EditCosts(node_insertion=0.125)).nodes.delete) == 200
    assert _constant_tables.cache_info().currsize == before
