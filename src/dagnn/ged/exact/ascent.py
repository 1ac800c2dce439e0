"""A lower bound nearly as high as the linear program's, by dual ascent: the ends of edges share what the edges save.

All deleted and inserted is the cost to start from. A mapped edge saves some of it once both of its ends are mapped, and
each end has a share of that saving. The star of u -> v is the best matching of their edges by its shares; an assignment
over all stars is a bound, whatever the shares, and the ascent moves shares so that the bound rises.

Legend as in `problem`, and: a is an arc of the left graph, from u to w, and b one of the right graph, from v to x.
Every edge is two arcs. All costs are in parts of a unit.

Source: Hahn and Grant, "Lower bounds for the quadratic assignment problem based upon a dual formulation", Operations
Research 46(6), 1998, for sweeps; Polyak, "Minimization of unsmooth functionals", USSR Comp. Math. and Math. Phys. 9(3),
1969, for steps.
"""

from typing import NamedTuple

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.assignment import COLUMN_PRICE, ROW_OF, ROW_PRICE, assign
from dagnn.numba_jit import jitted

# Stands for more than any cost: of u -> v in no better map, and of a share of such a star. Real costs and shares stay
# below a hundredth of it, and sums of 500 such fit 64 bits.
FORBIDDEN = 1 << 50
HOPELESS = FORBIDDEN // 2  # no sum of a forbidden share and real ones is less

OPEN = -2
"""The image of a node that is not mapped yet."""

# Rows of `Stars.left` and `Stars.right`: the image, or OPEN; how many arcs lead to open nodes; the open nodes in order.
IMAGE, COUNT, NODE = range(3)
# Rows of `Stars.arcs`: the end, the arc back, the pair type; from the first arc of u on, its arcs to open nodes.
END, BACK, TYPE, ACTIVE = range(4)


class Stars(NamedTuple):
    """The stars of all open pairs, and memory to compute them.

    Attributes:
        arcs, other_arcs: int64 ``[4, arcs]``, of both graphs, ordered by node.
        first, other_first: int64 ``[n + 1]``: where the arcs of every node begin.
        left, right: int64 ``[3, n]``.
        open: int64 ``[2]``: how many nodes of both graphs are open.
        price, other_price: int64 ``[arcs, n]``, at most 0: prices of a, at v, and of b, at u, in the star of u -> v.
        match: int64 ``[arcs, n2]``: the arc b that the star of u -> v gives to a, or -1.
        cost: int64 ``[n1, n2]``: of u -> v, its star included.
        matrix: int64 ``[n2, n2]``; room, star_room: int64 ``[6, n2 + 1]``: of assignments.
        moved: int64 ``[2, arcs]``: the shares that a step moves.
        stop: int64 ``[1]``: once another thread has written 1 there, nothing here is a bound any more.
    """

    arcs: Ints
    other_arcs: Ints
    first: Ints
    other_first: Ints
    left: Ints
    right: Ints
    open: Ints
    price: Ints
    other_price: Ints
    match: Ints
    cost: Ints
    matrix: Ints
    room: Ints
    star_room: Ints
    moved: Ints
    stop: Ints


@jitted
def list_arcs(pairs: Ints, arcs: Ints, first: Ints) -> None:
    """Fill ``arcs`` and ``first`` as in `Stars` from pair types, int64 ``[n, n]``."""
    count = 0
    number = np.empty(pairs.shape, np.int64)
    for u in range(len(pairs)):
        first[u] = count
        for w in range(len(pairs)):
            if pairs[u, w] != 0:
                arcs[END, count], arcs[TYPE, count], number[u, w] = w, pairs[u, w], count
                count += 1
    first[len(pairs)] = count
    for u in range(len(pairs)):
        for a in range(first[u], first[u + 1]):
            arcs[BACK, a] = number[arcs[END, a], u]


