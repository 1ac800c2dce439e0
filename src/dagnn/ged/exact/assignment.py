"""Linear assignment in integers, with the dual prices that bound every alternative."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn.ged.costs import Ints
from dagnn.numba_jit import jitted

INFINITE = 1 << 62
LEAST = 1 << 61

# Rows of a room, int64 [6, size + 1], the scratch memory of one assignment. Rows and columns of the matrix count from 1
# there; 0 means none. Prices: cost[i, j] - row_price[i + 1] - column_price[j + 1] is at least 0, and forcing row i to
# column j costs at least that much more than the optimum. Columns that stay free have price 0.
ROW_PRICE, COLUMN_PRICE, ROW_OF, PREVIOUS, SLACK, SEEN = range(6)


def new_room(size: int) -> Ints:
    """The room of an assignment of up to ``size`` rows and columns."""
    return np.zeros((6, size + 1), dtype=np.int64)


@jitted
def assign(cost: Ints, rows: int, columns: int, room: Ints, stop: Ints, infinite: int = INFINITE) -> int:
    """The least cost of giving every row a column of its own; leaves prices and assignment in ``room``.

    Args:
        cost: int64, at least ``[rows, columns]``; any sign.
        rows: at most ``columns``.
        room: int64 ``[6, at least columns + 1]``.
        stop: int64 ``[1]``; soon after another thread has written 1 there, it returns a lower bound of the cost, and
            some rows have no column. The prices are valid all the same.
        infinite: more than any sum of costs.

    Source: Jonker and Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment
    problems", Computing 38, 1987 (the augmentation; without the initial heuristics). O(rows^2 columns).
    """
    row_price, column_price, row_of = room[ROW_PRICE], room[COLUMN_PRICE], room[ROW_OF]
    previous, slack, seen = room[PREVIOUS], room[SLACK], room[SEEN]
    for j in range(columns + 1):
        column_price[j] = 0
        row_of[j] = 0
    for row in range(1, rows + 1):
        if stop[0] != 0:
            return _price_the_rest(cost, row, rows, columns, row_price, column_price)
        row_price[row] = 0
        row_of[0] = row
        column = 0
        for j in range(columns + 1):
            slack[j] = infinite
            seen[j] = 0
        while True:
            seen[column] = 1
            current = row_of[column]
            least = infinite
            following = 0
            for j in range(1, columns + 1):
                if seen[j] == 0:
                    reduced = cost[current - 1, j - 1] - row_price[current] - column_price[j]
                    if reduced < slack[j]:
                        slack[j] = reduced
                        previous[j] = column
                    if slack[j] < least:
                        least = slack[j]
                        following = j
            for j in range(columns + 1):
                if seen[j] == 1:
                    row_price[row_of[j]] += least
                    column_price[j] -= least
                else:
                    slack[j] -= least
            column = following
            if row_of[column] == 0:
                break
        while column != 0:
            row_of[column] = row_of[previous[column]]
            column = previous[column]
    total = 0
    for j in range(1, columns + 1):
        if row_of[j] > 0:
            total += cost[row_of[j] - 1, j - 1]
    return total


@jitted
def _price_the_rest(cost: Ints, first: int, rows: int, columns: int, row_price: Ints, column_price: Ints) -> int:
    """Valid prices for the rows from ``first`` on, given those of the columns; returns the sum of all prices."""
    for row in range(first, rows + 1):
        row_price[row] = INFINITE
        for j in range(1, columns + 1):
            row_price[row] = min(row_price[row], cost[row - 1, j - 1] - column_price[j])
    total, about = 0, 0.0
    for row in range(1, rows + 1):
        total += row_price[row]
        about += row_price[row]
    for j in range(1, columns + 1):
        total += column_price[j]
        about += column_price[j]
    # The rows without a column may all want the dearest one, and the sum may leave 64 bits: -LEAST is a bound then.
    return total if about > -LEAST else -LEAST


def assign_exactly(cost: "NDArray[Any]") -> list[tuple[int, int]]:
    """Pairs (row, column) of a cheapest assignment of a matrix of Python's integers, which may be of any size."""
    rows, columns = cost.shape
    if rows > columns:
        return [(row, column) for column, row in assign_exactly(cost.T)]
    room = np.zeros((6, columns + 1), dtype=object)
    infinite = 1 + 8 * (rows + 1) * int(np.abs(cost).max(initial=0))  # prices are sums of at most so many costs
    in_python = getattr(assign, "py_func", assign)
    in_python(cost, rows, columns, room, np.zeros(1, dtype=np.int64), infinite)
    return [(row - 1, column) for column, row in enumerate(room[ROW_OF, 1:].tolist()) if row]
