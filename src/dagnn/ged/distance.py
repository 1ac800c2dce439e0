"""The graph edit distance of two graphs, exact or between two certain bounds, and the edits of a node map."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dagnn.errors import warn
from dagnn.ged.costs import EditCosts, checked_costs, exact_integers
from dagnn.ged.exact.assignment import assign_exactly
from dagnn.ged.exact.limits import Watch, checked_limits, checked_workers, whole_number
from dagnn.ged.exact.solve import BOUND_STARTS, Outcome, as_float, find, find_every
from dagnn.ged.exact.tables import CostTables, build_tables
from dagnn.ged.labelled import Graph, LabelledGraph, check_flag, label_key, read_pair

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


DEFAULT_BUDGET = 200_000


@dataclass(frozen=True)
class GedResult:
    """What is known about the distance of ``a`` and ``b``: always ``lower <= distance <= upper``.

    Attributes:
        lower, upper: the bounds; each is the float next to the exact sum of the costs.
        proved: whether the bounds are the same float, so that ``upper`` is the distance.
        node_map: pairs (node of a, node of b) of the map of cost ``upper``, with None for "deleted" or "inserted".
        search_nodes: how many nodes of the search tree were bounded; 0 if the root was enough.

    >>> from dagnn.graph import Dag
    >>> result = graph_edit_distance(Dag([("a", "b")]), Dag([("x", "y"), ("y", "z")]))
    >>> result.lower, result.upper, result.proved, result.node_map
    (2.0, 2.0, True, (('a', 'x'), ('b', 'y'), (None, 'z')))
    """

    lower: float
    upper: float
    proved: bool
    node_map: tuple[tuple[Hashable, Hashable], ...]
    search_nodes: int
    _spell: Callable[[], tuple[Edit, ...]] = field(repr=False, compare=False)
    _everything: Callable[[], Fraction] = field(repr=False, compare=False)

    @cached_property
    def edit_path(self) -> tuple[Edit, ...]:
        """The edits of ``node_map``, in an order in which they can be carried out.

        `math.fsum` of their costs is ``upper``; a plain sum may round on the way.
        """
        return self._spell()  # on demand: for small graphs it takes a quarter of the time

    @property
    def distance(self) -> float:
        """``upper``; warns if it is not proved to be the distance."""
        if not self.proved:
            warn(
                f"the graph edit distance is between {self.lower:g} and {self.upper:g}; using {self.upper:g}. "
                "Raise budget to find it, or read lower and upper."
            )
        return self.upper

    @property
    def normalized(self) -> float:
        """`distance` divided by the cost of deleting all of ``a`` and inserting all of ``b``: 0 .. 1.

        One minus this is a similarity, for comparing pairs of different sizes. It is no metric.
        """
        return normalized(self.distance, as_float(self._everything()))


def normalized(distance: float, everything: float) -> float:
    """``distance / everything``; 0 where there is nothing to delete or insert, or it is free."""
    return distance / everything if everything else 0.0


class GedBounds(NamedTuple):
    """``lower <= graph edit distance <= upper``, two floats.

    >>> from dagnn.graph import Dag
    >>> ged_bounds(Dag([(0, 1)]), Dag([(0, 1)])).upper
    0.0
    """

    lower: float
    upper: float


def graph_edit_distance(
    a: Graph,
    b: Graph,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    upper_bound: float | None = None,
    workers: int | None = None,
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> GedResult:
    """The least cost of edits that turn ``a`` into ``b``: insert, delete or relabel nodes and edges.

    Deleting a node charges all its edges too. Edges between matched nodes are matched, parallel ones as cheaply as
    possible; self-loops count as edges. The names of nodes do not count, unless ``node_label="names"``.

    Args:
        a, b: Dags, NetworkX graphs (any of its four kinds) or PyG ``Data``, in any mixture.
        costs: unit costs by default.
        budget: most nodes of the search tree; the result depends on it alone, not on the machine. 0: bounds only.
            A million take about 8 s for two unrelated graphs of 16 nodes.
        seconds: stop after that long too, with the bounds known by then; the result then depends on the machine.
        upper_bound: the largest distance worth finding: the search stops as soon as ``lower`` exceeds it. None or
            infinity: any.
        workers: threads for a pair that is still open after some 4,000 search nodes, up to 32; by default one for each
            core that this process may use. The result does not depend on it.
        directed: None: as the graphs are. False: ignore directions (a PyG graph then lists each edge both ways).
        node_label, edge_label: the attribute that holds the labels. Graphs that all lack "label" are unlabelled; any
            other attribute must exist. "names" for nodes: their names, unless an attribute is called so. None: compare
            without labels. Labels may be anything hashable, arrays or mappings: they compare by content, NaN too.
            PyG ``Data`` keeps nodes and edges in one place: there, one name for both means the nodes.

    Returns:
        Both bounds, and the map and the edits of the upper one.

    Raises:
        GraphError: one graph is directed and the other is not, labels on one side only or on some nodes only, a label
            attribute that no graph has, more than 2,000 nodes.
        ConfigError: a budget, bound or time that is negative or no number, a ``directed`` that is no bool; costs as in
            `EditCosts`.
        DtypeError: something that is no graph, such as a batch of several, or labels that cannot be compared.

    Ctrl-C ends the search within a second.

    Cost: on one core, pairs a few edits apart take about 0.5 ms at 10 nodes and 3 ms at 50; unrelated labelled DAGs
        about 15 ms at 16 nodes, 0.06 s at 20 and 0.15 s at 24. Costs that span too many orders of magnitude for 64-bit
        integers are compared exactly too, in more time. The first call of a process loads machine code; the first on a
        machine compiles it, which takes some 10 s.
    Source: depth-first branch and bound after Abu-Aisheh et al., "An exact graph edit distance algorithm for solving
        pattern recognition problems", ICPRAM 2015; bounds: see `ged_bounds`, and dual ascent after Hahn and Grant,
        "Lower bounds for the quadratic assignment problem based upon a dual formulation", Operations Research 46(6),
        1998.

    >>> from dagnn.graph import Dag
    >>> result = graph_edit_distance(Dag([("a", "b"), ("b", "c")]), Dag([("a", "b"), ("a", "c")]))
    >>> result.distance, [str(edit) for edit in result.edit_path]
    (2.0, ['delete edge b -> c (1)', 'insert edge a -> c (1)'])
    """
    limits = checked_limits(budget, seconds, upper_bound)
    workers, watch = checked_workers(workers), Watch(limits.seconds)
    costs = checked_costs(costs)
    left, right = read_pair(a, b, directed=directed, node_label=node_label, edge_label=edge_label)
    tables = build_tables([left, right], costs)
    found = find(tables, 0, 1, watch=watch, budget=limits.budget, bound=limits.upper_bound, workers=workers)
    return _result(left, right, tables, found)


@dataclass(frozen=True)
class OptimalPaths:
    """All edits that turn ``a`` into ``b`` at the least cost: a path for each node map.

    Attributes:
        paths: each with its ``node_map``, its ``edit_path`` and the same bounds. At least one: the first is that of
            `graph_edit_distance`. If the distance is not proved, only that one.
        complete: whether these are all paths of the least cost. False if there are more than ``limit``, or if
            ``budget`` or ``seconds`` ended the search.

    >>> from dagnn.graph import Dag
    >>> found = optimal_edit_paths(Dag([(0, 1)]), Dag([(0, 1), (0, 2)]))
    >>> [path.node_map for path in found.paths]
    [((0, 0), (1, 1), (None, 2)), ((0, 0), (1, 2), (None, 1))]
    """

    paths: tuple[GedResult, ...]
    complete: bool

    @property
    def distance(self) -> float:
        """The cost of each; warns if it is not proved to be the distance."""
        return self.paths[0].distance


def optimal_edit_paths(
    a: Graph,
    b: Graph,
    costs: EditCosts | None = None,
    *,
    limit: int = 10_000,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    workers: int | None = None,
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> OptimalPaths:
    """All edit paths of the least cost, up to ``limit``: what NetworkX's function of this name finds.

    There is one path for each node map, and maps that differ by equal nodes only are different ones: two isomorphic
    graphs have as many as they have isomorphisms. The edits of edges follow from the map; where several cost the same,
    such as which of two parallel edges to delete, one is given. Costs count as the same if they differ by no more than
    the rounding of a float, so three edits at 0.1 cost as much as one at 0.3.

    Args:
        limit: most paths, at least 1. A lower limit gives the first paths of a higher one.
        budget: search nodes for the distance and for all paths together.
        The rest as in `graph_edit_distance`.

    Raises:
        ConfigError: a ``limit`` that is no whole number above 0; the rest as in `graph_edit_distance`.
        GraphError, DtypeError: as in `graph_edit_distance`.

    Ctrl-C ends it within a second. The order of the paths is the same in every run.

    >>> import networkx as nx
    >>> found = optimal_edit_paths(nx.cycle_graph(4), nx.wheel_graph(5))
    >>> found.distance, len(found.paths), found.complete
    (5.0, 40, True)
    """
    limit, limits = whole_number("limit", limit, 1, "paths"), checked_limits(budget, seconds)
    workers, watch = checked_workers(workers), Watch(limits.seconds)
    costs = checked_costs(costs)
    left, right = read_pair(a, b, directed=directed, node_label=node_label, edge_label=edge_label)
    tables = build_tables([left, right], costs)
    found, images, complete = find_every(tables, 0, 1, watch=watch, budget=limits.budget, limit=limit, workers=workers)
    paths = tuple(_result(left, right, tables, found._replace(image=image)) for image in images)
    return OptimalPaths(paths, complete)


def ged_bounds(
    a: Graph,
    b: Graph,
    costs: EditCosts | None = None,
    *,
    tight: bool = False,
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> GedBounds:
    """A lower and an upper bound of the graph edit distance, in polynomial time.

    The upper one is the cost of a map by Frank-Wolfe from several starts and local search.

    Args:
        tight: take the lower bound from a linear program instead of branch match: on unrelated DAGs of 16 nodes, at
            distance 23, it is 0.7 too low instead of 9.4 on average, in 30 ms instead of 2. Ignored where the program
            would be very large (two graphs with more than about 130 edges each).
        The rest as in `graph_edit_distance`.

    Raises:
        ConfigError: a ``tight`` that is no bool; the rest as in `graph_edit_distance`.

    Source: branch match: Blumenthal and Gamper, "Improved lower bounds for graph edit distance", IEEE TKDE 30(3), 2018;
        linear program: Lerouge et al., "New binary linear programming formulation to compute the graph edit distance",
        Pattern Recognition 72, 2017.

    >>> from dagnn.graph import Dag
    >>> ged_bounds(Dag([(0, 1)]), Dag([(0, 1), (1, 2)]))
    GedBounds(lower=2.0, upper=2.0)
    """
    check_flag("tight", tight)
    costs = checked_costs(costs)
    left, right = read_pair(a, b, directed=directed, node_label=node_label, edge_label=edge_label)
    tables = build_tables([left, right], costs)
    found = find(tables, 0, 1, watch=Watch(), budget=0, starts=BOUND_STARTS, linear=tight)
    return GedBounds(found.lower, found.upper)


def _result(a: LabelledGraph, b: LabelledGraph, tables: CostTables, found: Outcome) -> GedResult:
    mapped = {v for v in found.image if v is not None}
    pairs: list[tuple[Hashable, Hashable]] = [
        (a.names[u], None if v is None else b.names[v]) for u, v in enumerate(found.image)
    ]
    pairs += [(None, name) for v, name in enumerate(b.names) if v not in mapped]
    return GedResult(
        lower=found.lower,
        upper=found.upper,
        proved=found.proved,
        node_map=tuple(pairs),
        search_nodes=found.search_nodes,
        _spell=partial(edit_path, a, b, found.image, tables),
        _everything=partial(tables.true_everything, 0, 1),
    )