@jitted
def list_open(arcs: Ints, first: Ints, nodes: Ints) -> int:
    """List the open nodes and their arcs to each other; returns how many nodes are open."""
    count = 0
    for u in range(nodes.shape[1]):
        if nodes[IMAGE, u] != OPEN:
            continue
        nodes[NODE, count] = u
        count += 1
        active = 0
        for a in range(first[u], first[u + 1]):
            if nodes[IMAGE, arcs[END, a]] == OPEN:
                arcs[ACTIVE, first[u] + active] = a
                active += 1
        nodes[COUNT, u] = active
    return count


@jitted
def all_stars(stars: Stars, base: Ints, share: Ints) -> None:
    """Compute the stars of all open pairs.

    Args:
        base: int64 ``[n1, n2]``: cost of u -> v, edges to mapped nodes included, or `FORBIDDEN`.
        share: int64 ``[arcs, arcs]``: at (a, b), the share of u -> v in what mapping a to b saves.
    """
    # Take the fields out of the tuple once: copying it for every star takes longer than the star.
    arcs, other_arcs, first, other_first, left, right, _, price, other_price, match, cost, matrix, _, room = stars[:14]
    for i in range(stars.open[0]):
        u = left[NODE, i]
        for j in range(stars.open[1]):
            v = right[NODE, j]
            cost[u, v] = base[u, v]
            if base[u, v] < FORBIDDEN:
                cost[u, v] += _star(
                    arcs, first[u], left[COUNT, u], other_arcs, other_first[v], right[COUNT, v], share, u, v, price,
                    other_price, match, matrix, room, stars.stop,
                )  # fmt: skip


@jitted
def _star(
    arcs: Ints, first: int, rows: int, other_arcs: Ints, other: int, columns: int, share: Ints, u: int, v: int,
    price: Ints, other_price: Ints, match: Ints, matrix: Ints, room: Ints, stop: Ints,
) -> int:  # fmt: skip
    """The least sum of shares that a matching of the open edges of u and v has; leaves prices and matches.

    The active arcs of u are ``rows`` from ``first`` on, those of v ``columns`` from ``other`` on.
    """
    for i in range(rows):
        price[arcs[ACTIVE, first + i], v], match[arcs[ACTIVE, first + i], v] = 0, -1
    for j in range(columns):
        other_price[other_arcs[ACTIVE, other + j], u] = 0
    if rows == 0 or columns == 0:
        return 0
    if rows <= 2:
        return _few(arcs, first, rows, other_arcs, other, columns, share, False, u, v, price, other_price, match)
    if columns <= 2:
        return _few(other_arcs, other, columns, arcs, first, rows, share, True, v, u, other_price, price, match)
    # Unmatched edges save 0, as if the shares were at most 0.
    wide = rows <= columns
    for i in range(rows):
        for j in range(columns):
            capped = min(0, share[arcs[ACTIVE, first + i], other_arcs[ACTIVE, other + j]])
            if wide:
                matrix[i, j] = capped
            else:
                matrix[j, i] = capped
    total: int = assign(matrix, min(rows, columns), max(rows, columns), room, stop)
    for i in range(rows):
        price[arcs[ACTIVE, first + i], v] = room[ROW_PRICE if wide else COLUMN_PRICE, i + 1]
    for j in range(columns):
        other_price[other_arcs[ACTIVE, other + j], u] = room[COLUMN_PRICE if wide else ROW_PRICE, j + 1]
    for column in range(max(rows, columns)):
        row = room[ROW_OF, column + 1] - 1
        if row >= 0:
            a = arcs[ACTIVE, first + (row if wide else column)]
            b = other_arcs[ACTIVE, other + (column if wide else row)]
            if share[a, b] < 0:
                match[a, v] = b
    return total


