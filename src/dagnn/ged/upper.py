"""Good maps quickly: Frank-Wolfe on the relaxed problem, rounded and improved.

Legend as in `problem`; a *plan* is a relaxed map, ``plan[u, v]`` between 0 and 1.
"""

import numpy as np
from numpy.typing import NDArray

from dagnn.ged.assignment import ROW_OF, assign
from dagnn.ged.compiled import compiled
from dagnn.ged.problem import Problem, improve

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STEPS = 30
RESOLUTION = 1 << 24  # gradients become integers for `assign`; they only choose a direction


@compiled
def search_upper(problem: Problem, best: Ints, upper: int, first: int, last: int, room: Ints, stop: Ints) -> int:
    """Improve ``best`` (int64 ``[n1]``, of cost ``upper``) in place; returns its cost.

    Start 0 is the barycentre. The others are halfway from it to random maps, the same ones in every run.

    Args:
        first, last: which starts to try, the last one excluded.
        room: int64 ``[6, n2 + 1]``, scratch.
        stop: int64 ``[1]``; it returns soon once 1 is written there.
    """
    n1, n2 = problem.node.shape
    plan = np.empty((n1, n2))
    image = np.zeros(n1, np.int64)
    order = np.empty(n2, np.int64)
    for start in range(first, last):
        state = start
        for i in range(n2):
            order[i] = i
        for i in range(n2 - 1, 0, -1):
            # Park and Miller's generator: any would do, but this is the same on every machine.
            state = state * 48271 % 2147483647
            j = state % (i + 1)
            order[i], order[j] = order[j], order[i]
        for u in range(n1):
            for v in range(n2):
                plan[u, v] = (1.0 if start == 0 else 0.5) / n2
            if start > 0:
                plan[u, order[u]] += 0.5
        _frank_wolfe(problem, plan, image, room, stop)
        if stop[0] != 0:  # the map may be half an assignment
            break
        cost = improve(problem, image, stop)
        if cost < upper:
            upper = cost
            for u in range(n1):
                best[u] = image[u]
    return upper


@compiled
def _frank_wolfe(problem: Problem, plan: Floats, image: Ints, room: Ints, stop: Ints) -> None:
    """Descend from ``plan``, which is overwritten, and write the map that it is rounded to into ``image``."""
    node, delete, insert, left, right, pair = problem[:6]
    n1, n2 = plan.shape
    gradient, edges, corner_edges = np.empty((n1, n2)), np.zeros((n1, n2)), np.zeros((n1, n2))
    near_left, near_right = _neighbours(left), _neighbours(right)
    corner, scaled = np.zeros((n1, n2)), np.empty((n1, n2), np.int64)
    _edge_gradient(left, right, pair, plan, near_left, near_right, edges, stop)
    for _ in range(STEPS):
        if stop[0] != 0:
            return
        largest = 0.0
        for u in range(n1):
            for v in range(n2):
                gradient[u, v] = node[u, v] - delete[u] - insert[v] + edges[u, v]
                largest = max(largest, abs(gradient[u, v]))
        _cheapest(gradient, largest, scaled, image, room, stop)
        for u in range(n1):
            for v in range(n2):
                corner[u, v] = 1.0 if v == image[u] else 0.0
        _edge_gradient(left, right, pair, corner, near_left, near_right, corner_edges, stop)
        slope, bend = 0.0, 0.0
        for u in range(n1):
            for v in range(n2):
                direction = corner[u, v] - plan[u, v]
                slope += gradient[u, v] * direction
                bend += 0.5 * (corner_edges[u, v] - edges[u, v]) * direction
        if slope > -1e-9 * (1.0 + largest):
            break
        step = 1.0 if bend <= 0 else min(1.0, -slope / (2 * bend))
        for u in range(n1):
            for v in range(n2):
                plan[u, v] += step * (corner[u, v] - plan[u, v])
                edges[u, v] += step * (corner_edges[u, v] - edges[u, v])
    for u in range(n1):
        for v in range(n2):
            gradient[u, v] = -plan[u, v]
    _cheapest(gradient, 1.0, scaled, image, room, stop)


@compiled
def _cheapest(cost: Floats, largest: float, scaled: Ints, image: Ints, room: Ints, stop: Ints) -> None:
    """Write the cheapest assignment of ``cost``, whose entries are at most ``largest``, into ``image``."""
    n1, n2 = cost.shape
    scale = RESOLUTION / max(1e-30, largest)
    for u in range(n1):
        for v in range(n2):
            scaled[u, v] = round(cost[u, v] * scale)
    assign(scaled, n1, n2, room, stop)
    for j in range(1, n2 + 1):
        if room[ROW_OF, j] > 0:
            image[room[ROW_OF, j] - 1] = j - 1


@compiled
def _edge_gradient(
    left: Ints,
    right: Ints,
    pair: Ints,
    plan: Floats,
    near_left: Ints,
    near_right: Ints,
    gradient: Floats,
    stop: Ints,
) -> None:
    """For every u -> v, what it saves on edges: against deleting and inserting them all, averaged over ``plan``."""
    n1, n2 = plan.shape
    for u in range(n1):
        if stop[0] != 0:
            return
        for v in range(n2):
            saved = 0.0
            for i in range(1, near_left[u, 0] + 1):
                w = near_left[u, i]
                p = left[u, w]
                for j in range(1, near_right[v, 0] + 1):
                    x = near_right[v, j]
                    q = right[v, x]
                    saved += (pair[p, q] - pair[p, 0] - pair[0, q]) * plan[w, x]
            gradient[u, v] = saved


@compiled
def _neighbours(pairs: Ints) -> Ints:
    """Row u: how many neighbours u has, then which: int64 ``[n, n + 1]``."""
    n = len(pairs)
    near = np.zeros((n, n + 1), np.int64)
    for u in range(n):
        for w in range(n):
            if pairs[u, w] != 0:
                near[u, 0] += 1
                near[u, near[u, 0]] = w
    return near
