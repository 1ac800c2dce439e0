"""What the completions of a map cost at least: by branch match, or by prices.

- *Branch match*: every edge between two remaining nodes is charged half at either end, where the edges of u and v are
  matched as cheaply as possible; every edge to a mapped node is charged in full.
- *Linear*: edges have been charged to nodes by the prices of a linear program, once for the whole search; what is
  left of every edge to a mapped node is added.

Legend as in `problem` and `search_state`. Row and column index what is left of both graphs.
Source: Chang et al., "Accelerating graph similarity search via efficient GED computation", TKDE 2022 (anchored branch
match); Blumenthal and Gamper, "Improved lower bounds for graph edit distance", TKDE 2018 (branch match).
"""

import numpy as np
from numpy.typing import NDArray

from dagnn.ged.assignment import INFINITE, assign
from dagnn.ged.compiled import compiled
from dagnn.ged.problem import DELETIONS_PAY, UNIFORM, Prices, Problem
from dagnn.ged.search_state import (
    ANCHORED_DELETE,
    ANCHORED_INSERT,
    COST,
    DEPTH,
    FREE,
    OPEN_DELETE,
    OPEN_INSERT,
    ORDER,
    Search,
)

Ints = NDArray[np.int64]


@compiled
def bound_completions(problem: Problem, prices: Prices, search: Search) -> int:
    """Lower bound of all completions of the current map; leaves the assignment in ``search``.

    A weaker one, quickly, once ``search.stop`` is set.
    """
    if len(prices.node) > 0:
        return _linear_bound(problem, prices, search)
    node, delete, insert, left, right, pair = problem[:6]
    order, anchored_delete, open_delete = search.left[ORDER], search.left[ANCHORED_DELETE], search.left[OPEN_DELETE]
    free, anchored_insert, open_insert = search.right[FREE], search.right[ANCHORED_INSERT], search.right[OPEN_INSERT]
    anchored, full, capped = search.anchored, search.full, search.capped
    left_count, right_count, labels = search.left_count, search.right_count, search.left_count.shape[2]
    uniform, substitution, deletion, insertion = problem.constants[UNIFORM:]
    stop = search.stop
    n1, n2 = node.shape
    depth = search.numbers[DEPTH]
    column, inserted = 0, 0
    for v in range(n2):
        if free[v] == 0:
            continue
        inserting = 2 * (insert[v] + anchored_insert[v]) + open_insert[v]
        inserted += inserting
        skip = stop[0] != 0
        for i in range(depth, n1):
            u = order[i]
            # The star: the least cost of turning the open edges of u into those of v. Both ends together pay twice.
            star = 0
            if skip:
                star = 0  # still a bound
            elif uniform == 1:
                for direction in range(2):
                    a, b, kept = 0, 0, 0
                    for label in range(1, labels):
                        x, y = left_count[u, direction, label], right_count[v, direction, label]
                        a += x
                        b += y
                        kept += min(x, y)
                    both = min(a, b)
                    star += substitution * (both - kept) + deletion * (a - both) + insertion * (b - both)
            else:
                star = open_delete[u] + open_insert[v]
                star += _star_savings(left, right, pair, order[depth:], free, u, v, stop)
                skip = stop[0] != 0
            mapped = 2 * (node[u, v] + anchored[u, v]) + star - inserting
            full[i - depth, column] = mapped
            capped[i - depth, column] = min(mapped, 2 * (delete[u] + anchored_delete[u]) + open_delete[u])
        column += 1
    total: int = search.depths[COST, depth] + inserted + assign(capped, n1 - depth, column, search.room, search.stop)
    return total


@compiled
def _linear_bound(problem: Problem, prices: Prices, search: Search) -> int:
    """`_bound` by prices. A node that is deleted costs 0 here: its deletion is in the constant part."""
    node, order, free, anchored = prices.node, search.left[ORDER], search.right[FREE], search.anchored
    full, capped = search.full, search.capped
    highest = 0 if problem.constants[DELETIONS_PAY] == 1 else INFINITE
    n1, n2 = node.shape
    depth = search.numbers[DEPTH]
    column = 0
    for v in range(n2):
        if free[v] == 1:
            for i in range(depth, n1):
                full[i - depth, column] = node[order[i], v] + anchored[order[i], v]
                capped[i - depth, column] = min(full[i - depth, column], highest)
            column += 1
    total: int = search.depths[COST, depth] + assign(capped, n1 - depth, column, search.room, search.stop)
    return total


@compiled
def _star_savings(left: Ints, right: Ints, pair: Ints, open_left: Ints, free: Ints, u: int, v: int, stop: Ints) -> int:
    """What the best matching of the open edges of u and v saves against deleting and inserting them all; negative."""
    rows, columns = 0, 0
    for w in open_left:
        rows += left[u, w] != 0
    for x in range(len(free)):
        columns += right[v, x] != 0 and free[x] == 1
    size = max(rows, columns)
    savings = np.empty((size, size), np.int64)
    i = 0
    for w in open_left:
        p = left[u, w]
        if p == 0:
            continue
        j = 0
        for x in range(len(free)):
            q = right[v, x]
            if q != 0 and free[x] == 1:
                saved = pair[p, q] - pair[p, 0] - pair[0, q]
                if rows <= columns:
                    savings[i, j] = saved
                else:
                    savings[j, i] = saved
                j += 1
        i += 1
    return assign(savings, min(rows, columns), size, np.empty((6, size + 1), np.int64), stop)
