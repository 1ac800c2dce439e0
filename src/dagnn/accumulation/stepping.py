"""Around the backward passes of a window: each loss gets its share and its scale; then check, clip, step, average.

The end has one right order: check, clip, step, scaler, schedule, average. What happens to losses comes after it.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.accumulation.optimizers import average_updates, check_schedulers
from dagnn.accumulation.shares import SINGLE, Reduction
from dagnn.accumulation.sums import Sums, clip_factor, first_nonfinite
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError, warn


class Update(NamedTuple):
    """The result of one window.

    ``loss`` and ``grad_norm`` are those of the full batch: they depend neither on how it was split nor on the number
    of processes.

    >>> import torch, dagnn
    >>> model = torch.nn.Linear(3, 1)
    >>> accumulator = dagnn.GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> accumulator.backward(model(torch.ones(4, 3)).mean(), weight=4)
    >>> update = accumulator.step()
    >>> update.step, update.weight, update.lr, update.skipped
    (1, 4.0, 0.1, None)
    """

    step: int  # optimizer updates made so far, this one included; a skipped window does not count
    loss: float  # mean over all items of the window, or undivided sum; all losses added; nan when it was empty
    weight: float  # what the sum over all processes was divided by; of the first denominator if there are several
    grad_norm: float  # L2 norm over all gradients before clipping; nan when the window was empty
    lr: float  # of the first parameter group, as used by this update
    skipped: str | None  # None when parameters were updated, else "empty" or "non-finite"
    micro_batches: int  # that ran, over all processes
    losses: Mapping[str, float]  # every named loss by itself


class Stepped(NamedTuple):
    """What happened at the end of a window: a part of ``Update``, in the same order."""

    grad_norm: float
    lr: float
    skipped: str | None


Seeds = dict[tuple[float, torch.dtype, torch.device], Tensor]  # numbers that backward passes begin with


class Finalizer:
    """Runs the end of a window with the user's own objects, which stay unwrapped and unpatched."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        *,
        max_norm: float | None,
        scheduler: Any,
        scaler: torch.amp.GradScaler | None,
        ema: Any,
        raise_on_nonfinite: bool,
    ) -> None:
        self.optimizers = list(optimizers)
        self.max_norm = _check_max_norm(max_norm)
        self._schedulers = check_schedulers(scheduler, optimizers)
        if scaler is not None and not all(hasattr(scaler, name) for name in ("is_enabled", "get_scale", "unscale_")):
            raise ConfigError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}.")
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._averages = average_updates(ema, models)
        self._raise_on_nonfinite = raise_on_nonfinite
        self._scaler_probe: Optimizer | None = None
        self.seeds: Seeds = {}
        self._needs_closure = {id(optimizer) for optimizer in optimizers if needs_closure(optimizer)}

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    @property
    def needs_closure(self) -> bool:
        """An optimizer cannot step without a function that computes the loss."""
        return bool(self._needs_closure)

    def scale(self) -> float:
        """The loss scale of this window: 1.0 without a scaler."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def finalize(
        self,
        sums: Sums,
        names: Callable[[], dict[int, str]],
        sum_parts: Callable[[float], float],
        losses: Mapping[str, float],
        overflowed: bool = False,
    ) -> Stepped:
        """Update the parameters from the exposed mean gradients, or skip when one of them or a loss is not finite.

        Args:
            losses: the mean losses of the window. One that is nan counts nothing (all its targets are ignored, say),
                and its gradient may be 0 nevertheless.
            overflowed: a micro-batch was dropped for overflow: the step is done, but the scale still goes down.
        """
        self._check_can_step()
        (finite, norm), lr = sums.norm(sum_parts), self.lr
        sound = finite and losses_are_finite(losses)
        if sound:
            if self.max_norm is not None:
                sums.scale_(clip_factor(norm, self.max_norm))
            sums.apply(self.optimizers)
        self._update_scaler(found_inf=overflowed or not finite)
        if not sound:
            if self._raise_on_nonfinite:
                self.refuse_nonfinite(sums.named(names()), losses)
            return Stepped(norm, lr, "non-finite")
        self.after_step()
        return Stepped(norm, lr, None)

    def refuse_nonfinite(self, gradients: Sequence[tuple[str, Tensor]], losses: Mapping[str, float]) -> None:
        """Raise under ``on_nonfinite="raise"``, naming the first of ``gradients`` that is not finite, or the loss."""
        if not self._raise_on_nonfinite:
            return
        name = first_nonfinite(gradients)
        if name is None and not losses_are_finite(losses):
            found = ", ".join(f"{loss_name} = {value}" for loss_name, value in losses.items())
            raise AccumulationError(_nonfinite_message(f"the mean loss of the window ({found})"))
        raise AccumulationError(_nonfinite_message(f"the gradient of {name}" if name else "the gradient"))

    def after_step(self) -> None:
        """Scheduler, then EMA."""
        for scheduler in self._schedulers:
            scheduler.step()
        for update in self._averages:
            update()

    def _update_scaler(self, *, found_inf: bool) -> None:
        """Report this window to the scaler through its public methods, with a parameter of our own.

        Its ``unscale_`` refuses 16-bit gradients and sees one process only; ours are already unscaled and checked.
        """
        if self.scaler is None:
            return
        if self._scaler_probe is None:
            device = self.optimizers[0].param_groups[0]["params"][0].device
            self._scaler_probe = torch.optim.SGD([nn.Parameter(torch.zeros(1, device=device))], lr=0.0)
        (probe,) = self._scaler_probe.param_groups[0]["params"]
        probe.grad = torch.full_like(probe, float("inf") if found_inf else 0.0)
        self.scaler.scale(probe.detach())  # creates the scale on first use
        self.scaler.unscale_(self._scaler_probe)
        self.scaler.step(self._scaler_probe)
        self.scaler.update()

    def _check_can_step(self) -> None:
        for optimizer in self.optimizers:
            if id(optimizer) in self._needs_closure:
                raise AccumulationError(
                    f"{type(optimizer).__name__} computes the loss several times per step, so it needs the whole "
                    "window as a function: use accumulator.update(batch, loss_fn, micro_batch_size=...) in place of "
                    "window.step()."
                )
        if self.scaler is None:
            return
        # There is no public method for this; without the attribute the check is left out.
        states = getattr(self.scaler, "_per_optimizer_states", {})
        for optimizer in self.optimizers:
            if id(optimizer) in states and states[id(optimizer)].get("found_inf_per_device"):
                raise AccumulationError(
                    f"scaler.unscale_(optimizer) was called inside a window, with a {type(optimizer).__name__}, but "
                    "the window unscales by itself: remove that call (clipping belongs into max_norm=...)."
                )


def needs_closure(optimizer: Optimizer) -> bool:
    """True where ``optimizer.step`` cannot be called without a function that computes the loss (LBFGS)."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _check_max_norm(max_norm: float | None) -> float | None:
    """``max_norm`` itself; a positive number, or None for no clipping."""
    if max_norm is None:
        return None
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)) or not max_norm > 0:
        raise ConfigError(f"max_norm must be a positive number, or None for no clipping, got {max_norm!r}.")
    return float(max_norm)


