"""The compiled path of a network: forward and backward as steps over its plan. No autograd here.

Without dense blocks a pass is one step over all nodes. With them it is a list: the nodes of a block get their sums
from one matrix product of PyTorch's, those in between from the compiled sweep.
"""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from dagnn.kernels.compiled_plan import CompiledPlan, Cut
from dagnn.kernels.frame import Frame
from dagnn.kernels.workers import num_workers, run


class Saved:
    """What the forward pass leaves for the backward pass. When it is no longer needed, its memory serves the next.

    Attributes:
        values: of all nodes; see `Cut` for where.
        slopes: of the activations that do not tell theirs by their value; None if there are none.
    """

    def __init__(self, plan: CompiledPlan, length: int, dtype: torch.dtype) -> None:
        self._plan, count = plan, 2 if plan.keeps_slopes else 1
        self._memory = plan.borrow("values", count * length, dtype)
        self.values: Tensor = self._memory[:length]
        self.slopes: Tensor | None = self._memory[length : 2 * length] if plan.keeps_slopes else None

    def __del__(self) -> None:
        self._plan.give_back("values", self._memory)


@dataclass(frozen=True)
class Gradients:
    """Where gradients of the parameters go.

    Attributes:
        weight, bias: contiguous, of the shape of the parameters.
        accumulate: add to what they hold instead of overwriting it.
        lr: if not None, then also take a step of plain gradient descent, in the same pass.
    """

    weight: Tensor
    bias: Tensor
    accumulate: bool
    lr: float | None = None


def forward(plan: CompiledPlan, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Saved]:
    """Outputs ``[B, outputs]`` for ``x [B, inputs]``, contiguous as the parameters are; B at least 1.

    All of one dtype, float32 or float64.
    """
    batch, double = len(x), x.dtype == torch.float64
    y = x.new_empty(batch, plan.num_outputs)
    if plan.is_single(batch):
        saved = Saved(plan, batch * plan.num_nodes, x.dtype)
        frame = plan.frame(None, batch=batch)
        _set(frame, x=x, y=y, weight=weight, bias=bias, values=saved.values, slopes=saved.slopes)
        plan.single_functions(double)["forward"](frame.address)
        return y, saved

    cut = plan.cut(batch, double)
    functions = plan.functions(cut.shape)
    row_length = cut.row_length if plan.blocks else cut.tiles * cut.shape.tile
    saved = Saved(plan, plan.num_nodes * row_length, x.dtype)
    frame = plan.frame(cut)
    _set(frame, x=x, weight=weight, bias=bias, values=saved.values, slopes=saved.slopes)
    if not plan.blocks:
        _set(frame, y=y)
        frame.set(last=plan.num_nodes)
        run(functions["forward"], frame, cut.tiles)
        return y, saved

    matrix = _matrix(plan, cut, saved.values)
    for first, last, number in plan.segments():
        frame.set(first=first, last=last)
        if last == plan.num_nodes:
            _set(frame, y=y)
        if number is not None:
            block = plan.blocks[number]
            _multiply(
                plan.matrix(number, weight),
                matrix[block.source_first : block.source_last],
                matrix[first:last],
            )
        run(functions["forward" if number is None else "activate"], frame, cut.tiles)
        _set(frame, x=None)  # it is in its rows now
    return y, saved


