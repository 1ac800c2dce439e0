"""A compiled sweep under autograd: first derivatives are compiled, all others go through the cells' own arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dagnn.kernels import reference
from dagnn.kernels.autograd import added_to, are_first, current_step, is_plain, only_adds, with_memory
from dagnn.kernels.emit import workers
from dagnn.kernels.emit.workers import Work, concatenated, run_works
from dagnn.kernels.level_plans import LevelPlan
from dagnn.kernels.sweep import passes
from dagnn.kernels.sweep.cell_plan import CellPlan
from dagnn.kernels.sweep.passes import Sweep
from dagnn.kernels.sweep.plan import SweepPlan

T = TypeVar("T")
# Multiply-adds of the forward pass that each of two sweeps needs to run beside the other. What can be won is the time
# of one of them: with so many (17 nodes of a chain, 64 wide) the compiled code of a step takes 0.12 ms of one thread,
# with four times as many 0.25. Handing out rows of calls, three times in a step, costs about 0.04: see `PARALLEL_WORK`.
# The rows "both ways" of `benchmarks/batch.py` compare at once with one after the other.
AT_ONCE_WORK = 1 << 18


@dataclass(frozen=True, eq=False)
class ProjectedCell:
    """A cell whose features have gone through its weights already, all rows in one product.

    Attributes:
        plan: its formula.
        hidden: width of the states.
        projected: ``[rows, features * hidden]``.
        weights: that of the product, ``[slots * aggregates * hidden, columns * hidden]``, with a leading dimension
            where there are operators; the weight ``[hidden, hidden]`` of each operand, if any; every vector
            ``[hidden]``; that of the scores, where there is attention.
    """

    plan: CellPlan
    hidden: int
    projected: Tensor
    weights: tuple[Tensor, ...]

    def as_reached(self) -> "ProjectedCell":
        """With what the output does not depend on detached: no gradient instead of zeros, as in plain PyTorch."""
        if all(self.plan.reached):
            return self
        given = zip((self.projected, *self.weights), self.plan.reached, strict=True)
        projected, *weights = (one if is_reached else one.detach() for one, is_reached in given)
        return ProjectedCell(self.plan, self.hidden, projected, tuple(weights))


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
    can be written to after they were looked at. ``by_operator``: the operators of the cell, or None.
    """
    # Compiled code knows no sizes but these: what passes here must be safe to read and write.
    d, of, first = cell.hidden, cell.plan, cell.weights[0]
    rest = [tuple(weight.shape) for weight in cell.weights[1:]]
    if d < 1 or cell.projected.dim() != 2 or cell.projected.shape[1] != len(of.features) * d:
        return False
    if first.dim() != (2 if by_operator is None else 3):
        return False
    if plan.num_operators > (1 if by_operator is None else len(first)):
        return False
    slots, left_over = divmod(first.shape[-2], d * len(of.aggregates))
    columns = len(of.columns) + slots * len(of.slot_columns)
    if left_over or first.shape[-1] != columns * d or plan.max_slots > slots:
        return False
    vectors = len(of.vectors) + of.has_attention
    return rest == [(d, d)] * (of.each is not None) + [(d,)] * vectors


def run_sweeps(sweeps: Sequence[tuple[SweepGraph, ProjectedCell]]) -> list[Tensor]:
    """What `reference.run_sweep` gives for each cell, on the CPU in one floating dtype.

    Two sweeps run at the same time where that pays: where neither gives its levels to several threads anyway, and both
    are long enough.
    """
    tasks = [
        Task(graph, cell.plan, cell.hidden, passes.is_parallel(graph.plan, cell.hidden), 1 + len(cell.weights))
        for graph, cell in sweeps
    ]
    tensors = [(cell.projected, *cell.weights) for _, cell in sweeps]
    needs = [torch.is_grad_enabled() and any(one.requires_grad for one in given) for given in tensors]
    # One autograd Function has one answer to "requires grad": sweeps that differ in it cannot share one.
    if len(tasks) == 2 and needs[0] == needs[1] and _pays_at_once(tasks):
        return _run(tasks, [*tensors[0], *tensors[1]], needs[0])
    return [y for task, given, need in zip(tasks, tensors, needs, strict=True) for y in _run([task], given, need)]


