"""Windows that run more than once: losses that couple items, and optimizers that compute the loss themselves.

A contrastive loss sees the representations of the whole batch. First the model computes them piece by piece, without a
graph. Then the loss yields the gradient of each representation. Then each piece runs again, with a graph and the same
random numbers, and backward starts from that gradient. One extra forward pass; memory of one piece plus the
representations.
Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP 2021.

LBFGS and SAM call a closure several times a step, each time over the whole window.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from dagnn.accumulation.items import CANNOT_SPLIT, count_items
from dagnn.accumulation.partition import slice_batch
from dagnn.accumulation.state import RandomState
from dagnn.accumulation.stepping import Finalizer, Stepped, losses_are_finite
from dagnn.accumulation.sums import clip_factor, total_norm
from dagnn.accumulation.window import Window
from dagnn.errors import AccumulationError, ConfigError

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


def _run_pieces(function: Callable[..., Any], args: Any, kwargs: Any, size: int, calls: list[_Call]) -> Any:
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
            _check_separable(output, stop - start)
            outputs.append(output)
    whole = concatenate(outputs)
    if not with_gradient:
        return whole
    flat_outputs, output_spec = tree_flatten(whole)
    leaves = [v.requires_grad_() if isinstance(v, Tensor) and v.is_floating_point() else None for v in flat_outputs]
    calls.append(_Call(function, arguments, num_items, originals, pieces, leaves, _autocast_state()))
    return tree_unflatten(flat_outputs, output_spec)


def _replay(call: _Call, backward: Backward) -> None:
    if all(leaf is None or leaf.grad is None for leaf in call.outputs):
        return  # the loss does not use this call
    now = RandomState.now()
    for start, stop, state in call.pieces:
        state.restore()
        args, kwargs = (slice_batch(part, start, stop, call.num_items) for part in call.arguments)
        with ExitStack() as stack:
            for device, enabled, dtype in call.autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled))
            outputs = tree_flatten(call.function(*args, **kwargs))[0]
        roots, gradients = [], []
        for output, leaf in zip(outputs, call.outputs, strict=True):
            if leaf is not None and leaf.grad is not None and output.requires_grad:
                roots.append(output)
                gradients.append(leaf.grad[start:stop])
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


class _WindowClosure:
    """A closure over a whole window, with the same random numbers at every call.

    The first evaluation happens before the step (SAM expects its gradient to exist); the first call returns it again
    if nothing has changed since (LBFGS).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], max_norm: float | None, run: Callable[[], Window]) -> None:
        self._parameters = parameters
        self._max_norm = max_norm
        self._run = run
        self._random = RandomState.now()
        self.first = self._evaluate()
        self._random_after = RandomState.now()
        self._seen: list[tuple[int, int]] | None = self._identity()

    def __call__(self) -> float:
        if self._seen is not None and self._seen == self._identity():
            self._seen = None
            return self.first[0].totals.loss
        self._seen = None
        self._random.restore()
        window, norm = self._evaluate()
        self._random_after.restore()
        if not norm < float("inf") or not losses_are_finite(window.totals.losses):
            raise AccumulationError(
                f"the gradient or the loss became inf or nan inside one optimizer step (gradient norm {norm:g}, loss "
                f"{window.totals.loss:g}), which was undone: lower the learning rate, or give LBFGS "
                "line_search_fn='strong_wolfe'."
            )
        return window.totals.loss

    def _evaluate(self) -> tuple[Window, float]:
        with torch.enable_grad():  # optimizers step under no_grad
            window = self._run()
        window.finish_gradients()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = total_norm(gradients)
        if self._max_norm is not None and norm < float("inf"):
            for gradient in gradients:
                gradient.mul_(clip_factor(norm, self._max_norm))
        return window, norm

    def _identity(self) -> list[tuple[int, int]]:
        return [(id(p.grad), p._version) for p in self._parameters]


def step_with_closure(finalizer: Finalizer, run: Callable[[], Window]) -> tuple[Window, Stepped]:
    """Step the one optimizer of ``finalizer``; ``run`` makes a settled window at the parameters of the moment.

    Returns:
        the window of the first evaluation, at the parameters before the step, and what happened.

    Raises:
        ConfigError: there are several optimizers or a loss scaler, which a closure cannot serve.
        AccumulationError: the gradient stopped being finite after the first evaluation.
    """
    if len(finalizer.optimizers) > 1 or finalizer.scaler is not None:
        raise ConfigError(
            f"an update by closure needs one optimizer and no scaler, got {len(finalizer.optimizers)} optimizers and "
            f"scaler={'None' if finalizer.scaler is None else 'a GradScaler'}."
        )
    (optimizer,) = finalizer.optimizers
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    lr = finalizer.lr
    closure = _WindowClosure(parameters, finalizer.max_norm, run)
    window, norm = closure.first
    if window.totals.empty:
        return window, Stepped(float("nan"), lr, "empty")
    losses = window.totals.losses
    if not norm < float("inf") or not losses_are_finite(losses):
        gradients = [(f"parameter {i}", p.grad) for i, p in enumerate(parameters) if p.grad is not None]
        finalizer.refuse_nonfinite(gradients, losses)
        return window, Stepped(norm, lr, "non-finite")
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        optimizer.step(closure)
    except BaseException:
        # Half a step (SAM at its perturbed weights) is no step, whoever swallows the error.
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        if finalizer.needs_closure:
            optimizer.state.clear()  # LBFGS cannot go on from a history that ends inside a step
        raise
    finalizer.after_step()
    return window, Stepped(norm, lr, None)
