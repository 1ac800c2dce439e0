"""Losses that couple the items of a window, computed in pieces that run twice.

A contrastive loss sees the representations of the whole batch. First the model computes them piece by piece, without a
graph. Then the loss yields the gradient of each representation. Then each piece runs again, with a graph and the same
random numbers, and backward starts from that gradient. One extra forward pass; memory of one piece plus the
representations.
Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP 2021.

Where a model computes such a loss itself, its modules do the same inside its forward pass (``PiecewiseModules``).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from dagnn.accumulation.items import CANNOT_SPLIT, count_items
from dagnn.accumulation.partition import slice_batch
from dagnn.accumulation.random_states import RandomState, Snapshot
from dagnn.errors import AccumulationError

# Relative difference up to which results of other batch sizes are the same: rounding.
_ROUNDING, _COARSE = {torch.float64: 1e-9, torch.float32: 1e-4}, 5e-2

Backward = Callable[[Sequence[Tensor], Sequence[Tensor], bool], None]  # roots, their gradients, retain_graph


@dataclass
class _Call:
    """One call of the model over the whole batch."""

    function: Callable[..., Any]
    arguments: Any  # (args, kwargs), with detached leaves in place of tensors that have a graph
    num_items: int
    originals: list[tuple[Tensor, Tensor]]  # (tensor with a graph, its detached leaf)
    pieces: list[tuple[int, int, RandomState]]
    outputs: list[Tensor | None]  # leaves, flattened; None where an output is no tensor with a gradient
    rows: list[list[int]]  # of each piece: the rows of each of its outputs
    autocast: list[tuple[str, bool, torch.dtype]]


class _CachedModel:
    """Replaces the model inside ``loss_fn``: calls run piece by piece, attributes are the model's own.

    Sub-modules reached as attributes (``model.text_encoder(tokens)``) are cached as well; other methods run as they
    are, exact but with a graph of the whole batch.
    """

    def __init__(self, module: nn.Module, micro_batch_size: int, calls: list[_Call]) -> None:
        self._module = module
        self._micro_batch_size = micro_batch_size
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _CachedModel(value, self._micro_batch_size, self._calls) if isinstance(value, nn.Module) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run_pieces(self._module, args, kwargs, self._micro_batch_size, self._calls)


def cached_loss(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], batch: Any, micro_batch_size: int
) -> tuple[Any, Callable[[Backward], None]]:
    """The loss of the whole batch, and a function that carries its gradient through the model.

    Run backward on the loss first, then call the function with a backward that sums into the parameters' gradients.
    """
    calls: list[_Call] = []
    loss = loss_fn(_CachedModel(model, micro_batch_size, calls), batch)

    def finish(backward: Backward) -> None:
        while calls:
            _replay(calls.pop(), backward)  # last call first: its inputs may be outputs of an earlier one

    return loss, finish


def _run_pieces(
    function: Callable[..., Any], args: Any, kwargs: Any, size: int, calls: list[_Call], *, one_row: bool = True
) -> Any:
    num_items = count_items((*args, *kwargs.values()), advice=CANNOT_SPLIT)
    with_gradient = torch.is_grad_enabled()
    flat, spec = tree_flatten((args, kwargs))
    originals: list[tuple[Tensor, Tensor]] = []
    for index, value in enumerate(flat):
        if isinstance(value, Tensor) and value.requires_grad and with_gradient:
            leaf = value.detach().requires_grad_()
            originals.append((value, leaf))
            flat[index] = leaf
    arguments = tree_unflatten(flat, spec)

    pieces, outputs = [], []
    with torch.no_grad():
        for start in range(0, num_items, size):
            stop = min(start + size, num_items)
            pieces.append((start, stop, RandomState.now()))
            piece_args, piece_kwargs = (slice_batch(part, start, stop, num_items) for part in arguments)
            output = function(*piece_args, **piece_kwargs)
            if one_row:
                _check_separable(output, stop - start)
            outputs.append(output)
        whole = concatenate(outputs)  # here: a slice of an input, handed on as it is, has a graph
    if not with_gradient:
        return whole
    flat_outputs, output_spec = tree_flatten(whole)
    leaves = [v.requires_grad_() if isinstance(v, Tensor) and v.is_floating_point() else None for v in flat_outputs]
    rows = [[len(v) if isinstance(v, Tensor) else 0 for v in tree_flatten(output)[0]] for output in outputs]
    calls.append(_Call(function, arguments, num_items, originals, pieces, leaves, rows, _autocast_state()))
    return tree_unflatten(flat_outputs, output_spec)


def _replay(call: _Call, backward: Backward) -> None:
    if all(leaf is None or leaf.grad is None for leaf in call.outputs):
        return  # the loss does not use this call
    now = RandomState.now()
    done = [0] * len(call.outputs)  # rows of each output that earlier pieces had
    for (start, stop, state), rows in zip(call.pieces, call.rows, strict=True):
        state.restore()
        args, kwargs = (slice_batch(part, start, stop, call.num_items) for part in call.arguments)
        with ExitStack() as stack:
            for device, enabled, dtype in call.autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled))
            outputs = tree_flatten(call.function(*args, **kwargs))[0]
        roots, gradients = [], []
        for output, leaf, first, num_rows in zip(outputs, call.outputs, done, rows, strict=True):
            if leaf is not None and leaf.grad is not None and output.requires_grad:
                roots.append(output)
                gradients.append(leaf.grad[first : first + num_rows])
        done = [first + num_rows for first, num_rows in zip(done, rows, strict=True)]
        if roots:
            backward(roots, gradients, False)
    now.restore()
    tensors = [original for original, leaf in call.originals if leaf.grad is not None]
    if tensors:
        # Kept: two calls may share the graph between the earlier outputs and their inputs.
        backward(tensors, [leaf.grad for _, leaf in call.originals if leaf.grad is not None], True)


def _autocast_state() -> list[tuple[str, bool, torch.dtype]]:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in devices
        if torch.is_autocast_enabled(device)
    ]


def concatenate(outputs: Sequence[Any]) -> Any:
    """One output for the whole batch from those of its pieces: tensors, or tuples, lists and dicts of them."""
    flat = [tree_flatten(output) for output in outputs]
    groups = zip(*(leaves for leaves, _ in flat), strict=True)
    return tree_unflatten([_concatenate_leaves(group) for group in groups], flat[0][1])


def _concatenate_leaves(leaves: Sequence[Any]) -> Tensor | None:
    first = leaves[0]
    if isinstance(first, Tensor):
        return torch.cat(tuple(leaves))
    if first is None:
        return None
    raise AccumulationError(
        f"outputs of type {type(first).__name__} cannot be concatenated: return tensors, or tuples, lists and dicts of "
        "them."
    )


def _check_separable(output: Any, num_items: int) -> None:
    for value in tree_flatten(output)[0]:
        if isinstance(value, Tensor) and (value.ndim == 0 or value.size(0) != num_items):
            raise AccumulationError(
                f"with coupled=True the model must return one row per item, but for {num_items} items it returned the "
                f"shape {list(value.shape)}: let loss_fn compute the loss from the model's representations."
            )


class PiecewiseModules:
    """Inside a forward pass of the model over a whole batch, runs its modules in pieces, where that is the same.

    A model that computes a contrastive loss itself calls its encoders, which treat items one by one. These run piece
    by piece, without a graph; ``finish`` runs them again after the backward pass of the loss. ``find`` tells which
    modules do, in ``names``: the outermost ones whose outputs for two pieces are those for each of them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: list[_Call] = []
        self.names: dict[str, nn.Module] = {}

    @contextmanager
    def running(self, num_items: int, size: int) -> Iterator[None]:
        """A context for one forward pass over ``num_items`` items, of which a module sees ``size`` at a time."""
        self._calls = []

        def replacement(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            def in_pieces(*args: Any, **kwargs: Any) -> Any:
                if not torch.is_grad_enabled() or not _is_per_item((args, kwargs), num_items):
                    return forward(*args, **kwargs)
                return _run_pieces(forward, args, kwargs, size, self._calls, one_row=False)

            return in_pieces

        with ExitStack() as stack:
            for module in self.names.values():
                stack.enter_context(_replaced_forward(module, replacement))
            yield

    def finish(self, backward: Backward) -> None:
        """Carry the gradient through the modules that ran in pieces; ``backward`` on the loss comes first."""
        buffers = Snapshot([self._model])
        while self._calls:
            _replay(self._calls.pop(), backward)  # last call first: its inputs may be outputs of an earlier one
        buffers.restore_buffers()  # the second pass must not move running statistics again

    def find(self, loss_of: Callable[[Any], Tensor], batch: Any, num_items: int, size: int) -> bool:
        """Find the modules that run ``size`` items at a time; False where the loss is not finite, so that none tells.

        Modules in pieces must give the gradient of the whole too: what one hands on past its outputs (a list that
        others read later) would have none. Where they do not, no module runs in pieces. The model is in eval mode.
        """
        self.names = {}
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        num_tried = min(2 * size, num_items)
        with ExitStack() as stack, torch.no_grad():
            self._try_children(self._model, "", stack, (num_tried, size))
            loss_of(slice_batch(batch, 0, num_tried, num_items))
        num_compared = max(size, 2)
        compared = slice_batch(batch, 0, num_compared, num_items)
        loss = loss_of(compared)
        expected = torch.autograd.grad(loss, parameters, allow_unused=True)
        if not self.names or not bool(loss.isfinite()):
            finite, self.names = bool(loss.isfinite()), {}
            return finite
        before = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            with self.running(num_compared, num_compared // 2):
                loss = loss_of(compared)
            torch.autograd.backward([loss], retain_graph=True)
            self.finish(lambda roots, gradients, retain: torch.autograd.backward(roots, gradients, retain_graph=retain))
            found = [p.grad for p in parameters]
        except (RuntimeError, AccumulationError):
            found = []  # such as checkpointing around a module, which runs it again without the pieces
        finally:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        if not found or not _alike(found, expected):
            self.names = {}
        return True

    def _try_children(self, module: nn.Module, name: str, stack: ExitStack, sizes: tuple[int, int]) -> None:
        """Try out each child when it is called, and its own children where it must run as a whole."""

        def replacement(child: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            tried: list[bool] = []

            def trying(*args: Any, **kwargs: Any) -> Any:
                if not tried:
                    tried.append(_same_in_pieces(child, forward, args, kwargs, sizes))
                    if tried[0]:
                        self.names[names[child]] = child
                    elif not getattr(child, "gradient_checkpointing", False):  # it will run them again, without pieces
                        self._try_children(child, names[child], stack, sizes)
                return forward(*args, **kwargs)

            return trying

        names = {child: f"{name}.{key}".removeprefix(".") for key, child in module.named_children()}
        for child in names:
            if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                self._try_children(child, names[child], stack, sizes)
            elif any(True for _ in child.children()) and any(p.requires_grad for p in child.parameters()):
                # A single layer is cheaper as a whole, and what does not train keeps nothing.
                stack.enter_context(_replaced_forward(child, replacement))


@contextmanager
def _replaced_forward(
    module: nn.Module, replacement: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    own = vars(module).get("forward")  # set by accelerate and others
    vars(module)["forward"] = replacement(module, module.forward)
    try:
        yield
    finally:
        del vars(module)["forward"]
        if own is not None:
            vars(module)["forward"] = own


def _same_in_pieces(
    module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any, sizes: tuple[int, int]
) -> bool:
    """Whether the outputs for two pieces are those for each of them; ``sizes``: items of both, and of the first."""
    num_items, size = sizes
    if any(isinstance(part, _BatchNorm) for part in module.modules()) or not _is_per_item((args, kwargs), num_items):
        return False
    bounds = ((0, num_items), (0, size), (size, num_items))
    pieces = [[slice_batch(part, *ends, num_items) for part in (args, kwargs)] for ends in bounds]
    try:
        whole, *parts = (tree_flatten(forward(*args, **kwargs)) for args, kwargs in pieces)
        found = [_concatenate_leaves(leaves) for leaves in zip(*(leaves for leaves, _ in parts), strict=True)]
    except Exception:  # whatever it raises, it does not run on a piece
        return False
    if any(spec != whole[1] for _, spec in parts) or all(leaf is None for leaf in found):
        return False
    pairs = zip(found, whole[0], strict=True)
    return all(a is b is None or (a is not None and a.shape == b.shape and _alike([a], [b])) for a, b in pairs)


def _is_per_item(arguments: Any, num_items: int) -> bool:
    """Whether all tensors among the arguments have a row for each item, and there is one; nothing else changes."""
    tensors = [value for value in tree_flatten(arguments)[0] if isinstance(value, Tensor) and value.ndim]
    return bool(tensors) and all(len(tensor) == num_items for tensor in tensors) and _is_plain(arguments)


def _is_plain(value: Any) -> bool:
    """False for objects such as the cache of an attention, which a second run would find changed."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (Tensor, bool, int, float, str, torch.dtype, torch.device))


def _alike(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Whether values are equal, all together, up to the rounding of other batch sizes; None counts as zero."""
    error = size = allowed = 0.0
    zero = torch.zeros((), dtype=torch.float64)
    for pair in zip(found, expected, strict=True):
        allowed = max(allowed, *(_ROUNDING.get(value.dtype, _COARSE) for value in pair if value is not None), 0.0)
        a, b = (zero if value is None else value.detach().double() for value in pair)
        error, size = error + float((a - b).square().sum()), size + float(b.square().sum())
    return math.sqrt(error) <= allowed * math.sqrt(size)
