"""Graph edit distance of two graphs: exact, or between two bounds that are both certain."""

import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from dagnn.errors import ConfigError
from dagnn.ged.assignment import INFINITE
from dagnn.ged.costs import UNIT_COSTS, EditCosts
from dagnn.ged.edit_path import Edit, edit_path
from dagnn.ged.labelled import Graph, LabelledGraph, read_pair
from dagnn.ged.linear import linear_prices
from dagnn.ged.problem import Prices, Problem, new_problem, no_prices
from dagnn.ged.search import advance, proved_lower
from dagnn.ged.search_state import BEST, LIMIT, NODES, UPPER, Search, new_search
from dagnn.ged.tables import CostTables, build_tables

DEFAULT_BUDGET = 200_000

# Starting points of Frank-Wolfe at the root. Graphs of up to SMALL nodes are searched faster than they are relaxed.
# Bounds alone get more: on unrelated DAGs of 16 nodes, 16 are 0.4 edits too high on average, 8 are 0.6.
STARTS, BOUND_STARTS = 8, 16
SMALL = 8

# Search nodes by branch match before the linear program is worth its time (30 ms at 16 nodes).
PATIENCE = 2_000

# Search nodes between two looks at the clock.
SLICE = 500


@dataclass(frozen=True)
class GedResult:
    """What is known about the distance of ``a`` and ``b``: always ``lower <= distance <= upper``.

    Attributes:
        lower, upper: the bounds. Costs that have no common unit (such as 0.1 and the square root of 2) are rounded to
            about 9 digits first.
        proved: whether the bounds meet, so that ``upper`` is the distance.
        node_map: pairs (node of a, node of b) of the map of cost ``upper``, with None for "deleted" or "inserted".
        search_nodes: how many nodes of the search tree were bounded; 0 if the root was enough.
    """

    lower: float
    upper: float
    proved: bool
    node_map: tuple[tuple[Hashable, Hashable], ...]
    search_nodes: int
    _spell: Callable[[], tuple[Edit, ...]] = field(repr=False, compare=False)

    @cached_property
    def edit_path(self) -> tuple[Edit, ...]:
        """The edits of ``node_map``, in an order in which they can be carried out; their costs sum to ``upper``."""
        return self._spell()  # on demand: for small graphs it takes a quarter of the time

    @property
    def distance(self) -> float:
        """``upper``; warns if it is not proved to be the distance."""
        if not self.proved:
            warnings.warn(
                f"the graph edit distance is between {self.lower:g} and {self.upper:g}; using {self.upper:g}. "
                "Raise budget to find it, or read lower and upper.",
                UserWarning,
                stacklevel=2,
            )
        return self.upper


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
    node_label: str = "label",
    edge_label: str = "label",
) -> GedResult:
    """The least cost of edits that turn ``a`` into ``b``: insert, delete or relabel nodes and edges.

    Nodes are deleted with all their edges charged; edges between matched nodes are matched, parallel ones as cheaply
    as possible; self-loops count as edges.

    Args:
        a, b: Dags, NetworkX graphs (any of its four kinds) or PyG ``Data``, in any mixture.
        costs: unit costs by default.
        budget: most nodes of the search tree; the result depends on it alone, not on the machine. 0: bounds only.
            A million take about 8 s for two unrelated graphs of 16 nodes.
        seconds: stop after that long, too (a linear program on the way is finished first, up to some seconds for large
            graphs); makes the result depend on the machine.
        upper_bound: distances above it need not be found: the search stops as soon as ``lower`` exceeds it. A distance
            equal to it is found.
        directed: None: as the graphs are. False: ignore directions (a PyG graph then lists each edge both ways).
        node_label, edge_label: the attribute that holds the labels. Graphs that both lack it are unlabelled.
            Labels may be anything hashable, or arrays; equal means equal content. PyG ``Data`` keeps nodes and edges
            in one place: there, one name for both means the nodes.

    Raises:
        GraphError: a directed and an undirected graph, labels on one side only or on some nodes only, more than
            2,000 nodes.
        ConfigError: a negative budget or bound; costs as in `EditCosts`.
        DtypeError: something that is no graph, or labels that cannot be compared.

    Cost: on one core, pairs a few edits apart take about 0.5 ms at 10 nodes and 3 ms at 50; unrelated labelled DAGs
        about 20 ms at 16 nodes, 0.2 s at 20 and 0.6 s at 24. The first call of a process loads compiled code; the
        first on a machine compiles it, which takes some 10 s.
    Source: see `dagnn.ged.search`.

    >>> from dagnn.graph import Dag
    >>> result = graph_edit_distance(Dag([("a", "b"), ("b", "c")]), Dag([("a", "b"), ("a", "c")]))
    >>> result.distance, [str(edit) for edit in result.edit_path]
    (2.0, ['delete edge b -> c (1)', 'insert edge a -> c (1)'])
    """
    check_limits(budget, seconds, upper_bound)
    left, right = read_pair(a, b, directed=directed, node_label=node_label, edge_label=edge_label)
    tables = build_tables([left, right], UNIT_COSTS if costs is None else costs)
    limit = INFINITE if upper_bound is None else _units_up_to(upper_bound, tables)
    starts = STARTS if max(left.num_nodes, right.num_nodes) > SMALL else 0
    solution = solve(tables, 0, 1, limit=limit, starts=starts, budget=budget, seconds=seconds)
    return _result(left, right, tables, solution)


