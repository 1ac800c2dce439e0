"""A compiled sweep under autograd: first derivatives compiled, everything else by the cells' own arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dagnn.kernels import cell_steps, reference
from dagnn.kernels.compiled_sweep import Sweep
from dagnn.kernels.compiled_sweep_plan import SweepPlan
from dagnn.kernels.levels import LevelPlan
from dagnn.kernels.plain_tensors import is_plain, with_memory
from dagnn.kernels.sweep_cells import ProjectedCell


@dataclass(frozen=True, eq=False)
class Course:
    """Where a sweep goes.

    Attributes:
        plan: for the compiled path.
        levels, position: for the other one; worked out when they are asked for.
        operator: int64 ``[num_nodes]``, or None.
        feature_rows: int64 ``[num_nodes]``, the row of the features of every node; None for its own.
    """

    plan: SweepPlan
    levels: Callable[[], LevelPlan]
    position: Callable[[], Tensor]
    operator: Tensor | None
    feature_rows: Tensor | None


def run_sweep(course: Course, cell: ProjectedCell) -> Tensor:
    """The same as `reference.run_sweep` of the cell, for tensors on the CPU of one floating dtype."""
    tensors = (cell.projected, *cell.weights)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return cast(Tensor, _Sweep.apply(course, cell.kind, cell.hidden, *tensors))  # type: ignore[no-untyped-call]
    return _swept(course, cell.kind, cell.hidden, tensors).forward()


class _Sweep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, course: Course, kind: Any, hidden: int, *tensors: Tensor) -> Tensor:
        sweep = _swept(course, kind, hidden, tensors)
        y = sweep.forward()
        ctx.course, ctx.cell = course, (kind, hidden)
        ctx.sweeps = [sweep]  # not a saved tensor: nobody else can see it or write to it
        ctx.save_for_backward(*tensors, y if kind in ("max", "attention") else None)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, y = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        grad_y = with_memory(grad_y)
        if torch.is_grad_enabled() or not is_plain(grad_y):
            return (None, None, None, *_by_reference(ctx, grad_y, tensors, needed))
        try:
            sweep = ctx.sweeps.pop()
        except IndexError:  # a second time through the same graph: the first has written over the gates
            kind, hidden = ctx.cell
            sweep = _swept(ctx.course, kind, hidden, tuple(tensors))
            sweep.forward()
        projected, weights = sweep.backward(grad_y, y, needs_projected=needed[0], needs_weights=any(needed[1:]))
        shaped: list[Tensor | None] = [None] * (len(tensors) - 1)
        for number, gradient in enumerate(weights):
            if needed[1 + number]:
                shaped[number] = gradient.view_as(tensors[1 + number])
        return (None, None, None, projected, *shaped)


def _swept(course: Course, kind: Any, hidden: int, tensors: tuple[Tensor, ...]) -> Sweep:
    projected, *weights = tensors
    return Sweep(course.plan, kind, hidden, projected, course.feature_rows, _with_operators(weights))


def _with_operators(weights: Any) -> tuple[Tensor, ...]:
    """The weights, the first of them with a leading dimension of operators.

    Detached: when ``parameter.data`` is replaced by something smaller before the way back, these stay what they were.
    """
    first, *rest = (weight.detach() for weight in weights)
    return (first if first.dim() == 3 else first.unsqueeze(0), *rest)


def _by_reference(ctx: Any, grad_y: Tensor, tensors: list[Tensor], needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Differentiable gradients: those of the cells' own arithmetic, computed anew."""
    course, (kind, hidden) = ctx.course, ctx.cell
    levels, position = course.levels(), course.position()

    def sweep(projected: Tensor, *weights: Tensor) -> Tensor:
        rows = projected if course.feature_rows is None else projected.index_select(0, course.feature_rows)
        step = _Step(kind, hidden, weights)
        return reference.run_sweep(levels, rows, position, step, course.operator)

    pull: Any = torch.func.vjp(sweep, *tensors)[1]
    return [g if n else None for g, n in zip(pull(grad_y), needed, strict=True)]


class _Step:
    """The arithmetic of a cell on projected features, as a cell."""

    def __init__(self, kind: str, hidden: int, weights: tuple[Tensor, ...]) -> None:
        self.operators = len(weights[0]) if weights[0].dim() == 3 else None
        self.state_sizes: tuple[int, ...] = (hidden, hidden) if kind in ("tree_lstm", "child_sum") else (hidden,)
        self._kind, self._weights = kind, weights

    def __call__(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        if self._kind == "tree_lstm":
            return cell_steps.tree_lstm_step(features, states, target, position, self._weights[0], operator)
        if self._kind == "child_sum":
            return cell_steps.child_sum_step(features, states, target, *self._weights)
        return cell_steps.gru_step(features, states, target, self._kind, *self._weights)


__all__ = ["Course", "run_sweep"]
