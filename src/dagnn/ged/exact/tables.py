"""Labels as numbers and costs as integer tables, shared by all graphs that are compared with each other.

Integers make the search exact: no difference is rounding, and a bound of 3.5 units proves 4.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import GraphError
from dagnn.ged.costs import (
    EditCosts,
    Integers,
    Ints,
    check_cost,
    exact_integers,
    returned_cost,
    small_integers,
    wide_integers,
)
from dagnn.ged.exact.assignment import assign_exactly
from dagnn.ged.labelled import LabelledGraph, label_keys

# Tables of at most so many labels, kinds and pair types are cached for the next pair.
SMALL = 64


class GraphArrays(NamedTuple):
    """A graph in the numbers of `CostTables`.

    Attributes:
        kind: int64 ``[n]``: node kind; a kind is a label and a bundle of self-loops.
        pairs: int64 ``[n, n]``: pair type of (u, w); a type is all edges u -> w and all edges w -> u. 0 where there are
            none, and on the diagonal.
    """

    kind: Ints
    pairs: Ints


class Tables(NamedTuple):
    """Costs of kinds and pair types, in units. Index 0 of the pair types is "no edge".

    Attributes:
        substitute: int64 ``[kinds, kinds]``, not capped: it may exceed a deletion and an insertion.
        delete, insert: int64 ``[kinds]``.
        pair: int64 ``[types, types]``; at most deletion plus insertion, since edges can always be replaced.
        directions: int64 ``[2, types]``: bundle of edges u -> w, and w -> u; 0 is none. Undirected: only the first.
        uniform: int64 ``[4]``: 1 if edge costs do not depend on labels; then substitution, deletion and insertion.
    """

    substitute: Ints
    delete: Ints
    insert: Ints
    pair: Ints
    directions: Ints
    uniform: Ints

    def reversed(self) -> "Tables":
        """The costs of turning b into a."""
        flag, substitution, deletion, insertion = self.uniform.tolist()
        return Tables(
            np.ascontiguousarray(self.substitute.T),
            self.insert,
            self.delete,
            np.ascontiguousarray(self.pair.T),
            self.directions,
            np.array([flag, substitution, insertion, deletion]),
        )


@dataclass(frozen=True)
class CostTables:
    """Costs as integers, and the graphs in their numbers.

    Attributes:
        tables: the integer tables.
        reversed: the same for b -> a.
        unit: the cost of 1 in the tables.
        error: a cost is at least its units and exceeds them by at most this part of them. 0: exact.
        graphs: the graphs given, in the same order.
        nodes, edges: costs by label, as given.
        node_ids, edge_ids: label key -> number.
        numbers: the bundles, kinds and pair types, by number.
        true: the exact costs.
    """

    tables: Tables
    reversed: Tables
    unit: Fraction | int
    error: Fraction
    graphs: tuple[GraphArrays, ...]
    nodes: "LabelCosts"
    edges: "LabelCosts"
    node_ids: dict[Hashable, int]
    edge_ids: dict[Hashable, int]
    numbers: "_Numbering"
    true: "_TrueTables"

    @property
    def symmetric(self) -> bool:
        """Whether turning a into b always costs as much as turning b into a."""
        return all(
            np.array_equal(costs.substitute, costs.substitute.T) and np.array_equal(costs.delete, costs.insert)
            for costs in (self.nodes, self.edges)
        )

    def true_cost(self, i: int, j: int, image: Sequence[int | None]) -> Fraction:
        """The exact cost of turning graph i into graph j by the map ``image``."""
        true, ones = self.true.tables
        return Fraction(_cost_of_map(true, self.graphs[i], self.graphs[j], image), ones)

    def deletions_pay(self, i: int, j: int) -> bool:
        """Whether matching some node of graph i to one of graph j costs more, exactly, than to delete and insert."""
        true, _ = self.true.tables
        above = true.substitute - true.delete[:, None] - true.insert
        return bool((above[np.ix_(self.graphs[i].kind, self.graphs[j].kind)] > 0).any())

    def true_everything(self, i: int | None, j: int | None) -> Fraction:
        """The exact cost of deleting graph i and inserting graph j; None: no graph."""
        true, ones = self.true.tables
        deletion = 0 if i is None else _sum_of(true.delete, true.pair[:, 0], self.graphs[i])
        insertion = 0 if j is None else _sum_of(true.insert, true.pair[0], self.graphs[j])
        return Fraction(deletion + insertion, ones)

    def within(self, i: int, j: int, cap: Fraction) -> "CostTables":
        """Finer tables for turning graph i into graph j alone, right for maps that cost at most ``cap``."""
        graphs = (self.graphs[i], self.graphs[j])
        parts = [*self.nodes, *self.edges]
        found = wide_integers(parts, cap, partial(_everything, numbers=self.numbers, graphs=graphs))
        made = _made_of(parts, found, self.numbers)
        return replace(
            self, tables=made.tables, reversed=made.reversed, unit=made.unit, error=made.error, graphs=graphs
        )


class LabelCosts(NamedTuple):
    """Costs by label number: ``substitute`` float64 ``[labels, labels]``, the others ``[labels]``."""

    substitute: NDArray[Any]
    delete: NDArray[Any]
    insert: NDArray[Any]


def build_tables(graphs: Sequence[LabelledGraph], costs: EditCosts) -> CostTables:
    """Tables for comparing any two of ``graphs``.

    ConfigError where a callable returns something negative or not finite, GraphError for a label outside a cost array.
    """
    node_ids, node_labels, node_numbers = _intern([g.node_labels or (None,) * g.num_nodes for g in graphs])
    edge_ids, edge_labels, edge_numbers = _intern([g.edge_labels or (None,) * len(g.edges) for g in graphs])
    found = _Found({(): 0}, {}, {(0, 0): 0})
    arrays = tuple(map(_arrays, graphs, node_numbers, edge_numbers, [found] * len(graphs)))
    numbers = _Numbering(tuple(found.bundles), tuple(found.kinds), tuple(found.types))
    constants = tuple(value for value in vars(costs).values() if isinstance(value, float))
    made = None
    if len(constants) == len(vars(costs)) and max(map(len, (node_labels, edge_labels, *numbers))) <= SMALL:
        made = _constant_tables(constants, len(node_labels), len(edge_labels), numbers)
    if made is None:
        parts = [*_label_costs("node", node_labels, costs), *_label_costs("edge", edge_labels, costs)]
        integers = small_integers(parts)
        if integers is None:
            integers = wide_integers(parts, None, partial(_everything, numbers=numbers, graphs=arrays))
        made = _made_of(parts, integers, numbers)
    return CostTables(
        made.tables,
        made.reversed,
        made.unit,
        made.error,
        arrays,
        made.nodes,
        made.edges,
        node_ids,
        edge_ids,
        numbers,
        made.true,
    )


class _Numbering(NamedTuple):
    """Bundles of edge labels, kinds (label, loops) and pair types (bundle there, bundle back), each by its number."""

    bundles: tuple[tuple[int, ...], ...]
    kinds: tuple[tuple[int, int], ...]
    types: tuple[tuple[int, int], ...]


class _Made(NamedTuple):
    """The parts of `CostTables` that depend on costs and numbering only. They are shared: never write into them."""

    tables: Tables
    reversed: Tables
    unit: Fraction | int
    error: Fraction
    nodes: LabelCosts
    edges: LabelCosts
    true: "_TrueTables"


class _TrueTables:
    """The exact tables, made at their first use."""

    def __init__(self, parts: Sequence[NDArray[np.float64]], numbers: _Numbering) -> None:
        self._parts, self._numbers = parts, numbers

    @cached_property
    def tables(self) -> tuple[Tables, int]:
        """Tables of Python's integers, and how many of them make 1."""
        parts, ones = exact_integers(self._parts)
        return _tables_of(parts, self._numbers), ones