def _run(tasks: Sequence["Task"], tensors: Sequence[Tensor], needs_gradient: bool) -> list[Tensor]:
    if needs_gradient:
        return list(_Sweeps.apply(tuple(tasks), *tensors))  # type: ignore[no-untyped-call]
    return _forward(_swept(tasks, tensors))


@dataclass(frozen=True, eq=False)
class Task:
    """One sweep of a pass: everything but its tensors, and how many of those it has."""

    graph: SweepGraph
    cell: CellPlan
    hidden: int
    is_shared: bool
    num_tensors: int


def _pays_at_once(tasks: Sequence[Task]) -> bool:
    return workers.num_workers(2) > 1 and all(
        not task.is_shared and passes.work_of(task.graph.plan, task.hidden) >= AT_ONCE_WORK for task in tasks
    )


class _Sweeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tasks: tuple[Task, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        sweeps = _swept(tasks, tensors)
        outputs = _forward(sweeps)
        ctx.tasks = tasks
        # Not a saved tensor: nobody else can see it or write to it. In a list: the first backward pass takes it out.
        ctx.sweeps = [sweeps]
        # Outputs that the way back reads are saved tensors: autograd raises if the user has written to them since.
        read = [y if task.cell.reads_output else None for task, y in zip(tasks, outputs, strict=True)]
        ctx.save_for_backward(*tensors, *read)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tasks, saved = ctx.tasks, ctx.saved_tensors
        tensors, outputs = saved[: -len(tasks)], saved[-len(tasks) :]
        grads = tuple(map(with_memory, grads))
        if torch.is_grad_enabled() or not all(map(is_plain, grads)):
            return (None, *by_reference(ctx, grads, tensors))
        try:
            sweeps = ctx.sweeps.pop()
        except IndexError:  # a second backward pass through the same graph: the first has overwritten the gates
            sweeps = _swept(tasks, tensors)
            _forward(sweeps)
        needed = _parts(tasks, ctx.needs_input_grad[1:])
        works = [
            sweep.backward(grad_y, y, needs_projected=need[0])
            for sweep, grad_y, y, need in zip(sweeps, grads, outputs, needed, strict=True)
        ]
        projected = run_works(works, at_once=True)
        weights = _weight_gradients(ctx, sweeps, tensors)
        return (None, *chain.from_iterable([one, *of] for one, of in zip(projected, weights, strict=True)))


def _swept(tasks: Sequence[Task], tensors: Sequence[Tensor]) -> list[Sweep]:
    return [
        Sweep(
            task.graph.plan,
            task.cell,
            task.hidden,
            projected,
            task.graph.feature_rows,
            with_operators(weights),
            is_shared=task.is_shared,
        )
        for task, (projected, *weights) in zip(tasks, _parts(tasks, tensors), strict=True)
    ]


def _forward(sweeps: Sequence[Sweep]) -> list[Tensor]:
    return run_works([sweep.forward() for sweep in sweeps], at_once=True)


def _weight_gradients(ctx: Any, sweeps: Sequence[Sweep], tensors: Sequence[Tensor]) -> list[list[Tensor | None]]:
    """The gradients of each sweep's weights; None where nobody needs one, or it goes straight to ``.grad``."""
    all_needed, all_nodes = ctx.needs_input_grad[1:], [node for node, _ in ctx.next_functions]
    parts = zip(*(_parts(ctx.tasks, given) for given in (tensors, all_needed, all_nodes)), strict=True)
    computed: list[tuple[int, int, Tensor]] = []  # sweep, number of the weight, the weight
    kept: dict[tuple[int, int], Tensor] = {}
    step = current_step()  # where a fused step waits, gradients go there, and autograd never sees them
    for place, (of_sweep, needed, nodes) in enumerate(parts):
        for number, weight in enumerate(of_sweep[1:]):
            if needed[1 + number]:
                node = nodes[1 + number]
                may_add = weight.is_leaf and sweeps[place].adds_to(number, weight)
                if may_add and step is not None:
                    if step.takes(weight, node, partial(sweeps[place].weight_gradient, number)):
                        continue
                elif may_add and not are_first(weight) and only_adds([weight], [node]):
                    kept[place, number] = weight
                computed.append((place, number, weight))

    with added_to(list(kept.values())) as (held, _):
        grads = dict(zip(kept, held, strict=True))
        works: dict[int, list[Work[Tensor]]] = {}
        for place, number, _ in computed:
            works.setdefault(place, []).append(sweeps[place].weight_gradient(number, grads.get((place, number))))
        # The last sweep first, as autograd would: where two sweeps share a weight, its sum keeps its bits. Those two
        # must not run at once, since both would add to the same numbers.
        order = sorted(works, reverse=True)
        is_apart = len({id(grad) for grad in held}) == len(held)
        results = dict(
            zip(order, run_works([concatenated(works[place]) for place in order], at_once=is_apart), strict=True)
        )

    gradients: list[list[Tensor | None]] = [[None] * (task.num_tensors - 1) for task in ctx.tasks]
    for place, number, weight in computed:
        gradient = results[place].pop(0)
        if (place, number) not in kept:
            gradients[place][number] = gradient.view_as(weight)
    return gradients


def _parts(tasks: Sequence[Task], values: Sequence[T]) -> list[tuple[T, ...]]:
    """What belongs to each task."""
    rest = iter(values)
    return [tuple(islice(rest, task.num_tensors)) for task in tasks]


def with_operators(weights: Any) -> tuple[Tensor, ...]:
    """The weights, the first of them with a leading dimension of operators.

    Detached: should the user assign something smaller to ``parameter.data`` before the backward pass, these keep the
    old memory, and compiled code reads nothing behind its end.
    """
    first, *rest = (weight.detach() for weight in weights)
    return (first if first.dim() == 3 else first.unsqueeze(0), *rest)


def by_reference(ctx: Any, grads: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Differentiable gradients: those of the cells' own arithmetic, which runs forward once more."""
    tasks, gradients = ctx.tasks, []
    for task, grad_y, given in zip(tasks, grads, _parts(tasks, tensors), strict=True):
        pull: Any = torch.func.vjp(_arithmetic(task), *given)[1]
        gradients += pull(grad_y)
    return [g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad[1:], strict=True)]


def _arithmetic(task: Task) -> Callable[..., Tensor]:
    """The sweep of a task in plain PyTorch, as a function of its tensors."""
    graph = task.graph
    levels, position = graph.levels(), graph.position()

    def sweep(projected: Tensor, *weights: Tensor) -> Tensor:
        rows = projected if graph.feature_rows is None else projected.index_select(0, graph.feature_rows)
        step = _Step(task.cell, task.hidden, weights)
        return reference.run_sweep(levels, rows, position, step, graph.operator)

    return sweep


class _Step:
    """The arithmetic of a cell on projected features, as a cell."""

    def __init__(self, plan: CellPlan, hidden: int, weights: tuple[Tensor, ...]) -> None:
        self.operators = len(weights[0]) if weights[0].dim() == 3 else None
        self.state_sizes = (hidden,) * len(plan.states)
        self._plan, self._weights = plan, weights

    def __call__(
        self,
        features: Tensor,
        states: tuple[Tensor, ...],
        target: Tensor,
        position: Tensor,
        operator: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        slots = self._weights[0].shape[-2] // (states[0].shape[1] * len(self._plan.aggregates))
        return reference.cell_step(self._plan, features, states, target, position, self._weights, slots, operator)


__all__ = ["run_sweeps"]
