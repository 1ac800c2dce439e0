"""Depth-first branch and bound over node maps.

A search node is a map of the first ``depth`` nodes of the left graph. Its bound is an assignment of the remaining
nodes (see `bounds`), and the dual prices of that assignment bound all children at once. Bounds are integers, in halves
of a unit.

Legend as in `problem`.
"""

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.assignment import COLUMN_PRICE, ROW_OF, ROW_PRICE
from dagnn.ged.exact.bounds import (
    ANCHORED_DELETE,
    BEFORE,
    BEST,
    DEPTH,
    ENTERING,
    FREE,
    HERE,
    IMAGE,
    JUDGED,
    LIMIT,
    NEXT_CHILD,
    NODES,
    NUM_CHILDREN,
    OPEN_DELETE,
    ORDER,
    PARTS,
    ROOT,
    UPPER,
    Search,
    bound_completions,
    move,
    new_search,
    shallowest,
    split,
)
from dagnn.ged.exact.problem import DELETIONS_PAY, UNIFORM, Problem, improve, map_cost
from dagnn.ged.exact.relaxations import search_upper
from dagnn.numba_jit import jitted


@jitted
def advance(problem: Problem, search: Search, starts: int, budget: int) -> bool:
    """Search until done, or until ``budget`` nodes were bounded in all calls together; returns whether it is done.

    It also returns when ``search.stop`` is set and, if the caller judges maps, at every whole map. Frank-Wolfe has at
    most ``starts`` starting points at the root; fewer if the bounds meet.
    """
    numbers, order, image = search.numbers, search.left[ORDER], search.left[IMAGE]
    depths, child, child_bound = search.depths, search.child, search.child_bound
    # For plain literals numba would compile `move` once each.
    down, up = np.int64(1), np.int64(-1)
    if numbers[HERE] < 0:  # nothing is bounded yet
        begin(problem, search, starts)
    if numbers[ROOT] > _cut(numbers):
        return True
    while True:
        depth = numbers[DEPTH]
        if numbers[ENTERING] == 1:
            if numbers[NODES] >= budget or search.stop[0] != 0:
                return False
            numbers[NODES] += 1
            _enter(problem, search)
            numbers[ENTERING] = 0
            if numbers[JUDGED] == 1 and depth == len(order):
                return False
        place = depths[NEXT_CHILD, depth]
        if place < depths[NUM_CHILDREN, depth] and child_bound[depth, place] <= _cut(numbers):
            depths[NEXT_CHILD, depth] += 1
            numbers[HERE] = child_bound[depth, place]
            move(problem, search, order[depth], child[depth, place], down)
            numbers[ENTERING] = 1
        else:
            if depth == 0:
                return True
            u = order[depth - 1]
            move(problem, search, u, image[u] if image[u] >= 0 else len(search.right[FREE]), up)


