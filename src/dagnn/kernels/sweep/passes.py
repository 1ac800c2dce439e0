"""The compiled path of a sweep: forward and backward passes over a `SweepPlan`. No autograd here.

A pass is a `Work`: calls that are ready to run, alone or beside those of another sweep.

Rows are filled up with zeros to whole packs. The outputs there stay zero, and so do all gradients.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor

from dagnn.kernels.autograd import Borrowed
from dagnn.kernels.emit.native import Frame, NativeFunction, Target, compiled, host_target
from dagnn.kernels.emit.workers import Call, Work, yield_core
from dagnn.kernels.sweep.cell_code import write_cell
from dagnn.kernels.sweep.cell_plan import CellPlan
from dagnn.kernels.sweep.packed import PackedLayout
from dagnn.kernels.sweep.plan import SweepPlan
from dagnn.kernels.sweep.sums import LEFT_PART, RIGHT_PART

# Multiply-adds of the forward pass below which one thread does everything. A step hands out work four times. Two cores,
# small graphs, d=64: with 1.6 million two threads took 1.18 times as long as one, with 2.1 as long, with 5.6 0.81.
PARALLEL_WORK = 1 << 22
# And levels must be wide enough to share: a chain has no two nodes that may be computed at once.
PARALLEL_SPEEDUP = 1.2


def work_of(plan: SweepPlan, hidden: int) -> int:
    """Multiply-adds of the forward pass of a cell of this width, as many as a cell of three gates has."""
    return int(sum(rows * slots * (3 + slots) for rows, slots, *_ in plan.classes.tolist()) * hidden * hidden)


def _saved(cell: CellPlan) -> list[str]:
    """The arrays that the way back reads, beside the outputs; see `Sweep._rows`."""
    names = ["operands", "gates"] + [name for name in ("states", "edge_gates", "slot_kept") if cell.rows[name]]
    names += ["hidden", "forget_products"] if cell.each else []
    return names + (["scores", "edge_weights"] if cell.has_attention else [])


def _scratch(cell: CellPlan) -> list[str]:
    """The arrays that only the way back writes."""
    names = ["slot_gradients"] + (["slot_rows"] if cell.rows["slot_rows"] else [])
    if cell.each:
        names += ["forget_gradients", "hidden_gradients"] + (["state_gradients"] if cell.rows["states"] else [])
    return names + (["edge_gradients", "score_gradients"] if cell.has_attention else [])


def is_parallel(plan: SweepPlan, hidden: int) -> bool:
    """Whether several threads share the levels of a sweep."""
    if work_of(plan, hidden) < PARALLEL_WORK:
        return False
    return plan.speedup(max(2, torch.get_num_threads())) >= PARALLEL_SPEEDUP


@cache
def sweep_functions(plan: CellPlan, layout: PackedLayout) -> Mapping[str, NativeFunction]:
    """The passes ``forward`` and ``backward``, and sums over all nodes: ``weight``, ``table``, those of the cell."""
    # One module for a cell: its functions share one copy of the products.
    module = ir.Module("dagnn")
    names = write_cell(module, layout, plan)
    return compiled(str(module), tuple(names), layout.target)


class Sweep:
    """One pass of a cell over a graph: `forward`, then `backward`, then `weight_gradient`, each with what it leaves.

    Args:
        plan: the graph.
        cell: what to compute.
        hidden: its width.
        projected: ``[rows, features * hidden]``, contiguous, float32 or float64.
        feature_rows: int64 ``[num_nodes]``, the row of ``projected`` of every node; None for its own.
        weights: as in `ProjectedCell`, the first with a leading dimension ``[operators]``.
        is_shared: several threads share its levels; see `is_parallel`.
        target: the processor to compile for; by default the one at hand.

    """

    def __init__(
        self,
        plan: SweepPlan,
        cell: CellPlan,
        hidden: int,
        projected: Tensor,
        feature_rows: Tensor | None,
        weights: tuple[Tensor, ...],
        *,
        is_shared: bool,
        target: Target | None = None,
    ) -> None:
        self._plan, self._cell, self._hidden, self._dtype = plan, cell, hidden, projected.dtype
        self._layout = PackedLayout(projected.dtype == torch.float64, host_target() if target is None else target)
        self._functions = sweep_functions(cell, self._layout)
        self._wide = self._layout.count(hidden) * self._layout.width
        self._columns = projected.shape[1] // hidden
        self._feature_rows = plan.nodes  # the row of the projected features for each place of the sweep
        if feature_rows is not None:
            self._feature_rows = feature_rows.index_select(0, plan.node_index).to(torch.int32).numpy()
        self._table_rows = None if feature_rows is None else len(projected)
        self._slots = weights[0].shape[1] // (hidden * len(cell.aggregates))
        # 64 bytes for one counter: every worker waits on it, and shares its cache line with nothing that is written to.
        self._done = torch.zeros(8, dtype=torch.int64, device="cpu")
        self._projected, self._weights = projected, weights
        self._frame = self._framed()
        self._address: dict[str, int] = {}
        self._saved = self._borrow(_saved(cell))
        self._held: tuple[object, ...] = ()
        self._is_shared = is_shared

    def forward(self) -> Work[Tensor]:
        """The output of every node, ``[num_nodes, hidden]``. Nothing here keeps it alive."""
        layout = self._layout
        output = self._weights[0].new_empty(self._plan.num_nodes, self._wide)
        inputs = {
            "projected": layout.widened(self._projected, self._hidden),
            "y": output,
            **self._packed(self._weights),
        }
        self._set(**inputs)
        self._done.zero_()
        call = self._call("forward", len(self._plan.blocks), self._frame.copy(), in_order=True)

        def result() -> Tensor:
            # A copy, not a view: the user may not write in place to a view that an autograd Function returned.
            whole = self._wide == self._hidden
            return output if whole else output[:, : self._hidden].clone(memory_format=torch.contiguous_format)

        return Work([call], result, inputs)

    def backward(self, grad_y: Tensor, y: Tensor | None, *, needs_projected: bool) -> Work[Tensor | None]:
        """The gradient of ``projected``, in its shape. Only once: it overwrites the gates.

        ``y`` is what `forward` gave, for a cell that ``reads_output``.
        """
        plan, layout = self._plan, self._layout
        scratch = self._borrow(_scratch(self._cell))
        grad_rows = plan.num_nodes if self._table_rows is None else self._table_rows
        # Nodes that share a row of features may be in blocks of two workers. Their sum is a call of its own, later.
        by_table = needs_projected and self._table_rows is not None
        width = self._columns * self._wide
        shape = (grad_rows if needs_projected else 0, width)
        grad_projected = grad_y.new_zeros(shape) if by_table else grad_y.new_empty(shape)
        inputs: dict[str, Tensor | None] = {
            "grad_y": layout.widened(grad_y, self._hidden),
            "y": None if y is None else layout.widened(y, self._hidden),
            "grad_projected": grad_projected if needs_projected and not by_table else None,
            **self._packed(self._weights, back=True),
        }
        if self._cell.reads_features:  # the forward pass may have read a copy, filled up to whole packs
            inputs["projected"] = layout.widened(self._projected, self._hidden)
        self._set(**inputs)
        # The frame has only their addresses, and the gradients of the weights read them after this pass has returned.
        self._held = (scratch, inputs)
        self._done.zero_()
        calls = [self._call("backward", len(plan.blocks), self._frame.copy(), in_order=True)]
        if by_table:
            frame = self._frame.copy(grad_projected=grad_projected.data_ptr())
            calls.append(self._call("table", width // layout.width, frame))
        return Work(calls, lambda: layout.narrowed(grad_projected, self._hidden, 1) if needs_projected else None)

    # ---- gradients of weights ----

    def adds_to(self, number: int, weight: Tensor) -> bool:
        """Whether `weight_gradient` can add to a gradient that this weight, the one of that number, has already.

        It can for matrices whose packs are all full: then the packed gradient has the layout of the weight. The weight
        may have been replaced since the forward pass.
        """
        own = self._weights[number]
        return (
            self._wide == self._hidden
            and number < (2 if self._cell.each else 1)
            and (weight.dtype, weight.device) == (own.dtype, own.device)
            and (weight.numel(), weight.shape[-2:]) == (own.numel(), own.shape[-2:])
        )

    def weight_gradient(
        self, number: int, into: Tensor | None = None, step: tuple[Tensor, float] | None = None
    ) -> Work[Tensor]:
        """The gradient of a weight, after the `backward` pass.

        Args:
            number: which of the weights.
            into: contiguous, of the shape of the weight: is added to, and is the result. None for new memory.
            step: with ``into``, where `adds_to` holds, the weight itself and ``lr``: then also
                ``weight -= lr * into``, all that ``into`` now holds.
        """
        if number == 0:
            return self._matrix_gradient("weight", self._weights[0], self._plan.classes, into, step)
        if self._cell.each and number == 1:
            every = np.array([[self._plan.num_nodes, 1, 0, 0, 0]], dtype=np.int64)
            given = {"operands": self._address["hidden"], "gates": self._address["forget_gradients"]}
            return self._matrix_gradient("forget", self._weights[1].unsqueeze(0), every, into, step, **given)
        gradient = self._weights[0].new_empty(self._wide)
        vector = number - (2 if self._cell.each else 1)
        function = "bias" if vector < len(self._cell.vectors) else "score"
        frame = self._frame.copy(first=vector, **{f"grad_{function}": gradient.data_ptr()})
        call = self._call(function, self._layout.count(self._hidden), frame)
        return Work([call], lambda: gradient[: self._hidden])

    def _matrix_gradient(
        self,
        function: str,
        weight: Tensor,
        classes: NDArray[np.int64],
        into: Tensor | None,
        step: tuple[Tensor, float] | None,
        **addresses: int,
    ) -> Work[Tensor]:
        layout, count = self._layout, self._layout.count(self._hidden)
        left, right = (weight.shape[k] // self._hidden * count for k in (1, 2))
        height, width = left * layout.width, right * layout.width
        gradient = weight.new_zeros(len(weight), height, width) if into is None else into
        # Classes are sorted by operator: those of an operator, whose rows add to one matrix, are neighbours.
        first = np.searchsorted(classes[:, 4], np.arange(len(weight) + 1)).astype(np.int64)
        parts = -(-left // LEFT_PART), -(-right // RIGHT_PART)
        frame = self._frame.copy(
            grad_weight=gradient.data_ptr(),
            class_table=_address(classes),
            class_first=_address(first),
            weight_stride=height * width * layout.size,
            left_packs=left,
            right_packs=right,
            left_parts=parts[0],
            right_parts=parts[1],
            **addresses,
        )
        if step is not None:
            moved, lr = step
            frame.set(weight=moved.data_ptr())
            frame.set_step(lr, double=layout.size == 8)
        call = self._call(function, len(weight) * parts[0] * parts[1], frame)

        def result() -> Tensor:
            return (
                gradient
                if into is not None
                else layout.narrowed(layout.narrowed(gradient, self._hidden, 1), self._hidden, 2)
            )

        return Work([call], result, (classes, first, step))

    # ---- memory ----

    def _framed(self) -> Frame:
        plan, layout = self._plan, self._layout
        names = ("nodes", "first_slots", "in_offsets", "in_sources", "in_places", "out_offsets", "out_edges")
        frame = Frame()
        rows = self._slots * len(self._cell.aggregates) * self._wide
        columns = self._weights[0].shape[2] // self._hidden * self._wide
        frame.set(
            **{name: _address(getattr(plan, name)) for name in names},
            block_table=_address(plan.blocks),
            class_table=_address(plan.classes),
            feature_rows=_address(self._feature_rows),
            out_index=_address(plan.out_slots),
            num_blocks=len(plan.blocks),
            num_nodes=plan.num_nodes,
            num_edges=plan.num_edges,
            blocks_done=self._done.data_ptr(),
            yield_core=yield_core(),
            packs=layout.count(self._hidden),
            hidden_width=self._hidden,
            width=layout.width,
            state_bytes=self._wide * layout.size,
            projected_bytes=self._columns * self._wide * layout.size,
            weight_stride=rows * columns * layout.size,
            weight_pack=rows * layout.line,
            back_weight_pack=columns * layout.line,
        )
        return frame

    def _rows(self, name: str) -> int:
        """How many numbers an array holds."""
        plan = self._plan
        if name == "gates":
            return (self._cell.lines * plan.num_nodes + self._cell.slot_lines * plan.num_slots) * self._wide
        if name in ("edge_weights", "edge_gradients", "scores", "score_gradients"):
            return plan.num_edges if name.startswith("edge") else plan.num_nodes
        count = self._cell.rows.get("states" if name == "state_gradients" else name, 1)
        of = {"operands": plan.num_slots, "edge_gates": plan.num_edges}
        return of.get(name, plan.num_slots if name.startswith("slot") else plan.num_nodes) * count * self._wide

    def _borrow(self, names: Sequence[str]) -> Borrowed:
        """Memory for arrays, whose addresses go into the frame; each begins at a multiple of 64 bytes."""
        # 16 numbers are 64 bytes in float32: no two arrays share a cache line, which two workers might write to.
        lengths = [-(-self._rows(name) // 16) * 16 for name in names]
        memory = Borrowed(sum(lengths), self._dtype)
        starts = np.cumsum([0, *lengths]) * self._layout.size + memory.numbers.data_ptr()
        address = {name: int(start) for name, start in zip(names, starts, strict=False)}
        self._address.update(address)
        self._frame.set(**address)
        return memory

    def _packed(self, weights: tuple[Tensor, ...], *, back: bool = False) -> dict[str, Tensor]:
        """The weights in packs, by their names in the frame; for the way back transposed."""
        first, *rest = (weight.detach() for weight in weights)
        # Transposed in memory, not in the product: both ways it then reads its right factor line by line.
        packed = self._layout.packed_transposed if back else self._layout.packed
        result = {"back_weight" if back else "weight": packed(first, self._hidden)}
        if self._cell.each:
            result["back_forget_weight" if back else "forget_weight"] = packed(rest.pop(0).unsqueeze(0), self._hidden)
        rest = [F.pad(vector, (0, self._wide - self._hidden)) for vector in rest]
        if self._cell.has_attention:
            result["score_weight"] = rest.pop().contiguous()
        if rest:
            result["bias"] = torch.stack(rest) if len(rest) > 1 else rest[0].contiguous()
        return result

    def _set(self, **tensors: Tensor | None) -> None:
        """Addresses of tensors; 0 for None. They do not keep the tensors alive: the caller does."""
        self._frame.set(**{name: 0 if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()})

    def _call(self, name: str, pieces: int, frame: Frame, *, in_order: bool = False) -> Call:
        return Call(self._functions[name], frame, pieces, self._is_shared and (in_order or pieces > 1))


def _address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])
