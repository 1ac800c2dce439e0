"""What a predicted replacement costs: its edit cost, under the cheapest alignment with the target."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from dagnn.ged.targets import GraphTargets


def edit_cost(
    cost: Tensor, targets: Tensor, arity: Tensor, *, alpha: float = 1.0, beta: float = 1.0, gamma: float = 0.0
) -> Tensor:
    """Edit cost between predicted and target replacements, nodes aligned by the decoder's order (preorder).

    ``alpha * node + beta * edge + gamma * clique`` per neighbourhood, averaged over the batch:

    - node: negative log-likelihood of every made node's label. A node too many, too few or wrong is a wrong class
      in its slot, so insertions, deletions and substitutions are all paid here.
    - edge: negative log-likelihood of every copy, which is an edge from the replacement into the neighbourhood. All
    other
      edges follow from the labels' arities.
    - clique: ``1 - sqrt(p_parent * p_child)``, summed over all parent-child pairs, the cliques of a tree.

    With alpha = beta = 1 and gamma = 0 it is the cross-entropy of the whole replacement, an upper bound of the
    expected number of wrong nodes because ``1 - p <= -log p``.

    Args:
        cost: ``[batch, slots]``, negative log-likelihood of every target; unused slots do not matter.
        targets: int64 ``[batch, slots]``, classes as in `NeighbourhoodFeatures`: leave it, labels, addresses; -1
            behind the end of a replacement.
        arity: int64 ``[labels]``, children that each label asks for.
        alpha, beta, gamma: weights of the three terms, at least 0.

    Returns:
        A scalar; 0 for an empty batch.
    """
    used = targets >= 0
    weight = torch.where(targets > len(arity), beta, alpha).to(cost.dtype)
    loss = (cost * weight)[used].sum()
    if gamma:
        parent = parent_slots(targets, arity)
        pair_cost = (cost + cost.gather(1, parent.clamp(min=0)))[parent >= 0]
        loss = loss + gamma * (1 - torch.exp(-pair_cost / 2)).sum()
    return loss / max(1, len(targets))


def parent_slots(targets: Tensor, arity: Tensor) -> Tensor:
    """Slot of every slot's parent: int64 ``[batch, slots]``; -1 for the first slot and behind the end."""
    num_labels = len(arity)
    asks = torch.zeros_like(targets)
    is_label = (targets >= 1) & (targets <= num_labels)
    asks[is_label] = arity[targets[is_label] - 1]

    # In preorder the parent is the last earlier node that still waits for a child.
    parent = torch.full_like(targets, -1)
    missing = torch.zeros_like(targets)
    rows = torch.arange(len(targets), device=targets.device)
    position = torch.arange(1, targets.shape[1] + 1, device=targets.device)
    for slot in range(targets.shape[1]):
        used = targets[:, slot] >= 0
        if slot:
            waiting = (missing[:, :slot] > 0) * position[:slot]
            last = waiting.argmax(1)
            found = used & (waiting.max(1).values > 0)
            parent[found, slot] = last[found]
            missing[rows[found], last[found]] -= 1
        missing[:, slot] = asks[:, slot] * used
    return parent


def replacement_graphs(targets: Tensor, arity: Tensor) -> GraphTargets:
    """Replacements as graphs: a node for every slot in use, an edge from every operand to its operator.

    Args:
        targets: int64 ``[batch, slots]``, -1 behind the end of a replacement (see `NeighbourhoodFeatures`).
        arity: int64 ``[labels]``.
    """
    targets = targets[:, : int((targets >= 0).any(0).sum())]
    parent = parent_slots(targets, arity)
    adjacency = torch.zeros(*targets.shape, targets.shape[1], dtype=torch.bool, device=targets.device)
    neighbourhood, operand = (parent >= 0).nonzero().unbind(1)
    adjacency[neighbourhood, operand, parent[neighbourhood, operand]] = True
    return GraphTargets(targets >= 0, adjacency, targets.clamp(min=0))


# Three exchangeable pairs. Longer replacements than that keep the order of the operands that come last.
MAX_ORDERS = 8


def target_orders(targets: Tensor, arity: Tensor, unordered: Collection[int]) -> Tensor:
    """Every order of the target graphs' nodes that the exchange of operands allows.

    Args:
        targets: int64 ``[batch, slots]``, classes in preorder, -1 behind the end (see `NeighbourhoodFeatures`).
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
    """The order of least cost for each neighbourhood: int64 ``[batch]`` from ``[batch, orders]``; the first of equal
    ones."""
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