@lru_cache(maxsize=64)
def _constant_tables(
    constants: tuple[float, ...], num_node_labels: int, num_edge_labels: int, numbers: _Numbering
) -> _Made | None:
    """`_made_of` for costs that are numbers; None where they fit 64 bits for some graphs only.

    Cached, since making them takes as long as searching a small pair.
    """
    costs = EditCosts(**dict(zip(_NAMES, constants, strict=True)))
    parts = [*_label_costs("node", range(num_node_labels), costs), *_label_costs("edge", range(num_edge_labels), costs)]
    found = small_integers(parts)
    return None if found is None else _made_of(parts, found, numbers)


_NAMES = tuple(field.name for field in fields(EditCosts))


def _made_of(parts: Sequence[NDArray[np.float64]], found: Integers, numbers: _Numbering) -> _Made:
    tables = _tables_of(found.parts, numbers)
    # An int where it can be one: arithmetic with fractions takes 10 times as long.
    whole = int(found.unit) if found.unit.denominator == 1 else found.unit
    nodes, edges = LabelCosts(*parts[:3]), LabelCosts(*parts[3:])
    return _Made(tables, tables.reversed(), whole, found.error, nodes, edges, _TrueTables(parts, numbers))


def _everything(parts: Sequence[NDArray[Any]], *, numbers: _Numbering, graphs: Sequence[GraphArrays]) -> int:
    """An upper bound of what any map between two of ``graphs`` costs.

    Deleting the dearest graph and inserting the dearest; and, since a map that matches all nodes may cost more, what
    substitutions may cost above that.
    """
    tables = _tables_of(parts, numbers)
    deleted = max((_sum_of(tables.delete, tables.pair[:, 0], graph) for graph in graphs), default=0)
    inserted = max((_sum_of(tables.insert, tables.pair[0], graph) for graph in graphs), default=0)
    above = tables.substitute - tables.delete[:, None] - tables.insert
    nodes = max((len(graph.kind) for graph in graphs), default=0)
    return int(deleted) + int(inserted) + nodes * max(0, int(above.max(initial=0)))


