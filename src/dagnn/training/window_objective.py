"""What a batch of windows costs: the edit cost of `GraphRewriter.loss`, or `GedLoss` over whole graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from dagnn.ged import GedLoss
from dagnn.ged.targets import GraphTargets
from dagnn.nn import GraphRewriter
from dagnn.nn.rewriter_loss import parent_slots
from dagnn.training.config import LossConfig
from dagnn.training.window_source import WindowBatch


def window_objective(config: LossConfig) -> Callable[[GraphRewriter, WindowBatch], Tensor]:
    """The objective of these settings: mean over a batch, 0 for an empty one."""
    alpha, beta, gamma = config.alpha, config.beta, config.gamma
    if config.objective == "edit":
        return lambda network, batch: network.loss(batch.rows, batch.targets, alpha=alpha, beta=beta, gamma=gamma)

    # Slots are read in preorder, so slot i stands for node i of the target.
    ged_loss = GedLoss(alpha, beta, gamma, alignment="order")

    def objective(network: GraphRewriter, batch: WindowBatch) -> Tensor:
        if not len(batch.rows):
            return network.loss(batch.rows, batch.targets)
        target = replacement_graphs(batch.targets[:, 0], network.arity)
        cost: Tensor = ged_loss(*network.predict_graphs(batch.rows, target.exists.shape[1]), target)
        return cost

    return objective


def replacement_graphs(targets: Tensor, arity: Tensor) -> GraphTargets:
    """Replacements as graphs: a node for every slot in use, an edge from every operand to its operator.

    Args:
        targets: int64 ``[batch, slots]``, -1 behind the end of a replacement (see `WindowFeatures`).
        arity: int64 ``[labels]``.
    """
    targets = targets[:, : int((targets >= 0).any(0).sum())]
    parent = parent_slots(targets, arity)
    adjacency = torch.zeros(*targets.shape, targets.shape[1], dtype=torch.bool, device=targets.device)
    window, operand = (parent >= 0).nonzero().unbind(1)
    adjacency[window, operand, parent[window, operand]] = True
    return GraphTargets(targets >= 0, adjacency, targets.clamp(min=0))
