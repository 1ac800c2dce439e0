"""Graph edit distance of two graphs: exact, or between two bounds that are both certain."""

import math
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple

from dagnn.errors import ConfigError, warn
from dagnn.ged.costs import EditCosts, checked_costs, is_no_number
from dagnn.ged.edit_path import Edit, edit_path
from dagnn.ged.exact.solve import BOUND_STARTS, Outcome, as_float, find
from dagnn.ged.exact.tables import CostTables, build_tables
from dagnn.ged.exact.watch import Watch
from dagnn.ged.labelled import Graph, LabelledGraph, read_pair

DEFAULT_BUDGET = 200_000


@dataclass(frozen=True)
class GedResult:
    """What is known about the distance of ``a`` and ``b``: always ``lower <= distance <= upper``.

    Attributes:
        lower, upper: the bounds; each is the float next to the exact sum of the costs.
        proved: whether the bounds meet as floats, so that ``upper`` is the distance.
        node_map: pairs (node of a, node of b) of the map of cost ``upper``, with None for "deleted" or "inserted".
        search_nodes: how many nodes of the search tree were bounded; 0 if the root was enough.
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
        """The edits of ``node_map``, in an order in which they can be carried out; their costs sum to ``upper``.

        To the last bit by `math.fsum`; a plain sum may round on the way.
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
        """`distance` as a part of the cost of deleting all of ``a`` and inserting all of ``b``: 0 .. 1.

        1 less this is a similarity. It compares pairs of different sizes, and is no metric.
        """
        return normalized(self.distance, as_float(self._everything()))


def normalized(distance: float, everything: float) -> float:
    """``distance / everything``; 0 where there is nothing to delete or insert, or it is free."""
    return distance / everything if everything else 0.0


class GedBounds(NamedTuple):
    """``lower <= graph edit distance <= upper``."""

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
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> GedResult:
    """The least cost of edits that turn ``a`` into ``b``: insert, delete or relabel nodes and edges.

    Nodes are deleted with all their edges charged; edges between matched nodes are matched, parallel ones as cheaply
    as possible; self-loops count as edges. What nodes are called does not count, unless ``node_label="names"``.

    Args:
        a, b: Dags, NetworkX graphs (any of its four kinds) or PyG ``Data``, in any mixture.
        costs: unit costs by default.
        budget: most nodes of the search tree; the result depends on it alone, not on the machine. 0: bounds only.
            A million take about 8 s for two unrelated graphs of 16 nodes.
        seconds: stop after that long, too, with what is known by then; makes the result depend on the machine.
        upper_bound: distances above it need not be found: the search stops as soon as ``lower`` exceeds it. A distance
            equal to it is found. Infinity: no bound.
        directed: None: as the graphs are. False: ignore directions (a PyG graph then lists each edge both ways).
        node_label, edge_label: the attribute that holds the labels. Graphs that all lack "label" are unlabelled; any
            other name must be that of an attribute. "names" for nodes: what they are called, unless an attribute has
            this name. None: compare without labels. Labels may be anything hashable, or arrays; equal means equal
            content, and NaN equals NaN. PyG ``Data`` keeps nodes and edges in one place: there, one name for both means
            the nodes.

    Raises:
        GraphError: a directed and an undirected graph, labels on one side only or on some nodes only, a label
            attribute that no graph has, more than 2,000 nodes.
        ConfigError: a negative budget or bound; costs as in `EditCosts`.
        DtypeError: something that is no graph, such as a batch of several, or labels that cannot be compared.

    Ctrl-C ends the search within a second.

    Cost: on one core, pairs a few edits apart take about 0.5 ms at 10 nodes and 3 ms at 50; unrelated labelled DAGs
        about 20 ms at 16 nodes, 0.2 s at 20 and 0.6 s at 24. Costs that do not fit 64-bit integers, because they span
        many orders of magnitude, are compared exactly all the same, in more time. The first call of a process loads
        compiled code; the first on a machine compiles it, which takes some 10 s.
    Source: see `dagnn.ged.exact.search`.

    >>> from dagnn.graph import Dag
    >>> result = graph_edit_distance(Dag([("a", "b"), ("b", "c")]), Dag([("a", "b"), ("a", "c")]))
    >>> result.distance, [str(edit) for edit in result.edit_path]
    (2.0, ['delete edge b -> c (1)', 'insert edge a -> c (1)'])
    """
    limits = checked_limits(budget, seconds, upper_bound)
    watch = Watch(limits.seconds)
    costs = checked_costs(costs)
    left, right = read_pair(a, b, directed=directed, node_label=node_label, edge_label=edge_label)
    tables = build_tables([left, right], costs)
    found = find(tables, 0, 1, watch=watch, budget=limits.budget, bound=limits.upper_bound)
    return _result(left, right, tables, found)


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
        tight: lower bound by a linear program instead of branch match: on unrelated DAGs of 16 nodes, at distance 23,
            0.7 below instead of 9.4 on average, in 30 ms instead of 2. Left out where the program would be very
            large (two graphs with more than about 130 edges each).
        The rest, and errors, as in `graph_edit_distance`.

    >>> from dagnn.graph import Dag
    >>> ged_bounds(Dag([(0, 1)]), Dag([(0, 1), (1, 2)]))
    GedBounds(lower=2.0, upper=2.0)
    """
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


class Limits(NamedTuple):
    """How far a search may go; None for as long, or as far, as it takes."""

    budget: int
    seconds: float | None
    upper_bound: float | None


def checked_limits(budget: Any, seconds: Any = None, upper_bound: Any = None) -> Limits:
    """The arguments as plain numbers.

    Raises:
        ConfigError: a limit that is no number, negative or NaN.
    """
    try:
        whole = None if isinstance(budget, bool) else operator.index(budget)
    except TypeError:
        whole = None
    if whole is None or whole < 0:
        raise ConfigError(f"budget is {budget!r}: it must be a whole number of search nodes, 0 for bounds only.")
    return Limits(whole, _checked_limit("seconds", seconds), _checked_limit("upper_bound", upper_bound))


def _checked_limit(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        limit = math.nan if isinstance(value, bool) or is_no_number(value) else float(value)
    except OverflowError:
        limit = math.inf if value > 0 else math.nan
    except (TypeError, ValueError):
        limit = math.nan
    if not limit >= 0:
        raise ConfigError(f"{name} is {value!r}: it must be at least 0.")
    return None if math.isinf(limit) else limit