def _sum_of(kinds: NDArray[Any], types: NDArray[Any], graph: GraphArrays) -> int:
    pairs = np.bincount(np.triu(graph.pairs).ravel(), minlength=len(types)).astype(object)
    total: int = kinds[graph.kind].astype(object).sum() + (pairs[1:] * types[1:]).sum()
    return total


def _cost_of_map(true: Tables, a: GraphArrays, b: GraphArrays, image: Sequence[int | None]) -> int:
    """`problem.map_cost` in Python's integers."""
    kept = [(u, v) for u, v in enumerate(image) if v is not None]
    cost = _sum_of(true.insert, true.pair[0], b) + sum(true.delete[a.kind[u]] for u, v in enumerate(image) if v is None)
    cost += sum(true.substitute[a.kind[u], b.kind[v]] - true.insert[b.kind[v]] for u, v in kept)
    target = np.array([-1 if v is None else v for v in image], dtype=np.int64)
    us, ws = np.nonzero(np.triu(a.pairs))
    for p, v, x in zip(a.pairs[us, ws].tolist(), target[us].tolist(), target[ws].tolist(), strict=True):
        cost += true.pair[p, 0] if v < 0 or x < 0 else true.pair[p, b.pairs[v, x]] - true.pair[0, b.pairs[v, x]]
    # An edge of b between two images is charged as inserted above, and stays so where a has no edge.
    return int(cost)


def _intern(labels: Sequence[Sequence[Any]]) -> tuple[dict[Hashable, int], list[Any], list[list[int]]]:
    """The number of every distinct label, the labels by number, and the numbers of the labels given."""
    keys = [label_keys(part) for part in labels]
    distinct: dict[Hashable, Any] = {}
    for key, label in zip(chain(*keys), chain(*labels), strict=True):
        distinct.setdefault(key, label)
    ids = {key: number for number, key in enumerate(distinct)}
    return ids, list(distinct.values()), [[ids[key] for key in part] for part in keys]


def _label_costs(kind: str, labels: Sequence[Any], costs: EditCosts) -> list[NDArray[np.float64]]:
    """Substitution ``[labels, labels]``, deletion and insertion ``[labels]``."""
    return [
        _table(f"{kind}_substitution", labels, getattr(costs, f"{kind}_substitution"), 2),
        _table(f"{kind}_deletion", labels, getattr(costs, f"{kind}_deletion"), 1),
        _table(f"{kind}_insertion", labels, getattr(costs, f"{kind}_insertion"), 1),
    ]


def _table(name: str, labels: Sequence[Any], cost: Any, dimensions: int) -> NDArray[np.float64]:
    count = len(labels)
    if isinstance(cost, float):
        return np.full(count, cost) if dimensions == 1 else cost * (1 - np.eye(count))
    if isinstance(cost, np.ndarray):
        index = np.array([_index(label, name, len(cost)) for label in labels], dtype=np.int64)
        return cost[index] if dimensions == 1 else cost[index[:, None], index]
    if dimensions == 1:
        table = np.array([returned_cost(name, cost(label), label) for label in labels], dtype=np.float64)
    else:
        costs = [returned_cost(name, cost(a, b), a, b) for a in labels for b in labels]
        table = np.array(costs, dtype=np.float64).reshape(count, count)
    check_cost(name, table)
    return table


def _index(label: Any, name: str, size: int) -> int:
    value = label.item() if hasattr(label, "item") and getattr(label, "ndim", 1) == 0 else label
    if not isinstance(value, int) or not 0 <= value < size:
        raise GraphError(f"the label {label!r} does not index {name}, which has the labels 0 .. {size - 1}.")
    return value


class _Found(NamedTuple):
    """Bundles, kinds and pair types, each with its number, in order of appearance."""

    bundles: dict[tuple[int, ...], int]
    kinds: dict[tuple[int, int], int]
    types: dict[tuple[int, int], int]


