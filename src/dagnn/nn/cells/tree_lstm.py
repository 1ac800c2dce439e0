"""TreeLSTM cells: ordered children with a forget gate each, and the sum over unordered children.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long
Short-Term Memory Networks", ACL 2015.
"""

import math

import torch
from torch import Tensor, nn

from dagnn.errors import GraphError
from dagnn.kernels import ProjectedCell
from dagnn.kernels.reference import child_sum_step, tree_lstm_step
from dagnn.nn.learnable import LearnableModule, check_operator, check_size


class TreeLSTMCell(LearnableModule):
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

    def __init__(self, in_features: int, hidden: int, max_children: int = 2, *, operators: int | None = None) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.max_children = check_size("max_children", max_children)
        self.operators = None if operators is None else check_size("operators", operators)
        self.state_sizes = (hidden, hidden)
        # Columns i, o, u, f, and for the states i, o, u, f_0, f_1, ..., so that the weights of the
        # first a operands are the slice [: a * hidden, : (3 + a) * hidden].
        shape = (max_children * hidden, (3 + max_children) * hidden)
        self.feature_weight = nn.Parameter(torch.empty(in_features, 4 * hidden))
        self.state_weight = nn.Parameter(torch.empty(shape if operators is None else (operators, *shape)))
        self.bias = nn.Parameter(torch.empty(4 * hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.LSTM``; forget biases start at 1."""
        _reset_lstm(self.hidden, [self.feature_weight, self.state_weight], self.bias)

    def forward(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """States ``(h, c)`` of a level, ``[n, hidden]`` each; the arguments are those of `dagnn.kernels.Cell`.

        ``operator`` int64 ``[n]`` is given if and only if the cell has operators.
        """
        # Under torch.compile the values are unknown, and `DagSweep` checks the positions of its graph instead.
        if len(target) and not torch.compiler.is_compiling():
            low, high = position.aminmax()
            self.check_positions(int(low), int(high))
        check_operator(operator, self.operators)
        projected = features @ self.feature_weight + self.bias
        return tree_lstm_step(projected, states, target, position, self.state_weight, operator)

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        projected = torch.addmm(self.bias, features, self.feature_weight)
        return ProjectedCell("tree_lstm", self.hidden, projected, (self.state_weight,))

    def check_positions(self, lowest: int, highest: int) -> None:
        """Raise GraphError unless positions are in ``0 .. max_children - 1``."""
        if lowest < 0 or highest >= self.max_children:
            raise GraphError(
                f"an edge has position {lowest if lowest < 0 else highest}, but max_children={self.max_children} "
                f"allows positions 0 .. {self.max_children - 1}: raise max_children, or use ChildSumTreeLSTMCell."
            )


class ChildSumTreeLSTMCell(LearnableModule):
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

    max_children: int | None = None

    def __init__(self, in_features: int, hidden: int, *, operators: int | None = None) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.operators = None if operators is None else check_size("operators", operators)
        self.state_sizes = (hidden, hidden)
        self.feature_weight = nn.Parameter(torch.empty(in_features, 4 * hidden))  # columns i, o, u, f
        shape = (hidden, 3 * hidden)  # columns i, o, u
        self.state_weight = nn.Parameter(torch.empty(shape if operators is None else (operators, *shape)))
        self.forget_weight = nn.Parameter(torch.empty(hidden, hidden))
        self.bias = nn.Parameter(torch.empty(4 * hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.LSTM``; forget biases start at 1."""
        _reset_lstm(self.hidden, [self.feature_weight, self.state_weight, self.forget_weight], self.bias)

    def forward(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """States ``(h, c)`` of a level, ``[n, hidden]`` each; the arguments are those of `dagnn.kernels.Cell`.

        ``position`` is not used; ``operator`` int64 ``[n]`` is given if and only if the cell has operators.
        """
        check_operator(operator, self.operators)
        projected = features @ self.feature_weight + self.bias
        return child_sum_step(projected, states, target, self.state_weight, self.forget_weight, operator=operator)

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        projected = torch.addmm(self.bias, features, self.feature_weight)
        return ProjectedCell("child_sum", self.hidden, projected, (self.state_weight, self.forget_weight))


def _reset_lstm(hidden: int, weights: list[nn.Parameter], bias: nn.Parameter) -> None:
    bound = 1 / math.sqrt(hidden)
    for weight in weights:
        nn.init.uniform_(weight, -bound, bound)
    with torch.no_grad():
        bias.zero_()
        # Remember by default. Source: Jozefowicz, Zaremba, Sutskever, "An Empirical Exploration of
        # Recurrent Network Architectures", ICML 2015, section 4.
        bias[3 * hidden :] = 1.0
