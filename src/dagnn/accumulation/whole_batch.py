"""A whole batch in one call: split to fit into memory, summed exactly, begun again smaller when memory runs out.

LBFGS and SAM compute the loss themselves: they call a closure several times a step, each time over the whole batch.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dagnn.accumulation.batch_norms import BatchNormMode, BatchNorms
from dagnn.accumulation.coupled import cached_loss
from dagnn.accumulation.items import CANNOT_SPLIT, count_items, tensors_in
from dagnn.accumulation.loss_scale import LOW_PRECISION
from dagnn.accumulation.partition import MicroBatch, Outline, WeightFn, counted, known_weights, slice_batch, split_batch
from dagnn.accumulation.random_states import RandomState, Snapshot
from dagnn.accumulation.ranks import Ranks, ranks_of
from dagnn.accumulation.shares import Reduction
from dagnn.accumulation.stepping import Finalizer, Stepped, check_trainable, losses_are_finite
from dagnn.accumulation.sums import (
    AccumulateDtype,
    GradientSums,
    add_gradients,
    check_accumulate_dtype,
    clip_factor,
    total_norm,
)
from dagnn.accumulation.window import Window
from dagnn.errors import AccumulationError, ConfigError

LossFn = Callable[[Any, Any], Any]
MicroBatchSize = int | Literal["auto"]
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class AccumulatedLoss(float):
    """The loss of the batch: a plain number, with a record of how it was computed.

    >>> import torch, dagnn
    >>> loss_fn = lambda model, batch: model(batch).square().mean()
    >>> loss = dagnn.accumulate(torch.nn.Linear(3, 1), loss_fn, torch.randn(10, 3), micro_batch_size=4)
    >>> loss > 0, loss.weight, loss.micro_batches, loss.micro_batch_size
    (True, 10.0, 3, 4)
    """

    weight: float  # total weight: what the sum over the batch was divided by
    losses: Mapping[str, float]  # every named loss by itself
    micro_batches: int
    micro_batch_size: int  # the size that was used: smaller than the given one after running out of memory


@dataclass(frozen=True)
class Job:
    """How to run a batch."""

    micro_batch_size: MicroBatchSize
    weight: WeightFn | None = None
    reduction: Reduction = "mean"
    coupled: bool = False
    memory: str | int | None = None
    restore: Sequence[Any] = ()

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        size = self.micro_batch_size
        if size != "auto" and (isinstance(size, bool) or not isinstance(size, Integral) or size < 1):
            raise ConfigError(f"micro_batch_size must be a positive whole number or 'auto', got {size!r}.")
        if self.memory is not None:
            parse_memory(self.memory)
            if size != "auto":
                raise ConfigError(f"memory= is the budget of micro_batch_size='auto', got micro_batch_size={size}.")
        if self.reduction == "undivided" and self.weight is not None:
            raise ConfigError(
                f"got weight=... and reduction={self.reduction!r}, which divides by nothing: leave one out."
            )


def accumulate(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    *,
    micro_batch_size: MicroBatchSize,
    weight: WeightFn | None = None,
    reduction: Reduction = "mean",
    coupled: bool = False,
    memory: str | int | None = None,
    restore: Sequence[Any] = (),
    batch_norm: BatchNormMode = "warn",
    accumulate_dtype: AccumulateDtype = "auto",
    process_group: Any = None,
) -> AccumulatedLoss:
    """The loss of ``batch``, with its gradient added to ``.grad``, computed in pieces.

    Equals ``loss_fn(model, batch)`` and its ``backward()`` with the memory of one micro-batch.

    >>> import torch, dagnn
    >>> model = torch.nn.Linear(2, 1)
    >>> batch = {"x": torch.randn(10, 2), "y": torch.randn(10, 1)}
    >>> def loss_fn(model, batch):
    ...     return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
    >>> loss = dagnn.accumulate(model, loss_fn, batch, micro_batch_size=4)
    >>> loss.weight, loss.micro_batches
    (10.0, 3)

    Args:
        model: any module; its parameters that require a gradient get one.
        loss_fn: ``loss_fn(model, micro_batch)`` returns the loss, or a mapping of named losses, or ``(loss, weight)``
            when what it divided by is known only there.
        batch: tensors, arrays, lists, graph batches, and tuples, mappings and dataclasses of them.
        micro_batch_size: items per piece, the last may be smaller. "auto" takes the largest that fits ``memory``, or
            the whole batch without one. In either case, running out of memory undoes everything the failed attempt
            did and halves the size.
        weight: weight of a micro-batch; default: its number of items.
        reduction: what the loss is: "mean", "sum" or "none" (one loss per item), for the gradient of the mean;
            "undivided" for the gradient of the plain sum of what ``loss_fn`` returns.
        coupled: the loss is not a mean over items (contrastive losses). ``loss_fn`` gets the whole batch, and a model
            that computes representations piece by piece. Costs one more forward pass.
        memory: budget for the activations of one piece, such as "2GiB", with ``micro_batch_size="auto"``.
        restore: metrics and other objects that ``loss_fn`` changes; their state is restored when an attempt fails.
        batch_norm: "warn", "defer" (running statistics move once, by the whole batch) or "ignore".
        accumulate_dtype, process_group: see ``GradientAccumulator``.

    Raises:
        ConfigError: an argument is out of range.
        AccumulationError: the items cannot be counted, or one item does not fit into memory.
    """
    job = Job(micro_batch_size, weight, reduction, coupled, memory, restore)
    job.check()
    check_accumulate_dtype(accumulate_dtype)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ranks = ranks_of([model], parameters, process_group=process_group)
    before = [p.grad for p in parameters]
    norms = BatchNorms([model], batch_norm)

    def make_window(micros: list[MicroBatch], outlines: list[Outline]) -> Window:
        known = known_weights(outlines, micros)
        ranks.open_window([outline.micro_batches for outline in outlines])
        sums = GradientSums(parameters, None if ranks.every_backward else accumulate_dtype)
        return Window(micros, known, sums=sums, ranks=ranks, batch_norms=norms)

    try:
        window, size = run_batch([model], model, loss_fn, batch, job, ranks, make_window)
        window.finish_gradients()
    except BaseException:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        raise
    for parameter, gradient in zip(parameters, before, strict=True):
        if gradient is not None:
            parameter.grad = add_gradients(gradient, parameter.grad)
    result = AccumulatedLoss(window.totals.loss)
    result.weight, result.losses = window.totals.weight, window.totals.losses
    result.micro_batches, result.micro_batch_size = window.num_run, size
    return result


def run_batch(
    models: Sequence[nn.Module],
    model: Any,
    loss_fn: LossFn,
    batch: Any,
    job: Job,
    ranks: Ranks,
    make_window: Callable[[list[MicroBatch], list[Outline]], Window],
) -> tuple[Window, int]:
    """A settled window over ``batch``, and the micro-batch size that worked.

    All processes use the same size: when memory runs out on one, all start again.
    """
    _check_initialised(models, with_parameters=job.memory is not None)
    num_items = count_items(batch, advice=CANNOT_SPLIT)
    snapshot = Snapshot(models, job.restore)
    size = num_items if job.micro_batch_size == "auto" else min(job.micro_batch_size, max(num_items, 1))
    if job.memory is not None:
        size = _size_for_memory(models, model, loss_fn, batch, num_items, parse_memory(job.memory), snapshot)
    size = max(1, min(ranks.gather(size)))
    while True:
        pieces = [(batch, num_items)] if job.coupled else split_batch(batch, size)
        micros = [counted(piece, job.weight, items=items) for piece, items in pieces]
        window = make_window(micros, ranks.gather(Outline.of(micros, declared=job.weight is not None)))
        failure = _run(window, model, loss_fn, job, size, models)
        if not any(ranks.gather(failure is not None)):
            window.settle()
            return window, size
        window.discard()
        snapshot.restore()
        if size == 1:
            raise AccumulationError(
                f"one item does not fit into memory ({failure or 'on another process'}): free memory, or checkpoint "
                "parts of the model (torch.utils.checkpoint)."
            ) from failure
        size = -(-size // 2)


def _run(
    window: Window, model: Any, loss_fn: LossFn, job: Job, size: int, models: Sequence[nn.Module]
) -> BaseException | None:
    """Run all micro-batches; the error if memory ran out."""
    try:
        for micro in window.run():
            if job.coupled:
                result, finish = cached_loss(model, loss_fn, micro, size)
                # The loss depends on representations, not on parameters, and does not show that there are none.
                check_trainable([p for m in models for p in m.parameters()])
                loss, weight = _loss_and_weight(result)
                window.backward(_at_least_float32(loss), weight, job.reduction, retain_graph=True)
                after_first_pass = Snapshot(models)
                with window.recomputing():
                    finish(window.continue_backward)
                after_first_pass.restore_buffers()  # the second pass must not move running statistics again
            else:
                window.backward(*_loss_and_weight(loss_fn(model, micro)), job.reduction)
    except BaseException as error:
        if is_out_of_memory(error):
            # Without its traceback, whose frames hold the tensors of the failed attempt.
            return error.with_traceback(None)
        window.discard()
        raise
    return None


def _loss_and_weight(result: Any) -> tuple[Tensor | Mapping[str, Tensor], Any]:
    if isinstance(result, tuple):
        if len(result) != 2:
            raise ConfigError(f"loss_fn must return a loss or (loss, weight), got a tuple of {len(result)}.")
        return result[0], result[1]
    return result, None


def _at_least_float32(loss: Any) -> Any:
    """16-bit losses as float32: the gradients of the representations then have one factor, whatever the shares are."""
    if isinstance(loss, Mapping):
        return {name: _at_least_float32(value) for name, value in loss.items()}
    return loss.float() if isinstance(loss, Tensor) and loss.dtype in LOW_PRECISION else loss


def _check_initialised(models: Sequence[nn.Module], *, with_parameters: bool) -> None:
    tensors = [named for m in models for named in m.named_buffers()]
    if with_parameters:
        tensors += [named for m in models for named in m.named_parameters()]
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise ConfigError(
                f"a lazy module of the model has no shape yet ({name}): run the model once on a batch before this."
            )


def _size_for_memory(
    models: Sequence[nn.Module],
    model: Any,
    loss_fn: LossFn,
    batch: Any,
    num_items: int,
    budget: int,
    snapshot: Snapshot,
) -> int:
    known = [tensor for m in models for tensor in (*m.parameters(), *m.buffers())]
    known += tensors_in(batch)

    def measure(items: int) -> int:
        piece = slice_batch(batch, 0, items, num_items)
        used = activation_bytes(lambda: loss_fn(model, piece), known)
        snapshot.restore()
        return used

    return largest_fitting(measure, budget, num_items)


def parse_memory(memory: str | int) -> int:
    """Bytes in ``memory``: a number of bytes or a text such as "2GiB", "500 MB".

    >>> parse_memory("2GiB")
    2147483648
    """
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", memory.lower()) if isinstance(memory, str) else None
    if match is None or not float(match[1]):
        raise ConfigError(f"memory must be a size such as '2GiB' or '500MB', or a number of bytes, got {memory!r}.")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def is_out_of_memory(error: BaseException) -> bool:
    """True for what torch and Python raise when an allocation fails, on a device or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def activation_bytes(run: Callable[[], Any], known: Iterable[Tensor]) -> int:
    """Memory that a forward pass keeps for its backward pass, in bytes.

    Counts each storage once that autograd saves while ``run`` is called, but not those of ``known`` (parameters,
    buffers, the batch), which exist anyway. On a CUDA device the peak of the allocator counts, if that is more.
    """
    skip = {_storage_key(tensor) for tensor in known}
    saved: dict[tuple[torch.device, int], int] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = _storage_key(tensor)
        if key not in skip:
            saved[key] = tensor.untyped_storage().nbytes()
        return tensor

    device = next((tensor.device for tensor in known if tensor.is_cuda), None)
    before = 0
    if device is not None:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    peak = torch.cuda.max_memory_allocated(device) - before if device is not None else 0
    del result
    return max(peak, sum(saved.values()))