@jitted
def _few(
    arcs: Ints,
    first: int,
    rows: int,
    other_arcs: Ints,
    other: int,
    columns: int,
    share: Ints,
    turned: bool,
    u: int,
    v: int,
    price: Ints,
    other_price: Ints,
    match: Ints,
) -> int:
    """`_star` with one row or two, whose prices are 0 and matches -1; ``turned``: rows are arcs of the right graph."""
    a = arcs[ACTIVE, first]
    least, at, second, second_at = _least_two(other_arcs, other, columns, share, turned, a)
    total, price[a, v] = least, least
    if rows == 2:
        c = arcs[ACTIVE, first + 1]
        other_least, other_at, other_second, other_second_at = _least_two(other_arcs, other, columns, share, turned, c)
        # Both want one column: the row that loses less by it takes its second best, and the column costs what it loses.
        rise = 0
        if at >= 0 and at == other_at:
            rise = min(second - least, other_second - other_least)
            other_price[at, u] = -rise
            if rise == second - least:
                at = second_at
            else:
                other_at = other_second_at
        price[a, v], price[c, v] = least + rise, other_least + rise
        total += other_least + rise
        if other_at >= 0 and turned:
            match[other_at, u] = c
        elif other_at >= 0:
            match[c, v] = other_at
    if at >= 0 and turned:
        match[at, u] = a
    elif at >= 0:
        match[a, v] = at
    return total


@jitted
def _least_two(
    other_arcs: Ints, other: int, columns: int, share: Ints, turned: bool, a: int
) -> tuple[int, int, int, int]:
    """The least share of a and its arc, then the second one; no arc, -1, has share 0."""
    least, at, second, second_at = 0, -1, 0, -1
    for j in range(columns):
        b = other_arcs[ACTIVE, other + j]
        this = share[b, a] if turned else share[a, b]
        if this < least:
            least, at, second, second_at = this, b, least, at
        elif this < second:
            second, second_at = this, b
    return least, at, second, second_at


@jitted
def assign_stars(stars: Stars, highest: int) -> int:
    """The cheapest assignment over all stars, left in ``stars.room`` by place among the open nodes.

    ``highest`` is the cost of leaving a node without an image.
    """
    left, right, matrix = stars.left[NODE], stars.right[NODE], stars.matrix
    rows, columns = stars.open
    for i in range(rows):
        for j in range(columns):
            matrix[i, j] = min(stars.cost[left[i], right[j]], highest)
    return assign(matrix, rows, columns, stars.room, stars.stop)


@jitted
def sweep(stars: Stars, base: Ints, share: Ints, slack: int, backwards: bool) -> None:
    """Let every star give half of what it can spare to the stars at the other ends of its edges.

    A star can spare its reduced costs, and what u -> v costs more than its prices in the last assignment: the bound is
    the same without them. u -> v is forbidden if that is more than ``slack``.
    """
    arcs, other_arcs, first, other_first, left, right, _, price, other_price, match, cost, matrix = stars[:12]
    room, star_room = stars.room, stars.star_room
    rows, columns = stars.open
    for place in range(rows):
        i = rows - 1 - place if backwards else place
        u = left[NODE, i]
        if stars.stop[0] != 0:
            return
        for other_place in range(columns):
            j = columns - 1 - other_place if backwards else other_place
            v = right[NODE, j]
            if base[u, v] >= FORBIDDEN:
                continue
            count, other_count = left[COUNT, u], right[COUNT, v]
            cost[u, v] = base[u, v] + _star(
                arcs, first[u], count, other_arcs, other_first[v], other_count, share, u, v, price, other_price, match,
                matrix, star_room, stars.stop,
            )  # fmt: skip
            spare = cost[u, v] - room[ROW_PRICE, i + 1] - room[COLUMN_PRICE, j + 1]
            if spare > slack:
                _forbid(stars, base, share, u, v)
                continue
            if count == 0 or other_count == 0:
                continue
            # Each edge of the side with fewer gives a part of it: at most so many are matched.
            part = max(spare, 0) // (2 * min(count, other_count))
            cost[u, v] -= part * min(count, other_count)
            for k in range(count):
                a = arcs[ACTIVE, first[u] + k]
                w = arcs[END, a]
                for m in range(other_count):
                    b = other_arcs[ACTIVE, other_first[v] + m]
                    if share[a, b] >= HOPELESS:
                        continue
                    if base[w, other_arcs[END, b]] >= FORBIDDEN:
                        share[a, b] = FORBIDDEN
                        continue
                    gift = part + (share[a, b] - price[a, v] - other_price[b, u]) // 2
                    share[a, b] -= gift
                    share[arcs[BACK, a], other_arcs[BACK, b]] += gift


