"""A sweep on a GPU: its plan, the launches of a pass, and the two passes under autograd.

A level is a few launches: a kernel that aggregates, a product for each class of its nodes, a kernel for the rest;
`sweep_code` writes the kernels from the cell's formula, and the products are PyTorch's. Rows are in the order of the
plan, those that go through a product in the order of its classes: every product reads neighbouring rows, and the
gradient of a weight is one product over all levels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.cached import made_once
from dagnn.kernels.autograd import is_plain_on_gpu, with_memory
from dagnn.kernels.gpu import sweep_code
from dagnn.kernels.gpu.network import launching_on, tensor_on
from dagnn.kernels.gpu.sweep_code import cell_kernels, launch_options
from dagnn.kernels.sweep.autograd_function import ProjectedCell, SweepGraph, Task, by_reference, with_operators
from dagnn.kernels.sweep.cell_plan import CellPlan
from dagnn.kernels.sweep.plan import SweepPlan

EDGES, WIDTH = 16, 32
"""Edges, and columns of their rows, that attention sums at once: twice as many need twice the registers.

A sum over more is a sum of such sums, in order."""
ROWS = 16
"""Rows of a sum that are read at once."""


@dataclass(frozen=True)
class _Group:
    """Nodes of one level that share a product: ``rows`` of a class from the place ``first`` on."""

    first: int
    rows: int
    node_class: int
    local: int
    first_slot: int


@dataclass(frozen=True)
class _Level:
    first: int
    last: int
    groups: tuple[_Group, ...]
    """Those with operands."""


class GpuSweepPlan:
    """A graph and a direction as the kernels read them: int32 arrays, on one device."""

    def __init__(self, plan: SweepPlan, device: torch.device) -> None:
        blocks, classes = plan.blocks, plan.classes
        first_slots = np.append(plan.first_slots, plan.num_slots).astype(np.int64)
        of_place = np.repeat(np.arange(len(blocks)), blocks[:, 1])
        local = np.arange(plan.num_nodes) - blocks[of_place, 0] + blocks[of_place, 3]
        node_class = blocks[of_place, 2]

        put = partial(tensor_on, device)
        self.arrays = {
            "nodes": put(plan.nodes),
            "first_slots": put(first_slots),
            "class_rows": put(classes[node_class, 3] + local),
            "operand_rows": put(classes[node_class, 2] + local * classes[node_class, 1]),
            "in_offsets": put(plan.in_offsets),
            "in_places": put(plan.in_places),
            "out_offsets": put(plan.out_offsets),
            "out_slots": put(plan.out_slots),
            "out_edges": put(plan.out_edges),
        }
        self.device, self.num_nodes, self.num_slots = device, plan.num_nodes, plan.num_slots
        self.num_edges, self.classes = plan.num_edges, classes.tolist()
        self.nodes, self.places = put(plan.nodes, torch.int64), put(np.argsort(plan.nodes), torch.int64)
        self.levels = _levels(plan, first_slots)


def _levels(plan: SweepPlan, first_slots: NDArray[np.int64]) -> list[_Level]:
    blocks, levels = plan.blocks, list[_Level]()
    # Blocks of one level have one `after`; those of one class among them are neighbours, and one product.
    of_level = np.flatnonzero(np.diff(blocks[:, 4], prepend=-1, append=-1))
    for start, stop in pairwise(of_level.tolist()):
        mine = blocks[start:stop]
        heads = np.flatnonzero(np.diff(mine[:, 2], prepend=-1))
        rows = np.add.reduceat(mine[:, 1], heads)
        groups = [
            _Group(int(head[0]), int(count), int(head[2]), int(head[3]), int(first_slots[head[0]]))
            for head, count in zip(mine[heads], rows, strict=True)
        ]
        with_operands = tuple(group for group in groups if plan.classes[group.node_class, 1])
        levels.append(_Level(int(mine[0, 0]), int(mine[-1, 0] + mine[-1, 1]), with_operands))
    return levels


def gpu_sweep_plan(plan: SweepPlan, device: torch.device) -> GpuSweepPlan:
    """The plan of a graph on a GPU, made when a sweep first runs there."""
    return made_once(plan.on_gpu, device, lambda: GpuSweepPlan(plan, device))


class GpuSweep:
    """One pass of a cell over a graph, with the methods and arguments of `dagnn.kernels.sweep.passes.Sweep`."""

    def __init__(
        self,
        plan: GpuSweepPlan,
        cell: CellPlan,
        hidden: int,
        projected: Tensor,
        feature_rows: Tensor | None,
        weights: Sequence[Tensor],
    ) -> None:
        self._plan, self._cell, self._hidden, self._feature_rows = plan, cell, hidden, feature_rows
        self._kernels = cell_kernels(cell)
        self._tile = min(sweep_code.MOST_COLUMNS, max(16, triton.next_power_of_2(hidden)))
        self._projected = projected.detach().contiguous()
        self._weight, *rest = weights
        self._each = rest.pop(0) if cell.each else None
        self._score = rest.pop().contiguous() if cell.has_attention else None
        self._vectors = len(rest)
        count = {"slot": plan.num_slots, "edge": plan.num_edges}
        rows = {name: count.get(name.split("_")[0], plan.num_nodes) * many for name, many in cell.rows.items()}
        rows |= {"operands": plan.num_slots * cell.rows["operands"], "y": plan.num_nodes}
        rows |= {"gates": cell.lines * plan.num_nodes + cell.slot_lines * plan.num_slots}
        if cell.each:
            rows["forget_products"] = plan.num_nodes
        back = ["slot_gradients", "slot_rows"]
        self._rows_back = {name: rows.pop(name) for name in back}
        if cell.each:
            self._rows_back |= dict.fromkeys(("hidden_gradients", "forget_gradients"), plan.num_nodes)
            self._rows_back["state_gradients"] = rows["states"]
        self._tensors = {
            **plan.arrays,
            "feature_rows": plan.arrays["nodes"]
            if feature_rows is None
            else feature_rows.index_select(0, plan.nodes).to(torch.int32),
            "projected": self._projected,
            **{name: self._new(many, hidden) for name, many in rows.items() if name != "bias"},
        }
        if rest:
            self._tensors["bias"] = torch.stack(rest)
        if self._score is not None:
            self._tensors["score_weight"] = self._score
            self._tensors |= {"scores": self._new(plan.num_nodes), "edge_weights": self._new(plan.num_edges)}

    def forward(self) -> Tensor:
        """The output of every node, ``[num_nodes, hidden]``."""
        of, y = self._tensors, self._tensors["y"]
        with launching_on(self._plan.device):
            for level in self._plan.levels:
                rows = slice(level.first, level.last)
                if level.groups:
                    if self._score is not None:
                        names = ("scores", "edge_weights", "first_slots", "in_offsets", "in_places")
                        attend[(level.last - level.first,)](*(of[name] for name in names), level.first, edges=EDGES)
                    self._launch("first", level)
                for group in level.groups:
                    operands, gates = self._factors(group.node_class, group.local, group.rows)
                    weight = self._weight_of(group.node_class)
                    torch.mm(operands, weight, out=gates)
                self._launch("second", level)
                if self._each is not None:
                    torch.mm(y[rows], self._each, out=of["forget_products"][rows])
                if self._score is not None:
                    torch.mv(y[rows], self._score, out=of["scores"][rows])
        return y.index_select(0, self._plan.places)

    def backward(self, grad_y: Tensor) -> Tensor:
        """The gradient of ``projected``, in its shape. Only once: it overwrites the gates."""
        of, plan, hidden = self._tensors, self._plan, self._hidden
        of["grad_y"] = grad_y.contiguous()
        of["grad_projected"] = self._new(plan.num_nodes, self._projected.shape[1])
        of |= {name: self._new(many, hidden) for name, many in self._rows_back.items()}
        if self._score is not None:
            of |= {"edge_gradients": self._new(plan.num_edges), "score_gradients": self._new(plan.num_nodes)}
        with launching_on(plan.device):
            for level in reversed(plan.levels):
                if self._each is not None:
                    self._launch("pull", level)
                    rows = slice(level.first, level.last)
                    of["hidden_gradients"][rows].addmm_(of["forget_gradients"][rows], self._each.t())
                self._launch("back", level)
                for group in level.groups:
                    self._pull_product(group)
                if level.groups:
                    if self._score is not None:
                        names = ("y", "slot_gradients", "edge_weights", "edge_gradients", "first_slots", "in_offsets")
                        attention_gradients[(level.last - level.first,)](
                            *(of[name] for name in (*names, "in_places")),
                            level.first,
                            hidden=hidden,
                            width=WIDTH,
                            edges=EDGES,
                        )
                    if self._cell.last:
                        self._launch("last", level)
            return of["grad_projected"] if self._feature_rows is None else self._of_table(of["grad_projected"])

    def weight_gradient(self, number: int) -> Tensor:
        """The gradient of a weight, after the `backward` pass; of the first with its leading dimension."""
        of = self._tensors
        if number == 0:
            gradient = self._weight.new_zeros(self._weight.shape)
            for node_class, (rows, slots, _, _, operator) in enumerate(self._plan.classes):
                if slots:
                    operands, gates = self._factors(node_class, 0, rows)
                    gradient[operator, : operands.shape[1], : gates.shape[1]].addmm_(operands.t(), gates)
            return gradient
        if self._each is not None and number == 1:
            return of["y"].t() @ of["forget_gradients"]
        vector = number - (2 if self._each is not None else 1)
        if vector == self._vectors:
            return of["y"].t() @ of["score_gradients"]
        at = self._cell.vector_places[vector]
        sums = []
        for node_class, (rows, slots, *_) in enumerate(self._plan.classes):
            line = at.number + (slots if at.after else 0)
            sums.append(self._gates(node_class, 0, rows)[:, line * self._hidden :][:, : self._hidden].sum(0))
        return torch.stack(sums).sum(0)

    # ---- memory ----

    def _new(self, *sizes: int) -> Tensor:
        return self._projected.new_empty(sizes)

    def _gates(self, node_class: int, local: int, rows: int) -> Tensor:
        """Rows of a class among the gates, ``[rows, gates * hidden]``."""
        cell, hidden = self._cell, self._hidden
        _, slots, operand_row, gate_row, _ = self._plan.classes[node_class]
        width = (cell.lines + slots * cell.slot_lines) * hidden
        start = (gate_row * cell.lines + operand_row * cell.slot_lines) * hidden + local * width
        return self._tensors["gates"].view(-1)[start : start + rows * width].view(rows, width)

    def _factors(self, node_class: int, local: int, rows: int) -> tuple[Tensor, Tensor]:
        """Rows of a class: the operands, and the gates that their product gives."""
        cell, slots = self._cell, self._plan.classes[node_class][1]
        width = slots * cell.rows["operands"] * self._hidden
        start = self._plan.classes[node_class][2] * cell.rows["operands"] * self._hidden + local * width
        operands = self._tensors["operands"].view(-1)[start : start + rows * width].view(rows, width)
        columns = (len(cell.columns) + slots * len(cell.slot_columns)) * self._hidden
        return operands, self._gates(node_class, local, rows)[:, :columns]

    def _weight_of(self, node_class: int) -> Tensor:
        """The part of the weight that nodes with so many slots use."""
        cell, (_, slots, _, _, operator) = self._cell, self._plan.classes[node_class]
        columns = len(cell.columns) + slots * len(cell.slot_columns)
        rows = slots * cell.rows["operands"]
        return self._weight[operator, : rows * self._hidden, : columns * self._hidden]

    # ---- launches ----

    def _launch(self, name: str, level: _Level) -> None:
        kernel = self._kernels[name]
        grid = (level.last - level.first, -(-self._hidden // self._tile))
        kernel.run[grid](
            *(self._tensors[field] for field in kernel.fields),
            level.first,
            hidden=self._hidden,
            tile=self._tile,
            **launch_options(self._tile),
        )

    def _pull_product(self, group: _Group) -> None:
        """The gradients of the aggregates, from those of the product."""
        weight = self._weight_of(group.node_class)
        _, gates = self._factors(group.node_class, group.local, group.rows)
        start, size = group.first_slot * self._cell.rows["operands"] * self._hidden, group.rows * len(weight)
        gradients = self._tensors["slot_gradients"].view(-1)[start : start + size].view(group.rows, len(weight))
        if self._cell.adds_to_slots:
            gradients.addmm_(gates, weight.t())
        else:
            torch.mm(gates, weight.t(), out=gradients)

    def _of_table(self, gradient: Tensor) -> Tensor:
        """Gradients of nodes, summed for each row of the features."""
        assert self._feature_rows is not None
        rows, order = self._feature_rows.sort(stable=True)
        offsets = torch.searchsorted(rows, torch.arange(len(self._projected) + 1, device=rows.device))
        result = torch.empty_like(self._projected)
        if result.numel():
            width, tile = result.shape[1], sweep_code.MOST_COLUMNS
            grid = (len(result), -(-width // tile))
            sums_of_rows[grid](gradient, order, offsets, result, width, tile=tile, rows=ROWS)
        return result


class _Sweep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: Tensor) -> Tensor:
        sweep = _swept(task, tensors)
        y = sweep.forward()
        ctx.tasks = (task,)
        # In a list: the first backward pass takes it out.
        ctx.sweeps = [sweep]
        ctx.save_for_backward(*tensors)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        grad_y = with_memory(grad_y)
        if torch.is_grad_enabled() or not is_plain_on_gpu(grad_y):
            return (None, *by_reference(ctx, (grad_y,), tensors))
        try:
            sweep = ctx.sweeps.pop()
        except IndexError:  # a second backward pass through the same graph: the first has overwritten the gates
            sweep = _swept(ctx.tasks[0], tensors)
            sweep.forward()
        of_projected = sweep.backward(grad_y)
        _, needs_projected, *needed = ctx.needs_input_grad
        weights = (
            sweep.weight_gradient(number).view_as(weight) if is_needed else None
            for number, (weight, is_needed) in enumerate(zip(tensors[1:], needed, strict=True))
        )
        return (None, of_projected if needs_projected else None, *weights)


def _swept(task: Task, tensors: Sequence[Tensor]) -> GpuSweep:
    projected, *weights = tensors
    plan = gpu_sweep_plan(task.graph.plan, projected.device)
    return GpuSweep(plan, task.cell, task.hidden, projected, task.graph.feature_rows, with_operators(weights))


def run_sweep(graph: SweepGraph, cell: ProjectedCell) -> Tensor:
    """What `reference.run_sweep` gives, for tensors on one GPU of one floating dtype."""
    task = Task(graph, cell.plan, cell.hidden, False, 1 + len(cell.weights))
    tensors = (cell.projected, *cell.weights)
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        y: Tensor = _Sweep.apply(task, *tensors)  # type: ignore[no-untyped-call]
        return y
    return _swept(task, tensors).forward()


# ---- kernels that no formula writes: attention, whose numbers belong to nodes and edges; and sums of rows ----


@triton.jit(do_not_specialize=["first"])
def attend(scores, edge_weights, first_slots, in_offsets, in_places, first, edges: tl.constexpr):
    """``edge_weights`` of a node: the softmax of its operands' scores."""
    slot = tl.load(first_slots + first + tl.program_id(0))
    start, stop = tl.load(in_offsets + slot), tl.load(in_offsets + slot + 1)
    # Relative to the highest score, as in every softmax: e^score alone overflows float32 from 89 on.
    high = tl.full([edges], float("-inf"), scores.dtype.element_ty)
    for k in range(start, stop, edges):
        at = k + tl.arange(0, edges)
        score = tl.load(scores + tl.load(in_places + at, mask=at < stop, other=0), mask=at < stop, other=float("-inf"))
        high = tl.maximum(high, score, propagate_nan=tl.PropagateNan.ALL)
    highest = tl.max(high, axis=0)
    highest = tl.where(tl.sum(tl.where(high == high, 0, 1), axis=0) > 0, float("nan"), highest)
    total = tl.zeros([edges], dtype=scores.dtype.element_ty)
    for k in range(start, stop, edges):
        at = k + tl.arange(0, edges)
        score = tl.load(scores + tl.load(in_places + at, mask=at < stop, other=0), mask=at < stop, other=float("-inf"))
        total += tl.where(at < stop, tl.exp(score - highest), 0)
    whole = tl.sum(total, axis=0)
    for k in range(start, stop, edges):
        at = k + tl.arange(0, edges)
        score = tl.load(scores + tl.load(in_places + at, mask=at < stop, other=0), mask=at < stop, other=0.0)
        tl.store(edge_weights + at, tl.exp(score - highest) / whole, mask=at < stop)