@jitted
def proved_lower(search: Search, done: bool) -> int:
    """The distance is at least this, in units: the least bound among all nodes that are still open."""
    numbers = search.numbers
    highest: int = min(numbers[UPPER], numbers[LIMIT] + 1)
    if done:
        return highest
    least = numbers[PARTS] * highest
    if numbers[ENTERING] == 1:
        least = min(least, numbers[HERE])
    for depth in range(numbers[DEPTH] + 1 - numbers[ENTERING]):
        place = search.depths[NEXT_CHILD, depth]
        if place < search.depths[NUM_CHILDREN, depth]:
            least = min(least, search.child_bound[depth, place])
    lower: int = -(-max(least, numbers[ROOT]) // numbers[PARTS])
    return lower


@jitted
def _cut(numbers: Ints) -> int:
    """The largest bound of a node that may still lead to a better map."""
    cut: int = min(numbers[UPPER] - 1, numbers[LIMIT]) * numbers[PARTS]
    return cut


def beside(problem: Problem, search: Search) -> Search:
    """Another search of the same pair, with nothing to do until `give` gives it something."""
    made = new_search(problem, search.numbers[LIMIT], search.stop)
    made.numbers[:] = search.numbers
    made.numbers[DEPTH], made.numbers[ENTERING], made.numbers[NODES] = 0, 0, 0
    for row in (ORDER, BEFORE):
        made.left[row] = search.left[row]
    if problem.constants[UNIFORM] == 1:
        _count(problem.left, problem.directions, made.left_count)
        _count(problem.right, problem.directions, made.right_count)
    return made


@jitted
def open_depth(search: Search) -> int:
    """As `bounds.shallowest`."""
    depth: int = shallowest(search.numbers, search.depths, search.child_bound, _cut(search.numbers))
    return depth


@jitted
def give(problem: Problem, search: Search, other: Search, depth: int) -> None:
    """Move every other open child at ``depth`` to ``other``, a search of the same pair with nothing left to do."""
    order, image, gone = search.left[ORDER], search.left[IMAGE], len(other.right[FREE])
    down, up = np.int64(1), np.int64(-1)
    while other.numbers[DEPTH] > 0:  # it gave away the last that it had, and never went back up
        u = order[other.numbers[DEPTH] - 1]
        v = other.left[IMAGE, u]
        move(problem, other, u, v if v >= 0 else gone, up)
    other.numbers[ENTERING] = 0
    for i in range(depth):
        u = order[i]
        move(problem, other, u, image[u] if image[u] >= 0 else gone, down)
    split(depth, search.depths, search.child, search.child_bound, other.depths, other.child, other.child_bound)


@jitted
def begin(problem: Problem, search: Search, starts: int) -> None:
    """Bound the distance from both sides at the root; keeps a map that ``search`` already has, with its cost."""
    numbers, best = search.numbers, search.left[BEST]
    _map_order(problem.left, search.left[ORDER])
    _link_twins(problem.left_twin, search.left[ORDER], search.left[BEFORE])
    if problem.constants[UNIFORM] == 1:
        _count(problem.left, problem.directions, search.left_count)
        _count(problem.right, problem.directions, search.right_count)
    fresh = numbers[UPPER] < 0
    if fresh:
        numbers[UPPER] = map_cost(problem, best)
    numbers[ROOT] = numbers[HERE] = max(0, bound_completions(problem, search))
    _offer(problem, search)
    # One start, then the others: pairs a few edits apart are done after the first.
    for first, last in ((-1, 0), (0, 1), (1, starts)):
        if numbers[ROOT] > _cut(numbers) or not fresh or search.stop[0] != 0:
            return
        if first < 0:
            numbers[UPPER] = improve(problem, best, search.stop)
        elif last <= starts:
            numbers[UPPER] = search_upper(problem, best, numbers[UPPER], first, last, search.room, search.stop)


@jitted
def _link_twins(twin: Ints, order: Ints, before: Ints) -> None:
    """Write into ``before[u]`` the last node before u in the order that can be exchanged with u, or -1."""
    first, last = twin.copy(), np.full(len(twin), -1, np.int64)
    for u in range(len(twin)):
        first[u] = u if twin[u] < 0 else first[twin[u]]
    for u in order:
        before[u] = last[first[u]]
        last[first[u]] = u


@jitted
def _map_order(pairs: Ints, order: Ints) -> None:
    """Write the order of the nodes: next comes the one with most edges to those before it, then with most edges."""
    n = len(pairs)
    ordered, known, degree = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for u in range(n):
        for w in range(n):
            degree[u] += pairs[u, w] != 0
    for i in range(n):
        best = -1
        for u in range(n):
            if ordered[u] == 0 and (
                best < 0 or known[u] > known[best] or (known[u] == known[best] and degree[u] > degree[best])
            ):
                best = u
        order[i] = best
        ordered[best] = 1
        for u in range(n):
            known[u] += pairs[u, best] != 0


@jitted
def _count(pairs: Ints, directions: Ints, count: Ints) -> None:
    for u in range(len(pairs)):
        for w in range(len(pairs)):
            count[u, 0, directions[0, pairs[u, w]]] += 1
            count[u, 1, directions[1, pairs[u, w]]] += 1


@jitted
def _enter(problem: Problem, search: Search) -> None:
    """Bound the current node, offer the map that its assignment suggests, and list its children."""
    numbers, left, free, twin, full = search.numbers, search.left, search.right[FREE], problem.twin, search.full
    depth = numbers[DEPTH]
    n1, n2 = problem.node.shape
    search.depths[NEXT_CHILD, depth] = 0
    search.depths[NUM_CHILDREN, depth] = 0
    # The bound that this node had as a child still holds: with it, bounds never fall on the way down.
    bound, known = bound_completions(problem, search), numbers[HERE]
    _offer(problem, search)
    cut = _cut(numbers)
    if depth == n1 or bound > cut:
        return
    child, bounds = search.child[depth], search.child_bound[depth]
    price, column_price = search.room[ROW_PRICE, 1], search.room[COLUMN_PRICE]
    u, count, column = left[ORDER, depth], 0, 0
    # Of maps that differ by exchanges only, try the first one in the order of images, in which a deletion comes last:
    # the images of nodes that can be exchanged ascend, and of images that can be exchanged the first free one is taken.
    before, least = left[BEFORE, u], 0
    if before >= 0:
        least = left[IMAGE, before] + 1 if left[IMAGE, before] >= 0 else n2
    for v in range(n2):
        if free[v] == 0:
            continue
        reduced = full[0, column] - price - column_price[column + 1]
        column += 1
        if v >= least and (twin[v] < 0 or free[twin[v]] == 0):
            count = _insert_child(child, bounds, count, v, max(known, bound + reduced), cut)
    if problem.constants[DELETIONS_PAY] == 1:
        deletion = 2 * (problem.delete[u] + left[ANCHORED_DELETE, u]) + left[OPEN_DELETE, u]
        count = _insert_child(child, bounds, count, n2, max(known, bound + deletion - price), cut)
    search.depths[NUM_CHILDREN, depth] = count


@jitted
def _insert_child(child: Ints, bounds: Ints, count: int, v: int, bound: int, cut: int) -> int:
    """Insert a child in the order of bounds, unless its bound exceeds ``cut``; returns the number of children."""
    if bound > cut:
        return count
    place = count
    while place > 0 and bounds[place - 1] > bound:
        child[place], bounds[place] = child[place - 1], bounds[place - 1]
        place -= 1
    child[place], bounds[place] = v, bound
    return count + 1


@jitted
def _offer(problem: Problem, search: Search) -> None:
    """Complete the current map by the assignment of its bound, and keep it if it is the best so far."""
    if search.numbers[JUDGED] == 1:
        return
    left, free, row_of, full, capped = search.left, search.right[FREE], search.room[ROW_OF], search.full, search.capped
    depth = search.numbers[DEPTH]
    image = left[IMAGE].copy()
    column = 0
    for v in range(len(free)):
        if free[v] == 1:
            column += 1
            row = row_of[column] - 1
            if row >= 0 and full[row, column - 1] == capped[row, column - 1]:
                image[left[ORDER, depth + row]] = v
    cost = map_cost(problem, image)
    if cost < search.numbers[UPPER]:
        search.numbers[UPPER] = cost
        for u in range(len(image)):
            left[BEST, u] = image[u]
