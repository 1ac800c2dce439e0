"""Depth-first branch and bound over node maps by the bound of `ascent`: few nodes, but each takes longer.

A search node passes its shares on to its children, whose bounds begin where its own ended. The next node to map is the
one with the fewest images that are left.

Legend as in `ascent`.
"""

from typing import NamedTuple

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.ascent import (
    BACK,
    END,
    FORBIDDEN,
    IMAGE,
    NODE,
    OPEN,
    TYPE,
    Stars,
    all_stars,
    assign_stars,
    list_arcs,
    list_open,
    step,
    sweep,
)
from dagnn.ged.exact.assignment import COLUMN_PRICE, ROW_OF, ROW_PRICE
from dagnn.ged.exact.bounds import (
    COST,
    DEPTH,
    ENTERING,
    HERE,
    JUDGED,
    LIMIT,
    NEXT_CHILD,
    NODES,
    NUM_CHILDREN,
    PARTS,
    ROOT,
    UPPER,
    shallowest,
    split,
)
from dagnn.ged.exact.problem import ALL_EDGES, DELETED, DELETIONS_PAY, Problem, improve, map_cost
from dagnn.numba_jit import jitted

# A unit is FINEST parts, or fewer, so that all costs together are at most MOST parts.
FINEST, MOST_PARTS = 1 << 10, 1 << 34

# Most nodes of a graph, and most shares at all depths together (int64, 8 bytes each).
MOST_NODES, MOST_SHARES = 500, 1 << 24

# Ascent: sweeps at the root and at every other node; then, at the root, so many steps for each node of the left graph.
# Measured on unrelated DAGs of 16 nodes: 3 sweeps and 200 steps take 11 ms a pair, 20 and none 30 ms, 3 and 400 15 ms.
# The first step aims at LONGEST tenths of what is missing, the last one at a tenth. Against 7 tenths, 17 halve the time
# at 20 nodes (115 ms a pair, 55) and of searches among molecules; ego networks take 15 % more. 2 sweeps and 20 tenths
# take 8 % less than 3 and 17 in searches among molecules, and as long elsewhere; 1 and 25 twice as long at 20 nodes.
# Large graphs take steps further down too, a quarter as many at each depth: three pairs of 30 nodes were all proved so,
# in 1,500 nodes each, and but one of them without, in 2,500. At 16 nodes that is slower.
# Dense graphs get fewer steps, as each takes longer: the root must not keep Ctrl-C waiting.
ROOT_SWEEPS, SWEEPS, STEPS, LARGE = 2, 2, 12, 20
LONGEST = 20
ROOT_WORK = 1 << 24

# A search node counts as so many of the search by branch match, which take as long.
WEIGHT = 8

# The map that every so many nodes suggest is improved by exchanges: at 30 nodes that takes as long as half a node.
IMPROVED = 8

# Rows of `DualSearch.depths` after those of `bounds`: the node that is mapped next.
CHOSEN = 3
# Rows of `DualSearch.best`: image of the best map, of the one that is tried.
BEST, TRIED = range(2)


class DualSearch(NamedTuple):
    """The whole state of a search, which can stop after any node and go on later.

    Attributes:
        numbers: int64 ``[9]``, entries as of `bounds.Search`; divisor: int64 ``[1]``: units of a part, if it is more
            than one.
        best: int64 ``[2, n1]``.
        depths: int64 ``[4, n1 + 1]``; child, child_bound: int64 ``[n1 + 1, n2 + 1]``, as of `bounds.Search`.
        saving: int64 ``[arcs, arcs]``: what mapping an edge saves, at most 0.
        base, share: int64 ``[n1 + 1, ...]``: as in `all_stars`, for every depth.
        stars: those of the current node.
    """

    numbers: Ints
    divisor: Ints
    best: Ints
    depths: Ints
    child: Ints
    child_bound: Ints
    saving: Ints
    base: Ints
    share: Ints
    stars: Stars


@jitted
def fits(problem: Problem) -> bool:
    """Whether the graphs are small enough for this search."""
    n1, n2 = problem.node.shape
    shares: int = np.count_nonzero(problem.left) * np.count_nonzero(problem.right) * (n1 + 1)
    return n1 > 0 and n2 <= MOST_NODES and shares <= MOST_SHARES


