"""The compiled path of a network: forward and backward as steps over its plan. No autograd here.

Without dense blocks a pass is one step over all nodes. With them it is a list of steps: the nodes of a block get their
sums from one matrix product of PyTorch's, the nodes in between from compiled code.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dagnn.kernels.autograd import Borrowed
from dagnn.kernels.emit.native import Frame
from dagnn.kernels.emit.workers import SingleThreadedProducts, num_workers, products_are_single, run, run_products
from dagnn.kernels.network.compiled_plan import CompiledPlan, Cut


class Saved:
    """What the forward pass leaves for the backward pass. When nobody holds it any more, its memory serves the next.

    Attributes:
        values: of all nodes at the beginning of it; see `Cut` for where.
        slopes: of the activations whose slope does not follow from their value; None if there are none.
    """

    def __init__(self, plan: CompiledPlan, length: int, dtype: torch.dtype) -> None:
        self._memory = Borrowed((2 if plan.keeps_slopes else 1) * length, dtype)
        self.values = self._memory.numbers
        self.slopes: Tensor | None = self.values[length : 2 * length] if plan.keeps_slopes else None


class Gradients(NamedTuple):
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


def forward(
    plan: CompiledPlan, x: Tensor, weight: Tensor, bias: Tensor, chosen: Tensor | None = None
) -> tuple[Tensor, Saved]:
    """Outputs ``[B, outputs]`` for ``x [B, inputs]``, contiguous as the parameters are; B at least 1.

    All of one dtype, float32 or float64. With ``chosen``, contiguous int64 ``[B]``, x has more rows, and the batch is
    ``x[chosen]``: it is read from where it is, in place of a copy. Nothing checks that there are such rows.
    """
    batch, double = x.shape[0] if chosen is None else len(chosen), x.dtype == torch.float64
    y = x.new_empty(batch, plan.num_outputs)
    if plan.is_single(batch):
        if chosen is not None:
            x = x.index_select(0, chosen)
        saved = Saved(plan, batch * plan.num_nodes, x.dtype)
        frame = plan.frame(batch=batch)
        frame.set_addresses(x=x, y=y, weight=weight, bias=bias, values=saved.values, slopes=saved.slopes)
        plan.single_functions(double)["forward"](frame.address)
        return y, saved

    cut, functions, frame = plan.prepared(batch, double)
    row_length = cut.row_length if plan.blocks else cut.tiles * cut.shape.tile
    saved = Saved(plan, plan.num_nodes * row_length, x.dtype)
    frame = frame.copy()
    frame.set_addresses(x=x, chosen=chosen, y=y, weight=weight, bias=bias, values=saved.values, slopes=saved.slopes)
    if not plan.blocks:
        run(functions["forward"], frame, cut.tiles, is_shared=cut.is_shared)
        return y, saved
    # Every step of the list runs the same function: the first one reads x into rows, and the last one writes y.
    frame.set_addresses(y=None)

    with SingleThreadedProducts():
        for first, last, number in plan.segments():
            frame.set(first=first, last=last)
            if last == plan.num_nodes:
                frame.set_addresses(y=y)
            if number is not None:
                block = plan.blocks[number]
                source = _rows(cut, saved.values, block.source_first, block.source_last)
                _multiply(plan.matrix(number, weight), source, _rows(cut, saved.values, first, last))
            run(functions["forward" if number is None else "activate"], frame, cut.tiles, is_shared=cut.is_shared)
            frame.set_addresses(x=None)
    return y, saved


def backward(
    plan: CompiledPlan, grad_y: Tensor, saved: Saved, weight: Tensor, bias: Tensor, into: Gradients, *, needs_x: bool
) -> Tensor | None:
    """Gradients of the parameters go ``into`` their places; that of x ``[B, inputs]`` comes back if needed.

    ``grad_y [B, outputs]`` is contiguous; B at least 1.
    """
    batch, double = grad_y.shape[0], grad_y.dtype == torch.float64
    grad_x = grad_y.new_empty(batch, plan.num_inputs) if needs_x else None
    # Before the pass, which writes to the same arrays: this fills them with zeros.
    if plan.num_live < plan.num_nodes:
        _prepare_dead(plan, weight, bias, into)
    if plan.is_single(batch):
        frame = plan.frame(batch=batch)
        _set_gradients(frame, saved, weight, bias, into, grad_y, grad_x)
        deltas = grad_y.new_empty(plan.num_nodes)
        frame.set_addresses(deltas=deltas)
        plan.single_functions(double)["backward"](frame.address)
        return grad_x

    cut, functions, frame = plan.prepared(batch, double)
    size, tile_rows = cut.shape.size, plan.num_rows * cut.shape.tile
    # One piece of scratch memory, one part after another. It must be held until the last function has run.
    of_workers = 0 if plan.blocks else (num_workers(cut.pieces) if cut.is_shared else 1) * tile_rows
    of_edges, of_nodes = cut.pieces * plan.num_sparse, cut.pieces * plan.num_nodes
    scratch = Borrowed(of_workers + plan.num_sparse + of_edges + of_nodes, grad_y.dtype)
    deltas_at = scratch.numbers.data_ptr()
    weights_at = deltas_at + of_workers * size
    edges_at = weights_at + plan.num_sparse * size
    frame = frame.copy(
        deltas=deltas_at,
        delta_worker_bytes=tile_rows * size,
        out_weight=weights_at,
        edge_sums=edges_at,
        node_sums=edges_at + of_edges * size,
        num_sums=cut.pieces,
    )
    _set_gradients(frame, saved, weight, bias, into, grad_y, grad_x)
    # Edges are independent here: how they are divided changes no bit, so it may follow the number of threads. A thread
    # needs some thousand edges to be worth its start.
    edge_pieces = num_workers(plan.num_sparse // 4096)
    pulled = plan.num_sparse
    if grad_x is None and cut.shape.skips_inputs:
        # Nothing is pulled along the edges out of inputs, which come first.
        pulled -= plan.num_from_inputs
    first = plan.num_sparse - pulled
    gathered = frame.copy(num_edges=pulled, out_weight=weights_at + first * size, out_index=plan.index_address(first))
    run(functions["gather"], gathered, num_workers(pulled // 4096))
    if plan.blocks:
        with SingleThreadedProducts():
            _backward_steps(plan, cut, frame, saved.values, weight, into, grad_x)
    else:
        run(functions["backward"], frame, cut.pieces, is_shared=cut.is_shared)
    run(functions["finish"], frame, edge_pieces)
    return grad_x


def _prepare_dead(plan: CompiledPlan, weight: Tensor, bias: Tensor, into: Gradients) -> None:
    """What the pass leaves out at dead nodes: their gradients are 0, and a step moves them by what ``.grad`` held."""
    for dead, parameter, gradient in ((plan.dead_edges, weight, into.weight), (plan.dead_biases, bias, into.bias)):
        if not into.accumulate:
            gradient.zero_()
        elif into.lr is not None:
            parameter[dead] -= into.lr * gradient[dead]


def _set_gradients(
    frame: Frame, saved: Saved, weight: Tensor, bias: Tensor, into: Gradients, grad_y: Tensor, grad_x: Tensor | None
) -> None:
    """What every backward pass reads and writes."""
    frame.set_addresses(weight=weight, bias=bias, values=saved.values, slopes=saved.slopes)
    frame.set_addresses(grad_y=grad_y, grad_x=grad_x, grad_weight=into.weight, grad_bias=into.bias)
    frame.set(accumulate=int(into.accumulate))
    if into.lr is not None:
        frame.set_step(into.lr, double=weight.dtype == torch.float64)


def _backward_steps(
    plan: CompiledPlan, cut: Cut, frame: Frame, values: Tensor, weight: Tensor, into: Gradients, grad_x: Tensor | None
) -> None:
    """The list of steps, last one first. Dense blocks push to their sources; all other nodes pull."""
    sweep = plan.functions(cut.shape)["backward"]
    # Zeros, not borrowed memory: blocks add to the rows of their sources.
    deltas = values.new_zeros(plan.num_rows * cut.row_length)
    frame.set_addresses(deltas=deltas, grad_x=None)
    frame.set(first=0, last=0, delta_worker_bytes=0, delta_tile_bytes=cut.tile_length * cut.shape.size)
    run(sweep, frame, cut.pieces, is_shared=cut.is_shared)  # no nodes yet: only the gradient of y, into its rows
    frame.set_addresses(grad_y=None)

    for first, last, number in reversed(plan.segments()):
        if first == 0:
            frame.set_addresses(grad_x=grad_x)
        frame.set(first=first, last=last)
        run(sweep, frame, cut.pieces, is_shared=cut.is_shared)
        if number is None:
            continue
        block, positions = plan.blocks[number], plan.positions[number]
        delta, source = _rows(cut, deltas, first, last), _rows(cut, values, block.source_first, block.source_last)
        # The gradient of the sources first: it reads the weights, and with ``lr`` they move below.
        if grad_x is not None or not plan.reads_inputs_only[number]:
            of_source = _rows(cut, deltas, block.source_first, block.source_last)
            _multiply(plan.matrix(number, weight).t(), delta, of_source, add=True)
        if positions is None:
            own = plan.matrix(number, into.weight)
            _multiply(delta, source.t(), own, add=into.accumulate)  # in place: no matrix of that size in between
        else:
            own = into.weight[block.first_weight : block.first_weight + block.num_edges]
            # A block with gaps: the full matrix, of which the edges pick their places.
            full = delta.new_empty(delta.shape[0], source.shape[0])
            _multiply(delta, source.t(), full)
            found = full.view(-1).index_select(0, positions)
            _ = own.add_(found) if into.accumulate else own.copy_(found)
        if into.lr is not None:
            weight[block.first_weight : block.first_weight + block.num_edges].add_(own.view(-1), alpha=-into.lr)


# Multiply-adds of a piece of a product. Every piece packs the other matrix anew: with half of this, and pieces 64 wide,
# the products of an MLP of 784, 256 and 128 nodes took 15 to 20 % longer than undivided ones; so they take 4 to 8 %.
_PRODUCT = 1 << 24


def _multiply(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """``out = left @ right``, or ``out += left @ right``, with the same bits for any number of threads."""
    (rows, inner), columns = left.shape, right.shape[1]
    if rows * inner * columns < 2 * _PRODUCT or inner == 1 or columns == 1:  # a vector's product waits for memory
        if products_are_single():
            _product(left, right, out, add)
        else:
            run_products(lambda _: _product(left, right, out, add), 1, 1)
        return
    # Along the longer side of the result, in multiples of 64, which no vector is wider than.
    along_rows = rows > columns
    pieces = rows * inner * columns // _PRODUCT
    step = max(128, -(-max(rows, columns) // (64 * pieces)) * 64)
    if along_rows:
        run_products(lambda part: _product(left[part], right, out[part], add), rows, step)
    else:
        run_products(lambda part: _product(left, right[:, part], out[:, part], add), columns, step)


def _product(left: Tensor, right: Tensor, out: Tensor, add: bool) -> None:
    """A single column goes as a vector, and a single product as such: `torch.mm` makes no use of either."""
    if right.shape[1] == 1:
        _ = out[:, 0].addmv_(left, right[:, 0]) if add else torch.mv(left, right[:, 0], out=out[:, 0])
    elif add:
        out.addmm_(left, right)
    elif left.shape[1] == 1:
        torch.outer(left[:, 0], right[0], out=out)
    else:
        torch.mm(left, right, out=out)


def _rows(cut: Cut, values: Tensor, first: int, last: int) -> Tensor:
    """The values of nodes as ``[last - first, samples of all tiles]``; ``values`` begins where its memory does."""
    # In one operation: a view, a slice and a slice of that took as long as a small product.
    return values.as_strided((last - first, cut.tiles * cut.shape.tile), (cut.row_length, 1), first * cut.row_length)