def losses_are_finite(losses: Mapping[str, float]) -> bool:
    """No mean loss is inf or nan."""
    return all(map(math.isfinite, losses.values()))


def _nonfinite_message(what: str) -> str:
    return (
        f"{what} is not finite, and on_nonfinite='raise': parameters were left as they were. Look for inf "
        "or nan in the loss, or use on_nonfinite='skip' (leave the window out) or 'drop' (leave the micro-batch out)."
    )


Pass = tuple[list[Tensor], list[Tensor], bool]  # where it begins, with which gradients, whether it is the last
_MAX_SEEDS = 256  # ragged windows have seeds of their own
LOW_PRECISION = frozenset((torch.float16, torch.bfloat16))


def check_loss(name: str, loss: Any, reduction: Reduction) -> None:
    """Raise unless ``loss`` is a tensor of the shape that ``reduction`` says."""
    if reduction not in get_args(Reduction):
        raise ConfigError(f"reduction must be 'mean', 'sum', 'none' or 'undivided', got {reduction!r}.")
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"{_called(name)} must be a tensor, got {type(loss).__name__}: pass the loss itself, not loss.item()."
        )
    if loss.ndim and reduction != "none":
        if loss.numel() == 1:
            raise AccumulationError(
                f"{_called(name)} must be 0-dimensional, got the shape {list(loss.shape)}: pass loss.squeeze(), or "
                "reduction='none' if it holds one loss per item."
            )
        raise AccumulationError(
            f"{_called(name)} must be one number for reduction={reduction!r}, got the shape {list(loss.shape)}: pass "
            "its mean, or reduction='none' with one loss per item."
        )


