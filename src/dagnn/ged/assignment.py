"""Linear assignment in integers, with the dual prices that bound every alternative."""

import numpy as np
from numpy.typing import NDArray

from dagnn.ged.compiled import compiled

Ints = NDArray[np.int64]

INFINITE = 1 << 62

# Rows of a room, int64 [6, size + 1]. Matrix rows and columns count from 1 there; 0 is nobody.
# Prices: cost[i, j] - row_price[i + 1] - column_price[j + 1] is at least 0, and forcing row i to column j costs at
# least that much more than the optimum. Columns that stay free have price 0.
ROW_PRICE, COLUMN_PRICE, ROW_OF, PREVIOUS, SLACK, SEEN = range(6)


def new_room(size: int) -> Ints:
    """Room for an assignment of up to ``size`` rows and columns."""
    return np.zeros((6, size + 1), dtype=np.int64)


@compiled
def assign(cost: Ints, rows: int, columns: int, room: Ints) -> int:
    """The least cost of giving every row a column of its own; prices and assignment stay in ``room``.

    Args:
        cost: int64, at least ``[rows, columns]``; any sign.
        rows: at most ``columns``.
        room: int64 ``[6, at least columns + 1]``.

    Source: Jonker and Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment
    problems", Computing 38, 1987 (the augmentation; without the initial heuristics). O(rows^2 columns).
    """
    row_price, column_price, row_of = room[ROW_PRICE], room[COLUMN_PRICE], room[ROW_OF]
    previous, slack, seen = room[PREVIOUS], room[SLACK], room[SEEN]
    for j in range(columns + 1):
        column_price[j] = 0
        row_of[j] = 0
    for row in range(1, rows + 1):
        row_price[row] = 0
        row_of[0] = row
        column = 0
        for j in range(columns + 1):
            slack[j] = INFINITE
            seen[j] = 0
        while True:
            seen[column] = 1
            current = row_of[column]
            least = INFINITE
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
