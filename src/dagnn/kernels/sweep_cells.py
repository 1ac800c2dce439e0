"""`ProjectedCell`: what a built-in cell gives to the compiled path instead of being called level by level."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

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
