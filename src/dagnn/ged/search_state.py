"""Where a search stands, and the two steps that it is made of: one level down, and back up.

Legend as in `problem`. An edge is *anchored* if one of its ends is mapped, *open* if none is.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagnn.ged.compiled import compiled
from dagnn.ged.problem import DELETED, UNIFORM, Prices, Problem

Ints = NDArray[np.int64]

# Places of `Search.numbers`: depth; 1 if the node at that depth is still to be bounded; cost of the best map so far;
# costs above LIMIT need not be found; nodes bounded; bound of the node to be entered, and of the root; parts of a unit;
# 1 if whole maps are judged by the caller, who sets UPPER.
DEPTH, ENTERING, UPPER, LIMIT, NODES, HERE, ROOT, PARTS, JUDGED = range(9)
# Rows of `Search.left`, int64 [5, n1]: image of the best map; nodes in the order in which they are mapped; image now;
# cost of deleting all anchored edges of u, and all open ones.
BEST, ORDER, IMAGE, ANCHORED_DELETE, OPEN_DELETE = range(5)
# Rows of `Search.right`, int64 [3, n2]: 1 if nobody is mapped to v; cost of inserting anchored and open edges of v.
FREE, ANCHORED_INSERT, OPEN_INSERT = range(3)
# Rows of `Search.depths`, int64 [3, n1 + 1]: cost of the map so far, in parts; next of its children; their number.
COST, NEXT_CHILD, NUM_CHILDREN = range(3)


class Search(NamedTuple):
    """Where the search stands; it can stop after any node and go on later. Few arrays: each costs compile time.

    Attributes:
        numbers, left, right, depths: see above.
        child, child_bound: int64 ``[n1 + 1, n2 + 1]``: images to try at every depth, most promising first; n2 deletes.
        anchored: int64 ``[n1, n2]``: what u -> v costs on anchored edges, in units, or in parts with prices.
        left_count, right_count: int64 ``[n, 2, labels]``: open edges by direction and label, if costs are uniform.
        full, capped: int64 ``[n1, n2]``: the assignment problem, and the same with deletion plus insertion as a cap.
        room: int64 ``[6, n2 + 1]``, of the assignment.
        stop: int64 ``[1]``: once another thread has written 1 there, the search returns soon, its bounds still valid.
    """

    numbers: Ints
    left: Ints
    right: Ints
    depths: Ints
    child: Ints
    child_bound: Ints
    anchored: Ints
    left_count: Ints
    right_count: Ints
    full: Ints
    capped: Ints
    room: Ints
    stop: Ints


@compiled
def new_search(problem: Problem, prices: Prices, limit: int, stop: Ints) -> Search:
    """A search that has not begun; distances above ``limit`` need not be found."""
    pairs_left, pairs_right, pair, directions = problem.left, problem.right, problem.pair, problem.directions
    n1, n2 = problem.node.shape
    labels = directions.max() + 1 if problem.constants[UNIFORM] == 1 else 1
    numbers = np.array([0, 1, -1, limit, 0, -1, 0, prices.constants[0], 0])
    left, right = np.full((5, n1), DELETED), np.ones((3, n2), np.int64)
    left[ANCHORED_DELETE : OPEN_DELETE + 1] = 0
    right[ANCHORED_INSERT : OPEN_INSERT + 1] = 0
    for u in range(n1):
        for w in range(n1):
            left[OPEN_DELETE, u] += pair[pairs_left[u, w], 0]
    for v in range(n2):
        for x in range(n2):
            right[OPEN_INSERT, v] += pair[0, pairs_right[v, x]]
    return Search(
        numbers,
        left,
        right,
        np.zeros((3, n1 + 1), np.int64),
        np.zeros((n1 + 1, n2 + 1), np.int64),
        np.zeros((n1 + 1, n2 + 1), np.int64),
        np.zeros((n1, n2), np.int64),
        np.zeros((n1, 2, labels), np.int64),
        np.zeros((n2, 2, labels), np.int64),
        np.zeros((n1, n2), np.int64),
        np.zeros((n1, n2), np.int64),
        np.zeros((6, n2 + 1), np.int64),
        stop,
    )


@compiled
def move(problem: Problem, prices: Prices, search: Search, u: int, v: int, sign: np.int64) -> None:
    """Map u to v (n2 deletes u) and go one level down, with sign 1; undo just that with sign -1."""
    numbers, image, free, cost = search.numbers, search.left[IMAGE], search.right[FREE], search.depths[COST]
    linear = len(prices.node) > 0
    n2 = len(free)
    if sign > 0:
        depth = numbers[DEPTH]
        cost[depth + 1] = cost[depth]
        if v < n2:
            step = prices.node[u, v] if linear else 2 * problem.node[u, v]
            cost[depth + 1] += step + (1 if linear else 2) * search.anchored[u, v]
            image[u] = v
            free[v] = 0
        elif not linear:
            cost[depth + 1] += 2 * (problem.delete[u] + search.left[ANCHORED_DELETE, u])
        numbers[DEPTH] += 1
    if linear:
        _anchor_prices(problem, prices, search, u, v, sign)
    else:
        _anchor(problem, search, u, v, sign)
    if sign < 0:
        numbers[DEPTH] -= 1
        image[u] = DELETED
        if v < n2:
            free[v] = 1


@compiled
def _anchor(problem: Problem, search: Search, u: int, v: int, sign: np.int64) -> None:
    """The edges to u and v become anchored (sign 1), or open again (sign -1)."""
    left, right, pair, directions = problem.left, problem.right, problem.pair, problem.directions
    order, free, anchored = search.left[ORDER], search.right[FREE], search.anchored
    uniform = problem.constants[UNIFORM] == 1
    n1, n2 = anchored.shape
    for i in range(search.numbers[DEPTH], n1):
        w = order[i]
        p = left[w, u]
        deletion = sign * pair[p, 0]
        search.left[ANCHORED_DELETE, w] += deletion
        search.left[OPEN_DELETE, w] -= deletion
        if uniform:
            search.left_count[w, 0, directions[0, p]] -= sign
            search.left_count[w, 1, directions[1, p]] -= sign
        for x in range(n2):
            if free[x] == 1:
                anchored[w, x] += sign * pair[p, right[x, v] if v < n2 else 0]
    for x in range(n2):
        if v < n2 and free[x] == 1:
            q = right[x, v]
            insertion = sign * pair[0, q]
            search.right[ANCHORED_INSERT, x] += insertion
            search.right[OPEN_INSERT, x] -= insertion
            if uniform:
                search.right_count[x, 0, directions[0, q]] -= sign
                search.right_count[x, 1, directions[1, q]] -= sign


@compiled
def _anchor_prices(problem: Problem, prices: Prices, search: Search, u: int, v: int, sign: np.int64) -> None:
    """What the prices leave on the edges to u and v is charged (sign 1), or no longer charged (sign -1)."""
    left, right, pair, left_price, right_price = problem.left, problem.right, problem.pair, prices.left, prices.right
    order, free, anchored, parts = search.left[ORDER], search.right[FREE], search.anchored, prices.constants[0]
    n1, n2 = anchored.shape
    for i in range(search.numbers[DEPTH], n1):
        w = order[i]
        p = left[w, u]
        for x in range(n2):
            if free[x] == 0:
                continue
            rest = left_price[w, u, x]
            if v < n2:
                q = right[x, v]
                saving = pair[p, q] - pair[p, 0] - pair[0, q]
                rest += parts * saving + left_price[u, w, v] + right_price[v, x, u] + right_price[x, v, w]
            anchored[w, x] += sign * rest
