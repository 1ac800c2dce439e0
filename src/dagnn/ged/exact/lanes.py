"""A hard pair's search on several cores: lanes, each with a part of the open nodes, in rounds of so many nodes.

The result must depend neither on the number of threads nor on their speed. So the number of lanes depends on the pair
alone; in a round every lane searches for itself and knows only the best map of the rounds before; and between rounds
lanes pass on what they know, and half of their work to lanes that have none, in the order of the lanes. Threads only
share out who runs which lane when.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

from dagnn.ged.costs import Ints
from dagnn.ged.exact.bounds import BEST, ENTERING, NODES, UPPER, Search
from dagnn.ged.exact.dual_search import (
    WEIGHT,
    DualSearch,
    advance_dual,
    dual_beside,
    dual_lower,
    give_dual,
    open_dual_depth,
)
from dagnn.ged.exact.limits import GLANCE, Watch
from dagnn.ged.exact.problem import Problem
from dagnn.ged.exact.search import advance, beside, give, open_depth, proved_lower

# Search nodes of one search before it is split up: easy pairs end sooner, and start no threads.
ALONE = 4_000

# Most lanes, and most entries of all together (int64, 8 bytes each; memory that a lane never reaches is never used).
LANES, MOST_ENTRIES = 32, 1 << 26

# Search nodes of a lane in a round: the first time, and at most. Short rounds pass on maps and work sooner, long ones
# spend less on it.
SHORTEST, LONGEST = 8 * WEIGHT, 128 * WEIGHT


class _Kind(NamedTuple):
    """What lanes need of a search by branch match, or by dual ascent."""

    advance: Callable[[Problem, Any, int], bool]
    lower: Callable[[Any, bool], int]
    open_depth: Callable[[Any], int]
    give: Callable[[Problem, Any, Any, int], None]
    beside: Callable[[Problem, Any], Any]
    best: Callable[[Any], Ints]


_BRANCH = _Kind(
    lambda problem, search, until: advance(problem, search, 0, until),
    proved_lower,
    open_depth,
    give,
    beside,
    lambda search: search.left[BEST],
)
_DUAL = _Kind(
    advance_dual,
    dual_lower,
    open_dual_depth,
    lambda problem, search, other, depth: give_dual(search, other, depth),
    dual_beside,
    lambda search: search.best[0],
)


class Lanes:
    """The search ``first``, which is under way, and others beside it, which take over parts of it.

    ``nodes``: how many search nodes all of them bounded.
    """

    def __init__(self, problem: Problem, first: Search | DualSearch, watch: Watch) -> None:
        self._problem, self._watch = problem, watch
        self._first: Any = first
        if isinstance(first, DualSearch):
            # Where edges are few, `base` is the larger one: 1 GB at 500 nodes.
            self._kind, entries = _DUAL, first.share.size + first.base.size
        else:
            self._kind, entries = _BRANCH, sum(array.size for array in first)
        count = min(LANES, MOST_ENTRIES // entries)
        self._searches: list[Any] = [first, *(self._kind.beside(problem, first) for _ in range(count - 1))]
        self._busy = [True] + [False] * (len(self._searches) - 1)
        self.nodes = int(first.numbers[NODES])

    @property
    def best(self) -> Ints:
        """The image of the best map."""
        return self._kind.best(self._first)

    def advance(self, budget: int, workers: int) -> bool:
        """Search with so many threads until done, which it returns, out of ``budget`` or of time."""
        length = SHORTEST
        pool = ThreadPoolExecutor(min(workers, len(self._searches)), "dagnn-ged")
        try:
            while any(self._busy) and self.nodes < budget and not self._watch.over():
                self._watch.run(self._share_out)  # its first call may compile
                lanes = [lane for lane, busy in enumerate(self._busy) if busy]
                each = min(length, max(WEIGHT, (budget - self.nodes) // len(lanes) // WEIGHT * WEIGHT))
                used = self._round(pool, lanes, each, budget - self.nodes)
                if 8 * used > 7 * each * len(lanes):
                    length = min(2 * length, LONGEST)
                elif 2 * used < each * len(lanes):
                    length = max(length // 2, SHORTEST)
        except BaseException:
            self._watch.stop[0] = 1
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return not any(self._busy)

    def lower(self) -> int:
        """The distance is at least this, in units."""
        bounds = [
            int(self._kind.lower(search, not busy)) for search, busy in zip(self._searches, self._busy, strict=True)
        ]
        return min(bounds)

    def _round(self, pool: ThreadPoolExecutor, lanes: list[int], each: int, rest: int) -> int:
        """Let ``lanes`` bound so many nodes each, ``rest`` in all; returns how many they did bound."""
        shares = [min(each, rest - used) for used in range(0, min(rest, each * len(lanes)), each)]
        lanes = lanes[: len(shares)]
        before = [int(self._searches[lane].numbers[NODES]) for lane in lanes]
        work = [
            pool.submit(partial(self._kind.advance, self._problem, self._searches[lane], nodes + share))
            for lane, nodes, share in zip(lanes, before, shares, strict=True)
        ]
        while wait(work, timeout=GLANCE).not_done:
            self._watch.over()
        for lane, done in zip(lanes, work, strict=True):
            self._busy[lane] = not done.result()
        used = sum(int(self._searches[lane].numbers[NODES]) for lane in lanes) - sum(before)
        self.nodes += used
        # All get to know the best map, of equal ones that of the first lane.
        uppers = [int(search.numbers[UPPER]) for search in self._searches]
        least = min(uppers)
        if least < uppers[0]:
            self.best[:] = self._kind.best(self._searches[uppers.index(least)])
        for search in self._searches:
            search.numbers[UPPER] = least
        return used

    def _share_out(self) -> None:
        """Give work to idle lanes, from those with an open node nearest to the root, until none has any to give."""
        depths = [
            int(self._kind.open_depth(s)) if busy else -1 for s, busy in zip(self._searches, self._busy, strict=True)
        ]
        for idle in (lane for lane, busy in enumerate(self._busy) if not busy):
            donors = [(depth, lane) for lane, depth in enumerate(depths) if depth >= 0]
            if not donors:
                return
            depth, donor = min(donors)
            self._kind.give(self._problem, self._searches[donor], self._searches[idle], depth)
            for lane in (donor, idle):
                depths[lane] = int(self._kind.open_depth(self._searches[lane]))
                self._busy[lane] = depths[lane] >= 0 or int(self._searches[lane].numbers[ENTERING]) == 1
