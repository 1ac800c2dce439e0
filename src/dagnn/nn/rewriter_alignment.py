"""Which node of the predicted replacement stands for which of the target: given by the decoder's order, or searched.

Operands of some labels have no order: (+ a b) and (+ b a) are one graph. The search takes the order, among all that
give the target graph, that costs the prediction least; no gradient flows through the choice.
"""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

# Three exchangeable pairs. Longer replacements than that keep the order of the operands that come last.
MAX_ORDERS = 8


def target_orders(targets: Tensor, arity: Tensor, unordered: Collection[int]) -> Tensor:
    """Every order of the target graphs' nodes that the exchange of operands allows.

    Args:
        targets: int64 ``[batch, slots]``, classes in preorder, -1 behind the end (see `WindowFeatures`).
        arity: int64 ``[labels]``.
        unordered: ids of labels whose two operands may be exchanged.

    Returns:
        int64 ``[batch, orders, slots]``; the given order first, and again where there are fewer than `orders`.
    """
    arities, classes = arity.tolist(), {label + 1 for label in unordered}
    found = [
        _orders(row[: row.index(-1)] if -1 in row else row, arities, classes) if classes & set(row) else [row]
        for row in targets.tolist()
    ]
    most = max(map(len, found), default=1)
    orders = np.full((len(found), most, targets.shape[1]), -1, np.int64)
    for i, given in enumerate(found):
        for k in range(most):
            row = given[k if k < len(given) else 0]
            orders[i, k, : len(row)] = row
    return torch.from_numpy(orders).to(targets.device)


def cheapest_order(cost: Tensor) -> Tensor:
    """The order of least cost for each window: int64 ``[batch]`` from ``[batch, orders]``; the first of equal ones."""
    return cost.detach().argmin(1)


def _orders(row: list[int], arity: list[int], unordered: set[int]) -> list[list[int]]:
    """All preorders of one tree, the given one first."""

    def read(position: int) -> tuple[list[list[int]], int]:
        cls = row[position]
        position += 1
        count = arity[cls - 1] if 1 <= cls <= len(arity) else 0
        parts: list[list[list[int]]] = []
        for _ in range(count):
            part, position = read(position)
            parts.append(part)
        orders = [[cls]]
        for part in parts:
            orders = [before + after for before in orders for after in part][:MAX_ORDERS]
        if cls in unordered and count == 2:
            exchanged = [[cls, *b, *a] for a in parts[0] for b in parts[1]]
            orders = (orders + [order for order in exchanged if order not in orders])[:MAX_ORDERS]
        return orders, position

    return read(0)[0]
