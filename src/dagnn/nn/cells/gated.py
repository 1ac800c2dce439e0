"""Gated cells: GRUs over the sum, mean or maximum of the predecessors' states or over attention to them, and TreeLSTMs.

Sources are at the classes. The TreeLSTMs, ordered children with a forget gate each and the sum over unordered children,
are those of Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory
Networks", ACL 2015.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.kernels import Named, Operands, ProjectedCell, Weights
from dagnn.kernels.reference import Aggregate, aggregate, cell_step, check_aggregate, segment_softmax, segment_sum
from dagnn.nn.cells.formula import FormulaCell
from dagnn.nn.learnable import before_call, check_operator


class GatedCell(FormulaCell):
    """``h = GRU(x, message)``; its arguments are those of `GRUCell`. Abstract: a subclass computes the message."""

    score_weight: nn.Parameter  # of attention
    state_weight: nn.Parameter | None  # type: ignore[assignment]  # None without operators

    def __init__(self, in_features: int, hidden: int, operators: int | None) -> None:
        super().__init__(in_features, hidden, operators=operators)

    def formula(self, x: Named, operands: Operands, weights: Weights) -> Any:
        message = self.message(operands)
        m = weights.product(message)
        r, z = torch.sigmoid(x.r + m.r), torch.sigmoid(x.z + m.z)
        # r after the product, as in torch.nn.GRU: so one product serves all three gates.
        n = torch.tanh(x.n + r * (m.n + weights.bias_n))
        return n + z * (message - n)

    def message(self, operands: Operands) -> Any:
        """What a node hears, in the formula."""
        raise NotImplementedError

    def make_parameters(self) -> None:
        """Set the parameters: those of ``gru``, and a matrix for every operator in the place of ``gru.weight_hh``."""
        self.gru = nn.GRUCell(self.in_features, self.hidden)
        self.state_weight = None
        if self.operators is not None:
            self.state_weight = nn.Parameter(torch.empty(self.operators, self.hidden, 3 * self.hidden))
            self.gru.register_parameter("weight_hh", None)

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        self.gru.reset_parameters()
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
            return cell_step(self.plan, cell.projected, states, target, position, cell.weights, 1, operator)
        (h,) = states
        return (self.gru(features, self._message(h, target, len(features))),)

    def _message(self, h: Tensor, target: Tensor, num_nodes: int) -> Tensor:
        """``[num_nodes, hidden]`` from the states ``h [e, hidden]`` of the sources of the edges into ``target [e]``."""
        raise NotImplementedError

    def of_features(self) -> tuple[Tensor, Tensor]:
        """What projects the features.

        The biases of the gates r and z from the state are in that of the features already. Only n's is kept apart,
        because r multiplies it.
        """
        hidden = self.gru.hidden_size
        of_state = F.pad(self.gru.bias_hh[: 2 * hidden], (0, hidden))
        return self.gru.weight_ih.t(), self.gru.bias_ih + of_state

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        before_call(self.gru, features)
        hidden, bias = self.gru.hidden_size, self.gru.bias_hh
        weight, bias_of_features = self.of_features()
        projected = F.linear(features, weight.t(), bias_of_features)
        state_weight = self.gru.weight_hh.t() if self.state_weight is None else self.state_weight
        scores = (self.score_weight,) if self.plan.has_attention else ()
        return ProjectedCell(self.plan, hidden, projected, (state_weight, bias[2 * hidden :], *scores))


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
        self.aggregate = aggregate  # first, for the formula is recorded when the cell is made
        super().__init__(in_features, hidden, operators)

    def message(self, operands: Operands) -> Any:
        reduce = {"sum": operands.sum, "mean": operands.mean, "max": operands.max}[self.aggregate]
        return reduce(operands.h)

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

    def __init__(self, in_features: int, hidden: int, *, operators: int | None = None) -> None:
        super().__init__(in_features, hidden, operators)

    def message(self, operands: Operands) -> Any:
        return operands.sum(operands.attention() * operands.h)

    def make_parameters(self) -> None:
        super().make_parameters()
        self.score_weight = nn.Parameter(torch.empty(self.hidden))

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.GRUCell``."""
        bound = 1 / math.sqrt(self.hidden)
        nn.init.uniform_(self.score_weight, -bound, bound)
        super().reset_parameters()

    def _message(self, h: Tensor, target: Tensor, num_nodes: int) -> Tensor:
        attention = segment_softmax(h @ self.score_weight, target, num_nodes)
        return segment_sum(attention.unsqueeze(1) * h, target, num_nodes)


