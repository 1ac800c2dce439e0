"""Tree edit distance: known values, an independent recursion, and what is no tree."""

import functools
import random

import numpy as np
import pytest

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import EditCosts, graph_edit_distance, tree_edit_distance, tree_edit_path
from dagnn.graph import Dag


def tree(nested):
    """A nested tuple (label, operand, ...) as a Dag."""
    labels, edges, positions = [], [], []

    def add(node):
        operands = [add(operand) for operand in node[1:]]
        labels.append(node[0])
        for position, operand in enumerate(operands):
            edges.append((operand, len(labels) - 1))
            positions.append(position)
        return len(labels) - 1

    add(nested)
    return Dag(edges, len(labels), node_attributes={"label": tuple(labels)}, edge_attributes={"position": positions})


def recursion(a, b, remove, insert, update):
    """The distance by its definition, over forests, from the right."""

    @functools.lru_cache(None)
    def of(left, right):
        if not left and not right:
            return 0
        options = []
        if left:
            label, *operands = left[-1]
            options.append(of(left[:-1] + tuple(operands), right) + remove(label))
        if right:
            other, *others = right[-1]
            options.append(of(left, right[:-1] + tuple(others)) + insert(other))
        if left and right:
            options.append(of(left[:-1], right[:-1]) + of(tuple(operands), tuple(others)) + update(label, other))
        return min(options)

    return of((a,), (b,))


def random_tree(rng, nodes, labels=3):
    operands, left = [], nodes - 1
    while left:
        size = rng.randint(1, left)
        operands.append(random_tree(rng, size, labels))
        left -= size
    return (rng.randrange(labels), *operands)


def table(*rows):
    return ("t", *(("tr", *[("td",)] * cells) for cells in rows))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (("a", ("b", ("x",), ("y",))), ("a", ("x",), ("b", ("y",))), 2),
        (("f", ("a", ("h",), ("c", ("l",))), ("e",)), ("f", ("e",), ("a", ("d",), ("c", ("b",)))), 4),
        (("f", ("a", ("h",), ("c", ("l",))), ("e",)), ("f", ("a", ("d",), ("c", ("b",))), ("e",)), 2),
        (table(2, *[3] * 10), table(*[6] * 5), 18),
    ],
    ids=["moved operand", "order counts", "two labels", "table"],
)
def test_distances_asked_about_in_other_projects(a, b, expected):
    assert tree_edit_distance(tree(a), tree(b)) == expected
    assert tree_edit_distance(tree(b), tree(a)) == expected


def test_charging_equal_labels_makes_the_table_dearer():
    costs = EditCosts(node_substitution=lambda a, b: 1.0)

    assert tree_edit_distance(tree(table(2, *[3] * 10)), tree(table(*[6] * 5)), costs) == 49


@pytest.mark.parametrize("kind", ["unit", "asymmetric", "by label"])
def test_distance_is_that_of_the_definition(kind):
    rng = random.Random(kind)
    for _ in range(60):
        remove, insert, update = [1.0] * 3, [1.0] * 3, 1 - np.eye(3)
        if kind == "asymmetric":
            remove, insert = [2.0] * 3, [0.5] * 3
        if kind == "by label":
            remove, insert = ([rng.randint(0, 4) / 2 for _ in range(3)] for _ in range(2))
            update = np.array([[rng.randint(0, 9) / 2 for _ in range(3)] for _ in range(3)])
        a, b = random_tree(rng, rng.randint(1, 8)), random_tree(rng, rng.randint(1, 8))
        costs = EditCosts(
            node_deletion=np.array(remove), node_insertion=np.array(insert), node_substitution=np.array(update)
        )
        expected = recursion(a, b, remove.__getitem__, insert.__getitem__, lambda x, y, u=update: u[x, y])

        found = tree_edit_distance(tree(a), tree(b), costs)

        assert found == expected >= 0
        assert tree_edit_distance(tree(a), tree(a)) == 0


def test_neither_distance_bounds_the_other():
    a, b = tree(("a", ("b",), ("c",))), tree(("a", ("c",), ("b",)))
    assert graph_edit_distance(a, b).distance == 0 < tree_edit_distance(a, b) == 2

    a, b = tree(("a", ("b", ("c",)))), tree(("a", ("c",)))
    assert graph_edit_distance(a, b).distance == 3 > tree_edit_distance(a, b) == 1