def refuse_detached(name: str, parameters: Sequence[Tensor]) -> None:
    """Raise for a loss that has no graph to go back through to any of ``parameters``."""
    check_trainable(parameters)
    raise AccumulationError(
        f"{_called(name)} does not depend on a parameter that requires a gradient: was it computed under "
        "torch.no_grad() or detached? Use window.drop() for a micro-batch without a loss."
    )


def refuse_nonfinite(losses: Sequence[Tensor], micro: int) -> None:
    """Raise for a loss that eager updates cannot leave out."""
    if not all(bool(torch.isfinite(loss).all()) for loss in losses):
        values = ", ".join(str(float(reported_loss(loss))) for loss in losses)
        raise AccumulationError(
            f"the loss is not finite ({values} in micro-batch {micro}), and with eager updates nothing can be left "
            "out: look for inf or nan in the model's outputs, or do without eager."
        )


def refuse_failed(failed: str | None) -> None:
    """Raise after an error inside a backward pass, which ``failed`` names."""
    if failed is not None:
        raise AccumulationError(
            f"there was an error inside backward ({failed}), so the sums may hold half of a gradient, and a step would "
            "be wrong: give the window up with discard() and run its data again. With on_nonfinite='drop', "
            "window.drop() in that micro-batch leaves it out."
        )


def refuse_uncounted(loss: Tensor, micro: int) -> None:
    """Raise for a loss that counts nothing and would yet reach the gradients, where every pass must run."""
    if not bool(torch.isfinite(loss).all()):
        raise AccumulationError(
            f"micro-batch {micro} has the weight 0 and a loss that is not finite ({float(reported_loss(loss))}), and "
            "fully_shard needs its backward pass: use a sum loss with reduction='sum', which is 0 there."
        )


def reported_loss(loss: Tensor) -> Tensor:
    """``loss`` as one number without a graph; losses per item are summed in float32 at least."""
    detached = loss.detach()
    return detached.sum(dtype=torch.promote_types(loss.dtype, torch.float32)) if loss.ndim else detached


def check_trainable(parameters: Sequence[Tensor]) -> None:
    """Raise when none of ``parameters`` requires a gradient."""
    if not any(parameter.requires_grad for parameter in parameters):
        raise AccumulationError(
            f"there is nothing to train: none of {len(parameters)} parameters requires a gradient. Call "
            "requires_grad_(True) on those that should learn, before the window."
        )


def warn_if_divided(loss: Tensor, micro_batches: int, reduction: Reduction) -> None:
    """Warn about ``loss / micro_batches``, the division of a hand-written loop, which would be done twice."""
    node = loss.grad_fn
    if reduction != "mean" or micro_batches < 2 or node is None:
        return
    kind = type(node).__name__
    if kind not in ("DivBackward0", "MulBackward0"):
        return
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.ndim or other.requires_grad:
        return
    divisor = float(other) if kind == "DivBackward0" else 1.0 / float(other) if float(other) else 0.0
    before = node.next_functions[0][0]
    # A sum divided by a number is a mean written by hand, whose number happens to be that of the micro-batches.
    if abs(divisor - micro_batches) < 1e-9 and before is not None and "Sum" not in type(before).__name__:
        warn(
            f"the loss was divided by {micro_batches}, the number of micro-batches in the window, before backward, "
            "which divides by the window's weight itself: pass the plain mean loss, or the gradient is "
            f"{micro_batches} times too small.",
            AccumulationWarning,
        )


def _called(name: str) -> str:
    return "loss" if name == SINGLE else f"loss {name!r}"


def _holds_float16(loss: Tensor) -> bool:
    """True if the graph of ``loss`` sends a float16 gradient anywhere, as float16 autocast does.

    What is float16 between parameters of 32 bits was cast on the way, or is inside a function of the user's own: only
    there the dtype is looked at, which takes most of the time.
    """
    nodes, seen = [loss.grad_fn], {loss.grad_fn}
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            continue
        casts = kind == "ToCopyBackward0" or not kind[-1].isdigit()  # PyTorch's own nodes are numbered
        if casts and any(getattr(p, "dtype", None) == torch.float16 for p in getattr(node, "_input_metadata", ())):
            return True
        for parent, _ in node.next_functions:
            if parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return False


