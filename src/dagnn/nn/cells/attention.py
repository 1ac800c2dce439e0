"""Attention over the predecessors, then a GRU: the cell of DAGNN."""

import math

import torch
from torch import Tensor, nn

from dagnn.kernels.reference import segment_softmax, segment_sum
from dagnn.nn.cells.gru import GatedCell
from dagnn.nn.checks import check_size


class AttentionCell(GatedCell):
    """A node weighs its predecessors by attention, then updates itself from their weighted sum.

    ::

        a_u = softmax over the predecessors u of  w h_u
        h   = GRU(x, sum over u of a_u h_u)

    Source: Thost, Chen, "Directed Acyclic Graph Neural Networks", ICLR 2021, equations 4-6. The
    paper adds ``w_1 x_v`` inside the softmax. It is the same for all predecessors of v, so the
    softmax cancels it and its gradient is zero; it is left out here.

    With ``operators=K`` there are K matrices from the message to the gates, one for every operator,
    as in `GRUCell`; w is shared.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h``.
        operators: operators are ``0 .. operators - 1``; None for one matrix for all nodes.

    Raises:
        ConfigError: a size is below 1.
        GraphError: (at the call) an operator is missing or out of range.

    Shapes: within `DagSweep`, x ``[num_nodes, in_features]`` -> ``[num_nodes, hidden]``.

    >>> from dagnn import Dag
    >>> from dagnn.nn import DagSweep
    >>> sweep = DagSweep(AttentionCell(in_features=3, hidden=5))
    >>> sweep(torch.randn(4, 3), Dag([(0, 2), (1, 2), (2, 3)])).shape
    torch.Size([4, 5])
    """

    score_weight: nn.Parameter

    def __init__(self, in_features: int, hidden: int, *, operators: int | None = None) -> None:
        score_weight = nn.Parameter(torch.empty(check_size("hidden", hidden)))
        super().__init__("attention", in_features, hidden, operators, score_weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        bound = 1 / math.sqrt(self.hidden)
        nn.init.uniform_(self.score_weight, -bound, bound)
        super().reset_parameters()

    def _message(self, h: Tensor, target: Tensor, num_nodes: int) -> Tensor:
        attention = segment_softmax(h @ self.score_weight, target, num_nodes)
        return segment_sum(attention.unsqueeze(1) * h, target, num_nodes)