@jitted
def _forbid(stars: Stars, base: Ints, share: Ints, u: int, v: int) -> None:
    """u -> v is in no better map: nor is any edge that it needs."""
    base[u, v] = stars.cost[u, v] = FORBIDDEN
    for k in range(stars.left[COUNT, u]):
        a = stars.arcs[ACTIVE, stars.first[u] + k]
        for m in range(stars.right[COUNT, v]):
            b = stars.other_arcs[ACTIVE, stars.other_first[v] + m]
            share[stars.arcs[BACK, a], stars.other_arcs[BACK, b]] = FORBIDDEN


@jitted
def step(stars: Stars, base: Ints, share: Ints, rise: int) -> bool:
    """Move shares so that the stars of the last assignment agree; False if they agree already.

    Where one of two chosen stars matches an edge and the other does not, the first one's share rises, by so much that
    the bound would rise by ``rise`` if no other stars were chosen then.
    """
    left, right, arcs, other_arcs = stars.left[NODE], stars.right[NODE], stars.arcs, stars.other_arcs
    moved, room, count = stars.moved, stars.room, 0
    image = stars.left[IMAGE]  # of open nodes it serves as scratch, and is restored below
    for j in range(stars.open[1]):
        if room[ROW_OF, j + 1] > 0:
            i = room[ROW_OF, j + 1] - 1
            if stars.matrix[i, j] == stars.cost[left[i], right[j]] < HOPELESS:
                image[left[i]] = OPEN - 1 - right[j]
    for i in range(stars.open[0]):
        u = left[i]
        v = OPEN - 1 - image[u]
        if v < 0:
            continue
        for k in range(stars.left[COUNT, u]):
            a = arcs[ACTIVE, stars.first[u] + k]
            b = stars.match[a, v]
            if b < 0:
                continue
            w, x = arcs[END, a], other_arcs[END, b]
            agreed = image[w] == OPEN - 1 - x and stars.match[arcs[BACK, a], x] == other_arcs[BACK, b]
            if not agreed and share[a, b] < HOPELESS and share[arcs[BACK, a], other_arcs[BACK, b]] < HOPELESS:
                moved[0, count], moved[1, count] = a, b
                count += 1
    for i in range(stars.open[0]):
        image[left[i]] = OPEN
    if count == 0:
        return False
    size = rise // count + 1
    for i in range(count):
        a, b = moved[0, i], moved[1, i]
        share[a, b] += size
        share[arcs[BACK, a], other_arcs[BACK, b]] -= size
    u = -1
    for i in range(2 * count):
        a, b = moved[0, i % count], moved[1, i % count]
        if i >= count:
            a, b = arcs[BACK, a], other_arcs[BACK, b]
        before = u
        u, v = arcs[END, arcs[BACK, a]], other_arcs[END, other_arcs[BACK, b]]
        # The chosen stars come first, and all the arcs of one together.
        if base[u, v] < FORBIDDEN and (i >= count or u != before):
            stars.cost[u, v] = base[u, v] + _star(
                arcs, stars.first[u], stars.left[COUNT, u], other_arcs, stars.other_first[v], stars.right[COUNT, v],
                share, u, v, stars.price, stars.other_price, stars.match, stars.matrix, stars.star_room, stars.stop,
            )  # fmt: skip
    return True
