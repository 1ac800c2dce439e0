"""`DiscreteCell`: a node is in one of k states, and learned tables say in which."""

import math
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.kernels.reference import segment_sum
from dagnn.nn.learnable import LearnableModule, check_operator, check_size

_WINDOW = 4.0  # how much sharper an order statistic is than a table: operands are counted, and differ by 1


class DiscreteCell(LearnableModule):
    """A node holds one of k symbols, as a distribution that training sharpens until it is one symbol.

    A node without operands gets its symbol from its features. One with operands gets it from a learned binary table
    of its operator, ``next``, that is folded over a sequence of symbols; its features play no part::

        s_1 = first[operator][c_1],   s_i = next[operator][s_(i-1), c_i]

    The sequence is, as each operator learns, one of two: its operands in their order, any number of them, which makes
    the cell a finite automaton; or ``picks`` order statistics of them, each chosen from the smallest, the lower and
    upper quantiles at ``1 / quantiles``, ``2 / quantiles`` ..., and the largest. What is smaller is learned too, as a
    relation of each two symbols that all operators share.

    All choices are a softmax of ``sharpness`` times trained logits, and an output is the probability of each symbol:
    train on ``-log`` of the right one's. Let ``sharpness`` grow from about 2 to 8 meanwhile. With ``sharpness =
    math.inf`` everything is hard: tables have one entry, a node has one symbol, and what is right for the operands
    seen stays right however large the graph. There is no gradient then. The number is in the state dict.

    Tables begin as copies of what they read, so the symbols of features are learned first, as words are aligned in
    translation. The cell runs level by level, in PyTorch's operators, on any device.

    Args:
        in_features: width of a node's features.
        symbols: k, how many there are.
        operators: operators are ``0 .. operators - 1``, each with tables of its own. `DagSweep` reads the operator of
            a node from the node attribute "operator". None for one for all nodes.
        picks: order statistics in the sequence.
        quantiles: of which they are: 4 has quartiles and the median, 1 the smallest and the largest alone.

    Raises:
        ConfigError: a size is below 1; ``sharpness`` is set to what is neither a number from 0.001 to 1,000,000
            nor infinite: softer or harder, float32 loses the gradient.
        GraphError: (at the call) an operator is missing or out of range.

    Shapes: within `DagSweep`, x ``[num_nodes, in_features]`` -> ``[num_nodes, symbols]``, rows that sum to 1; the
    dtype is that of the parameters. Parameters, with K operators (1 for None): ``feature_weight [in_features, k]``,
    ``bias [k]``, ``first [K, k, k]``, ``next [K, k, k, k]``, ``above [k, k]``, ``chosen [K, picks, 2 * quantiles]``
    and ``in_order [K]``.

    Source: the soft automaton is the forward algorithm of Rabiner, "A Tutorial on Hidden Markov Models", Proceedings
    of the IEEE 77(2), 1989, with operands in the place of observations.

    >>> from dagnn import Dag
    >>> from dagnn.nn import DagSweep
    >>> cell = DiscreteCell(in_features=3, symbols=5)
    >>> sweep, dag = DagSweep(cell), Dag([(0, 2), (1, 2), (2, 3)])
    >>> sweep(torch.randn(4, 3), dag).shape
    torch.Size([4, 5])
    >>> cell.sharpness = math.inf
    >>> sweep(torch.randn(4, 3), dag).max(dim=1).values
    tensor([1., 1., 1., 1.])
    """

    def __init__(
        self, in_features: int, symbols: int, *, operators: int | None = None, picks: int = 2, quantiles: int = 4
    ) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.symbols = k = check_size("symbols", symbols)
        self.operators = None if operators is None else check_size("operators", operators)
        self.picks = check_size("picks", picks)
        self.quantiles = check_size("quantiles", quantiles)
        self.state_sizes = (k,)
        self._sharpness = 2.0
        of_each = operators or 1
        self.feature_weight = nn.Parameter(torch.empty(in_features, k))
        self.bias = nn.Parameter(torch.empty(k))
        self.first = nn.Parameter(torch.empty(of_each, k, k))
        self.next = nn.Parameter(torch.empty(of_each, k, k, k))
        self.above = nn.Parameter(torch.empty(k, k))
        self.chosen = nn.Parameter(torch.empty(of_each, picks, 2 * quantiles))
        self.in_order = nn.Parameter(torch.empty(of_each))
        self.reset_parameters()

    @property
    def sharpness(self) -> float:
        """What all logits are multiplied by; ``math.inf`` takes the largest."""
        return self._sharpness

    @sharpness.setter
    def sharpness(self, value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, Real) or not (1e-3 <= value <= 1e6 or value == math.inf):
            raise ConfigError(f"sharpness must be a number from 0.001 to 1,000,000, or math.inf, got {value!r}.")
        self._sharpness = float(value)

    def reset_parameters(self) -> None:
        """Normal with deviation 0.1, around copies and around statistics; no change of ``sharpness``.

        ``next`` prefers what it reads by a logit of 1, ``first`` by 2: with 1 it learned permutations that no table
        could undo. ``in_order`` is -0.3: tables in order are learned sooner, and operators that went there at once
        left those that need an order without one.
        """
        with torch.no_grad():
            for parameter in self.parameters(recurse=False):
                nn.init.normal_(parameter, std=0.1)
            own = torch.eye(self.symbols, dtype=self.first.dtype, device=self.first.device)
            self.first.add_(own, alpha=2)
            self.next.add_(own.unsqueeze(0) + own.unsqueeze(1))
            self.in_order.sub_(0.3)

    def forward(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Distributions ``(p,)`` of a level, p ``[n, symbols]``; the arguments are those of `dagnn.kernels.Cell`.

        Operands come in the order of their positions, those of one position as they are listed. ``operator`` int64
        ``[n]`` is given if and only if the cell has operators.
        """
        check_operator(operator, self.operators)
        of_features = self._soft(features @ self.feature_weight + self.bias)
        if not len(target):
            return (of_features,)

        operands, count = _in_rows(states[0], target, position, len(features))
        kind = torch.zeros_like(count) if operator is None else operator
        folded = self._fold(operands, count, kind)
        picked = self._fold(self._pick(operands.sum(1), count, kind), count.new_full(count.shape, self.picks), kind)
        logits = torch.stack([self.in_order, -self.in_order], 1)
        in_order = self._soft(logits)[:, :1].index_select(0, kind)
        mixed = in_order * folded + (1 - in_order) * picked
        return (torch.where((count > 0).unsqueeze(1), mixed, of_features),)

    def _soft(self, logits: Tensor) -> Tensor:
        """The distribution over the last dimension."""
        if self._sharpness == math.inf:
            return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        return (self._sharpness * logits).softmax(-1)

    def _step(self, logits: Tensor) -> Tensor:
        """Probability that what has these ``logits`` is above 0."""
        if self._sharpness == math.inf:
            return (logits > 0).to(logits.dtype)
        return torch.sigmoid(self._sharpness * logits)

    def _fold(self, sequence: Tensor, length: Tensor, kind: Tensor) -> Tensor:
        """The table of each node's operator over its row ``[n, longest, k]``, of which ``length [n]`` counts."""
        n, longest, k = sequence.shape
        # All operators at once, and each node takes its own: one product, where sorting nodes would take several.
        first = self._soft(self.first).transpose(0, 1).reshape(k, -1)
        table = self._soft(self.next).permute(1, 2, 0, 3).reshape(k * k, -1)
        own = kind.view(n, 1, 1).expand(n, 1, k)
        state = (sequence[:, 0] @ first).view(n, -1, k).gather(1, own).squeeze(1)
        for i in range(1, longest):
            pairs = (state.unsqueeze(2) * sequence[:, i].unsqueeze(1)).view(n, k * k)
            new = (pairs @ table).view(n, -1, k).gather(1, own).squeeze(1)
            state = torch.where((length > i).unsqueeze(1), new, state)
        return state

    def _pick(self, counts: Tensor, count: Tensor, kind: Tensor) -> Tensor:
        """The chosen order statistics of each node, ``[n, picks, k]``, from how often it has each symbol, ``[n, k]``.

        A symbol covers the places ``below .. below + its count`` on a line of the length ``count``; the statistic is
        the symbol at a mark on it, and softly the mass of a logistic density around the mark.
        """
        below = counts @ self._is_above().t()
        upto = below + counts
        mark = self._marks(count.to(counts.dtype))
        reach = _WINDOW * (torch.stack([upto, below]).unsqueeze(2) - mark.unsqueeze(2))
        until, before = self._step(reach).unbind(0)
        # Before any order is learned a mark may be outside of what is covered; then every operand is as likely.
        weight = until - before + 1e-6 / self._sharpness * counts.unsqueeze(1)
        # A node without operands has none: it is no 0 / 0, whose gradient would be NaN though nobody uses it.
        total = weight.sum(2, keepdim=True)
        statistics = weight / torch.where(total > 0, total, 1)
        return self._soft(self.chosen).index_select(0, kind) @ statistics

    def _is_above(self) -> Tensor:
        """``[k, k]``: the probability that the symbol of the row is above that of the column; 0 on the diagonal."""
        above = self.above - self.above.t()
        if self._sharpness == math.inf:
            # Where the relation has a circle, no mark would hit one symbol alone: each is placed by how many it is
            # above, and by its number where those are equal. An order stays as it is.
            place = (above > 0).sum(1).argsort(stable=True).argsort()
            return (place.unsqueeze(1) > place).to(above.dtype)
        return self._step(above) * (1 - torch.eye(self.symbols, dtype=above.dtype, device=above.device))

    def _marks(self, count: Tensor) -> Tensor:
        """Where each statistic is on a line of the length ``count``: ``[n, 2 * quantiles]``.

        The q-quantile of n operands is at q n. Where that is a whole number it is between two of them, and the lower
        and the upper quantile are those two. An eighth to either side finds them, and can touch no other border while
        ``quantiles`` is at most 4; for more the step is smaller.
        """
        levels = torch.arange(1, self.quantiles, dtype=count.dtype, device=count.device) / self.quantiles
        side = min(0.125, 0.5 / self.quantiles)
        share = torch.cat([levels.new_zeros(1), levels, levels, levels.new_ones(1)])
        end, sides = levels.new_full((1,), 0.5), torch.full_like(levels, side)
        mark = count.unsqueeze(1) * share + torch.cat([end, -sides, sides, -end])
        # 0.125 n can be less than half an operand from the ends: the mark stays within the first and the last.
        return torch.minimum(mark.clamp(min=0.5), (count - 0.5).clamp(min=0.5).unsqueeze(1))

    def get_extra_state(self) -> Tensor:
        """The sharpness, for the state dict."""
        return torch.tensor(self._sharpness, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Take the sharpness from a state dict."""
        self.sharpness = float(state)


def _in_rows(states: Tensor, target: Tensor, position: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """The operands of every node in a row, padded with zeros, ``[n, most, k]``, and how many there are, ``[n]``."""
    order = position.argsort(stable=True)
    order = order.index_select(0, target.index_select(0, order).argsort(stable=True))
    target = target.index_select(0, order)
    count = segment_sum(torch.ones_like(target), target, nodes)
    rank = torch.arange(len(target), device=target.device) - (count.cumsum(0) - count).index_select(0, target)
    most = int(count.max())
    rows = states.new_zeros(nodes * most, states.shape[1])
    rows = rows.index_copy(0, target * most + rank, states.index_select(0, order))
    return rows.view(nodes, most, -1), count
