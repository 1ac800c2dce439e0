"""Edit distance of ordered trees: another distance than that of graphs; neither bounds the other."""

from fractions import Fraction
from typing import Any

import numpy as np

from dagnn.errors import DtypeError, GraphError
from dagnn.ged.costs import ROOM, EditCosts, Ints, checked_costs, exact_integers
from dagnn.ged.distance import Edit
from dagnn.ged.exact.solve import as_float
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import LabelledGraph, label_key, read_graphs
from dagnn.graph import Dag
from dagnn.numba_jit import jitted

# Cells that `_sweep` fills in one call, some tenths of a second. Between calls Python handles Ctrl-C.
SLICE = 30_000_000


def tree_edit_distance(a: Dag, b: Dag, costs: EditCosts | None = None, *, node_label: str | None = "label") -> float:
    """The least cost of node edits that turn the ordered tree ``a`` into ``b``.

    The operands of a deleted node take its place at the node above it; an inserted node takes some neighbouring
    operands of a node as its own. Edges cost nothing and the order of operands counts, so this is not the graph edit
    distance: either may be the larger.

    Args:
        a, b: trees as expressions are: edges go from operand to operator, every node but the root has one edge out,
            and the edge attribute "position" orders the operands of a node (it may be missing where no node has
            two). A Dag without nodes is the empty tree.
        costs: unit costs by default; the costs of edges are not used.
        node_label: the node attribute that holds the labels, as in `graph_edit_distance`.

    Returns:
        The float next to the exact sum of the costs.

    Raises:
        DtypeError: ``a`` or ``b`` is no Dag.
        GraphError: a Dag that is no tree or whose operands have no order; labels on one side only; more than 2,000
            nodes.
        ConfigError: costs as in `EditCosts`.

    Cost: O(n^2 depth^2) time at worst: 2 ms for two random trees of 100 nodes, 6 s for two of 1,000.
        Costs that span too many orders of magnitude for 64-bit integers are added in Python, some 300 times as slowly.
        Ctrl-C ends either.
    Source: Zhang and Shasha, "Simple fast algorithms for the editing distance between trees and related problems",
        SIAM J. Comput. 18(6), 1989.

    >>> from dagnn.graph import Dag
    >>> tree_edit_distance(Dag.from_polish("(+ (* 2 x) 5)"), Dag.from_polish("(+ 2 x 5)"))
    1.0
    """
    pair = _Pair(a, b, costs, node_label)
    return as_float(Fraction(pair.distance, pair.ones))


def tree_edit_path(
    a: Dag, b: Dag, costs: EditCosts | None = None, *, node_label: str | None = "label"
) -> tuple[Edit, ...]:
    """The edits of `tree_edit_distance`: deletions, substitutions, insertions, in an order in which they can be done.

    Deletions and substitutions come in postorder. Insertions come in preorder: a node is there before its operands.

    Args:
        a, b, costs, node_label: as in `tree_edit_distance`.

    Returns:
        Edits whose costs sum to the distance; nodes that are matched and keep their label are left out.

    Raises:
        DtypeError, GraphError, ConfigError: as in `tree_edit_distance`.

    Cost: that of the distance, and O(n^2) for each matched tree at worst.

    >>> from dagnn.graph import Dag
    >>> [str(edit) for edit in tree_edit_path(Dag.from_polish("(+ (* 2 x) 5)"), Dag.from_polish("(+ 2 y 5)"))]
    ['delete node 2 [*] (1)', 'substitute node 1 [x] by 1 [y] (1)']
    """
    pair = _Pair(a, b, costs, node_label)
    matched = pair.matches()
    removed, inserted = (
        {*range(size)} - {*side} for size, side in zip(pair.change.shape, _sides(matched), strict=True)
    )

    def cost(units: Any) -> float:
        return as_float(Fraction(int(units), pair.ones))

    left, right = pair.trees
    edits = [
        Edit("delete node", left.names[i], None, left.shown[i], None, cost(pair.remove[i])) for i in sorted(removed)
    ]
    for i, j in sorted(matched):
        if pair.change[i, j] or left.labels[i] != right.labels[j]:
            ends = (left.names[i], right.names[j], left.shown[i], right.shown[j])
            edits.append(Edit("substitute node", *ends, cost(pair.change[i, j])))
    for j in sorted(inserted, reverse=True):
        edits.append(Edit("insert node", None, right.names[j], None, right.shown[j], cost(pair.insert[j])))
    return tuple(edits)