@jitted
def allocate(problem: Problem, stop: Ints) -> DualSearch:
    """Memory for a search, which `prepare` fills.

    Only jitted functions call it as it is; others call ``allocate.py_func``: numba makes the arrays that it returns by
    calls of Python, and crashes the process if Ctrl-C comes during such a call.
    """
    n1, n2 = problem.node.shape
    arcs, others = np.count_nonzero(problem.left), np.count_nonzero(problem.right)
    return DualSearch(
        np.zeros(9, np.int64),
        np.zeros(1, np.int64),
        np.zeros((2, n1), np.int64),
        np.zeros((4, n1 + 1), np.int64),
        np.zeros((n1 + 1, n2 + 1), np.int64),
        np.zeros((n1 + 1, n2 + 1), np.int64),
        np.empty((arcs, others), np.int64),
        np.empty((n1 + 1, n1, n2), np.int64),
        np.empty((n1 + 1, arcs, others), np.int64),
        Stars(
            np.zeros((4, arcs), np.int64),
            np.zeros((4, others), np.int64),
            np.zeros(n1 + 1, np.int64),
            np.zeros(n2 + 1, np.int64),
            np.full((3, n1), OPEN, np.int64),
            np.full((3, n2), OPEN, np.int64),
            np.zeros(2, np.int64),
            np.zeros((arcs, n2), np.int64),
            np.zeros((others, n1), np.int64),
            np.zeros((arcs, n2), np.int64),
            np.zeros((n1, n2), np.int64),
            np.zeros((n2, n2), np.int64),
            np.zeros((6, n2 + 1), np.int64),
            np.zeros((6, n2 + 1), np.int64),
            np.zeros((2, arcs), np.int64),
            stop,
        ),
    )