class TreeLSTMCell(FormulaCell):
    """The N-ary TreeLSTM (equations 9-14 of the paper): the weights of an operand depend on its position.

    With ``h_k, c_k`` the state of operand k (0 where there is none)::

        i, o, u = sigmoid, sigmoid, tanh of  W x + b + sum over k of U_k h_k
        f_k     = sigmoid of                 W_f x + b_f + sum over l of U_kl h_l
        c       = i * u + sum over k of f_k * c_k
        h       = o * tanh(c)

    Where several edges into a node have the same position (a shared node seen from its parents in
    a ``"down"`` sweep), their ``h`` are summed and each keeps its own ``f_k * c``.

    With ``operators=K`` there are K matrices U, one for every operator. `DagSweep` reads the operator
    of a node from the node attribute "operator". W and b are shared: what depends on the operator
    alone belongs into the features.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h`` and ``c``.
        max_children: positions are ``0 .. max_children - 1``.
        operators: operators are ``0 .. operators - 1``; None for one U for all nodes.

    Raises:
        ConfigError: a size is below 1.
        GraphError: (at the call) an edge has a position of ``max_children`` or above; an operator is
            missing or out of range.

    Shapes: within `DagSweep`, x ``[num_nodes, in_features]`` -> ``[num_nodes, hidden]``.

    >>> from dagnn import Dag
    >>> from dagnn.nn import DagSweep
    >>> sweep = DagSweep(TreeLSTMCell(in_features=3, hidden=5, max_children=2))
    >>> sweep(torch.randn(4, 3), Dag([(0, 2), (1, 2), (2, 3)])).shape
    torch.Size([4, 5])
    """

    states = ("h", "c")

    def __init__(self, in_features: int, hidden: int, max_children: int = 2, *, operators: int | None = None) -> None:
        # Columns i, o, u, f, and for the states i, o, u, f_0, f_1, ..., so that the weights of the
        # first a operands are the slice [: a * hidden, : (3 + a) * hidden].
        super().__init__(in_features, hidden, max_children, operators=operators)

    def formula(self, x: Named, operands: Operands, weights: Weights) -> tuple[Any, Any]:
        m = weights.product(operands.by_slot(operands.h))
        i, o, u = torch.sigmoid(x.i + m.i), torch.sigmoid(x.o + m.o), torch.tanh(x.u + m.u)
        # Every operand in a slot has the same forget gate, so their states are summed first: one gate, one product.
        c = i * u + operands.sum(torch.sigmoid(x.f + m.by_slot.f) * operands.by_slot(operands.c))
        return o * torch.tanh(c), c

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.LSTM``; forget biases start at 1."""
        super().reset_parameters()
        _remember(self)


class ChildSumTreeLSTMCell(FormulaCell):
    """The child-sum TreeLSTM (equations 2-8 of the paper): any number of operands, in no order.

    ::

        i, o, u = sigmoid, sigmoid, tanh of  W x + b + U (sum over k of h_k)
        f_k     = sigmoid of                 W_f x + b_f + U_f h_k
        c       = i * u + sum over k of f_k * c_k
        h       = o * tanh(c)

    With ``operators=K`` there are K matrices U, one for every operator. `DagSweep` reads the operator
    of a node from the node attribute "operator". U_f is shared, as W and b are: ``U_f h_k`` is then
    computed once for all the nodes that use operand k.

    Args:
        in_features: width of a node's features.
        hidden: width of ``h`` and ``c``.
        operators: operators are ``0 .. operators - 1``; None for one U for all nodes.

    Raises:
        ConfigError: a size is below 1.
        GraphError: (at the call) an operator is missing or out of range.

    Shapes: within `DagSweep`, x ``[num_nodes, in_features]`` -> ``[num_nodes, hidden]``.

    >>> from dagnn import Dag
    >>> from dagnn.nn import DagSweep
    >>> sweep = DagSweep(ChildSumTreeLSTMCell(in_features=3, hidden=5))
    >>> sweep(torch.randn(4, 3), Dag([(0, 2), (1, 2), (2, 3)])).shape
    torch.Size([4, 5])
    """

    states = ("h", "c")

    def __init__(self, in_features: int, hidden: int, *, operators: int | None = None) -> None:
        super().__init__(in_features, hidden, operators=operators)

    def formula(self, x: Named, operands: Operands, weights: Weights) -> tuple[Any, Any]:
        m = weights.product(operands.sum(operands.h))
        i, o, u = torch.sigmoid(x.i + m.i), torch.sigmoid(x.o + m.o), torch.tanh(x.u + m.u)
        f = torch.sigmoid(x.f + weights.each(operands.h, "forget_weight"))
        c = i * u + operands.sum(f * operands.c)
        return o * torch.tanh(c), c

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.LSTM``; forget biases start at 1."""
        super().reset_parameters()
        _remember(self)


def _remember(cell: FormulaCell) -> None:
    # Remember by default. Source: Jozefowicz, Zaremba, Sutskever, "An Empirical Exploration of
    # Recurrent Network Architectures", ICML 2015, section 4.
    with torch.no_grad():
        cell.bias[3 * cell.hidden :] = 1.0
