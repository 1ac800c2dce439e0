"""What the compiled path of a sweep is given: a `ProjectedCell` instead of one called by level, and its `Course`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from dagnn.kernels.compiled_sweep_plan import SweepPlan
    from dagnn.kernels.levels import LevelPlan

Kind = Literal["tree_lstm", "child_sum", "sum", "mean", "max", "attention"]
"""A cell that can be compiled: the two TreeLSTMs, and the GRU by what it hears."""


@dataclass(frozen=True, eq=False)
class ProjectedCell:
    """A cell whose features have gone through its weights already, all rows in one product.

    Attributes:
        kind: which arithmetic; see `dagnn.kernels.cell_steps`.
        hidden: width of the states.
        projected: ``[rows, gates * hidden]``.
        weights: what the arithmetic takes beside the projected features, in its order.
    """

    kind: Kind
    hidden: int
    projected: Tensor
    weights: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Course:
    """Where a sweep goes.

    Attributes:
        plan: for the compiled path.
        levels, position: for the other one; worked out when they are asked for.
        operator: int64 ``[num_nodes]``, or None.
        feature_rows: int64 ``[num_nodes]``, the row of the features of every node; None for its own.
    """

    plan: "SweepPlan"
    levels: "Callable[[], LevelPlan]"
    position: Callable[[], Tensor]
    operator: Tensor | None
    feature_rows: Tensor | None


@runtime_checkable
class Projects(Protocol):
    """A cell that can be compiled."""

    state_sizes: tuple[int, ...]
    max_children: int | None
    operators: int | None

    def project(self, features: Tensor) -> ProjectedCell:
        """The cell on features ``[rows, in_features]``."""
        ...


def fits(cell: ProjectedCell, plan: "SweepPlan", *, by_operator: int | None) -> bool:
    """Whether the tensors have the shapes that the arithmetic needs, and are large enough for all nodes of a plan.

    A parameter may have been replaced by another, a parametrization may change its shape, and the attributes of a graph
    can be written to after they were looked at.

    Args:
        by_operator: the operators of the cell, or None.
    """
    d, first, rest = cell.hidden, cell.weights[0], [tuple(weight.shape) for weight in cell.weights[1:]]
    gates = 4 if cell.kind in ("tree_lstm", "child_sum") else 3
    if d < 1 or cell.projected.dim() != 2 or cell.projected.shape[1] != gates * d:
        return False
    if first.dim() != (2 if by_operator is None else 3):
        return False
    if plan.num_operators > (1 if by_operator is None else len(first)):
        return False
    slots, left_over = divmod(first.shape[-2], d)
    columns = 3 + slots if cell.kind == "tree_lstm" else 3
    if left_over or first.shape[-1] != columns * d or plan.max_slots > slots:
        return False
    if cell.kind == "tree_lstm":
        return not rest
    return slots == 1 and rest == {"child_sum": [(d, d)], "attention": [(d,), (d,)]}.get(cell.kind, [(d,)])