class LossScale:
    """Scales the losses of one window, and keeps what must not be put into them.

    A share ``w / N`` cannot go into 16 bits: bfloat16 would round it by up to 0.4 %, and in float16 gradients of
    2^-15 vanish when 1,024 micro-batches divide them beforehand. So where 16 bits are on the way, the backward pass
    starts from 1 (from a power of two with a loss scaler), and the sums of 32 bits or more take the rest of the factor.
    """

    def __init__(self, sums: Sums, finalizer: Finalizer | None, *, may_rescale: bool) -> None:
        self._sums = sums
        self._finalizer = finalizer  # asked for its scale once, in the first backward pass: one loss scale per window
        self._begun = False
        self._scale = 1.0
        self._may_rescale = may_rescale and sums.rescalable
        self._low: bool | None = True if sums.narrow_parameters else None  # None until a loss was looked into
        self._residual = 1.0
        self._seeds = {} if finalizer is None else finalizer.seeds

    def passes(self, losses: Sequence[Tensor], coefficients: Sequence[float]) -> Iterable[Pass]:
        """The backward passes: one, but for several 16-bit losses with different shares.

        The gradients are ``coefficient * scale``, up to the factor that ``leftover`` still holds. They are given and
        not multiplied onto the loss, which would be one more operation in both directions.
        """
        self._begin()
        roots = [loss.sum() if loss.ndim else loss for loss in losses]
        # Where nothing is multiplied, as in a window of one micro-batch, nothing can be lost: no graph is walked.
        whole = self._scale == self._residual == 1.0 and all(c == 1.0 for c in coefficients)
        if whole or not (self._may_rescale and (self._low or self._is_low(losses))):
            factor = self._scale / self._residual
            return ((roots, [self._seed(root, c * factor) for root, c in zip(roots, coefficients, strict=True)], True),)
        return self._low_passes(roots, coefficients)

    def _begin(self) -> None:
        if not self._begun:
            self._begun, self._scale = True, 1.0 if self._finalizer is None else self._finalizer.scale()

    def seed(self, loss: Tensor, coefficient: float) -> Tensor | None:
        """What the one pass of a 0-dimensional ``loss`` begins with; None where ``passes`` must decide."""
        self._begin()
        whole = coefficient == self._scale == self._residual == 1.0
        if not whole and (self._low is not False or loss.dtype in LOW_PRECISION):
            return None
        return self._seed(loss, coefficient * (self._scale / self._residual))

    def _low_passes(self, roots: Sequence[Tensor], coefficients: Sequence[float]) -> Iterator[Pass]:
        top = max(coefficients)
        groups: dict[float, list[tuple[Tensor, float]]] = {}
        for root, coefficient in zip(roots, coefficients, strict=True):
            exact = root.dtype not in LOW_PRECISION or math.frexp(coefficient / top)[0] == 0.5
            groups.setdefault(top if exact else coefficient, []).append((root, coefficient))
        for number, (unit, members) in enumerate(groups.items(), start=1):
            start = 1.0 if self._scale == 1.0 else math.ldexp(1.0, math.frexp(unit * self._scale)[1] - 1)
            self._rescale(unit * self._scale / start)
            seeds = [self._seed(root, coefficient / unit * start) for root, coefficient in members]
            yield [root for root, _ in members], seeds, number == len(groups)

    @property
    def leftover(self) -> float:
        """What the sums of this process must still be multiplied by, before the sum over processes."""
        return self._residual / self._scale

    def state(self) -> dict[str, float] | None:
        """What a half-done window must save of it; None before the first backward pass."""
        return {"scale": self._scale, "residual": self._residual} if self._begun else None

    def load_state(self, state: Mapping[str, float] | None) -> None:
        """Inverse of ``state``."""
        if state is not None:
            self._begun, self._scale, self._residual = True, state["scale"], state["residual"]

    def _is_low(self, losses: Sequence[Tensor]) -> bool:
        for loss in losses:
            if loss.dtype in LOW_PRECISION:
                return True
        if self._low is None:
            # A loss scaler guards what float16 layers send back; without one, only the graph shows that there are any.
            self._low = self._scale == 1.0 and any(map(_holds_float16, losses))
        return self._low

    def _rescale(self, residual: float) -> None:
        if residual != self._residual:
            self._sums.scale_(self._residual / residual)
            self._residual = residual

    def _seed(self, root: Tensor, value: float) -> Tensor:
        """The number as a tensor like the loss; most micro-batches of a window share one, and most windows too."""
        key = (value, root.dtype, root.device)
        seed = self._seeds.get(key)
        if seed is None:
            if len(self._seeds) >= _MAX_SEEDS:
                self._seeds.clear()
            seed = self._seeds[key] = torch.full((), value, dtype=root.dtype, device=root.device)
        return seed
