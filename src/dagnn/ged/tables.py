"""Labels as numbers and costs as integer tables, shared by all graphs that are compared with each other.

Integers make the search exact: there is no rounding to mistake for a difference, and a bound of 3.5 units proves 4.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dagnn.errors import GraphError
from dagnn.ged.costs import EditCosts, check_cost
from dagnn.ged.labelled import LabelledGraph, label_key

Ints = NDArray[np.int64]

# Largest cost in units. Sums over all pairs of 2,000 nodes, doubled, stay below 2^62.
LARGEST = 2**32

# Tables with more labels, kinds or pair types than this are not kept for the next pair.
SMALL = 64


class GraphArrays(NamedTuple):
    """A graph in the numbers of `CostTables`.

    Attributes:
        kind: int64 ``[n]``: node kind, which is a label together with its self-loops.
        pairs: int64 ``[n, n]``: pair type of (u, w), which is all edges u -> w together with all edges w -> u;
            0 for none and on the diagonal.
    """

    kind: Ints
    pairs: Ints


class Tables(NamedTuple):
    """Costs of kinds and pair types, in units. Index 0 of the pair types is "no edge".

    Attributes:
        substitute: int64 ``[kinds, kinds]``, not capped: it may exceed a deletion and an insertion.
        delete, insert: int64 ``[kinds]``.
        pair: int64 ``[types, types]``; never exceeds deletion plus insertion, since edges can always be replaced.
        directions: int64 ``[2, types]``: bundle of edges u -> w, and w -> u; 0 is none. Undirected: only the first.
        uniform: int64 ``[4]``: 1 if edge costs do not depend on labels, and then substitution, deletion, insertion.
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
    """Everything that depends on costs and labels.

    Attributes:
        tables: the integer tables.
        reversed: the same for b -> a.
        unit: what 1 in the tables costs.
        graphs: the graphs given, in the same order.
        nodes, edges: tables of the labels alone, for spelling out an edit path.
        node_ids, edge_ids: label key -> number.
    """

    tables: Tables
    reversed: Tables
    unit: Fraction | int
    graphs: tuple[GraphArrays, ...]
    nodes: "LabelCosts"
    edges: "LabelCosts"
    node_ids: dict[Hashable, int]
    edge_ids: dict[Hashable, int]

    @property
    def symmetric(self) -> bool:
        """Whether turning a into b always costs as much as turning b into a."""
        return all(np.array_equal(x, y) for x, y in zip(self.tables, self.reversed, strict=True))


class LabelCosts(NamedTuple):
    """Costs in units by label number: ``substitute`` int64 ``[labels, labels]``, the others ``[labels]``."""

    substitute: Ints
    delete: Ints
    insert: Ints


def build_tables(graphs: Sequence[LabelledGraph], costs: EditCosts) -> CostTables:
    """Tables for comparing any two of ``graphs``.

    Raises:
        ConfigError: a callable returned something negative or not finite.
        GraphError: a label that does not index a cost array.
    """
    node_ids, node_labels = _intern(label for g in graphs for label in g.node_labels or (None,) * g.num_nodes)
    edge_ids, edge_labels = _intern(label for g in graphs for label in g.edge_labels or (None,) * len(g.edges))
    bundles = _Numbers([()])
    kinds, types = _Numbers([]), _Numbers([(0, 0)])
    arrays = tuple(_arrays(g, node_ids, edge_ids, bundles, kinds, types) for g in graphs)
    numbers = _Numbering(tuple(bundles.items), tuple(kinds.items), tuple(types.items))
    constants = tuple(value for value in vars(costs).values() if isinstance(value, float))
    if len(constants) == len(vars(costs)) and max(map(len, (node_labels, edge_labels, *numbers))) <= SMALL:
        made = _constant_tables(constants, len(node_labels), len(edge_labels), numbers)
    else:
        made = _made_tables(costs, node_labels, edge_labels, numbers)
    return CostTables(made.tables, made.reversed, made.unit, arrays, made.nodes, made.edges, node_ids, edge_ids)