def test_positions_order_the_operands_whatever_the_order_of_the_edges():
    labels = {"label": ("-", "x", "y")}
    a = Dag([(1, 0), (2, 0)], node_attributes=labels, edge_attributes={"position": [1, 0]})

    assert tree_edit_distance(a, Dag.from_polish("(- y x)")) == 0
    assert tree_edit_distance(a, Dag.from_polish("(- x y)")) == 2


def test_empty_tree_and_chain_without_positions():
    costs = EditCosts(node_deletion=2.0)

    assert tree_edit_distance(Dag([], 0), Dag([], 0)) == 0
    assert tree_edit_distance(Dag([(0, 1)]), Dag([], 0), costs) == 4
    assert tree_edit_distance(Dag([], 0), Dag([(0, 1)]), costs) == 2
    assert tree_edit_distance(Dag([(0, 1), (1, 2)]), Dag([(0, 1)]), costs) == 2


def test_deep_trees_do_not_exhaust_the_stack():
    assert tree_edit_distance(Dag([(i, i + 1) for i in range(1499)]), Dag([], 1)) == 1499


@pytest.mark.parametrize(
    ("dag", "text"),
    [
        (Dag([("x", "+"), ("x", "*"), ("*", "+")]), "a is no tree: node x has 2 edges out. Expand shared"),
        (Dag([(0, 1)], 3), r"a is no tree: it has 2 nodes without an edge out \(1, 2, ...\), not 1."),
        (Dag([("x", "+"), ("y", "+")]), r"the operands of node \+ of a have no order: number the edges into a node"),
    ],
)
def test_what_is_no_ordered_tree_is_refused(dag, text):
    with pytest.raises(GraphError, match=text):
        tree_edit_distance(dag, Dag([], 1))


def test_graph_too_large_to_compare_is_refused_at_once():
    with pytest.raises(GraphError, match="b has 2,001 nodes: graphs of up to 2,000 can be compared"):
        tree_edit_distance(Dag([], 1), Dag([], 2001))
    with pytest.raises(GraphError, match="a has 1,000,000 nodes"):
        graph_edit_distance(Dag([], 1_000_000), Dag([], 1))


def test_other_bad_input_is_refused():
    with pytest.raises(DtypeError, match="b must be a Dag, got str"):
        tree_edit_distance(Dag([], 1), "(+ 1 2)")
    with pytest.raises(GraphError, match="a has the node attribute 'label' and b has not"):
        tree_edit_distance(Dag.from_polish("x"), Dag([], 1))
    with pytest.raises(ConfigError, match="node_insertion"):
        tree_edit_distance(Dag([], 1), Dag([], 1), EditCosts(node_insertion=float("nan")))


def carried_out(nested, other, path):
    """``nested`` after the edits of ``path``, whose nodes are numbered in postorder; insertions must give ``other``."""
    deleted = {edit.source for edit in path if edit.kind == "delete node"}
    changed = {edit.source: edit.target_label for edit in path if edit.kind == "substitute node"}
    inserted = {edit.target for edit in path if edit.kind == "insert node"}

    def forest(node, number, gone, labels):
        operands = []
        for operand in node[1:]:
            kept, number = forest(operand, number, gone, labels)
            operands += kept
        return (operands if number in gone else [(labels.get(number, node[0]), *operands)]), number + 1

    return forest(nested, 0, deleted, changed)[0], forest(other, 0, inserted, {})[0]


@pytest.mark.parametrize("dear", [1.0, 1e17])
def test_the_edits_give_the_other_tree_and_cost_the_distance(dear):
    rng = random.Random(8)
    costs = EditCosts(node_deletion=2, node_insertion=0.75, node_substitution=lambda a, b: abs(a - b) * dear / 2)
    for _ in range(40):
        a, b = (random_tree(rng, rng.randint(1, 12)) for _ in range(2))
        path = tree_edit_path(tree(a), tree(b), costs)
        assert sum(edit.cost for edit in path) == tree_edit_distance(tree(a), tree(b), costs)
        reached, wanted = carried_out(a, b, path)
        assert reached == wanted
    assert tree_edit_path(tree(a), tree(a)) == ()


def test_edits_of_the_empty_tree_are_insertions_from_the_root():
    chain = Dag([("x", "y"), ("y", "z")])
    assert [str(edit) for edit in tree_edit_path(Dag([], 0), chain)] == [
        f"insert node {name} (1)" for name in ("z", "y", "x")
    ]
    assert [edit.source for edit in tree_edit_path(chain, Dag([], 0))] == ["x", "y", "z"]
    assert tree_edit_path(Dag([], 0), Dag([], 0)) == ()
