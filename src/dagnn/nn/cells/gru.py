"""A GRU over the sum, mean or maximum of the states that a node depends on."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.kernels import Kind, ProjectedCell
from dagnn.kernels.reference import Aggregate, aggregate, check_aggregate, gru_step
from dagnn.nn.checks import check_operator, check_size
from dagnn.nn.learnable import LearnableModule, before_call


class GRUCell(LearnableModule):
    """``h = GRU(x, aggregate over k of h_k)``: any number of operands, in no order.

    A node that depends on nothing starts from a state of zeros. Source: Cho et al., "Learning
    Phrase Representations using RNN Encoder-Decoder", EMNLP 2014, as in ``torch.nn.GRUCell``.

    With ``operators=K`` there are K matrices of what the state says to the gates, one for every
    operator, in ``state_weight [K, hidden, 3 * hidden]`` instead of ``gru.weight_hh``: `DagSweep`
    reads from the node attribute "operator" which one a node has. All else stays shared.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h``.
        aggregate: ``"sum"``, ``"mean"`` or ``"max"``.
        operators: operators are ``0 .. operators - 1``; None for one matrix for all nodes.

    Raises:
        ConfigError: a size is below 1, or ``aggregate`` is another word.
        GraphError: (at the call) an operator is missing or out of range.
    """

    max_children: int | None = None
    state_weight: nn.Parameter | None

    def __init__(
        self, in_features: int, hidden: int, aggregate: Aggregate = "sum", *, operators: int | None = None
    ) -> None:
        super().__init__()
        check_aggregate(aggregate)
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.aggregate = aggregate
        self.operators = None if operators is None else check_size("operators", operators)
        self.state_sizes = (hidden,)
        self.gru = nn.GRUCell(in_features, hidden)
        self.state_weight = state_weight_of(self.gru, self.operators)

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
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
        return (self.gru(features, aggregate(self.aggregate, h, target, len(features))),)

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        return project_gru(self.aggregate, self.gru, self.state_weight, features)


def state_weight_of(gru: nn.GRUCell, operators: int | None) -> nn.Parameter | None:
    """The weights for every operator, ``[operators, hidden, 3 * hidden]``, which take the place of ``weight_hh``."""
    if operators is None:
        return None
    weight = nn.Parameter(torch.empty(operators, gru.hidden_size, 3 * gru.hidden_size))
    reset_state_weight(weight)
    gru.register_parameter("weight_hh", None)
    return weight


def reset_state_weight(weight: nn.Parameter | None) -> None:
    """Uniform in +-1/sqrt(hidden), where there is one."""
    if weight is not None:
        bound = 1 / math.sqrt(weight.shape[1])
        nn.init.uniform_(weight, -bound, bound)


def project_gru(
    kind: Kind, gru: nn.GRUCell, state_weight: Tensor | None, features: Tensor, *further: Tensor
) -> ProjectedCell:
    """A GRU on features: what the state says to r and z has its bias in them already, only n's is kept apart."""
    hidden = gru.hidden_size
    before_call(gru, features)
    of_state = F.pad(gru.bias_hh[: 2 * hidden], (0, hidden))
    projected = F.linear(features, gru.weight_ih, gru.bias_ih + of_state)
    weight = gru.weight_hh.t() if state_weight is None else state_weight
    return ProjectedCell(kind, hidden, projected, (weight, gru.bias_hh[2 * hidden :], *further))


def step_by_operator(
    cell: ProjectedCell, states: tuple[Tensor, ...], target: Tensor, operator: Tensor
) -> tuple[Tensor, ...]:
    """State ``(h,)`` of a level whose nodes have weights by operator."""
    return gru_step(cell.projected, states, target, cell.kind, *cell.weights, operator=operator)