class _Numbering(NamedTuple):
    """What the numbers of bundles, kinds and pair types stand for."""

    bundles: tuple[tuple[int, ...], ...]
    kinds: tuple[tuple[int, int], ...]
    types: tuple[tuple[int, int], ...]


class _Made(NamedTuple):
    """The parts of `CostTables` that depend on the graphs by their numbering alone. Nobody writes into them."""

    tables: Tables
    reversed: Tables
    unit: Fraction | int
    nodes: LabelCosts
    edges: LabelCosts


@lru_cache(maxsize=64)
def _constant_tables(
    constants: tuple[float, ...], num_node_labels: int, num_edge_labels: int, numbers: _Numbering
) -> _Made:
    """`_made_tables` where labels are only equal or not. Kept: making them takes as long as searching a small pair."""
    costs = EditCosts(**dict(zip(_NAMES, constants, strict=True)))
    return _made_tables(costs, range(num_node_labels), range(num_edge_labels), numbers)


_NAMES = tuple(field.name for field in fields(EditCosts))


def _made_tables(
    costs: EditCosts, node_labels: Sequence[Any], edge_labels: Sequence[Any], numbers: _Numbering
) -> _Made:
    floats = [*_label_costs("node", node_labels, costs), *_label_costs("edge", edge_labels, costs)]
    unit = _common_unit(np.concatenate([part.ravel() for part in floats]))
    ints = [_in_units(part, unit) for part in floats]
    nodes, edges = LabelCosts(*ints[:3]), LabelCosts(*ints[3:])
    tables = _tables(numbers.kinds, numbers.types, nodes, _bundle_costs(numbers.bundles, edges))
    # A whole number stays one: arithmetic with fractions takes 10 times as long.
    whole = int(unit) if unit.denominator == 1 else unit
    return _Made(tables, tables.reversed(), whole, nodes, edges)


