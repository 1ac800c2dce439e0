"""What the compiled path of a sweep is given for each kind of cell, and the compiled functions made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from torch import Tensor

from dagnn.kernels.emit.native import NativeFunction, compiled
from dagnn.kernels.sweep.packed import Panels

if TYPE_CHECKING:
    from dagnn.kernels.levels import LevelPlan
    from dagnn.kernels.sweep.plan import SweepPlan


Kind = Literal["tree_lstm", "child_sum", "sum", "mean", "max", "attention"]
"""A cell that can be compiled: the two TreeLSTMs, and the GRU by what it hears."""


@dataclass(frozen=True, eq=False)
class ProjectedCell:
    """A cell whose features have gone through its weights already, all rows in one product.

    Attributes:
        kind: which arithmetic; see `dagnn.kernels.reference`.
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


@cache
def sweep_functions(kind: Kind, panels: Panels) -> Mapping[str, NativeFunction]:
    """``forward`` and ``backward``; ``weight`` and ``table``, sums over all nodes, and what else the kind needs."""
    from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

    from dagnn.kernels.sweep import child_sum as code_child_sum
    from dagnn.kernels.sweep import gru as code_gru
    from dagnn.kernels.sweep import packed as code_product
    from dagnn.kernels.sweep import sums as code_sums
    from dagnn.kernels.sweep import tree_lstm as code_tree_lstm

    module, names = ir.Module("dagnn"), ["forward", "backward", "weight", "table"]
    code_product.write_product(module, panels, "product", adds=False)
    code_product.write_outer(module, panels, "outer")
    if kind != "tree_lstm":
        code_product.write_product(module, panels, "product_added", adds=True)
    if kind == "tree_lstm":
        code_tree_lstm.write_forward(module, panels, "forward")
        code_tree_lstm.write_backward(module, panels, "backward")
        code_sums.write_weight(module, panels, "weight", code_tree_lstm.GATES, 3)
        code_sums.write_table(module, panels, "table", code_tree_lstm.GATES, (0, 1, 2, 3), per_slot=3)
    elif kind == "child_sum":
        code_child_sum.write_forward(module, panels, "forward")
        code_child_sum.write_backward(module, panels, "backward")
        code_sums.write_weight(module, panels, "weight", code_child_sum.GATES, 3)
        code_sums.write_weight(module, panels, "forget", code_child_sum.FORGET, 1)
        code_sums.write_table(module, panels, "table", code_child_sum.GATES, (0, 1, 2, 3))
        names.append("forget")
    else:
        code_gru.write_forward(module, panels, "forward", kind)
        code_gru.write_backward(module, panels, "backward", kind)
        code_sums.write_weight(module, panels, "weight", code_gru.GATES, 3)
        code_sums.write_table(module, panels, "table", code_gru.GATES, code_gru.COLUMNS)
        code_sums.write_bias(module, panels, "bias", code_gru.GATES, 2)
        names.append("bias")
        if kind == "attention":
            code_sums.write_score(module, panels, "score")
            names.append("score")
    return compiled(str(module), tuple(names), panels.target)
