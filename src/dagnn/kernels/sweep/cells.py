"""What the compiled path of a sweep takes: a cell whose features are projected, a graph, and compiled functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, runtime_checkable

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from torch import Tensor

from dagnn.kernels.emit.native import NativeFunction, compiled
from dagnn.kernels.level_plans import LevelPlan
from dagnn.kernels.sweep import child_sum, gru, packed, sums, tree_lstm
from dagnn.kernels.sweep.packed import PackedLayout
from dagnn.kernels.sweep.plan import SweepPlan

Kind = Literal["tree_lstm", "child_sum", "sum", "mean", "max", "attention"]
"""A cell that can be compiled: the two TreeLSTMs, and the GRU by how it aggregates."""


@dataclass(frozen=True, eq=False)
class ProjectedCell:
    """A cell whose features have gone through its weights already, all rows in one product.

    Attributes:
        kind: which arithmetic; see `dagnn.kernels.reference`.
        hidden: width of the states.
        projected: ``[rows, gates * hidden]``.
        weights: the other arguments of the arithmetic, in its order.
    """

    kind: Kind
    hidden: int
    projected: Tensor
    weights: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class SweepGraph:
    """The graph of a sweep, in one direction, as each path needs it.

    Attributes:
        plan: for the compiled path.
        levels, position: for the reference path; each works its result out when it is called.
        operator: int64 ``[num_nodes]``, or None.
        feature_rows: int64 ``[num_nodes]``, the row of the features of every node; None for its own.
    """

    plan: SweepPlan
    levels: Callable[[], LevelPlan]
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


def fits(cell: ProjectedCell, plan: SweepPlan, *, by_operator: int | None) -> bool:
    """Whether the tensors have the shapes that the arithmetic needs, and are large enough for all nodes of a plan.

    A parameter may have been replaced by another, a parametrization may change its shape, and the attributes of a graph
    can be written to after they were looked at.

    Args:
        by_operator: the operators of the cell, or None.
    """
    # Compiled code knows no sizes but these: what passes here must be safe to read and write.
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
def sweep_functions(kind: Kind, layout: PackedLayout) -> Mapping[str, NativeFunction]:
    """The passes ``forward`` and ``backward``, and sums over all nodes: ``weight``, ``table``, those of the kind."""
    # One module for a kind: its functions share one copy of the products.
    module, names = ir.Module("dagnn"), ["forward", "backward", "weight", "table"]
    packed.write_product(module, layout, "product", adds=False)
    packed.write_outer(module, layout, "outer")
    if kind != "tree_lstm":
        packed.write_product(module, layout, "product_added", adds=True)
    if kind == "tree_lstm":
        tree_lstm.write_forward(module, layout, "forward")
        tree_lstm.write_backward(module, layout, "backward")
        sums.write_weight(module, layout, "weight", tree_lstm.GATES, 3)
        sums.write_table(module, layout, "table", tree_lstm.GATES, (0, 1, 2, 3), per_slot=3)
    elif kind == "child_sum":
        child_sum.write_forward(module, layout, "forward")
        child_sum.write_backward(module, layout, "backward")
        sums.write_weight(module, layout, "weight", child_sum.GATES, 3)
        sums.write_weight(module, layout, "forget", child_sum.FORGET, 1)
        sums.write_table(module, layout, "table", child_sum.GATES, (0, 1, 2, 3))
        names.append("forget")
    else:
        gru.write_forward(module, layout, "forward", kind)
        gru.write_backward(module, layout, "backward", kind)
        sums.write_weight(module, layout, "weight", gru.GATES, 3)
        sums.write_table(module, layout, "table", gru.GATES, gru.COLUMNS)
        sums.write_bias(module, layout, "bias", gru.GATES, 2)
        names.append("bias")
        if kind == "attention":
            sums.write_score(module, layout, "score")
            names.append("score")
    return compiled(str(module), tuple(names), layout.target)