def _arrays(graph: LabelledGraph, node_numbers: list[int], edge_numbers: list[int], found: _Found) -> GraphArrays:
    """The arrays of ``graph``, whose labels have these numbers; adds its new bundles, kinds and types to ``found``."""
    bundles, kinds, types = found
    ends = graph.edges if graph.directed else [(u, v) if u <= v else (v, u) for u, v in graph.edges]
    if len(set(ends)) == len(ends):  # no parallel edges
        single = {number: bundles.setdefault((number,), len(bundles)) for number in sorted(set(edge_numbers))}
        bundle = {pair: single[number] for pair, number in zip(ends, edge_numbers, strict=True)}
    else:
        between: dict[tuple[int, int], list[int]] = {}
        for pair, number in zip(ends, edge_numbers, strict=True):
            between.setdefault(pair, []).append(number)
        bundle = {pair: bundles.setdefault(tuple(sorted(several)), len(bundles)) for pair, several in between.items()}

    n = graph.num_nodes
    kind = [kinds.setdefault((number, bundle.get((i, i), 0)), len(kinds)) for i, number in enumerate(node_numbers)]
    places: list[int] = []
    numbers: list[int] = []
    for (u, v), there in bundle.items():
        if u == v:
            continue
        back = bundle.get((v, u), 0)
        forward = types.setdefault((there, back), len(types))
        places += (u * n + v, v * n + u)
        numbers += (forward, types.setdefault((back, there), len(types)) if graph.directed else forward)
    pairs = np.zeros((n, n), dtype=np.int64)
    pairs.ravel()[places] = numbers
    return GraphArrays(np.array(kind, dtype=np.int64), pairs)


def _tables_of(parts: Sequence[NDArray[Any]], numbers: _Numbering) -> Tables:
    """The tables for costs by label, which are int64, or Python's integers in arrays of objects."""
    nodes, edges = LabelCosts(*parts[:3]), LabelCosts(*parts[3:])
    bundle = _bundle_costs(numbers.bundles, edges)
    label, loops = np.array(numbers.kinds, dtype=np.int64).reshape(-1, 2).T
    directions = np.ascontiguousarray(np.array(numbers.types, dtype=np.int64).T)
    forward, backward = directions
    return Tables(
        substitute=nodes.substitute[label[:, None], label] + bundle[loops[:, None], loops],
        delete=nodes.delete[label] + bundle[loops, 0],
        insert=nodes.insert[label] + bundle[0, loops],
        pair=bundle[forward[:, None], forward] + bundle[backward[:, None], backward],
        directions=directions,
        uniform=_uniform(bundle) if bundle.dtype == np.int64 else np.zeros(4, dtype=np.int64),
    )


def _bundle_costs(bundles: Sequence[tuple[int, ...]], edges: LabelCosts) -> NDArray[Any]:
    """Cheapest way to turn one bundle of parallel edges into another: ``[bundles, bundles]``."""
    dtype = edges.delete.dtype
    apart = edges.delete[:, None] + edges.insert
    saved = np.minimum(edges.substitute, apart) - apart
    deletion = np.array([sum(edges.delete[list(bundle)].tolist()) for bundle in bundles], dtype=dtype)
    insertion = np.array([sum(edges.insert[list(bundle)].tolist()) for bundle in bundles], dtype=dtype)
    cost: NDArray[Any] = deletion[:, None] + insertion
    single = np.array([s for s, bundle in enumerate(bundles) if len(bundle) == 1], dtype=np.int64)
    label = np.array([bundles[s][0] for s in single], dtype=np.int64)
    cost[single[:, None], single] += saved[label[:, None], label]
    for s, left in enumerate(bundles):
        for t, right in enumerate(bundles):
            if left and right and max(len(left), len(right)) > 1:
                some = saved[np.ix_(left, right)]
                cost[s, t] += sum(int(some[pair]) for pair in assign_exactly(some.astype(object)))
    return cost


def _uniform(bundle: NDArray[Any]) -> Ints:
    """Whether edge costs are the same for all labels, as in `Tables.uniform`."""
    deletion, insertion, inner = bundle[1:, 0], bundle[0, 1:], bundle[1:, 1:]
    if not len(inner):
        return np.array([1, 0, 0, 0])
    other = inner[~np.eye(len(inner), dtype=bool)]
    substitution = int(other[0]) if len(other) else 0
    same = (
        not inner.diagonal().any()
        and (other == substitution).all()
        and (deletion == deletion[0]).all()
        and (insertion == insertion[0]).all()
    )
    return np.array([int(same), substitution, int(deletion[0]), int(insertion[0])])
