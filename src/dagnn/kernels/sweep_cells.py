"""`ProjectedCell`: what a built-in cell gives to the compiled path instead of being called level by level."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from dagnn.kernels.compiled_sweep_plan import SweepPlan

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


@runtime_checkable
class Projects(Protocol):
    """A cell that can be compiled."""

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
    if cell.kind == "tree_lstm":
        if first.dim() != (2 if by_operator is None else 3) or rest:
            return False
        slots, left_over = divmod(first.shape[-2], d)
        operators = 1 if by_operator is None else len(first)
        of_first = (slots * d, (3 + slots) * d)
        return (
            not left_over
            and tuple(first.shape[-2:]) == of_first
            and plan.max_slots <= slots
            and plan.num_operators <= operators
        )
    expected = {"child_sum": [(d, d)], "attention": [(d,), (d,)]}.get(cell.kind, [(d,)])
    return tuple(first.shape) == (d, 3 * d) and rest == expected and plan.max_slots <= 1
