"""Distances known in closed form, from other libraries' tests, and from their bug reports."""

import random

import networkx as nx
import numpy as np
import pytest

from dagnn.errors import GraphError
from dagnn.ged import EditCosts, ged_bounds, graph_edit_distance
from dagnn.graph import Dag


def distance(a, b, costs=None, **options):
    return graph_edit_distance(a, b, costs, **options).distance


def undirected(edges, nodes=()):
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return graph


def labelled(labels, edges):
    graph = nx.Graph(edges)
    graph.add_nodes_from((node, {"label": label}) for node, label in labels.items())
    return graph


def chain(nodes, labels=None):
    attributes = None if labels is None else {"label": tuple(labels)}
    return Dag([(i, i + 1) for i in range(nodes - 1)], nodes, node_attributes=attributes)


def tournament(nodes):
    return Dag([(i, j) for i in range(nodes) for j in range(i + 1, nodes)], nodes)


def star(leaves, outward=True):
    return Dag([(0, i) if outward else (i, 0) for i in range(1, leaves + 1)], leaves + 1)


@pytest.mark.parametrize("nodes", [3, 5, 8])
def test_path_and_cycle_of_the_same_size_differ_by_one_edge(nodes):
    assert distance(nx.path_graph(nodes), nx.cycle_graph(nodes)) == 1


@pytest.mark.parametrize(("n", "m"), [(2, 3), (3, 5), (4, 4), (3, 4)])
def test_complete_graphs_differ_by_their_nodes_and_edges(n, m):
    expected = (m - n) + m * (m - 1) // 2 - n * (n - 1) // 2
    assert distance(nx.complete_graph(n), nx.complete_graph(m)) == expected
    assert distance(nx.complete_graph(m), nx.complete_graph(n)) == expected


@pytest.mark.parametrize("nodes", range(5, 11))
def test_star_and_cycle_are_far_apart_where_branch_match_sees_little(nodes):
    a, b = nx.star_graph(nodes - 1), nx.cycle_graph(nodes)
    assert distance(a, b) == 2 * nodes - 5
    assert nodes - 2 <= ged_bounds(a, b).lower <= 2 * nodes - 5


@pytest.mark.parametrize(("n", "m"), [(1, 4), (3, 3), (2, 7), (6, 2)])
def test_chains_differ_by_two_for_each_node(n, m):
    assert distance(chain(n), chain(m)) == 2 * abs(n - m)


@pytest.mark.parametrize(("nodes", "expected"), [(3, 1), (4, 3), (5, 6), (6, 10)])
def test_transitive_tournament_and_chain(nodes, expected):
    assert distance(tournament(nodes), chain(nodes)) == expected


@pytest.mark.parametrize("leaves", [2, 3, 4, 5])
def test_out_star_and_in_star_and_chain(leaves):
    assert distance(star(leaves), star(leaves, outward=False)) == 2 * (leaves - 1)
    assert distance(star(leaves), chain(leaves + 1)) == 2 * (leaves - 1)


@pytest.mark.parametrize(("nodes", "expected"), [(2, 2), (3, 2), (4, 4), (5, 4)])
def test_reversed_chain_is_the_same_without_labels_only(nodes, expected):
    labels = "abcde"[:nodes]
    assert distance(chain(nodes), Dag([(i + 1, i) for i in range(nodes - 1)], nodes)) == 0
    assert distance(chain(nodes, labels), chain(nodes, reversed(labels))) == expected


def test_small_directed_graphs():
    fork, join = Dag([(0, 1), (0, 2)]), Dag([(1, 0), (2, 0)])
    diamond = Dag([(0, 1), (0, 2), (1, 3), (2, 3)])
    out_tree = Dag([(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)])
    in_tree = Dag([(v, u) for u, v in out_tree.edges.tolist()])
    bipartite = Dag([(i, 3 + j) for i in range(3) for j in range(3)])
    assert distance(fork, join) == 2
    assert distance(join, chain(3)) == 2
    assert distance(tournament(3), chain(3)) == 1
    assert distance(diamond, chain(4)) == 3
    assert distance(diamond, tournament(4)) == 2
    assert distance(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0)]), diamond) == 4
    assert distance(Dag([(0, 1), (2, 3)]), chain(4)) == 1
    assert distance(bipartite, tournament(6)) == 6
    assert distance(out_tree, chain(7)) == 6
    assert distance(out_tree, in_tree) == 6