class _Numbers:
    """Numbers things in the order in which they are first seen."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self._number = {item: i for i, item in enumerate(items)}

    def of(self, item: Any) -> int:
        number = self._number.get(item)
        if number is None:
            number = self._number[item] = len(self.items)
            self.items.append(item)
        return number


def _intern(labels: Iterable[Any]) -> tuple[dict[Hashable, int], list[Any]]:
    """Number of every distinct label, and the labels by number."""
    ids: dict[Hashable, int] = {}
    distinct: list[Any] = []
    for label in labels:
        key = label_key(label)
        if key not in ids:
            ids[key] = len(distinct)
            distinct.append(label)
    return ids, distinct


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
        table = np.array([float(cost(label)) for label in labels])
    else:
        table = np.array([[float(cost(a, b)) for b in labels] for a in labels]).reshape(count, count)
    check_cost(name, table)
    return table


def _index(label: Any, name: str, size: int) -> int:
    value = label.item() if hasattr(label, "item") and getattr(label, "ndim", 1) == 0 else label
    if not isinstance(value, int) or not 0 <= value < size:
        raise GraphError(f"the label {label!r} does not index {name}, which has the labels 0 .. {size - 1}.")
    return value


def _common_unit(values: NDArray[np.float64]) -> Fraction:
    """The largest number of which all values are multiples; if there is none to speak of, a very small one."""
    distinct = sorted({value for value in values.tolist() if value > 0})
    if not distinct:
        return Fraction(1)
    if all(value.is_integer() for value in distinct) and distinct[-1] <= LARGEST:  # nearly always
        return Fraction(math.gcd(*map(int, distinct)))
    # The simplest fraction that prints as this float: 0.1 is a tenth, although its bits are not.
    simple = [Fraction(value).limit_denominator(10_000) for value in distinct]
    if all(float(fraction) == value for fraction, value in zip(simple, distinct, strict=True)):
        denominator = math.lcm(*(fraction.denominator for fraction in simple))
        unit = Fraction(math.gcd(*(int(fraction * denominator) for fraction in simple)), denominator)
        if distinct[-1] / unit <= LARGEST:
            return unit
    return Fraction(distinct[-1]) / LARGEST


def _in_units(values: NDArray[np.float64], unit: Fraction) -> Ints:
    return np.rint(values / float(unit)).astype(np.int64)


def _arrays(
    graph: LabelledGraph,
    node_ids: dict[Hashable, int],
    edge_ids: dict[Hashable, int],
    bundles: _Numbers,
    kinds: _Numbers,
    types: _Numbers,
) -> GraphArrays:
    labels = graph.edge_labels or (None,) * len(graph.edges)
    numbers = [edge_ids[label_key(label)] for label in labels]
    ends = graph.edges if graph.directed else [(u, v) if u <= v else (v, u) for u, v in graph.edges]
    if len(set(ends)) == len(ends):  # no parallel edges
        single = {number: bundles.of((number,)) for number in sorted(set(numbers))}
        bundle = {pair: single[number] for pair, number in zip(ends, numbers, strict=True)}
    else:
        between: dict[tuple[int, int], list[int]] = {}
        for pair, number in zip(ends, numbers, strict=True):
            between.setdefault(pair, []).append(number)
        bundle = {pair: bundles.of(tuple(sorted(found))) for pair, found in between.items()}

    node_labels = graph.node_labels or (None,) * graph.num_nodes
    kind = [kinds.of((node_ids[label_key(label)], bundle.get((i, i), 0))) for i, label in enumerate(node_labels)]
    pairs = np.zeros((graph.num_nodes, graph.num_nodes), dtype=np.int64)
    for u, v in bundle:
        if u == v:
            continue
        there, back = bundle[u, v], bundle.get((v, u), 0)
        pairs[u, v] = types.of((there, back))
        pairs[v, u] = types.of((back, there)) if graph.directed else pairs[u, v]
    return GraphArrays(np.array(kind, dtype=np.int64), pairs)


def _bundle_costs(bundles: Sequence[tuple[int, ...]], edges: LabelCosts) -> Ints:
    """Cheapest way to turn one bundle of parallel edges into another: int64 ``[bundles, bundles]``."""
    capped = np.minimum(edges.substitute, edges.delete[:, None] + edges.insert)
    saved = capped - edges.delete[:, None] - edges.insert
    deletion = np.array([sum(edges.delete[list(bundle)].tolist()) for bundle in bundles], dtype=np.int64)
    insertion = np.array([sum(edges.insert[list(bundle)].tolist()) for bundle in bundles], dtype=np.int64)
    cost: Ints = deletion[:, None] + insertion
    single = np.array([s for s, bundle in enumerate(bundles) if len(bundle) == 1], dtype=np.int64)
    label = np.array([bundles[s][0] for s in single], dtype=np.int64)
    cost[single[:, None], single] += saved[label[:, None], label]
    for s, left in enumerate(bundles):
        for t, right in enumerate(bundles):
            if left and right and max(len(left), len(right)) > 1:
                some = saved[np.ix_(left, right)]
                cost[s, t] += some[linear_sum_assignment(some)].sum()
    return cost


def _tables(
    kinds: Sequence[tuple[int, int]], types: Sequence[tuple[int, int]], nodes: LabelCosts, bundle: Ints
) -> Tables:
    label, loops = np.array(kinds, dtype=np.int64).reshape(-1, 2).T
    directions = np.ascontiguousarray(np.array(types, dtype=np.int64).T)
    forward, backward = directions
    pair = bundle[forward[:, None], forward] + bundle[backward[:, None], backward]
    return Tables(
        substitute=nodes.substitute[label[:, None], label] + bundle[loops[:, None], loops],
        delete=nodes.delete[label] + bundle[loops, 0],
        insert=nodes.insert[label] + bundle[0, loops],
        pair=pair,
        directions=directions,
        uniform=_uniform(bundle),
    )


def _uniform(bundle: Ints) -> Ints:
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
