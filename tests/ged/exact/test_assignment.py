import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from dagnn.ged.exact.assignment import COLUMN_PRICE, ROW_OF, ROW_PRICE, assign, new_room


@pytest.mark.parametrize("seed", range(40))
def test_cost_is_that_of_scipy_and_prices_bound_every_alternative(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(0, 7))
    columns = rows + int(rng.integers(0, 4))
    cost = rng.integers(-20, 20, (rows, columns))
    room = new_room(columns)
    total = assign(cost, rows, columns, room, np.zeros(1, dtype=np.int64))
    assert total == cost[linear_sum_assignment(cost)].sum()
    row_of = room[ROW_OF, 1 : columns + 1]
    assert sorted(row_of[row_of > 0]) == list(range(1, rows + 1))
    assert sum(cost[row - 1, j] for j, row in enumerate(row_of) if row) == total

    reduced = cost - room[ROW_PRICE, 1 : rows + 1, None] - room[COLUMN_PRICE, 1 : columns + 1]
    assert (reduced >= 0).all()
    for i in range(rows):
        for j in range(columns):
            forced = np.delete(np.delete(cost, i, 0), j, 1)
            assert cost[i, j] + forced[linear_sum_assignment(forced)].sum() >= total + reduced[i, j]
