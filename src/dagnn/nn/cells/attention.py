"""Attention over the predecessors, then a GRU: the cell of DAGNN."""

import math

import torch
from torch import Tensor, nn

from dagnn.kernels import ProjectedCell
from dagnn.kernels.reference import segment_softmax, segment_sum
from dagnn.nn.cells.gru import project_gru, reset_state_weight, state_weight_of, step_by_operator
from dagnn.nn.checks import check_operator, check_size
from dagnn.nn.learnable import LearnableModule


class AttentionCell(LearnableModule):
    """A node weighs its predecessors by attention, then updates itself from what they say.

    ::

        a_u = softmax over the predecessors u of  w h_u
        h   = GRU(x, sum over u of a_u h_u)

    Source: Thost, Chen, "Directed Acyclic Graph Neural Networks", ICLR 2021, equations 4-6. The
    paper adds ``w_1 x_v`` inside the softmax. It is the same for all predecessors of v, so the
    softmax cancels it and its gradient is zero; it is left out here.

    With ``operators=K`` there are K matrices of what the message says to the gates, one for every
    operator, as in `GRUCell`; w stays shared.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h``.
        operators: operators are ``0 .. operators - 1``; None for one matrix for all nodes.

    Raises:
        ConfigError: a size is below 1.
        GraphError: (at the call) an operator is missing or out of range.
    """

    max_children: int | None = None
    state_weight: nn.Parameter | None

    def __init__(self, in_features: int, hidden: int, *, operators: int | None = None) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.operators = None if operators is None else check_size("operators", operators)
        self.state_sizes = (hidden,)
        self.score_weight = nn.Parameter(torch.empty(hidden))
        self.gru = nn.GRUCell(in_features, hidden)
        self.state_weight = state_weight_of(self.gru, self.operators)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        bound = 1 / math.sqrt(self.hidden)
        nn.init.uniform_(self.score_weight, -bound, bound)
        self.gru.reset_parameters()
        reset_state_weight(self.state_weight)

    def forward(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """State ``(h,)`` of a level; see `dagnn.kernels.Cell`. ``position`` is not used."""
        check_operator(operator, self.operators)
        if operator is not None:
            return step_by_operator(self.project(features), states, target, operator)
        (h,) = states
        attention = segment_softmax(h @ self.score_weight, target, len(features))
        message = segment_sum(attention.unsqueeze(1) * h, target, len(features))
        return (self.gru(features, message),)

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        return project_gru("attention", self.gru, self.state_weight, features, self.score_weight)