def _sides(matched: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [i for i, _ in matched], [j for _, j in matched]


class _Pair:
    """Two trees, the costs of their nodes, and the distances of all pairs of their subtrees.

    Attributes:
        trees: the trees.
        remove, insert, change: costs by node in postorder, int64, or Python's integers in arrays of objects.
        ones: how many of them make 1.
        distance: the distance of the trees, in the same numbers.
    """

    def __init__(self, a: Dag, b: Dag, costs: EditCosts | None, node_label: str | None) -> None:
        trees = {"a": a, "b": b}
        costs = checked_costs(costs)
        for name, dag in trees.items():
            if not isinstance(dag, Dag):
                raise DtypeError(f"{name} must be a Dag, got {type(dag).__name__}.")
        read = read_graphs([a, b], list(trees), directed=None, node_label=node_label, edge_label=None)
        tables = build_tables(read, costs)
        left, right = (
            _Tree(
                dag, name, graph, [tables.node_ids[label_key(x)] for x in graph.node_labels or (None,) * dag.num_nodes]
            )
            for (name, dag), graph in zip(trees.items(), read, strict=True)
        )
        self.trees = (left, right)
        # Not a library: apted 1.0.3 was wrong on 25 of 2,500 random pairs with costs by label, and zss 1.2.0 adds in
        # floats and took 300 times as long.
        (update, remove, insert), self.ones = exact_integers(list(tables.nodes))
        self.remove, self.insert = remove[left.labels], insert[right.labels]
        total = int(self.remove.sum() + self.insert.sum())
        # A change that costs more than removing and inserting everything is never made.
        self.change = np.minimum(update[left.labels][:, right.labels], total + 1)
        if 4 * total < ROOM:
            self.remove, self.insert, self.change = (
                part.astype(np.int64) for part in (self.remove, self.insert, self.change)
            )
        self._between = np.zeros(self.change.shape, dtype=self.change.dtype)
        self._forests = np.zeros((len(self.remove) + 1, len(self.insert) + 1), dtype=self.change.dtype)
        if self.change.size:
            self._fill(left.keyroots, right.keyroots)
        self.distance = int(self._between[-1, -1]) if self.change.size else total

    def _fill(self, keyroots: Ints, others: Ints) -> None:
        """The distances of the subtrees of all pairs of these nodes and of those that share their first leaves."""
        exact = self.change.dtype == object
        sweep = getattr(_sweep, "py_func", _sweep) if exact else _sweep
        trees = (self.trees[0].leftmost, self.trees[1].leftmost, keyroots, others)
        costs = (self.remove, self.insert, self.change)
        place, pairs = 0, len(keyroots) * len(others)
        while place < pairs:
            cells = SLICE // 300 if exact else SLICE
            place = int(sweep(*trees, *costs, self._between, self._forests, place, cells))

    def matches(self) -> list[tuple[int, int]]:
        """Pairs of nodes, in postorder, that a cheapest sequence of edits keeps or changes."""
        found: list[tuple[int, int]] = []
        first, second = (tree.leftmost.tolist() for tree in self.trees)
        open_ = [(len(first) - 1, len(second) - 1)] if self.change.size else []
        while open_:
            k, m = open_.pop()
            self._fill(np.array([k]), np.array([m]))  # the forests of this pair
            forests, begin, other_begin = self._forests, first[k], second[m]
            x, y = k - begin + 1, m - other_begin + 1
            while x and y:
                i, j = begin + x - 1, other_begin + y - 1
                if forests[x, y] == forests[x - 1, y] + self.remove[i]:
                    x -= 1
                elif forests[x, y] == forests[x, y - 1] + self.insert[j]:
                    y -= 1
                elif first[i] == begin and second[j] == other_begin:
                    found.append((i, j))
                    x, y = x - 1, y - 1
                else:
                    open_.append((i, j))
                    x, y = first[i] - begin, second[j] - other_begin
        return found


@jitted
def _sweep(
    leftmost: Ints,
    other_leftmost: Ints,
    keyroots: Ints,
    other_keyroots: Ints,
    remove: Ints,
    insert: Ints,
    change: Ints,
    trees: Ints,
    forests: Ints,
    place: int,
    cells: int,
) -> int:
    """Fill ``trees`` for pairs of keyroots from number ``place`` on, about ``cells`` cells; returns the next pair.

    Nodes count in postorder. ``trees[i, j]`` is the distance of the trees below i and j. ``forests`` is scratch memory:
    the distance of the forests from the leftmost leaves of a pair of keyroots up to i and j.
    """
    count = len(other_keyroots)
    while place < len(keyroots) * count and cells > 0:
        k, m = keyroots[place // count], other_keyroots[place % count]
        first, second = leftmost[k], other_leftmost[m]
        forests[0, 0] = 0
        for i in range(first, k + 1):
            forests[i - first + 1, 0] = forests[i - first, 0] + remove[i]
        for j in range(second, m + 1):
            forests[0, j - second + 1] = forests[0, j - second] + insert[j]
        for i in range(first, k + 1):
            for j in range(second, m + 1):
                x, y = i - first, j - second
                best = min(forests[x, y + 1] + remove[i], forests[x + 1, y] + insert[j])
                if leftmost[i] == first and other_leftmost[j] == second:
                    best = min(best, forests[x, y] + change[i, j])
                    trees[i, j] = best
                else:
                    best = min(best, forests[leftmost[i] - first, other_leftmost[j] - second] + trees[i, j])
                forests[x + 1, y + 1] = best
        cells -= (k - first + 2) * (m - second + 2)
        place += 1
    return place


class _Tree:
    """A Dag as an ordered tree, its nodes in postorder.

    Attributes:
        labels: int64 ``[n]``: the number of every node's label.
        names, shown: the names of the nodes, and their labels as given, None without.
        leftmost: int64 ``[n]``: the first leaf below every node.
        keyroots: int64: for every leaf, the highest node whose first leaf it is; in ascending order.
    """

    def __init__(self, dag: Dag, name: str, graph: LabelledGraph, labels: list[int]) -> None:
        order, first = _postorder(dag, name) if labels else ([], [])
        self.names = [graph.names[node] for node in order]
        self.shown = [None if graph.node_labels is None else graph.node_labels[node] for node in order]
        self.labels = np.array([labels[node] for node in order], dtype=np.int64)
        self.leftmost = np.array(first, dtype=np.int64)
        self.keyroots = np.array(sorted({leaf: node for node, leaf in enumerate(first)}.values()), dtype=np.int64)


def _postorder(dag: Dag, name: str) -> tuple[list[int], list[int]]:
    """The nodes in postorder, and for each of them the first leaf below it, as an index into that order."""
    fan_out = dag.out_degree.tolist()
    shared = next((node for node, count in enumerate(fan_out) if count > 1), None)
    if shared is not None:
        raise GraphError(
            f"{name} is no tree: node {dag.name_of(shared)} has {fan_out[shared]} edges out. Expand shared "
            "sub-expressions, or compare with graph_edit_distance."
        )
    roots = [node for node, count in enumerate(fan_out) if count == 0]
    if len(roots) != 1:
        names = ", ".join(str(dag.name_of(node)) for node in roots[:3])
        raise GraphError(f"{name} is no tree: it has {len(roots)} nodes without an edge out ({names}, ...), not 1.")
    crowded = (dag.in_degree > 1).nonzero().flatten()
    if "position" not in dag.edge_attributes and len(crowded):
        raise GraphError(
            f"the operands of node {dag.name_of(int(crowded[0]))} of {name} have no order: number the edges into a "
            "node 0, 1, ... in the edge attribute 'position'."
        )
    operands: list[list[int]] = [[] for _ in fan_out]
    for source, target in dag.edges.tolist():  # a Dag keeps its edges by target and position
        operands[target].append(source)

    # Preorder with the last operand first, reversed. A stack, since recursion fails on deep trees.
    order, stack = [], [roots[0]]
    while stack:
        order.append(stack.pop())
        stack += operands[order[-1]]
    order.reverse()
    place = {node: i for i, node in enumerate(order)}
    first: list[int] = []
    for i, node in enumerate(order):
        first.append(first[place[operands[node][0]]] if operands[node] else i)
    return order, first