@triton.jit(do_not_specialize=["first"])
def attention_gradients(
    y, slot_gradients, edge_weights, edge_gradients, first_slots, in_offsets, in_places, first,
    hidden: tl.constexpr, width: tl.constexpr, edges: tl.constexpr,
):  # fmt: skip
    """``edge_gradients`` of a node: those of its operands' scores, through the softmax: ``a (g - sum a g)``."""
    slot = tl.load(first_slots + first + tl.program_id(0))
    start, stop = tl.load(in_offsets + slot), tl.load(in_offsets + slot + 1)
    mean = tl.zeros([edges], dtype=y.dtype.element_ty)
    for k in range(start, stop, edges):
        at = k + tl.arange(0, edges)
        source = tl.load(in_places + at, mask=at < stop, other=0).to(tl.int64)
        product = tl.zeros([edges], dtype=y.dtype.element_ty)
        for column in range(0, hidden, width):
            columns = column + tl.arange(0, width)
            gradient = tl.load(
                slot_gradients + tl.cast(slot, tl.int64) * hidden + columns, mask=columns < hidden, other=0.0
            )
            mask = (at < stop)[:, None] & (columns < hidden)[None, :]
            line = tl.load(y + source[:, None] * hidden + columns[None, :], mask=mask, other=0.0)
            product += tl.sum(line * gradient[None, :], axis=1)
        tl.store(edge_gradients + at, product, mask=at < stop)
        mean += product * tl.load(edge_weights + at, mask=at < stop, other=0.0)
    whole = tl.sum(mean, axis=0)
    tl.debug_barrier()  # what one thread has written, another may read
    for k in range(start, stop, edges):
        at = k + tl.arange(0, edges)
        above = tl.load(edge_gradients + at, mask=at < stop, other=0.0) - whole
        tl.store(edge_gradients + at, above * tl.load(edge_weights + at, mask=at < stop, other=0.0), mask=at < stop)


@triton.jit
def sums_of_rows(values, order, offsets, results, width, tile: tl.constexpr, rows: tl.constexpr):
    """``results[i] = `` the sum of the rows of ``values`` that ``order`` names from ``offsets[i]`` on, in order."""
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    stop = tl.load(offsets + tl.program_id(0) + 1)
    total = tl.zeros([tile], dtype=values.dtype.element_ty)
    for k in range(tl.load(offsets + tl.program_id(0)), stop, rows):
        at = k + tl.arange(0, rows)
        row = tl.load(order + at, mask=at < stop, other=0).to(tl.int64)
        mask = (at < stop)[:, None] & (columns < width)[None, :]
        total += tl.sum(tl.load(values + row[:, None] * width + columns[None, :], mask=mask, other=0.0), axis=0)
    tl.store(results + tl.program_id(0).to(tl.int64) * width + columns, total, mask=columns < width)
