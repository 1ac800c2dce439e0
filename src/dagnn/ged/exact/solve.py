"""The distance of one pair of graphs, from tables of costs: by search in 64-bit integers, or exactly where costs do not
fit them."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.assignment import INFINITE
from dagnn.ged.exact.bounds import BEST, DEPTH, ENTERING, IMAGE, JUDGED, NODES, UPPER, Search, new_search
from dagnn.ged.exact.dual_search import DualSearch, advance_dual, allocate, dual_lower, fits, prepare
from dagnn.ged.exact.lanes import ALONE, Lanes
from dagnn.ged.exact.limits import Watch
from dagnn.ged.exact.problem import DELETIONS_PAY, Problem, new_problem
from dagnn.ged.exact.relaxations import linear_lower
from dagnn.ged.exact.search import advance, proved_lower
from dagnn.ged.exact.tables import CostTables

# Starting points of Frank-Wolfe at the root: none for graphs of up to SMALL nodes, where search alone is faster. Bounds
# without a search get more: on unrelated DAGs of 16 nodes, 16 starts end 0.4 edits too high on average, 8 end 0.6.
STARTS, BOUND_STARTS = 8, 16
SMALL = 8

# Search nodes to bound by branch match before dual ascent is worth its time (6 ms at 16 nodes).
PATIENCE = 300

# For all maps of the least cost, the part of the budget for branch match. Where there are many, its nodes are cheaper.
PATIENT = 4

# Seconds of one jitted call, after which Python looks at the clock and handles Ctrl-C; and how many steps of
# assignments the first call may take.
SLICE_SECONDS, SLICE_STEPS = 0.05, 10_000_000

# With more steps than this in one assignment and one gradient, the root alone may take long (a third of a second,
# measured): then the search runs in a thread of its own.
HEAVY = 1_000_000

# Bounds whose relative difference is at most this are equal as floats: twice the rounding of one.
LAST_BIT = Fraction(1, 2**52) + Fraction(1, 2**60)

LARGEST_FLOAT = sys.float_info.max

# Search nodes for choosing among maps whose costs are the same float. Small graphs only.
TIES = 1_000


class Outcome(NamedTuple):
    """Bounds of a distance as floats, and the map of the upper one: the image of every node of a, or None."""

    lower: float
    upper: float
    proved: bool
    image: list[int | None]
    search_nodes: int


class Solution(NamedTuple):
    """Bounds in units of the tables, and the map of the upper one: the image of every node of a, or None."""

    lower: int
    upper: int
    image: list[int | None]
    search_nodes: int


def find(
    tables: CostTables,
    i: int,
    j: int,
    *,
    watch: Watch,
    budget: int,
    bound: float | None = None,
    starts: int | None = None,
    linear: bool = False,
    workers: int = 1,
) -> Outcome:
    """The distance from graph i to graph j of ``tables``, or bounds that are certain.

    Args:
        watch: when to stop.
        budget: most search nodes.
        bound: the largest distance worth finding; None for any.
        starts: starting points of Frank-Wolfe; by default `STARTS`, or 0 for small graphs.
        linear: use the linear program even if ``budget`` is 0.
        workers: threads for a hard pair.
    """
    if starts is None:
        starts = STARTS if max(len(tables.graphs[i].kind), len(tables.graphs[j].kind)) > SMALL else 0
    options = _Options(watch, min(budget, INFINITE >> 2), bound, starts, linear, workers)
    if not tables.error:
        found = solve(tables, i, j, options)
        lower, upper = as_float(found.lower * tables.unit), as_float(found.upper * tables.unit)
        proved = found.lower == found.upper and upper < math.inf
        return Outcome(min(lower, LARGEST_FLOAT), upper, proved, found.image, found.search_nodes)
    return _find_exactly(tables, i, j, options)


class _Options(NamedTuple):
    watch: Watch
    budget: int
    bound: float | None
    starts: int
    linear: bool
    workers: int = 1


def _find_exactly(tables: CostTables, i: int, j: int, options: _Options) -> Outcome:
    """The distance where the integers of ``tables`` are a little less than the costs."""
    close = tables.error <= LAST_BIT
    pair, place = tables, (i, j)
    found = solve(tables, i, j, options if close else options._replace(budget=0, linear=False))
    best = _Best(tables, i, j, found.image)
    if not close and best.cost:
        pair, place = _finer(tables, i, j, best, options), (0, 1)
        found = solve(pair, 0, 1, options)
        best.offer(found.image)
    if not best.cost:
        return Outcome(0.0, 0.0, True, best.image, 0)

    done = found.lower == found.upper
    lower = best.cost if done and not pair.error else min(found.lower * Fraction(pair.unit), best.cost)
    nodes, spare = found.search_nodes, options.budget - found.search_nodes
    if best.cost - lower <= LAST_BIT * best.cost:
        small = max(len(tables.graphs[i].kind), len(tables.graphs[j].kind)) <= SMALL
        spare = min(spare, TIES) if small else 0
    if done and lower < best.cost and spare > 0 and not options.watch.over():
        again = solve(pair, *place, options._replace(budget=spare), best)
        lower = max(lower, min(again.lower * Fraction(pair.unit), best.cost))
        nodes += again.search_nodes
    upper = as_float(best.cost)
    if best.cost - lower <= LAST_BIT * best.cost and math.isfinite(upper):
        return Outcome(upper, upper, True, best.image, nodes)
    return Outcome(min(as_float(lower), LARGEST_FLOAT), upper, False, best.image, nodes)


def _finer(tables: CostTables, i: int, j: int, best: "_Best", options: "_Options") -> CostTables:
    """Tables for this pair, in the finest units that 64 bits allow.

    An edit that costs more than the best known map is in no better one. Without such edits the others get finer units,
    which find a better map, and so on.
    """
    while True:
        before = best.cost
        pair = tables.within(i, j, before)
        if not pair.error:
            return pair
        best.offer(solve(pair, 0, 1, options._replace(budget=0, linear=False)).image)
        if 4 * best.cost > before or not best.cost:
            return pair


class _Best:
    """The best map so far by its true cost."""

    every = False

    def __init__(self, tables: CostTables, i: int, j: int, image: list[int | None]) -> None:
        self._tables, self._i, self._j = tables, i, j
        self.image, self.cost = image, tables.true_cost(i, j, image)

    def offer(self, image: list[int | None]) -> None:
        cost = self.cost if image == self.image else self._tables.true_cost(self._i, self._j, image)
        if cost < self.cost:
            self.image, self.cost = image, cost

    def upper(self, unit: Fraction | int) -> int:
        """Better maps cost less than this, in units."""
        return math.ceil(self.cost / unit)


def find_every(
    tables: CostTables, i: int, j: int, *, watch: Watch, budget: int, limit: int, workers: int
) -> tuple[Outcome, list[list[int | None]], bool]:
    """`find`, the images of up to ``limit`` maps of the least cost, its own first, and whether these are all.

    If the distance is not proved, the only map is that of the outcome. Costs are the same within `LAST_BIT`.
    """
    best = find(tables, i, j, watch=watch, budget=budget, workers=workers)
    if not best.proved:
        return best, [best.image], False
    most = tables.true_cost(i, j, best.image) * (1 + LAST_BIT)
    pair, place = (tables.within(i, j, most), (0, 1)) if tables.error > LAST_BIT else (tables, (i, j))
    judge = _Every(tables, i, j, most, limit)
    judge.offer(best.image)
    spare = min(budget, INFINITE >> 2) - best.search_nodes
    found = solve(pair, *place, _Options(watch, spare, None, 0, linear=False), judge)
    images = [*map(list, judge.images)]
    complete = found.lower == found.upper and len(images) <= limit
    return best._replace(search_nodes=best.search_nodes + found.search_nodes), images[:limit], complete


class _Every:
    """All maps whose true cost is at most ``most``, until there are more than ``limit``."""

    every = True

    def __init__(self, tables: CostTables, i: int, j: int, most: Fraction, limit: int) -> None:
        self._tables, self._i, self._j, self._most, self._limit = tables, i, j, most, limit
        self.images: dict[tuple[int | None, ...], None] = {}  # a search that follows another finds maps again

    def offer(self, image: list[int | None]) -> None:
        if self._tables.true_cost(self._i, self._j, image) <= self._most:
            self.images.setdefault(tuple(image))

    def upper(self, unit: Fraction | int) -> int:
        """Maps that count cost less than this, in units; 0 if there are enough."""
        return 0 if len(self.images) > self._limit else int(self._most / unit) + 1


def solve(tables: CostTables, i: int, j: int, options: _Options, judge: _Best | _Every | None = None) -> Solution:
    """The distance from graph i to graph j in units of ``tables``; runs without the GIL most of the time.

    Search by branch match, and by dual ascent after `PATIENCE` nodes; or a linear program if ``options.linear``.

    Args:
        judge: compares whole maps by their true cost, in place of the search, which compares them in units; or collects
            them.
    """
    a, b = tables.graphs[i], tables.graphs[j]
    swapped = len(a.kind) > len(b.kind)
    problem = new_problem(tables.reversed, b, a) if swapped else new_problem(tables.tables, a, b)
    patience = PATIENCE
    if judge is not None and judge.every:
        # Maps that differ by exchanges only count too, and those that delete where that is no better.
        problem.twin[:], problem.left_twin[:], problem.constants[DELETIONS_PAY] = -1, -1, 1
        patience = max(PATIENCE, options.budget // PATIENT)
    elif judge is not None and tables.deletions_pay(i, j):
        problem.constants[DELETIONS_PAY] = 1  # by an amount that units may not show
    watch, budget, starts = options.watch, options.budget, options.starts
    limit = INFINITE >> 2
    if options.bound is not None:
        # A little more than the bound: three times 0.1 must be within a bound of 0.3.
        limit = min(limit, int(Fraction(options.bound) * (1 + Fraction(1, 10**12)) / Fraction(tables.unit)))
    search = new_search(problem, limit, watch.stop)

    def whole(images: Sequence[int]) -> list[int | None]:
        if not swapped:
            return [v if v >= 0 else None for v in images]
        owner = {v: u for u, v in enumerate(images) if v >= 0}
        return [owner.get(u) for u in range(len(a.kind))]

    offer: Callable[[Search | DualSearch, Ints], None] | None = None
    if judge is not None:

        def offer(search: Search | DualSearch, image: Ints) -> None:
            judge.offer(whole(image.tolist()))
            search.numbers[UPPER] = judge.upper(tables.unit)

        search.numbers[JUDGED], search.numbers[UPPER] = 1, judge.upper(tables.unit)

    def run(until: int) -> bool:
        return bool(advance(problem, search, starts, until))

    judged = None if offer is None else partial(offer, search, search.left[IMAGE])
    dual_follows = not options.linear and fits(problem)
    first = 0 if options.linear else min(budget, patience) if dual_follows else budget
    found = _search(problem, search, run, first, options, judged, in_thread=_is_cold(advance))
    if options.linear and not found.done and not watch.over():
        lower = max(found.lower, min(linear_lower(problem, watch), found.upper))
        found = found._replace(lower=lower)
    elif dual_follows and not found.done and budget > patience and not watch.over():
        dual = getattr(allocate, "py_func", allocate)(problem, watch.stop)
        begin = partial(prepare, problem, dual, found.best, found.upper, limit, found.nodes)
        watch.run(begin) if _is_cold(prepare) else begin()
        dual.numbers[JUDGED] = search.numbers[JUDGED]

        def run_dual(until: int) -> bool:
            return bool(advance_dual(problem, dual, until))

        judged = None if offer is None else partial(offer, dual, dual.stars.left[0])
        lower = found.lower
        found = _search(problem, dual, run_dual, budget, options, judged, in_thread=_is_cold(advance_dual))
        found = found._replace(lower=max(lower, found.lower))
    return Solution(found.lower, found.upper, whole(found.best.tolist()), found.nodes)


class _Found(NamedTuple):
    """What one of the searches knows when it ends, in units."""

    done: bool
    lower: int
    upper: int
    best: Ints
    nodes: int


def _search(
    problem: Problem,
    search: Search | DualSearch,
    run: Callable[[int], bool],
    budget: int,
    options: _Options,
    judged: Callable[[], None] | None,
    *,
    in_thread: bool,
) -> _Found:
    """Let ``search`` go on by ``run``, and after `ALONE` nodes on several cores, unless the caller judges maps."""
    numbers, watch = search.numbers, options.watch
    alone = budget if judged is not None else min(budget, ALONE)
    done = _advance(problem, numbers, run, alone, watch, judged, in_thread=in_thread)
    if not done and alone < budget and not watch.over():
        lanes = Lanes(problem, search, watch)
        done = lanes.advance(budget, options.workers)
        return _Found(done, lanes.lower(), int(numbers[UPPER]), lanes.best, lanes.nodes)
    if isinstance(search, DualSearch):
        lower, best = dual_lower(search, done), search.best[0]
    else:
        lower, best = proved_lower(search, done), search.left[BEST]
    return _Found(done, int(lower), int(numbers[UPPER]), best, int(numbers[NODES]))


def _advance(
    problem: Problem,
    numbers: Ints,
    run: Callable[[int], bool],
    budget: int,
    watch: Watch,
    judged: Callable[[], None] | None,
    *,
    in_thread: bool,
) -> bool:
    """Call ``run`` in short slices until it is done, the budget used up or the watch over; returns whether done.

    Args:
        numbers: those of the search that ``run`` goes on with, until so many nodes.
        judged: called at every whole map.
        in_thread: make the first call in a thread of its own, however light its work is.
    """
    n1, n2 = problem.node.shape
    heavy, slice_ = (n1 * n2) ** 2 > HEAVY, 1 + SLICE_STEPS // (1 + n1 * n1 * n2)
    if heavy:  # count more closely: few edges make light work of many nodes
        heavy = n1 * n1 * n2 + np.count_nonzero(problem.left) * np.count_nonzero(problem.right) > HEAVY
    while True:
        begin = time.perf_counter()
        until = budget if heavy else min(budget, int(numbers[NODES]) + slice_)
        done = watch.run(partial(run, until)) if heavy or in_thread else run(until)
        in_thread = False
        if judged is not None and not done and numbers[DEPTH] == n1 and numbers[ENTERING] == 0:
            judged()
        elif done or numbers[NODES] >= budget:
            return done
        elif (spent := time.perf_counter() - begin) < SLICE_SECONDS / 4:
            slice_ *= 2
        elif spent > SLICE_SECONDS:
            slice_ = 1 + slice_ // 4
        if watch.over():
            return False


def _is_cold(function: Callable[..., object]) -> bool:
    """Whether the first call of a jitted function is to come: it compiles for seconds, during which Ctrl-C is lost."""
    return not getattr(function, "signatures", True)


def as_float(cost: Fraction | int) -> float:
    """The float next to ``cost``; infinite if there is none."""
    try:
        return float(cost)
    except OverflowError:
        return math.inf
