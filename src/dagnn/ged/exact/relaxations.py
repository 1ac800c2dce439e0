"""Relaxations: prices from a linear program as a lower bound, maps by Frank-Wolfe as an upper bound."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy.sparse import coo_array, vstack

from dagnn.ged.costs import Floats, Ints
from dagnn.ged.exact import highs
from dagnn.ged.exact.assignment import ROW_OF, assign, new_room
from dagnn.ged.exact.limits import Watch
from dagnn.ged.exact.problem import ALL_EDGES, DELETIONS_PAY, Prices, Problem, improve
from dagnn.numba_jit import jitted

# Prices are multiples of 1 / FINEST unit, or coarser where costs are so many units that prices would exceed LARGEST.
FINEST = 1 << 14
LARGEST = 1 << 34

# Most variables of a program. Measured: 700 take 0.03 s, 2,200 take 0.1 s, 6,700 (50 nodes, 65 edges each) 0.5 s,
# 16,700 5 s; 19,217 of two random digraphs of 60 nodes took 48 s.
MOST = 20_000

# A program of so many variables takes a quarter of a second, less than a process takes to start.
LIGHT = 4_000

# Frank-Wolfe: steps from each start, and the largest integer that a gradient is rounded to for `assign`, which only
# chooses a direction.
STEPS = 30
RESOLUTION = 1 << 24


def linear_lower(problem: Problem, watch: Watch) -> int:
    """A lower bound of the distance, in units, by a linear program; 0 where `linear_prices` gives none."""
    prices = linear_prices(problem, watch)
    if prices is None:
        return 0
    n1, n2 = problem.node.shape
    # Deleting a node costs 0 here: the constant part has it already.
    cost = np.minimum(prices.node, 0) if problem.constants[DELETIONS_PAY] == 1 else prices.node
    total = int(prices.constants[1]) + int(assign(cost, n1, n2, new_room(n2), watch.stop))
    return -(-total // int(prices.constants[0]))


def linear_prices(problem: Problem, watch: Watch) -> Prices | None:
    """Prices by a linear program; None if it is too large, has no edges, or is not solved before ``watch`` is over.

    Its variables say which node, and which edge, is mapped to which; an edge may follow only the maps of its ends.
    """
    node, delete, insert, left, right, pair = problem[:6]
    n1, n2 = node.shape
    if not n1 * n2 < _count_variables(problem) <= MOST:
        return None
    u, w = np.nonzero(left)  # ordered pairs: every edge from both of its ends
    v, x = np.nonzero(right)
    saved = _savings(pair)[left[u, w][:, None], right[v, x]]
    e, f = np.nonzero((saved < 0) & (u < w)[:, None])

    largest = max(1, int(pair.max()), int(node.max()), int(delete.max()), int(insert.max()))
    move = (node - delete[:, None] - insert).ravel()
    cost = np.concatenate([move, saved[e, f]]) / largest
    z = n1 * n2 + np.arange(len(e))
    # Row (edge from u to w, v): the images of the edge that start in v need u -> v. And the same from the right side.
    back_e, back_f = _reverse(u, w), _reverse(v, x)
    rows = [e * n2 + v[f], back_e[e] * n2 + x[f]]
    rows += [len(u) * n2 + f * n1 + u[e], len(u) * n2 + back_f[f] * n1 + w[e]]
    # The node variable of every row, used or not.
    needs = np.concatenate([(u[:, None] * n2 + np.arange(n2)).ravel(), (np.arange(n1) * n2 + v[:, None]).ravel()])
    used, number = np.unique(np.concatenate(rows), return_inverse=True)
    inner = coo_array(
        (
            np.concatenate([np.ones(4 * len(z)), -np.ones(len(used))]),
            (np.concatenate([number, np.arange(len(used))]), np.concatenate([np.tile(z, 4), needs[used]])),
        ),
        shape=(len(used), len(cost)),
    )
    ones = np.ones(n1 * n2)
    by_left = coo_array((ones, (np.repeat(np.arange(n1), n2), np.arange(n1 * n2))), shape=(n1, len(cost)))
    by_right = coo_array((ones, (np.tile(np.arange(n2), n1), np.arange(n1 * n2))), shape=(n2, len(cost)))
    everyone_maps = problem.constants[DELETIONS_PAY] == 0  # the last n1 rows are equations then
    matrix = vstack([inner, by_right, by_left], format="coo")
    marginals = _marginals(
        {
            "cost": cost,
            "value": matrix.data,
            "row": matrix.coords[0],
            "column": matrix.coords[1],
            "bound": np.concatenate([np.zeros(len(used)), np.ones(n2 + n1)]),
            "equations": np.array([n1 if everyone_maps else 0]),
        },
        watch,
    )
    if marginals is None:
        return None

    scale = max(1, min(FINEST, LARGEST // largest))
    dual = np.maximum(-marginals[: len(used)], 0) * largest * scale
    # A price above what an edge can save at most is useless, and sums of such prices might leave 64 bits.
    most = -scale * _savings(pair)
    useful = np.concatenate([most.max(1)[left[u, w]].repeat(n2), most.max(0)[right[v, x]].repeat(n1)])[used]
    price = np.zeros(len(needs), dtype=np.int64)
    price[used] = np.minimum(np.ceil(np.minimum(dual, useful)).astype(np.int64), useful)
    return _valid(problem, price[: len(u) * n2], price[len(u) * n2 :], scale)


def _count_variables(problem: Problem) -> int:
    """How large the linear program of `linear_prices` is."""
    types = len(problem.pair)
    counts = [np.bincount(pairs[pairs > 0], minlength=types) for pairs in (problem.left, problem.right)]
    return problem.node.size + int(counts[0] @ (_savings(problem.pair) < 0) @ counts[1]) // 2


def _marginals(program: dict[str, NDArray[Any]], watch: Watch) -> Floats | None:
    """`highs.marginals` of the arguments ``program``; None if there is no solution before ``watch`` is over."""
    # In a frozen application sys.executable is the application itself: a child process would start it once more.
    if len(program["cost"]) <= LIGHT or not sys.executable or hasattr(sys, "frozen"):
        found = highs.marginals(**program, seconds=watch.seconds_left)
    else:
        written = watch.run_script(Path(highs.__file__), save(program))
        found = np.zeros(0) if written is None else load(written)["marginals"]
    return found if len(found) else None


def _valid(problem: Problem, from_left: Ints, from_right: Ints, scale: int) -> Prices:
    """The prices by node instead of by row, raised wherever a pair would be left with a negative cost."""
    node, delete, insert, left, right, pair = problem[:6]
    n1, n2 = node.shape
    u, w = np.nonzero(left)
    v, x = np.nonzero(right)
    left_price, right_price = np.zeros((n1, n1, n2), dtype=np.int64), np.zeros((n2, n2, n1), dtype=np.int64)
    left_price[u, w] = from_left.reshape(-1, n2)
    right_price[v, x] = from_right.reshape(-1, n1)

    i, j = np.arange(len(u))[:, None], np.arange(len(v))
    rest = scale * _savings(pair)[left[u, w][:, None], right[v, x]]
    rest = rest + left_price[u[i], w[i], v[j]] + left_price[w[i], u[i], x[j]]
    rest = rest + right_price[v[j], x[j], u[i]] + right_price[x[j], v[j], w[i]]
    short = np.maximum(-rest, 0)
    # Any of the four prices of a pair may rise; this one is that of u -> v at the edge to w.
    np.maximum.at(left_price, (u[i], w[i], v[j]), left_price[u[i], w[i], v[j]] + short)

    edges = sum(int(pair[left[a, b], 0]) for a, b in zip(u.tolist(), w.tolist(), strict=True) if a < b)
    everything = int(delete.sum()) + int(insert.sum()) + edges + int(problem.constants[ALL_EDGES])
    return Prices(
        node=scale * (node - delete[:, None] - insert) - left_price.sum(1) - right_price.sum(1).T,
        left=left_price,
        right=right_price,
        constants=np.array([scale, scale * everything]),
    )


def _savings(pair: Ints) -> Ints:
    """What turning one pair type into another saves against deleting and inserting: never positive."""
    return pair - pair[:, :1] - pair[:1]


def _reverse(source: Ints, target: Ints) -> Ints:
    """Index of (target, source) for every (source, target), of pairs in the order of ``np.nonzero``."""
    return np.lexsort((source, target))


@jitted
def search_upper(problem: Problem, best: Ints, upper: int, first: int, last: int, room: Ints, stop: Ints) -> int:
    """Improve the map ``best`` (int64 ``[n1]``, of cost ``upper``) in place by Frank-Wolfe; returns its cost.

    Start 0 is the barycentre. The others are halfway from it to random maps, the same in every run.

    Args:
        first, last: which starts to try, the last one excluded.
        room: int64 ``[6, n2 + 1]``, scratch.
        stop: int64 ``[1]``; it returns soon after another thread has written 1 there.
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
            # Park and Miller's generator, written out: it gives the same numbers on every machine.
            state = state * 48271 % 2147483647
            j = state % (i + 1)
            order[i], order[j] = order[j], order[i]
        for u in range(n1):
            for v in range(n2):
                plan[u, v] = (1.0 if start == 0 else 0.5) / n2
            if start > 0:
                plan[u, order[u]] += 0.5
        _frank_wolfe(problem, plan, image, room, stop)
        if stop[0] != 0:  # some nodes of the map may have no image yet
            break
        cost = improve(problem, image, stop)
        if cost < upper:
            upper = cost
            for u in range(n1):
                best[u] = image[u]
    return upper


@jitted
def _frank_wolfe(problem: Problem, plan: Floats, image: Ints, room: Ints, stop: Ints) -> None:
    """Descend from ``plan``, in place, round it to a map, and write that into ``image``."""
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


@jitted
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


@jitted
def _edge_gradient(
    left: Ints, right: Ints, pair: Ints, plan: Floats, near_left: Ints, near_right: Ints, gradient: Floats, stop: Ints
) -> None:
    """Write what every u -> v saves on edges, against deleting and inserting them all, averaged over ``plan``."""
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


@jitted
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