def ged_bounds(
    a: Graph,
    b: Graph,
    costs: EditCosts | None = None,
    *,
    tight: bool = False,
    directed: bool | None = None,
    node_label: str = "label",
    edge_label: str = "label",
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
    left, right = read_pair(a, b, directed=directed, node_label=node_label, edge_label=edge_label)
    tables = build_tables([left, right], UNIT_COSTS if costs is None else costs)
    found = solve(tables, 0, 1, limit=INFINITE, starts=BOUND_STARTS, budget=0, linear=tight)
    return GedBounds(float(found.lower * tables.unit), float(found.upper * tables.unit))


class Solution(NamedTuple):
    """Bounds in units of the tables, and the map of the upper one: the image of every node of a, or None."""

    lower: int
    upper: int
    image: list[int | None]
    search_nodes: int


def solve(
    tables: CostTables,
    i: int,
    j: int,
    *,
    limit: int,
    starts: int,
    budget: int,
    linear: bool = False,
    seconds: float | None = None,
) -> Solution:
    """The distance from graph i to graph j of ``tables``; runs without the GIL most of the time.

    Args:
        limit: distances above it need not be found, in units.
        starts: starting points of Frank-Wolfe.
        budget: search nodes. After the first `PATIENCE` of them, the linear program takes over.
        linear: let it take over at once, even if ``budget`` is 0.
    """
    a, b = tables.graphs[i], tables.graphs[j]
    swapped = len(a.kind) > len(b.kind)
    problem = new_problem(tables.reversed, b, a) if swapped else new_problem(tables.tables, a, b)
    deadline = None if seconds is None else time.monotonic() + seconds
    prices = no_prices()
    search = new_search(problem, prices, limit)
    done = _advance(problem, prices, search, starts, 0 if linear else min(budget, PATIENCE), deadline)
    lower = proved_lower(search, done)
    if not done and (linear or budget > PATIENCE) and (deadline is None or time.monotonic() < deadline):
        better = linear_prices(problem)
        prices = prices if better is None else better
        if better is not None:
            search = _search_again(problem, prices, search)
        done = _advance(problem, prices, search, starts, budget, deadline)
        lower = max(lower, proved_lower(search, done))
    image = search.left[BEST].tolist()
    if swapped:
        owner = {v: u for u, v in enumerate(image) if v >= 0}
        whole: list[int | None] = [owner.get(u) for u in range(len(a.kind))]
    else:
        whole = [v if v >= 0 else None for v in image]
    return Solution(lower, int(search.numbers[UPPER]), whole, int(search.numbers[NODES]))


def _advance(
    problem: Problem, prices: Prices, search: Search, starts: int, budget: int, deadline: float | None
) -> bool:
    """`advance`, in slices if there is a deadline."""
    if deadline is None:
        return advance(problem, prices, search, starts, budget)
    done = advance(problem, prices, search, starts, min(budget, int(search.numbers[NODES])))
    while not done and search.numbers[NODES] < budget and time.monotonic() < deadline:
        done = advance(problem, prices, search, starts, min(budget, int(search.numbers[NODES]) + SLICE))
    return done


def _search_again(problem: Problem, prices: Prices, search: Search) -> Search:
    """A search from the root by ``prices``, with the best map and the count of nodes of ``search``."""
    again = new_search(problem, prices, int(search.numbers[LIMIT]))
    again.left[BEST] = search.left[BEST]
    again.numbers[UPPER], again.numbers[NODES] = search.numbers[UPPER], search.numbers[NODES]
    return again


def _result(a: LabelledGraph, b: LabelledGraph, tables: CostTables, found: Solution) -> GedResult:
    mapped = {v for v in found.image if v is not None}
    pairs: list[tuple[Hashable, Hashable]] = [
        (a.names[u], None if v is None else b.names[v]) for u, v in enumerate(found.image)
    ]
    pairs += [(None, name) for v, name in enumerate(b.names) if v not in mapped]
    return GedResult(
        lower=float(found.lower * tables.unit),
        upper=float(found.upper * tables.unit),
        proved=found.lower == found.upper,
        node_map=tuple(pairs),
        search_nodes=found.search_nodes,
        _spell=partial(edit_path, a, b, found.image, tables),
    )


def _units_up_to(bound: float, tables: CostTables) -> int:
    """The largest cost in units that does not exceed ``bound`` by more than rounding."""
    return min(INFINITE >> 2, int((bound * (1 + 1e-12)) / float(tables.unit)))


def check_limits(budget: Any, seconds: float | None, upper_bound: float | None) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise ConfigError(f"budget is {budget!r}: it must be a whole number of search nodes, 0 for bounds only.")
    for name, value in (("seconds", seconds), ("upper_bound", upper_bound)):
        if value is not None and not value >= 0:
            raise ConfigError(f"{name} is {value!r}: it must be at least 0.")