def test_graph_and_empty_graph_differ_by_everything():
    empty = Dag([], 0)
    assert distance(empty, empty) == 0
    assert distance(tournament(4), empty) == 4 + 6
    assert distance(empty, tournament(4)) == 4 + 6


def test_values_of_the_networkx_test_suite():
    assert distance(nx.path_graph(6), nx.wheel_graph(7)) == 8
    assert distance(nx.cycle_graph(6), nx.wheel_graph(7)) == 7
    assert distance(nx.circular_ladder_graph(2), nx.circular_ladder_graph(6)) == 22
    arcs = nx.MultiDiGraph([(0, 1), (1, 0), (0, 2), (2, 0)])  # issue 4102 of networkx
    assert distance(arcs, nx.MultiDiGraph([(0, 1), (1, 2), (2, 3), (3, 0)])) == 5
    red, blue = nx.cycle_graph(5), nx.cycle_graph(5)
    for node in range(5):
        red.nodes[node]["label"] = "red" if node % 2 == 0 else "blue"
        blue.nodes[node]["label"] = "red" if node % 2 == 1 else "blue"
    assert distance(red, blue) == 1

    def root(graph, node):
        nx.set_node_attributes(graph, {n: "root" if n == node else "other" for n in graph}, "label")
        return graph

    dear = EditCosts(
        node_substitution=lambda a, b: 0.0 if a == b else 100.0,
        node_deletion=lambda label: 100.0 if label == "root" else 1.0,
        node_insertion=lambda label: 100.0 if label == "root" else 1.0,
    )
    assert distance(root(nx.star_graph(5), 0), root(nx.star_graph(5), 1), dear) == 8  # roots=(0, 1) there


def test_self_loops_are_charged():  # networkx issue 8188
    loop = nx.DiGraph([(0, 0)])
    assert distance(loop, nx.DiGraph()) == 2
    assert distance(nx.MultiDiGraph([(0, 0), (0, 0)]), nx.MultiDiGraph()) == 3


def test_edge_that_becomes_a_self_loop():  # networkx issue 5400, where 0 is found
    edge = labelled({"a": "a", "b": "b"}, [("a", "b")])
    loop = labelled({"b": "b", "a": "a"}, [("a", "a")])
    assert distance(edge, loop) == 2


def test_equal_labels_may_cost():  # networkx pull request 8590, where 5 is found
    heavy = nx.Graph([(0, 1)])
    heavy.add_nodes_from([(0, {"label": 1}), (1, {"label": 2})])
    costs = EditCosts(node_substitution=lambda a, b: float(b), edge_substitution=0)
    assert distance(heavy, heavy.copy(), costs) == 3


def test_claw_and_path_do_not_depend_on_the_run():  # networkx issue 2361
    claw, path = undirected(["AB", "BC", "BD"]), undirected(["AB", "BD", "DE"])
    assert {distance(claw, path) for _ in range(5)} == {2}


def test_edges_are_matched_between_matched_nodes_only():  # networkx issue 2361
    names = {name: name for name in "ABCD"}
    assert distance(labelled(names, ["AB", "BC", "BD"]), labelled(names, ["AB", "BC", "AD"])) == 2


def test_relabelled_edge_costs_one():  # networkx issue 3991
    a, b = nx.path_graph(4), nx.path_graph(4)
    nx.set_edge_attributes(a, 1, "label")
    nx.set_edge_attributes(b, {(0, 1): 1, (1, 2): 2, (2, 3): 1}, "label")
    assert distance(a, b) == 1


def test_values_from_other_projects_bug_reports():
    assert distance(nx.complete_graph(3), nx.complete_graph(4)) == 4  # GMatch4py 11
    bipartite = nx.complete_bipartite_graph(2, 3)
    chord = nx.Graph(bipartite)
    chord.add_edge(0, 1)
    assert distance(bipartite, chord) == 1  # GMatch4py 14
    a = labelled(dict(enumerate([2, 2, 2, 2, 2])), [(0, 1), (1, 2), (2, 3), (3, 4)])
    b = labelled(dict(enumerate([2, 3, 2, 2, 2])), [(0, 1), (1, 2), (1, 3), (3, 4), (2, 4)])
    assert distance(a, b) == 2  # SimGNN 44, whose sample lacks a label
    methane = labelled({0: "C", 1: "H", 2: "H", 3: "H", 4: "H"}, [(0, i) for i in range(1, 5)])
    chloride = labelled({0: "C", 1: "H", 2: "H", 3: "H", 4: "Cl"}, [(0, i) for i in range(1, 5)])
    assert distance(methane, chloride) == 1  # LijunChang 7
    nine = undirected([(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 3), (2, 5), (3, 4), (4, 5)])
    assert distance(nine, nine) == 0  # Graphs.jl 111: equal graphs
    ab, cd = (Dag([], 2, node_attributes={"label": tuple(names)}) for names in ("ab", "cd"))
    three = Dag([], 3, node_attributes={"label": tuple("abc")})
    assert distance(ab, cd) == 2  # pygmtools 94: empty matching
    assert distance(three, ab) == distance(ab, three) == 1  # and n1 > n2