def largest_fitting(measure: Callable[[int], int], budget: int, most: int) -> int:
    """The largest number of items ``1 .. most`` for which ``measure(items) <= budget``; few measurements.

    Memory grows almost linearly with the items, so a line through the last two measurements is a good next guess;
    each measurement also halves off one side, so that a curve which is not linear ends too. AccumulationError if even
    one item does not fit.
    """
    fits, too_many = 0, most + 1
    points: list[tuple[int, int]] = []
    guess = 1
    while too_many - fits > 1:
        used = measure(guess)
        points.append((guess, used))
        if used <= budget:
            fits = guess
        else:
            too_many = guess
        guess = max(fits + 1, min(too_many - 1, _next_guess(points, budget)))
    if fits == 0:
        raise AccumulationError(
            f"one item needs {points[0][1]:,} bytes of activations, but memory={budget:,} allows less: raise memory, "
            "or checkpoint parts of the model (torch.utils.checkpoint)."
        )
    return fits


def _next_guess(points: list[tuple[int, int]], budget: int) -> int:
    if len(points) == 1:
        return 2
    (n1, b1), (n2, b2) = points[-2:]
    if n1 == n2 or (b2 - b1) * (n2 - n1) <= 0:
        return 2 * n2
    slope = (b2 - b1) / (n2 - n1)
    return int((budget - b2) / slope) + n2


def _storage_key(tensor: Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


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

    It returns the window of the first evaluation, at the parameters before the step, and what happened.

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
