"""`FormulaCell`: a cell from a formula alone, compiled forward and backward where its formula can be."""

import math
from collections.abc import Callable
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError, GraphError
from dagnn.kernels import CellPlan, Named, Operands, ProjectedCell, Weights, explain_cell, plan_cell
from dagnn.kernels.reference import cell_step
from dagnn.nn.learnable import LearnableModule, check_operator, check_size

_CHANGES = (bool, int, float, complex, str, tuple, Tensor)
_OF_MODULES = frozenset(dir(nn.Module))


class FormulaCell(LearnableModule):
    """A cell of your own: subclass it and write its `formula`; weights, gradients and compiled code follow from that.

    ::

        class MinimalGatedUnit(FormulaCell):
            def formula(self, x, operands, weights):
                s = operands.sum(operands.h)
                m = weights.product(s)
                f = torch.sigmoid(x.f + m.f)
                return s + f * (torch.tanh(x.n + f * m.n) - s)

    The class attribute ``states`` names the states; the first one is the output. A formula computes with

    - ``x.NAME``: a part of the projected features ``W x + b``, as many as you name;
    - ``operands.STATE``: a state of each operand; ``operands.sum``, ``mean`` and ``max`` reduce what differs from
      operand to operand; with ``max_children``, ``mean`` and ``max`` do so in each slot, and what they give is summed;
      ``by_slot`` sums in each slot; ``softmax`` weighs, and ``attention()`` is the softmax of a trained score of each
      operand, both without ``max_children``;
    - ``weights.product(a, ...)``: a product with what was reduced, once in a formula. Of the result m, ``m.NAME`` are
      its parts, as many as you name, and ``m.by_slot.NAME`` one that every slot has of its own;
    - ``weights.each(operands.h)``: a product with the output of each operand;
    - ``weights.NAME``: a trained vector of the width ``hidden``;
    - numbers, operators and PyTorch's ``exp log tanh sigmoid silu relu sqrt sin cos abs maximum minimum where clamp``.

    The formula is recorded when the cell is made, for training and for eval mode, so it may branch on ``self.training``
    (dropout does) and on attributes, never on values. It is recorded again where an attribute is set, or a variable
    that it reads. ``a += b`` makes a new value, and leaves the one that was called a.
    Other functions of PyTorch that keep the shape work too; such a cell runs level by level, and `explain` says why.

    Args:
        in_features: width of a node's features.
        hidden: width of every state.
        max_children: of an ordered cell: positions are ``0 .. max_children - 1``, and each is a slot with rows and
            columns of its own in the weight of the product. None: operands have no order.
        operators: operators are ``0 .. operators - 1``, each with a weight of the product; None for one for all nodes.

    Raises:
        ConfigError: a size is below 1; the formula is none, and the message quotes its line; it has a function of
            PyTorch's that mixes nodes or does not keep the shape; or it names other weights in training than in eval
            mode, or than before an attribute was set.
        GraphError: (at the call) an edge has a position of ``max_children`` or above; an operator is missing or out of
            range.

    Shapes: within `DagSweep`, x ``[num_nodes, in_features]`` -> ``[num_nodes, hidden]``. Parameters:
    ``feature_weight``, ``state_weight``, ``bias``, and those that the formula names.

    >>> from dagnn import Dag
    >>> from dagnn.nn import DagSweep
    >>> class Sum(FormulaCell):
    ...     def formula(self, x, operands, weights):
    ...         return torch.tanh(x.n + weights.product(operands.sum(operands.h)).n)
    >>> cell = Sum(in_features=3, hidden=5)
    >>> DagSweep(cell)(torch.randn(4, 3), Dag([(0, 2), (1, 2), (2, 3)])).shape
    torch.Size([4, 5])
    >>> cell.explain()
    'compiled'
    """

    states: tuple[str, ...] = ("h",)
    max_children: int | None = None

    def __init__(
        self, in_features: int, hidden: int, max_children: int | None = None, *, operators: int | None = None
    ) -> None:
        super().__init__()
        self.in_features = check_size("in_features", in_features)
        self.hidden = check_size("hidden", hidden)
        self.max_children = None if max_children is None else check_size("max_children", max_children)
        self.operators = None if operators is None else check_size("operators", operators)
        self.state_sizes = (hidden,) * len(self.states)
        self._record()
        if self.plan.slot_columns and max_children is None:
            raise ConfigError(
                f"{type(self).__name__} has columns by slot, {', '.join(self.plan.slot_columns)}: give max_children."
            )
        if self.plan.weighs and max_children is not None:
            raise ConfigError(
                f"{type(self).__name__} weighs operands with a softmax, but with max_children={max_children} each is "
                "alone in its slot and would weigh 1: leave max_children out."
            )
        self.make_parameters()
        self.reset_parameters()

    def formula(self, x: Named, operands: Operands, weights: Weights) -> Any:
        """The new value of each state."""
        raise NotImplementedError(f"{type(self).__name__} needs a method formula(self, x, operands, weights).")

    @property
    def plan(self) -> CellPlan:
        """The formula as it was recorded for the mode that the cell is in."""
        if not torch.compiler.is_compiling() and any(read() is not value for read, value in self._reads):
            self._record()
        return self._recorded[self.training]

    def __setattr__(self, name: str, value: Any) -> None:
        is_read = "_recorded" in self.__dict__ and not name.startswith("_") and name != "training"
        if not is_read or callable(value) or isinstance(value, Tensor | nn.Module | None):
            super().__setattr__(name, value)
            return
        before = self.__dict__.get(name, self)  # nothing is itself
        super().__setattr__(name, value)
        try:
            self._record()
        except ConfigError:
            if before is self:
                super().__delattr__(name)
            else:
                super().__setattr__(name, before)
            raise

    def _record(self) -> None:
        mode, recorded = self.training, []
        reads = _reads_of(self)
        try:
            for self.training in (False, True):
                recorded.append(plan_cell(self.formula, self.states))
                recorded[-1].check(self.hidden)
        finally:
            self.training = mode
        before = self.__dict__.get("_recorded", recorded)[0]
        for of_other, other in (("than in training", recorded[1]), ("than before", before)):
            ours, theirs = _names_of(recorded[0]), _names_of(other)
            differ = [f"{key}: {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]]
            if differ:
                raise ConfigError(
                    f"the formula of {type(self).__name__} names other weights in eval mode {of_other} "
                    f"({', '.join(differ)}): name the same ones in both, in the same order."
                )
        self._recorded, self._reads = tuple(recorded), reads

    def explain(self) -> str:
        """``"compiled"``, with the device where that is a GPU; or why the cell runs level by level.

        The reason may be a line of the formula, or where the parameters are, or their dtype.
        """
        return explain_cell(self.plan, self.parameters())

    def make_parameters(self) -> None:
        """Set the parameters, with any values."""
        plan, d, slots = self.plan, self.hidden, self.max_children or 1
        columns = len(plan.columns) + slots * len(plan.slot_columns)
        shape = (slots * len(plan.aggregates) * d, columns * d)
        self.feature_weight = nn.Parameter(torch.empty(self.in_features, len(plan.features) * d))
        if plan.aggregates:
            self.state_weight = nn.Parameter(torch.empty(shape if self.operators is None else (self.operators, *shape)))
        for name in self._names:
            if hasattr(self, name) or name == "bias":
                raise ConfigError(f"{type(self).__name__} has a {name} already: give weights.{name} another name.")
            self.register_parameter(name, nn.Parameter(torch.empty((d, d) if name == plan.each else (d,))))
        self.bias = nn.Parameter(torch.empty(len(plan.features) * d))

    @property
    def _names(self) -> tuple[str, ...]:
        """The parameters that the formula names."""
        plan = self.plan
        scores = ("score_weight",) if plan.has_attention else ()
        return (*(() if plan.each is None else (plan.each,)), *plan.vectors, *scores)

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as ``nn.LSTM``; the bias of the features 0."""
        bound = 1 / math.sqrt(self.hidden)
        with torch.no_grad():
            for parameter in self.parameters(recurse=False):
                if parameter is self.bias:
                    parameter.zero_()
                else:
                    parameter.uniform_(-bound, bound)

    def forward(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The states of a level, ``[n, hidden]`` each; the arguments are those of `dagnn.kernels.Cell`.

        ``position`` matters where ``max_children`` is given; ``operator`` int64 ``[n]`` is given if and only if the
        cell has operators.
        """
        # Under torch.compile the values are unknown, and `DagSweep` checks the positions of its graph instead.
        if self.max_children is not None and len(target) and not torch.compiler.is_compiling():
            low, high = position.aminmax()
            self.check_positions(int(low), int(high))
        check_operator(operator, self.operators)
        cell = self.project(features)
        slots = self.max_children or 1
        return cell_step(self.plan, cell.projected, states, target, position, cell.weights, slots, operator)

    def of_features(self) -> tuple[Tensor, Tensor]:
        """What projects the features: a weight ``[in_features, parts * hidden]`` and a bias ``[parts * hidden]``."""
        return self.feature_weight, self.bias

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell for the compiled path."""
        weight, bias = self.of_features()
        projected = torch.addmm(bias, features, weight)
        names = (*(("state_weight",) if self.plan.aggregates else ()), *self._names)
        return ProjectedCell(self.plan, self.hidden, projected, tuple(getattr(self, name) for name in names))

    def check_positions(self, lowest: int, highest: int) -> None:
        """Raise GraphError unless positions are in ``0 .. max_children - 1``."""
        most = self.max_children
        if most is not None and (lowest < 0 or highest >= most):
            raise GraphError(
                f"an edge has position {lowest if lowest < 0 else highest}, but max_children={most} allows positions "
                f"0 .. {most - 1}: raise max_children, or use a cell without order, as ChildSumTreeLSTMCell."
            )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_recorded"], state["_reads"]  # again where the cell is made: a plan is no data
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._record()


def _names_of(plan: CellPlan) -> dict[str, Any]:
    names = {"x": plan.features, "product": plan.columns, "by_slot": plan.slot_columns, "weights": plan.vectors}
    return names | {"sums": len(plan.aggregates), "each": plan.each, "attention": plan.has_attention}


def _reads_of(cell: FormulaCell) -> list[tuple[Callable[[], Any], Any]]:
    """What may change behind a formula: numbers and tensors in variables that it and its helpers read, as they are now.

    Numbers in attributes of the cell are not among them: `FormulaCell.__setattr__` sees those change.
    """
    found: list[tuple[Callable[[], Any], Any]] = []
    seen, rest = set[Any](), [cell.formula]
    while rest:
        function = rest.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        code, names = function.__code__, set[str]()
        codes = [code]
        for one in codes:  # grows: functions inside functions
            names.update(one.co_names)
            codes += [const for const in one.co_consts if isinstance(const, CodeType)]
        reads = [partial(function.__globals__.get, name) for name in names]
        reads += [partial(_content, variable) for variable in function.__closure__ or ()]
        reads += [partial(getattr, type(cell), name, None) for name in names if name not in _OF_MODULES]
        for read in reads:
            value = read()
            if isinstance(value, FunctionType) and not value.__module__.startswith(("torch.", "dagnn.nn.")):
                rest.append(value)
            elif isinstance(value, _CHANGES):
                found.append((read, value))
    return found


def _content(variable: CellType) -> Any:
    try:
        return variable.cell_contents
    except ValueError:  # not there yet
        return None
