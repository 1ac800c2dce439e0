"""Around the backward passes of a window: each loss is looked at; then check, clip, step, average.

The end has one right order: check, clip, step, scaler, schedule, average. What happens to losses comes after it.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.accumulation.optimizers import average_updates, check_schedulers
from dagnn.accumulation.shares import SINGLE, Reduction, by_name
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
        self.moved = False  # the last window's optimizers have stepped
        self._needs_closure = [needs_closure(optimizer) for optimizer in optimizers]  # no ids, which copies lack

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    @property
    def needs_closure(self) -> bool:
        """An optimizer cannot step without a function that computes the loss."""
        return any(self._needs_closure)

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
        self.moved = False
        self._check_can_step()
        (finite, norm), lr = sums.norm(sum_parts), self.lr
        sound = finite and losses_are_finite(losses)
        if sound:
            if self.max_norm is not None:
                sums.scale_(clip_factor(norm, self.max_norm))
            sums.apply(self.optimizers)
            self.moved = True
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
        for optimizer, needed in zip(self.optimizers, self._needs_closure, strict=True):
            if needed:
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
    if isinstance(max_norm, bool) or not isinstance(max_norm, Real) or not max_norm > 0:
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


def named_losses(loss: Any) -> dict[str, Any]:
    """A loss, or losses by name, as a mapping of at least one."""
    losses = by_name(loss, "the losses") if isinstance(loss, Mapping) else {SINGLE: loss}
    if not losses:
        raise ConfigError(
            f"the losses are an empty mapping ({loss!r}): give at least one, or use window.drop() for a micro-batch "
            "without a loss."
        )
    return losses


def check_loss(name: str, loss: Any, reduction: Reduction) -> None:
    """Raise unless ``loss`` is a tensor of the shape that ``reduction`` says."""
    if reduction not in get_args(Reduction):
        raise ConfigError(f"reduction must be 'mean', 'sum', 'none' or 'undivided', got {reduction!r}.")
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"{_called(name)} must be a tensor, got {type(loss).__name__}: pass the loss itself, not loss.item()."
        )
    if loss.is_complex():
        raise AccumulationError(
            f"{_called(name)} is complex ({loss.dtype}), and a gradient is one of a real number: pass its real part "
            "or its absolute value."
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


def warn_if_divided(loss: Tensor, micro_batches: int, reduction: Reduction, *, scale: float = 1.0) -> None:
    """Warn about ``loss / micro_batches`` and ``scaler.scale(loss)``, as loops by hand have them: done here too."""
    may_be_divided = reduction == "mean" and micro_batches > 1
    node = loss.grad_fn if may_be_divided or scale != 1.0 else None  # a look at the graph takes 4 us
    if node is None:
        return
    kind = type(node).__name__
    if kind not in ("DivBackward0", "MulBackward0"):
        return
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.ndim or other.requires_grad:
        return
    if kind == "MulBackward0" and scale != 1.0 and float(other) == scale:
        warn(
            f"the loss was multiplied by {scale:g}, the scale of the GradScaler, before backward, which scales it by "
            f"itself: pass the plain loss, or the gradient is {scale:g} times too large.",
            AccumulationWarning,
        )
    if not may_be_divided:
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