@jitted
def prepare(problem: Problem, search: DualSearch, best: Ints, upper: int, limit: int, nodes: int) -> None:
    """Begin at the root, after another search of so many ``nodes`` whose best map is ``best``, of cost ``upper``."""
    node, delete, insert, left, right, pair = problem[:6]
    n1, n2 = node.shape
    stars, saving, share, base = search.stars, search.saving, search.share[0], search.base[0]
    arcs, others = stars.arcs, stars.other_arcs
    list_arcs(left, arcs, stars.first)
    list_arcs(right, others, stars.other_first)
    everything = problem.constants[ALL_EDGES]
    for v in range(n2):
        everything += insert[v]
    for u in range(n1):
        everything += delete[u]
        for w in range(u):
            everything += pair[left[u, w], 0]
    parts, divisor = max(1, min(FINEST, MOST_PARTS // max(1, everything))), 1 + everything // MOST_PARTS
    numbers = search.numbers
    numbers[ENTERING], numbers[UPPER], numbers[LIMIT], numbers[NODES] = 1, upper, limit, nodes
    numbers[PARTS], search.divisor[0] = parts, divisor
    search.best[BEST] = best
    # Every part is rounded down, so a bound in parts is one of the cost.
    search.depths[COST, 0] = parts * everything // divisor
    for u in range(n1):
        for v in range(n2):
            base[u, v] = parts * (node[u, v] - delete[u] - insert[v]) // divisor
    for a in range(saving.shape[0]):
        for b in range(saving.shape[1]):
            p, q = arcs[TYPE, a], others[TYPE, b]
            saving[a, b] = parts * (pair[p, q] - pair[p, 0] - pair[0, q]) // divisor
            # Both ends get half of it; what is left of an odd one goes to the second.
            share[a, b] = saving[a, b] // 2 if a < arcs[BACK, a] else saving[a, b] - saving[a, b] // 2


@jitted
def advance_dual(problem: Problem, search: DualSearch, budget: int) -> bool:
    """As `search.advance`."""
    numbers, depths, child, child_bound = search.numbers, search.depths, search.child, search.child_bound
    while True:
        depth = numbers[DEPTH]
        if numbers[ENTERING] == 1:
            if numbers[NODES] >= budget or search.stars.stop[0] != 0:
                return False
            if not _enter(problem, search):
                return False
            numbers[NODES] += WEIGHT
            numbers[ENTERING] = 0
            if numbers[JUDGED] == 1 and depth == len(problem.delete):
                return False
        place = depths[NEXT_CHILD, depth]
        if place < depths[NUM_CHILDREN, depth] and child_bound[depth, place] <= _cut(search):
            depths[NEXT_CHILD, depth] += 1
            numbers[HERE] = child_bound[depth, place]
            _descend(search, depths[CHOSEN, depth], child[depth, place])
            numbers[ENTERING] = 1
        elif depth == 0:
            return True
        else:
            numbers[DEPTH] -= 1
            image, owner = search.stars.left[IMAGE], search.stars.right[IMAGE]
            u = depths[CHOSEN, depth - 1]
            if image[u] >= 0:
                owner[image[u]] = OPEN
            image[u] = OPEN


@jitted
def dual_lower(search: DualSearch, done: bool) -> int:
    """The distance is at least this, in units: the least bound among all nodes that are still open."""
    numbers = search.numbers
    highest: int = min(numbers[UPPER], numbers[LIMIT] + 1)
    if done:
        return highest
    least = numbers[HERE] if numbers[ENTERING] == 1 else np.int64(FORBIDDEN)
    for depth in range(numbers[DEPTH] + 1 - numbers[ENTERING]):
        place = search.depths[NEXT_CHILD, depth]
        if place < search.depths[NUM_CHILDREN, depth]:
            least = min(least, search.child_bound[depth, place])
    lower: int = -(-max(least, numbers[ROOT]) * search.divisor[0] // numbers[PARTS])
    return min(highest, lower)


def dual_beside(problem: Problem, search: DualSearch) -> DualSearch:
    """As `search.beside`."""
    made = getattr(allocate, "py_func", allocate)(problem, search.stars.stop)
    made.numbers[:] = search.numbers
    made.numbers[DEPTH], made.numbers[ENTERING], made.numbers[NODES] = 0, 0, 0
    made.stars.arcs[:], made.stars.other_arcs[:] = search.stars.arcs, search.stars.other_arcs
    made.stars.first[:], made.stars.other_first[:] = search.stars.first, search.stars.other_first
    made.best[:] = search.best
    return made._replace(divisor=search.divisor, saving=search.saving)  # nobody writes into these any more


@jitted
def open_dual_depth(search: DualSearch) -> int:
    """As `bounds.shallowest`."""
    depth: int = shallowest(search.numbers, search.depths, search.child_bound, _cut(search))
    return depth


@jitted
def give_dual(search: DualSearch, other: DualSearch, depth: int) -> None:
    """As `search.give`."""
    other.numbers[DEPTH], other.numbers[ENTERING] = depth, 0
    images, owners = other.stars.left[IMAGE], other.stars.right[IMAGE]
    images[:] = OPEN
    owners[:] = OPEN
    other.depths[CHOSEN, : depth + 1] = search.depths[CHOSEN, : depth + 1]
    for i in range(depth):
        u = search.depths[CHOSEN, i]
        v = images[u] = search.stars.left[IMAGE, u]
        if v >= 0:
            owners[v] = u
    other.depths[COST, depth] = search.depths[COST, depth]
    other.base[depth], other.share[depth] = search.base[depth], search.share[depth]
    split(depth, search.depths, search.child, search.child_bound, other.depths, other.child, other.child_bound)


@jitted
def _cut(search: DualSearch) -> int:
    """The largest bound of a node, in parts, that may still lead to a better map."""
    numbers = search.numbers
    units = min(numbers[UPPER] - 1, numbers[LIMIT])
    cut: int = units * numbers[PARTS] // search.divisor[0]
    return cut


@jitted
def _descend(search: DualSearch, u: int, v: int) -> None:
    """Map u to v (n2 deletes u) and go one level down."""
    depth, stars = search.numbers[DEPTH], search.stars
    arcs, others = stars.arcs, stars.other_arcs
    search.share[depth + 1] = search.share[depth]
    search.base[depth + 1] = search.base[depth]
    base, cost = search.base[depth + 1], search.depths[COST]
    cost[depth + 1] = cost[depth]
    if v == base.shape[1]:
        stars.left[IMAGE, u] = DELETED
    else:
        cost[depth + 1] += base[u, v]
        for a in range(stars.first[u], stars.first[u + 1]):
            w = arcs[END, a]
            if stars.left[IMAGE, w] != OPEN:
                continue
            for b in range(stars.other_first[v], stars.other_first[v + 1]):
                x = others[END, b]
                if stars.right[IMAGE, x] == OPEN and base[w, x] < FORBIDDEN:
                    base[w, x] += search.saving[a, b]
        stars.left[IMAGE, u], stars.right[IMAGE, v] = v, u
    search.numbers[DEPTH] += 1


@jitted
def _enter(problem: Problem, search: DualSearch) -> bool:
    """Bound the current node, try the maps that its assignments suggest, and list its children; False if stopped."""
    numbers, stars, depths = search.numbers, search.stars, search.depths
    depth = numbers[DEPTH]
    depths[NEXT_CHILD, depth] = depths[NUM_CHILDREN, depth] = 0
    base, share, known, cost = search.base[depth], search.share[depth], numbers[HERE], depths[COST, depth]
    highest = 0 if problem.constants[DELETIONS_PAY] == 1 else FORBIDDEN
    stars.open[0] = list_open(stars.arcs, stars.first, stars.left)
    stars.open[1] = list_open(stars.other_arcs, stars.other_first, stars.right)
    all_stars(stars, base, share)
    sweeps, steps = SWEEPS if depth > 0 else ROOT_SWEEPS, 0
    if depth == 0 or (len(problem.delete) > LARGE and depth < 8):
        steps = min(STEPS * len(problem.delete), ROOT_WORK // max(1, share.size)) >> (2 * depth)
    rounds = 0
    while True:
        bound = cost + assign_stars(stars, highest)
        if stars.stop[0] != 0:
            return False
        _try(problem, search)
        missing = _cut(search) + 1 - bound
        known = max(known, bound)
        if depth == 0:
            numbers[ROOT] = known
        if missing <= 0 or rounds >= sweeps + steps:
            break
        if rounds < sweeps:
            sweep(stars, base, share, missing - 1, rounds % 2 == 1)
        # Shorter and shorter: the highest bound may be less than what is missing, and long steps then leave it again.
        elif not step(
            stars, base, share, missing * (LONGEST * steps - (LONGEST - 1) * (rounds - sweeps)) // (10 * steps)
        ):
            break
        rounds += 1
    if missing > 0 and numbers[JUDGED] == 0 and (depth == 0 or numbers[NODES] // WEIGHT % IMPROVED == 0):
        improve(problem, search.best[TRIED], stars.stop)
        _keep(problem, search)
    if missing > 0 and stars.open[0] > 0:
        _list_children(problem, search, bound, known, highest)
    return True


@jitted
def _list_children(problem: Problem, search: DualSearch, bound: int, known: int, highest: int) -> None:
    """Choose the node to map next, and list its images in the order of their bounds."""
    stars, depth, cut = search.stars, search.numbers[DEPTH], _cut(search)
    left, right, room, cost = stars.left, stars.right, stars.room, stars.cost
    twin = problem.twin
    rows, columns = stars.open
    fewest, largest, chosen = FORBIDDEN, -1, 0
    for i in range(rows):
        u, price, count, total = left[NODE, i], room[ROW_PRICE, i + 1], 0, 0
        for j in range(columns + 1):
            reduced = (highest if j == columns else cost[u, right[NODE, j]] - room[COLUMN_PRICE, j + 1]) - price
            if bound + reduced <= cut:
                count += 1
                total += reduced
        if count < fewest or (count == fewest and total > largest):
            fewest, largest, chosen = count, total, i
    # Of maps that differ by exchanges only, try the first one, comparing images in the order in which nodes are mapped,
    # with a deletion last: the images of nodes that can be exchanged ascend, and of images that can be exchanged the
    # first free one is taken.
    u, least, count = left[NODE, chosen], _least_image(problem, left[IMAGE], left[NODE, chosen]), 0
    children, bounds = search.child[depth], search.child_bound[depth]
    for j in range(columns + 1):
        v, reduced = len(twin), highest
        if j < columns:
            v = right[NODE, j]
            if v < least or (twin[v] >= 0 and right[IMAGE, twin[v]] == OPEN):
                continue
            reduced = cost[u, v] - room[COLUMN_PRICE, j + 1]
        here = max(known, bound + reduced - room[ROW_PRICE, chosen + 1])
        if here > cut:
            continue
        place = count
        while place > 0 and bounds[place - 1] > here:
            children[place], bounds[place] = children[place - 1], bounds[place - 1]
            place -= 1
        children[place], bounds[place] = v, here
        count += 1
    search.depths[CHOSEN, depth], search.depths[NUM_CHILDREN, depth] = u, count


@jitted
def _least_image(problem: Problem, image: Ints, u: int) -> int:
    """The image of u must not be less: it comes after those of the mapped nodes that can be exchanged with u."""
    twin = problem.left_twin
    first, least = u, 0
    while twin[first] >= 0:
        first = twin[first]
    for w in range(first, len(twin)):
        other = w
        while twin[other] >= 0:
            other = twin[other]
        if other == first and image[w] != OPEN:
            least = max(least, image[w] + 1 if image[w] >= 0 else problem.node.shape[1])
    return least


@jitted
def _try(problem: Problem, search: DualSearch) -> None:
    """Complete the current map by the last assignment, and keep it if it is the best so far."""
    if search.numbers[JUDGED] == 1:
        return
    stars, image = search.stars, search.best[TRIED]
    left, room = stars.left, stars.room
    for u in range(len(image)):
        image[u] = left[IMAGE, u] if left[IMAGE, u] >= 0 else DELETED
    for j in range(stars.open[1]):
        i = room[ROW_OF, j + 1] - 1
        if i >= 0 and stars.matrix[i, j] == stars.cost[left[NODE, i], stars.right[NODE, j]]:
            image[left[NODE, i]] = stars.right[NODE, j]
    _keep(problem, search)


@jitted
def _keep(problem: Problem, search: DualSearch) -> None:
    """Keep the map that was tried if it is the best so far."""
    cost = map_cost(problem, search.best[TRIED])
    if cost < search.numbers[UPPER]:
        search.numbers[UPPER] = cost
        search.best[BEST] = search.best[TRIED]
