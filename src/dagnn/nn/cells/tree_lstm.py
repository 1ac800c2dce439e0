"""TreeLSTM cells: ordered children with a forget gate each, and the sum over unordered children.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long
Short-Term Memory Networks", ACL 2015.
"""

from typing import Any

import torch

from dagnn.kernels import Named, Operands, Weights
from dagnn.nn.cells.formula import FormulaCell


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
