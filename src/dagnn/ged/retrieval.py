"""The graphs of a collection that are nearest to one graph: exact answers, most graphs settled by bounds."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, warn
from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.distance import DEFAULT_BUDGET
from dagnn.ged.exact.limits import GLANCE, Watch, checked_limits, checked_workers, whole_number
from dagnn.ged.exact.screen import NO_LIMIT, branch_bounds, count_bounds, least_costs, new_collection
from dagnn.ged.exact.solve import as_float, find
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import Graph, read_graphs
from dagnn.ged.matrix import Report, check_progress, listed

# Graphs of one round. What a round may leave out is fixed before it begins, so the result does not depend on threads.
# Rounds of bounds grow: the first maps lower the limit most.
FIRST_ROUND, LARGEST_ROUND, SEARCHES = 64, 2048, 16

# The stages of a search.
COUNTS, BRANCHES, FEW, SEARCH = range(4)

# Search nodes of the stage FEW, by dual ascent: of 3,000 to 4,000 graphs that reach it, some ten need more.
FEW_NODES = 2_000


@dataclass(frozen=True)
class GedMatches:
    """The graphs found, nearest first; of two at one distance, the one that comes first in the collection.

    Attributes:
        index: int64 ``[matches]``: their places in the collection.
        lower, upper: float64 ``[matches]``, ``lower <= distance <= upper``; ``upper`` is infinite for a graph that was
            not reached within ``seconds``.
        complete: whether these are exactly the graphs that were searched for and all distances are proved.
        undecided: int64: places of the graphs that are not known to belong to the answer, nor not to; they may be among
            ``index`` too. Empty if ``complete``.
        settled: how many graphs were settled by counts of labels, edges and degrees, by branch match, and by search.

    >>> from dagnn.graph import Dag
    >>> ged_search(Dag([(0, 1)]), [Dag([], 2), Dag([(0, 1)])], 2).index
    tensor([1, 0])
    """

    index: Tensor
    lower: Tensor
    upper: Tensor
    complete: bool
    undecided: Tensor
    settled: "Settled"

    @property
    def distance(self) -> Tensor:
        """``upper``; warns if the answer is not complete."""
        if not self.complete:
            warn(
                f"the search is not complete: {len(self.undecided)} graphs are undecided; using upper bounds. Raise "
                "budget or seconds, or read lower, upper and undecided."
            )
        return self.upper


class Settled(NamedTuple):
    """How many graphs each stage of a search settled: they are out, or their distance is proved.

    >>> sum(Settled(counts=90, branches=8, search=2))
    100
    """

    counts: int
    branches: int
    search: int


def ged_search(
    query: Graph,
    database: Iterable[Graph],
    k: int = 10,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    workers: int | None = None,
    progress: bool | Callable[[int, int], object] = False,
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> GedMatches:
    """The ``k`` graphs of ``database`` that the fewest edits of ``query`` give, exactly.

    The answer is that of a full row of distances, sorted by distance and then by place in ``database``: of several
    graphs at the distance of the k-th, those that come first are taken. Most graphs are never compared in full: they
    are out as soon as a lower bound exceeds the k-th least upper bound.

    Args:
        query: a graph.
        database: graphs of its kind: all directed or all undirected, all labelled or none.
        k: at least 1; a smaller ``database`` is returned whole.
        budget: search nodes per graph. Graphs that it leaves undecided are in `GedMatches.undecided`.
        seconds: for the whole search; what is undecided by then is in `GedMatches.undecided`. All bounds are certain.
        workers: threads; by default one for each core that this process may use. The result does not depend on it.
        progress: True shows a bar on stderr; a function is called as ``progress(graphs settled, graphs in all)``.
        The rest as in `graph_edit_distance`; the costs turn ``query`` into the others.

    Raises:
        ConfigError: a ``k``, ``workers`` or ``progress`` that is none of these; the rest as in `graph_edit_distance`.
        DtypeError: ``database`` is no list of graphs.
        GraphError: as in `graph_edit_distance`.

    Ctrl-C ends it within a second.

    Source: filter and verify: Zeng et al., "Comparing stars: on approximating graph edit distance", PVLDB 2(1), 2009.

    >>> from dagnn.graph import Dag
    >>> found = ged_search(Dag([(0, 1), (1, 2)]), [Dag([], 2), Dag([(0, 1), (0, 2)]), Dag([(0, 1)])], k=2)
    >>> found.index, found.distance
    (tensor([1, 2]), tensor([2., 2.], dtype=torch.float64))
    """
    k = whole_number("k", k, 1, "graphs")
    options = _Options(budget, seconds, workers, progress, directed, node_label, edge_label)
    return _Run(query, database, costs, options, k=k).matches()


def ged_range(
    query: Graph,
    database: Iterable[Graph],
    radius: float,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    workers: int | None = None,
    progress: bool | Callable[[int, int], object] = False,
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> GedMatches:
    """All graphs of ``database`` within distance ``radius`` of ``query``, exactly.

    Args:
        radius: at least 0, itself included, with 1e-12 of it to spare: three edits at 0.1 are within 0.3.
        The rest as in `ged_search`.

    Raises:
        ConfigError: a ``radius`` that is no number, negative or NaN; the rest as in `ged_search`.
        DtypeError, GraphError: as in `ged_search`.

    >>> from dagnn.graph import Dag
    >>> ged_range(Dag([(0, 1)]), [Dag([], 2), Dag([(0, 1), (1, 2), (0, 2)]), Dag([(0, 1)])], radius=1).index
    tensor([2, 0])
    """
    if radius is None:
        raise ConfigError("radius is None: it must be at least 0.")
    limit = checked_limits(0, None, radius, called="radius").upper_bound
    options = _Options(budget, seconds, workers, progress, directed, node_label, edge_label)
    return _Run(query, database, costs, options, radius=np.inf if limit is None else limit).matches()


class _Options(NamedTuple):
    budget: Any
    seconds: Any
    workers: Any
    progress: Any
    directed: bool | None
    node_label: str | None
    edge_label: str | None


class _Run:
    """One search: bounds of every graph, and which of them are still open.

    A graph is out once (lower bound, place) comes after (limit, last place): ``k`` others are nearer, or as near and
    come first. ``limit`` is the ``radius``, or the k-th least upper bound.
    """

    def __init__(
        self,
        query: Graph,
        database: Iterable[Graph],
        costs: EditCosts | None,
        options: _Options,
        *,
        k: int | None = None,
        radius: float = np.inf,
    ) -> None:
        limits = checked_limits(options.budget, options.seconds)
        self._budget, self._watch = limits.budget, Watch(limits.seconds)
        self._workers = checked_workers(options.workers)
        self._progress = check_progress(options.progress)
        checked = checked_costs(costs)
        graphs = listed(database, "database")
        names = ["query", *(f"database[{i}]" for i in range(len(graphs)))]
        with _no_collection():
            read = read_graphs(
                [query, *graphs],
                names,
                directed=options.directed,
                node_label=options.node_label,
                edge_label=options.edge_label,
            )
            self._tables = build_tables(read, checked)
        self._count = len(graphs)
        self._k, self._radius = k, radius * (1 + 1e-12)
        self._lower, self._upper = np.zeros(self._count), np.full(self._count, np.inf)
        self._stage = np.zeros(self._count, dtype=np.int64)  # the last one that worked on the graph

    def matches(self) -> GedMatches:
        """The answer."""
        with closing(Report(self._progress, self._count, "graph")) as report:
            pool = ThreadPoolExecutor(self._workers)
            try:
                for stage in (self._by_counts, self._by_branches, self._by_search):
                    stage(pool, report)
                    report.show(int(self._settled().sum()))
            except BaseException:
                self._watch.stop[0] = 1
                pool.shutdown(cancel_futures=True)
                raise
            pool.shutdown()
        return self._answer()

    # ---- stages ----

    def _by_counts(self, pool: ThreadPoolExecutor, report: Report) -> None:
        tables, query = self._tables, self._tables.graphs[0]
        self._collection = new_collection(tables, 1)
        least, lower = least_costs(tables, 0), np.zeros(self._count, dtype=np.int64)
        rounds = [
            partial(
                count_bounds,
                least,
                len(tables.tables.delete),
                query.kind,
                query.pairs,
                self._collection,
                first,
                min(first + LARGEST_ROUND, self._count),
                lower,
                self._watch.stop,
            )
            for first in range(0, self._count, LARGEST_ROUND)
        ]
        self._together(pool, report, rounds)
        self._units = lower
        self._lower = _floats(lower, tables.unit)

    def _by_branches(self, pool: ThreadPoolExecutor, report: Report) -> None:
        waiting, size = np.lexsort((np.arange(self._count), self._lower)), FIRST_ROUND
        while len(waiting) and not self._watch.over():
            chosen, waiting = waiting[:size], waiting[size:]
            chosen = chosen[~self._out()[chosen]]
            self._stage[chosen] = BRANCHES
            self._bound(pool, report, chosen, 0)
            size = min(2 * size, LARGEST_ROUND)

    def _by_search(self, pool: ThreadPoolExecutor, report: Report) -> None:
        """Dual ascent and a few search nodes for each, without Python in between; then all nodes for what is left."""
        few = min(FEW_NODES, self._budget)
        for stage, size in ((FEW, FIRST_ROUND), (SEARCH, SEARCHES)):
            while not self._watch.over():
                waiting = np.flatnonzero(~self._settled() & (self._stage < stage))
                if not len(waiting):
                    break
                chosen = waiting[np.lexsort((waiting, self._lower[waiting]))][:size]
                self._stage[chosen] = stage
                if stage == FEW and few:
                    self._bound(pool, report, chosen, few)
                elif stage == SEARCH and self._budget > few:
                    limit = self._limit()[0]
                    bound = None if limit == np.inf else float(limit)
                    self._together(pool, report, [partial(self._search, int(place), bound) for place in chosen])

    def _bound(self, pool: ThreadPoolExecutor, report: Report, chosen: "NDArray[np.int64]", nodes: int) -> None:
        """Bounds of the graphs ``chosen`` by branch match, or by dual ascent and so many search nodes."""
        tables, query, unknown = self._tables, self._tables.graphs[0], np.iinfo(np.int64).max
        lower, upper = self._units, np.full(self._count, unknown)
        limit, last = self._worth()
        parts = [part for part in np.array_split(chosen, 4 * self._workers) if len(part)]
        self._together(
            pool,
            report,
            [
                partial(
                    branch_bounds,
                    tables.tables,
                    tables.reversed,
                    query.kind,
                    query.pairs,
                    self._collection,
                    part,
                    limit,
                    last,
                    nodes,
                    lower,
                    upper,
                    self._watch.stop,
                )
                for part in parts
            ],
        )
        known = chosen[upper[chosen] < unknown]
        self._lower[known] = _floats(lower[known], tables.unit)
        self._upper[known] = np.minimum(
            self._upper[known], _floats(upper[known], (1 + tables.error) * Fraction(tables.unit))
        )

    def _search(self, place: int, bound: float | None) -> None:
        if self._watch.over():
            return
        budget = self._budget - FEW_NODES
        found = find(self._tables, 0, 1 + place, watch=self._watch, budget=budget, bound=bound)
        self._lower[place] = max(self._lower[place], found.lower)
        self._upper[place] = min(self._upper[place], found.upper)

    def _together(self, pool: ThreadPoolExecutor, report: Report, work: Sequence[Callable[[], None]]) -> None:
        """Do all of it, and wait; reports what was settled before."""
        report.show(int(self._settled().sum()))
        waiting = {pool.submit(part) for part in work}
        while waiting:
            done, waiting = wait(waiting, timeout=GLANCE)
            self._watch.over()
            for future in done:
                future.result()

    # ---- what is known ----

    def _limit(self) -> tuple[float, int]:
        """The bound and the place that the last graph of the answer has at most."""
        if self._k is None:
            return self._radius, self._count
        if self._k >= self._count:
            return np.inf, self._count
        last = np.lexsort((np.arange(self._count), self._upper))[self._k - 1]
        return float(self._upper[last]), int(last)

    def _worth(self) -> tuple[int, int]:
        """The largest distance worth finding, in units, and the last place where that one is: one less after it."""
        limit, last = self._limit()
        if limit == np.inf:
            return NO_LIMIT, self._count
        units = min(NO_LIMIT, int(Fraction(limit) / Fraction(self._tables.unit)))
        # After the k-th graph a lower bound equal to its distance is enough.
        return units, last if as_float(units * self._tables.unit) == limit else self._count

    def _out(self) -> "NDArray[np.bool_]":
        limit, last = self._limit()
        out: NDArray[np.bool_] = (self._lower > limit) | ((self._lower == limit) & (np.arange(self._count) > last))
        return out

    def _settled(self) -> "NDArray[np.bool_]":
        settled: NDArray[np.bool_] = self._out() | (self._lower == self._upper)
        return settled

    def _answer(self) -> GedMatches:
        settled, order = self._settled(), np.lexsort((np.arange(self._count), self._upper))
        index = order[self._upper[order] <= self._radius] if self._k is None else order[: self._k]
        return GedMatches(
            index=torch.from_numpy(index),
            lower=torch.from_numpy(self._lower[index]),
            upper=torch.from_numpy(self._upper[index]),
            complete=bool(settled.all()),
            undecided=torch.from_numpy(np.flatnonzero(~settled)),
            settled=Settled(*np.bincount(np.minimum(self._stage[settled], FEW), minlength=3).tolist()),
        )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collection is off inside.

    The tuples of 10,000 graphs, none of them garbage, would start a full one, which walks through all of the user's
    graphs: 0.2 s of a search that takes 2.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _floats(units: "NDArray[np.int64]", unit: Fraction | int) -> "NDArray[np.float64]":
    """The floats next to ``units * unit``."""
    distinct, place = np.unique(units, return_inverse=True)
    return np.array([as_float(int(number) * unit) for number in distinct], dtype=np.float64)[place.reshape(-1)]
