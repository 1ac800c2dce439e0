"""The state of a search, its moves down and up the tree, and a lower bound of all completions of a partial map."""

from typing import NamedTuple

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.assignment import assign, new_room
from dagnn.ged.exact.problem import DELETED, UNIFORM, Problem
from dagnn.numba_jit import jitted

# Indices into `Search.numbers`: the depth; 1 if the node at that depth is still to be bounded; the cost of the best map
# so far; the largest distance worth finding; how many nodes were bounded; the bound of the node to be entered, and of
# the root; parts of a unit; 1 if the caller judges whole maps and sets UPPER.
DEPTH, ENTERING, UPPER, LIMIT, NODES, HERE, ROOT, PARTS, JUDGED = range(9)
# Rows of `Search.left`, int64 [6, n1]: image of the best map; nodes in the order in which they are mapped; image now;
# cost of deleting all anchored edges of u (their other end is mapped already), and all open ones (the rest); the last
# node before u in the order that can be exchanged with u, or -1.
BEST, ORDER, IMAGE, ANCHORED_DELETE, OPEN_DELETE, BEFORE = range(6)
# Rows of `Search.right`, int64 [3, n2]: 1 if nobody is mapped to v; cost of inserting anchored and open edges of v.
FREE, ANCHORED_INSERT, OPEN_INSERT = range(3)
# Rows of `Search.depths`, int64 [3, n1 + 1]: cost of the map so far, in parts; next of its children; their number.
COST, NEXT_CHILD, NUM_CHILDREN = range(3)


class Search(NamedTuple):
    """The whole state of a search, which can stop after any node and go on later. Few arrays: each costs compile time.

    Attributes:
        numbers, left, right, depths: int64; the constants above name their entries and rows.
        child, child_bound: int64 ``[n1 + 1, n2 + 1]``: images to try at every depth, most promising first; n2 deletes.
        anchored: int64 ``[n1, n2]``: what u -> v costs on anchored edges, in units.
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


# Allocates in Python: numba makes the arrays that a jitted function returns by calls of Python, and crashes the process
# if Ctrl-C comes during such a call.
def new_search(problem: Problem, limit: int, stop: Ints) -> Search:
    """A search that has not begun; it need not find distances above ``limit``."""
    n1, n2 = problem.node.shape
    labels = int(problem.directions.max()) + 1 if problem.constants[UNIFORM] == 1 else 1
    left, right = np.zeros((6, n1), np.int64), np.zeros((3, n2), np.int64)
    open_all(problem, left, right)
    return Search(
        numbers=np.array([0, 1, -1, limit, 0, -1, 0, 2, 0]),
        left=left,
        right=right,
        depths=np.zeros((3, n1 + 1), np.int64),
        child=np.zeros((n1 + 1, n2 + 1), np.int64),
        child_bound=np.zeros((n1 + 1, n2 + 1), np.int64),
        anchored=np.zeros((n1, n2), np.int64),
        left_count=np.zeros((n1, 2, labels), np.int64),
        right_count=np.zeros((n2, 2, labels), np.int64),
        full=np.zeros((n1, n2), np.int64),
        capped=np.zeros((n1, n2), np.int64),
        room=new_room(n2),
        stop=stop,
    )


@jitted
def open_all(problem: Problem, left: Ints, right: Ints) -> None:
    """Fill rows of `Search.left` and `Search.right`: nobody is mapped, and all edges are open."""
    pairs_left, pairs_right, pair = problem.left, problem.right, problem.pair
    left[:ANCHORED_DELETE] = DELETED
    right[FREE] = 1
    for u in range(len(pairs_left)):
        for w in range(len(pairs_left)):
            left[OPEN_DELETE, u] += pair[pairs_left[u, w], 0]
    for v in range(len(pairs_right)):
        for x in range(len(pairs_right)):
            right[OPEN_INSERT, v] += pair[0, pairs_right[v, x]]


@jitted
def shallowest(numbers: Ints, depths: Ints, child_bound: Ints, cut: int) -> int:
    """The least depth with a child that is still to be entered and whose bound is at most ``cut``; -1 without any."""
    for depth in range(numbers[DEPTH] + 1 - numbers[ENTERING]):
        place = depths[NEXT_CHILD, depth]
        if place < depths[NUM_CHILDREN, depth] and child_bound[depth, place] <= cut:
            return depth
    return -1


@jitted
def split(depth: int, depths: Ints, child: Ints, bound: Ints, to_depths: Ints, to_child: Ints, to_bound: Ints) -> None:
    """Move every other child at ``depth`` to another search, the most promising one first, and no others."""
    to_depths[NEXT_CHILD, : depth + 1] = 0
    to_depths[NUM_CHILDREN, : depth + 1] = 0
    first = depths[NEXT_CHILD, depth]
    kept, moved = first, 0
    for place in range(first, depths[NUM_CHILDREN, depth]):
        if (place - first) % 2 == 0:
            to_child[depth, moved], to_bound[depth, moved] = child[depth, place], bound[depth, place]
            moved += 1
        else:
            child[depth, kept], bound[depth, kept] = child[depth, place], bound[depth, place]
            kept += 1
    depths[NUM_CHILDREN, depth], to_depths[NUM_CHILDREN, depth] = kept, moved


@jitted
def move(problem: Problem, search: Search, u: int, v: int, sign: np.int64) -> None:
    """Map u to v (n2 deletes u) and go one level down, with sign 1; undo just that with sign -1."""
    numbers, image, free, cost = search.numbers, search.left[IMAGE], search.right[FREE], search.depths[COST]
    n2 = len(free)
    if sign > 0:
        depth = numbers[DEPTH]
        cost[depth + 1] = cost[depth]
        if v < n2:
            cost[depth + 1] += 2 * (problem.node[u, v] + search.anchored[u, v])
            image[u] = v
            free[v] = 0
        else:
            cost[depth + 1] += 2 * (problem.delete[u] + search.left[ANCHORED_DELETE, u])
        numbers[DEPTH] += 1
    _anchor(problem, search, u, v, sign)
    if sign < 0:
        numbers[DEPTH] -= 1
        image[u] = DELETED
        if v < n2:
            free[v] = 1


@jitted
def _anchor(problem: Problem, search: Search, u: int, v: int, sign: np.int64) -> None:
    """Anchor the edges to u and v (sign 1), or open them again (sign -1)."""
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


@jitted
def bound_completions(problem: Problem, search: Search) -> int:
    """Lower bound of all completions of the current map; leaves the assignment in ``search``.

    Once ``search.stop`` is set it returns a weaker bound, quickly.
    """
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
            # The star: the least cost of turning the open edges of u into those of v. Bounds count halves of a unit:
            # each edge is in the stars of both of its ends, so each star pays half of it.
            star = 0
            if skip:
                pass  # 0 is still a bound
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


@jitted
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
