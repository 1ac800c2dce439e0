"""Attention over the predecessors, then a GRU: the cell of DAGNN."""

import math

import torch
from torch import Tensor, nn

from dagnn.kernels import ProjectedCell
from dagnn.kernels.segments import segment_softmax, segment_sum
from dagnn.nn.cells.gru import project_gru
from dagnn.nn.checks import check_size
from dagnn.nn.learnable import LearnableModule


class AttentionCell(LearnableModule):
    """A node weighs its predecessors by attention, then updates itself from what they say.

    ::

        a_u = softmax over the predecessors u of  w h_u
        h   = GRU(x, sum over u of a_u h_u)

    Source: Thost, Chen, "Directed Acyclic Graph Neural Networks", ICLR 2021, equations 4-6. The
    paper adds ``w_1 x_v`` inside the softmax. It is the same for all predecessors of v, so the
    softmax cancels it and its gradient is zero; it is left out here.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h``.

    Raises:
        ConfigError: a size is below 1.
    """

    max_children: int | None = None
    operators: int | None = None

    def __init__(self, in_features: int, hidden: int) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.state_sizes = (hidden,)
        self.score_weight = nn.Parameter(torch.empty(hidden))
        self.gru = nn.GRUCell(in_features, hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        bound = 1 / math.sqrt(self.hidden)
        nn.init.uniform_(self.score_weight, -bound, bound)
        self.gru.reset_parameters()

    def forward(
        self, features: Tensor, states: tuple[Tensor, ...], target: Tensor, position: Tensor
    ) -> tuple[Tensor, ...]:
        """State ``(h,)`` of a level; see `dagnn.kernels.Cell`. ``position`` is not used."""
        (h,) = states
        attention = segment_softmax(h @ self.score_weight, target, len(features))
        message = segment_sum(attention.unsqueeze(1) * h, target, len(features))
        return (self.gru(features, message),)

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        return project_gru("attention", self.gru, features, self.score_weight)
