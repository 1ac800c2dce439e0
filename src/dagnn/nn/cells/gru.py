"""GRU cells: over the sum, mean or maximum of the predecessors' states, and over attention to them (DAGNN)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.kernels import Kind, ProjectedCell
from dagnn.kernels.reference import Aggregate, aggregate, check_aggregate, gru_step, segment_softmax, segment_sum
from dagnn.nn.learnable import LearnableModule, before_call, check_operator, check_size


class GatedCell(LearnableModule):
    """``h = GRU(x, message)``. Abstract: a subclass computes the message from the states that a node depends on.

    Args:
        kind: what the compiled sweep calls this message.
        in_features, hidden, operators: as of `GRUCell`.
        score_weight: the parameter of the message, if it has one.
    """

    max_children: int | None = None
    state_weight: nn.Parameter | None

    def __init__(
        self,
        kind: Kind,
        in_features: int,
        hidden: int,
        operators: int | None,
        score_weight: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.operators = None if operators is None else check_size("operators", operators)
        self.state_sizes = (hidden,)
        self._kind = kind
        self.score_weight = score_weight
        self.gru = nn.GRUCell(in_features, hidden)
        self.state_weight = None
        if operators is not None:  # a matrix for every operator takes the place of gru.weight_hh
            self.state_weight = nn.Parameter(torch.empty(operators, hidden, 3 * hidden))
            self._reset_state_weight()
            self.gru.register_parameter("weight_hh", None)

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        self.gru.reset_parameters()
        self._reset_state_weight()

    def _reset_state_weight(self) -> None:
        if self.state_weight is not None:
            bound = 1 / math.sqrt(self.hidden)
            nn.init.uniform_(self.state_weight, -bound, bound)

    def forward(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """State ``(h,)`` of a level, h ``[n, hidden]``; the arguments are those of `dagnn.kernels.Cell`.

        ``position`` is not used; ``operator`` int64 ``[n]`` is given if and only if the cell has operators.
        """
        check_operator(operator, self.operators)
        if operator is not None:
            cell = self.project(features)
            return gru_step(cell.projected, states, target, cell.kind, *cell.weights, operator=operator)
        (h,) = states
        return (self.gru(features, self._message(h, target, len(features))),)

    def _message(self, h: Tensor, target: Tensor, num_nodes: int) -> Tensor:
        """``[num_nodes, hidden]`` from the states ``h [e, hidden]`` of the sources of the edges into ``target [e]``."""
        raise NotImplementedError

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path.

        The biases of the gates r and z from the state are added to the features already. Only n's is kept apart,
        because r multiplies it.
        """
        before_call(self.gru, features)
        hidden, bias = self.gru.hidden_size, self.gru.bias_hh
        of_state = F.pad(bias[: 2 * hidden], (0, hidden))
        projected = F.linear(features, self.gru.weight_ih, self.gru.bias_ih + of_state)
        state_weight = self.gru.weight_hh.t() if self.state_weight is None else self.state_weight
        scores = () if self.score_weight is None else (self.score_weight,)
        return ProjectedCell(self._kind, hidden, projected, (state_weight, bias[2 * hidden :], *scores))


class GRUCell(GatedCell):
    """``h = GRU(x, aggregate over k of h_k)``: any number of operands, in no order.

    A node that depends on nothing starts from a state of zeros. Source: Cho et al., "Learning
    Phrase Representations using RNN Encoder-Decoder", EMNLP 2014, as in ``torch.nn.GRUCell``.

    With ``operators=K`` there are K matrices from the message to the gates, one for every operator,
    in ``state_weight [K, hidden, 3 * hidden]`` instead of ``gru.weight_hh``. `DagSweep` reads the
    operator of a node from the node attribute "operator". All other weights are shared.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h``.
        aggregate: ``"sum"``, ``"mean"`` or ``"max"``.
        operators: operators are ``0 .. operators - 1``; None for one matrix for all nodes.

    Raises:
        ConfigError: a size is below 1, or ``aggregate`` is another word.
        GraphError: (at the call) an operator is missing or out of range.

    Shapes: within `DagSweep`, x ``[num_nodes, in_features]`` -> ``[num_nodes, hidden]``.

    >>> from dagnn import Dag
    >>> from dagnn.nn import DagSweep
    >>> sweep = DagSweep(GRUCell(in_features=3, hidden=5, aggregate="mean"))
    >>> sweep(torch.randn(4, 3), Dag([(0, 2), (1, 2), (2, 3)])).shape
    torch.Size([4, 5])
    """

    def __init__(
        self, in_features: int, hidden: int, aggregate: Aggregate = "sum", *, operators: int | None = None
    ) -> None:
        check_aggregate(aggregate)
        super().__init__(aggregate, in_features, hidden, operators)
        self.aggregate = aggregate

    def _message(self, h: Tensor, target: Tensor, num_nodes: int) -> Tensor:
        return aggregate(self.aggregate, h, target, num_nodes)


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
