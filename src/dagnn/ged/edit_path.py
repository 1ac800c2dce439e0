"""The edits that a node map prescribes."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dagnn.ged.costs import exact_integers
from dagnn.ged.exact.assignment import assign_exactly
from dagnn.ged.exact.tables import CostTables
from dagnn.ged.labelled import LabelledGraph, label_key

Kind: TypeAlias = Literal[
    "delete node", "insert node", "substitute node", "delete edge", "insert edge", "substitute edge"
]


@dataclass(frozen=True)
class Edit:
    """One edit of a path from graph ``a`` to graph ``b``.

    Attributes:
        kind: "delete node", "insert node", "substitute node", or the same with "edge".
        source: the node, or pair of nodes, of ``a``; None for insertions.
        target: the node, or pair of nodes, of ``b``; None for deletions.
        source_label, target_label: their labels, None where there is none.
        cost: a float, at least 0.

    >>> print(Edit("substitute node", source=0, target=1, source_label="x", target_label="y", cost=1.0))
    substitute node 0 [x] by 1 [y] (1)
    """

    kind: Kind
    source: Any
    target: Any
    source_label: Any
    target_label: Any
    cost: float

    def __str__(self) -> str:
        is_edge = self.kind.endswith("edge")
        left = _spelled(self.source, self.source_label, is_edge)
        right = _spelled(self.target, self.target_label, is_edge)
        if self.source is None:
            return f"{self.kind} {right} ({self.cost:g})"
        return (
            f"{self.kind} {left} ({self.cost:g})"
            if self.target is None
            else (f"{self.kind} {left} by {right} ({self.cost:g})")
        )


def edit_path(a: LabelledGraph, b: LabelledGraph, image: list[int | None], costs: CostTables) -> tuple[Edit, ...]:
    """The edits in an order in which they can be carried out: an edge never lacks an end.

    Args:
        image: for every node of ``a``, the node of ``b`` that it becomes, or None if it is deleted.
        costs: the tables built from ``a`` and ``b``.
    """
    return tuple(
        sorted(_node_edits(a, b, image, costs) + _edge_edits(a, b, image, costs), key=lambda edit: _ORDER[edit.kind])
    )


_ORDER = {
    "delete edge": 0,
    "delete node": 1,
    "substitute node": 2,
    "insert node": 3,
    "substitute edge": 4,
    "insert edge": 5,
}


def _node_edits(a: LabelledGraph, b: LabelledGraph, image: list[int | None], costs: CostTables) -> list[Edit]:
    tables, edits = costs.nodes, []
    left, right = a.node_labels or (None,) * a.num_nodes, b.node_labels or (None,) * b.num_nodes
    for u, v in enumerate(image):
        s = costs.node_ids[label_key(left[u])]
        if v is None:
            cost = float(tables.delete[s])
            edits.append(Edit("delete node", a.names[u], None, left[u], None, cost))
            continue
        t = costs.node_ids[label_key(right[v])]
        if s != t or tables.substitute[s, t]:
            cost = float(tables.substitute[s, t])
            edits.append(Edit("substitute node", a.names[u], b.names[v], left[u], right[v], cost))
    for v in sorted(set(range(b.num_nodes)) - {v for v in image if v is not None}):
        cost = float(tables.insert[costs.node_ids[label_key(right[v])]])
        edits.append(Edit("insert node", None, b.names[v], None, right[v], cost))
    return edits


def _edge_edits(a: LabelledGraph, b: LabelledGraph, image: list[int | None], costs: CostTables) -> list[Edit]:
    left, right = _bundles(a), _bundles(b)
    keeping_is_free = not costs.edges.substitute.diagonal().any()
    edits = []
    for (u, w), labels in left.items():
        v, x = image[u], image[w]
        there = None if v is None or x is None else (v, x) if a.directed or v <= x else (x, v)
        others = [] if there is None else right.pop(there, [])
        if keeping_is_free and len(labels) == len(others) == 1 and label_key(labels[0]) == label_key(others[0]):
            continue  # most edges
        target = None if there is None else (b.names[there[0]], b.names[there[1]])
        edits += _bundle_edits((a.names[u], a.names[w]), target, labels, others, costs)
    for (v, x), labels in right.items():
        edits += _bundle_edits(None, (b.names[v], b.names[x]), [], labels, costs)
    return edits


def _bundles(graph: LabelledGraph) -> dict[tuple[int, int], list[Any]]:
    """The labels of all edges between each pair of nodes that has any."""
    found: dict[tuple[int, int], list[Any]] = {}
    for (u, v), label in zip(graph.edges, graph.edge_labels or (None,) * len(graph.edges), strict=True):
        found.setdefault((u, v) if graph.directed or u <= v else (v, u), []).append(label)
    return found


def _bundle_edits(
    source: tuple[Hashable, Hashable] | None,
    target: tuple[Hashable, Hashable] | None,
    left: list[Any],
    right: list[Any],
    costs: CostTables,
) -> list[Edit]:
    """The cheapest edits between parallel edges, without those that cost nothing and change nothing."""
    tables = costs.edges
    s = [costs.edge_ids[label_key(label)] for label in left]
    t = [costs.edge_ids[label_key(label)] for label in right]
    kept: dict[int, int] = {}
    if len(left) == len(right) == 1:
        # fsum rounds once, so its sign is exact.
        if math.fsum((tables.substitute[s[0], t[0]], -tables.delete[s[0]], -tables.insert[t[0]])) <= 0:
            kept = {0: 0}
    elif left and right:
        parts = [tables.substitute[np.ix_(s, t)], tables.delete[s], tables.insert[t]]
        (substitute, delete, insert), _ = exact_integers(parts)
        saved = substitute - delete[:, None] - insert
        kept = {i: j for i, j in assign_exactly(np.minimum(saved, 0)) if saved[i, j] <= 0}
    edits = []
    for i, label in enumerate(left):
        if i not in kept:
            cost = float(tables.delete[s[i]])
            edits.append(Edit("delete edge", source, None, label, None, cost))
        elif s[i] != t[kept[i]] or tables.substitute[s[i], t[kept[i]]]:
            cost = float(tables.substitute[s[i], t[kept[i]]])
            edits.append(Edit("substitute edge", source, target, label, right[kept[i]], cost))
    for j in sorted(set(range(len(right))) - set(kept.values())):
        cost = float(tables.insert[t[j]])
        edits.append(Edit("insert edge", None, target, None, right[j], cost))
    return edits


def _spelled(item: Any, label: Any, is_edge: bool) -> str:
    text = f"{item[0]} -> {item[1]}" if is_edge and item is not None else f"{item}"
    return text if label is None else f"{text} [{label}]"