def backward(
    plan: CompiledPlan,
    grad_y: Tensor,
    saved: Saved,
    weight: Tensor,
    bias: Tensor,
    into: Gradients,
    *,
    needs_x: bool,
) -> Tensor | None:
    """Gradients of the parameters go ``into`` their places; that of x ``[B, inputs]`` comes back if needed.

    ``grad_y [B, outputs]`` is contiguous; B at least 1.
    """
    batch, double = len(grad_y), grad_y.dtype == torch.float64
    grad_x = grad_y.new_empty(batch, plan.num_inputs) if needs_x else None
    cut = None if plan.is_single(batch) else plan.cut(batch, double)
    frame = plan.frame(cut, batch=batch, accumulate=int(into.accumulate))
    _set(frame, weight=weight, bias=bias, values=saved.values, slopes=saved.slopes, grad_y=grad_y)
    _set(frame, grad_weight=into.weight, grad_bias=into.bias)
    if into.lr is not None:
        (bits,) = struct.unpack("<q", struct.pack("<d", into.lr) if double else struct.pack("<fi", into.lr, 0))
        frame.set(descend=1, lr=bits)

    if cut is None:
        deltas = grad_y.new_empty(plan.num_nodes)
        _set(frame, deltas=deltas, grad_x=grad_x)
        plan.single_functions(double)["backward"](frame.address)
        return grad_x

    functions = plan.functions(cut.shape)
    workers = num_workers(cut.pieces)
    tile_rows = plan.num_nodes * cut.shape.tile
    lengths = [0 if plan.blocks else workers * tile_rows, plan.num_sparse]
    lengths += [cut.pieces * plan.num_sparse, cut.pieces * plan.num_nodes]
    scratch = plan.borrow("scratch", sum(lengths), grad_y.dtype)
    deltas, out_weight, edge_sums, node_sums = torch.split(scratch[: sum(lengths)], lengths)
    _set(frame, out_weight=out_weight, edge_sums=edge_sums, node_sums=node_sums)
    frame.set(num_sums=cut.pieces)
    edge_pieces = num_workers(plan.num_sparse // 4096)
    run(functions["gather"], frame, edge_pieces)
    if plan.blocks:
        _backward_steps(plan, cut, frame, saved.values, weight, into, grad_x)
    else:
        _set(frame, deltas=deltas, grad_x=grad_x)
        frame.set(last=plan.num_nodes, delta_worker_bytes=tile_rows * cut.shape.size)
        run(functions["backward"], frame, cut.pieces)
    run(functions["finish"], frame, edge_pieces)
    plan.give_back("scratch", scratch)
    return grad_x


def _backward_steps(
    plan: CompiledPlan,
    cut: Cut,
    frame: Frame,
    values: Tensor,
    weight: Tensor,
    into: Gradients,
    grad_x: Tensor | None,
) -> None:
    """The list of steps, last one first. Blocks push to their sources; all others pull."""
    sweep = plan.functions(cut.shape)["backward"]
    # Blocks add to the rows of their sources.
    deltas = values.new_zeros(len(values))
    _set(frame, deltas=deltas)
    frame.set(delta_tile_bytes=cut.tile_length * cut.shape.size)
    run(sweep, frame, cut.pieces)  # no nodes yet: only the gradient of y, into its rows
    _set(frame, grad_y=None)

    value_of, delta_of = _matrix(plan, cut, values), _matrix(plan, cut, deltas)
    for first, last, number in reversed(plan.segments()):
        if first == 0:
            _set(frame, grad_x=grad_x)
        frame.set(first=first, last=last)
        run(sweep, frame, cut.pieces)
        if number is None:
            continue
        block, positions = plan.blocks[number], plan.positions[number]
        delta, source = delta_of[first:last], value_of[block.source_first : block.source_last]
        # Before the weights move: a step of descent, or the gradient of the sources, reads them.
        if grad_x is not None or not plan.reads_inputs_only[number]:
            _add_product(delta_of[block.source_first : block.source_last], plan.matrix(number, weight).t(), delta)
        own = into.weight[block.slot : block.slot + block.num_edges]
        if positions is None and into.accumulate:
            own.view(block.shape).addmm_(delta, source.t())
        elif positions is None and delta.shape[1] == 1:
            torch.outer(delta[:, 0], source[:, 0], out=own.view(block.shape))
        elif positions is None:
            torch.mm(delta, source.t(), out=own.view(block.shape))
        else:
            found = (delta @ source.t()).view(-1).index_select(0, positions)
            _ = own.add_(found) if into.accumulate else own.copy_(found)
        if into.lr is not None:
            weight[block.slot : block.slot + block.num_edges].add_(own, alpha=-into.lr)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """``left @ right``. One column is a vector: a product of matrices does not know that."""
    if right.shape[1] == 1:
        torch.mv(left, right[:, 0], out=out[:, 0])
    else:
        torch.mm(left, right, out=out)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``."""
    if right.shape[1] == 1:
        total[:, 0].addmv_(left, right[:, 0])
    else:
        total.addmm_(left, right)


def _matrix(plan: CompiledPlan, cut: Cut, values: Tensor) -> Tensor:
    """Values as ``[num_nodes, samples of all tiles]``."""
    return values.view(plan.num_nodes, cut.row_length)[:, : cut.tiles * cut.shape.tile]


def _set(frame: Frame, **tensors: Tensor | None) -> None:
    """Addresses of tensors; 0 for None and for those without elements."""
    frame.set(**{name: 0 if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()})
