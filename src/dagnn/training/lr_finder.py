"""`find_lr`: losses at rising learning rates, which suggest one."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dagnn.accumulation.random_states import untouched_rng
from dagnn.accumulation.stepping import check_loss, named_losses, refuse_detached
from dagnn.errors import ConfigError
from dagnn.training.loader import BatchLoader, as_loader
from dagnn.training.step import WITHOUT_NAME, Returned

# Where the loss is this many times its lowest, the rate is too high, and higher ones show nothing more (Smith; fastai).
_DIVERGED = 4.0
_SMOOTHING = 0.9


@dataclass(frozen=True)
class LrCurve:
    """Losses at rising rates.

    Attributes:
        rates, losses: one for every step made; the losses smoothed.
        suggestion: a tenth of the rate where the loss was lowest; None when it never falls.

    >>> LrCurve(rates=(0.01, 0.1, 1.0), losses=(1.0, 0.5, 0.9)).suggestion
    0.01
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def suggestion(self) -> float | None:
        lowest = min(range(len(self.losses)), key=self.losses.__getitem__, default=None)
        # Below that it is the smoothing's rounding that falls.
        if lowest is None or self.losses[lowest] >= self.losses[0] - 1e-9 * abs(self.losses[0]):
            return None
        # Not where it falls fastest: among rates that change nothing the noise of single batches falls fastest.
        return self.rates[lowest] / 10


def find_lr(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Any],
    loader: BatchLoader[Any] | Iterable[Any],
    make_optimizer: Callable[[nn.Module], Optimizer],
    *,
    lowest: float = 1e-6,
    highest: float = 1.0,
    steps: int = 100,
) -> LrCurve:
    """The loss of a copy of the model while the learning rate rises, evenly in its logarithm.

    Leaves no trace: weights, buffers, random numbers and the loader's position are as they were, also after an error.

    Args:
        model, loss_fn, loader: as of `Trainer`.
        make_optimizer: makes the optimizer of the copy.
        lowest, highest: 0 < lowest < highest.
        steps: at least 2; it stops earlier where the loss diverges.

    Raises:
        ConfigError, AccumulationError: an argument is out of range, or ``loss_fn`` returned what is no loss.

    Source: Smith, "Cyclical learning rates for training neural networks", WACV 2017, section 3.3; smoothing and the
    tenth of the lowest as in fastai.

    >>> import torch
    >>> batches = [(torch.ones(4, 3), torch.zeros(4, 1))]
    >>> def mse(model, batch):
    ...     return nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> curve = find_lr(nn.Linear(3, 1), mse, batches, lambda model: torch.optim.SGD(model.parameters()), steps=3)
    >>> [f"{rate:.0e}" for rate in curve.rates]
    ['1e-06', '1e-03', '1e+00']
    """
    if not 0 < lowest < highest or not math.isfinite(highest):
        raise ConfigError(f"expected 0 < lowest < highest, got lowest={lowest} and highest={highest}.")
    if steps < 2:
        raise ConfigError(f"steps must be at least 2, got {steps}.")
    batches = as_loader(loader, seed=0, rank=0)
    position = copy.deepcopy(batches.state_dict())
    rates: list[float] = []
    losses: list[float] = []
    try:
        with untouched_rng():
            trial = copy.deepcopy(model).train()
            optimizer = make_optimizer(trial)
            average = 0.0
            for step in range(steps):
                rate = lowest * (highest / lowest) ** (step / (steps - 1))
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.zero_grad()
                returned = Returned.of(loss_fn(trial, batches.next_batch()))
                for name, each in named_losses(returned.loss).items():
                    check_loss(name, each, "mean")
                loss = returned.total
                if not loss.requires_grad:
                    refuse_detached(WITHOUT_NAME, [*trial.parameters()])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                average = _SMOOTHING * average + (1 - _SMOOTHING) * float(loss.detach())
                smoothed = average / (1 - _SMOOTHING ** (step + 1))
                if not math.isfinite(smoothed) or (losses and smoothed > _DIVERGED * min(losses)):
                    break
                rates.append(rate)
                losses.append(smoothed)
    finally:
        batches.load_state_dict(position)
    return LrCurve(tuple(rates), tuple(losses))