def test_missing_label_raises_instead_of_giving_a_smaller_distance():  # SimGNN 44
    a = nx.path_graph(3)
    a.nodes[0]["label"] = a.nodes[1]["label"] = "x"
    with pytest.raises(GraphError, match="node 2 of a has no 'label'"):
        graph_edit_distance(a, a)


@pytest.mark.parametrize(("substitution", "expected"), [(0.5, 0.5), (1, 1), (1.9, 1.9), (2, 2), (3, 2)])
def test_substitution_dearer_than_deletion_and_insertion_is_not_used(substitution, expected):
    a, b = (Dag([], 1, node_attributes={"label": (name,)}) for name in "ab")
    assert distance(a, b, EditCosts(node_substitution=substitution)) == expected


@pytest.mark.parametrize(("substitution", "expected"), [(3, 3), (5, 4)])
def test_deletion_branch_is_searched_when_deletions_pay(substitution, expected):
    a = Dag([(0, 1)], node_attributes={"label": ("a", "c")})
    b = Dag([(0, 1)], node_attributes={"label": ("b", "c")})
    assert distance(a, b, EditCosts(node_substitution=substitution)) == expected


def test_directions_of_costs():
    costs = EditCosts(node_deletion=2, node_insertion=1, edge_deletion=0.5, edge_insertion=0.25)
    assert distance(chain(3), chain(2), costs) == 2.5
    assert distance(chain(2), chain(3), costs) == 1.25


def test_triangle_inequality_is_not_claimed_for_costs_that_are_no_metric():
    table = np.array([[0, 1, 5], [1, 0, 1], [5, 1, 0]])
    costs = EditCosts(node_substitution=table, node_insertion=10, node_deletion=10)
    a, b, c = (Dag([], 1, node_attributes={"label": (label,)}) for label in range(3))
    assert [distance(a, b, costs), distance(b, c, costs), distance(a, c, costs)] == [1, 1, 5]


def twins(rng, nodes, directed, plain):
    """A graph of few classes of nodes: whether two nodes are joined depends on their classes alone, but for some."""
    classes = rng.randint(1, 3)
    label, of = [rng.randrange(2) for _ in range(classes)], [rng.randrange(classes) for _ in range(nodes)]
    joined = {(c, d): rng.random() < 0.4 for c in range(classes) for d in range(classes)}
    pairs = [(u, v) for u in range(nodes) for v in (range(nodes) if directed else range(u))]
    edges = [(u, v, None) for u, v in pairs if joined[of[u], of[v]] and u != v and rng.random() < 0.95]
    return plain([label[c] for c in of], edges, directed)


@pytest.mark.parametrize("directed", [False, True])
def test_nodes_that_can_be_exchanged_lose_no_map(directed, oracle):
    rng = random.Random(4)
    for _ in range(60):
        a, b = (twins(rng, rng.randint(0, 5), directed, oracle.Graph) for _ in range(2))
        costs = {"node_substitution": rng.choice([1.0, 5.0]), "edge_deletion": rng.choice([1.0, 3.0])}
        costs["node_insertion"] = 2.0
        plain = oracle.Costs(
            node_substitution=lambda x, y, costs=costs: costs["node_substitution"] * (x != y),
            node_insertion=lambda _: 2.0,
            edge_deletion=lambda _, costs=costs: costs["edge_deletion"],
        )
        found = graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(b), EditCosts(**costs))
        assert found.proved and found.upper == oracle.brute_force(a, b, plain)


def test_unions_of_cliques_are_proved_in_few_nodes():
    """Ego networks of actors: every node of a clique can be exchanged with every other, on either side."""
    left, right = (
        nx.compose_all([nx.complete_graph([0, *range(start, start + size - 1)]) for start, size in sizes])
        for sizes in ([(1, 5), (5, 6), (10, 4)], [(1, 4), (4, 4), (7, 6), (12, 3)])
    )
    found = graph_edit_distance(left, right)
    assert found.proved and found.search_nodes < 2_000
