"""A GRU over the sum, mean or maximum of the states that a node depends on."""

import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.kernels import Kind, ProjectedCell
from dagnn.kernels.segments import Aggregate, aggregate, check_aggregate
from dagnn.nn.checks import check_size
from dagnn.nn.learnable import LearnableModule


class GRUCell(LearnableModule):
    """``h = GRU(x, aggregate over k of h_k)``: any number of operands, in no order.

    A node that depends on nothing starts from a state of zeros. Source: Cho et al., "Learning
    Phrase Representations using RNN Encoder-Decoder", EMNLP 2014, as in ``torch.nn.GRUCell``.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h``.
        aggregate: ``"sum"``, ``"mean"`` or ``"max"``.

    Raises:
        ConfigError: a size is below 1, or ``aggregate`` is another word.
    """

    max_children: int | None = None
    operators: int | None = None

    def __init__(self, in_features: int, hidden: int, aggregate: Aggregate = "sum") -> None:
        super().__init__()
        check_aggregate(aggregate)
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.aggregate = aggregate
        self.state_sizes = (hidden,)
        self.gru = nn.GRUCell(in_features, hidden)

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        self.gru.reset_parameters()

    def forward(
        self, features: Tensor, states: tuple[Tensor, ...], target: Tensor, position: Tensor
    ) -> tuple[Tensor, ...]:
        """State ``(h,)`` of a level; see `dagnn.kernels.Cell`. ``position`` is not used."""
        (h,) = states
        return (self.gru(features, aggregate(self.aggregate, h, target, len(features))),)

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        return project_gru(self.aggregate, self.gru, features)


def project_gru(kind: Kind, gru: nn.GRUCell, features: Tensor, *further: Tensor) -> ProjectedCell:
    """A GRU on features: what the state says to r and z has its bias in them already, only n's is kept apart."""
    hidden = gru.hidden_size
    of_state = F.pad(gru.bias_hh[: 2 * hidden], (0, hidden))
    projected = F.linear(features, gru.weight_ih, gru.bias_ih + of_state)
    return ProjectedCell(kind, hidden, projected, (gru.weight_hh.t(), gru.bias_hh[2 * hidden :], *further))
