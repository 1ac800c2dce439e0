"""One optimizer step: micro-batches computed and accumulated, the update made or refused. And trials, by `find_lr`."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.accumulation import GradientAccumulator
from dagnn.accumulation.state import untouched_rng
from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.loader import BatchLoader, as_loader
from dagnn.training.optimizers import ScheduledRates, make_schedule
from dagnn.training.processes import Processes, device_of

WITHOUT_NAME = "loss"


class Returned(NamedTuple):
    """What a loss function returned.

    Attributes:
        loss: one mean loss, or several by name.
        weight: what the means were divided by; None where the loss function gave none.
    """

    loss: Tensor | dict[str, Tensor]
    weight: float | Tensor | None

    @classmethod
    def of(cls, value: Any) -> "Returned":
        """Read a loss function's value; ConfigError where losses by name have weights of their own that differ."""
        weight = None
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value
        if not isinstance(value, Mapping):
            return cls(value, weight)
        losses, weights = {}, {}
        for name, each in value.items():
            losses[str(name)] = each[0] if isinstance(each, tuple) and len(each) == 2 else each
            if losses[str(name)] is not each:
                weights[str(name)] = float(each[1])
        if weights and (weight is not None or len(weights) < len(losses) or len(set(weights.values())) > 1):
            raise ConfigError(
                f"loss_fn returned losses with weights of their own ({weights}), which must be known before a step "
                "begins: return the losses alone, and give Trainer(weight=lambda batch: {name: weight, ...})."
            )
        return cls(losses, next(iter(weights.values())) if weights else weight)

    @property
    def total(self) -> Tensor:
        """The loss, or the sum of the losses."""
        if not isinstance(self.loss, dict):
            return self.loss
        total, *others = self.loss.values()
        for each in others:
            total = total + each
        return total


LossFunction = Callable[[nn.Module, Any], Any]


def compiled(loss_fn: LossFunction) -> LossFunction:
    """The loss function, compiled at its first call together with the model that it calls.

    The model itself stays as it is: its names in checkpoints, its evaluation and its averaged weights are those of a
    model that was never compiled. A call raises a ConfigError where torch cannot compile, as without a C++ compiler.
    """
    # Sizes are variables from the start: with fixed ones torch would compile again for each ragged micro-batch,
    # and a resumed training, which meets them in another order, would run other code than one that never stopped.
    fast = torch.compile(loss_fn, dynamic=True)
    from torch._dynamo.exc import TorchDynamoException

    def call(model: nn.Module, batch: Any) -> Any:
        try:
            return fast(model, batch)
        except TorchDynamoException as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"compile = true: torch.compile cannot compile this training here ({reason}): install a C++ compiler, "
                "or leave compile out."
            ) from error

    return call


class Share(NamedTuple):
    """What one process has computed of one micro-batch.

    Attributes:
        epoch: that it belongs to; None where the loader has no epochs.
        total: weight * mean loss.
        weight: its items.
        last: whether it was the last of its epoch.
        others: of losses with a denominator of their own, by its name: sum of weight * loss, and weight.
    """

    epoch: int | None
    total: float
    weight: float
    last: bool
    others: Mapping[str, tuple[float, float]] = MappingProxyType({})


@dataclass
class EpochMeans:
    """Sums over the epoch under way; a checkpoint keeps them.

    Attributes:
        total: sum of weight * loss over the steps that were made.
        weight: of their items.
        others: both, of losses with a denominator of their own.
    """

    total: float = 0.0
    weight: float = 0.0
    others: dict[str, list[float]] = field(default_factory=dict)

    def add(self, shares: Sequence[Sequence[Share]], *, made: bool) -> list[dict[str, Any]]:
        """Take one window of all processes; the rows of the epochs that ended in it.

        Args:
            shares: of every process, its micro-batches in order; all have the same number.
            made: the step was made; a refused one ends epochs and counts for nothing.
        """
        rows = []
        for micro_batch in zip(*shares, strict=True):
            if micro_batch[0].epoch is None:
                continue
            if made:
                self.total += sum(share.total for share in micro_batch)
                self.weight += sum(share.weight for share in micro_batch)
                for name, (total, weight) in (each for share in micro_batch for each in share.others.items()):
                    before = self.others.get(name, [0.0, 0.0])
                    self.others[name] = [before[0] + total, before[1] + weight]
            if micro_batch[0].last:
                sums = [(self.total, self.weight), *self.others.values()]
                means = [total / weight for total, weight in sums if weight]
                mean = sum(means) if means else float("nan")
                rows.append({"epoch": micro_batch[0].epoch, "loss": mean, "weight": self.weight})
                self.total = self.weight = 0.0
                self.others = {}
        return rows

    def to_json(self) -> list[Any]:
        """The numbers; `from_json` takes them."""
        return [self.total, self.weight, *([self.others] if self.others else [])]

    @classmethod
    def from_json(cls, values: Iterable[Any]) -> "EpochMeans":
        """What `to_json` gave."""
        return cls(*values)


_REASONS = {"non-finite": "a gradient is not finite", "empty": "its micro-batches have no items"}


class Outcome(NamedTuple):
    """What came of a window.

    Attributes:
        row: the numbers of its row in metrics.jsonl.
        refused: why no step was made; None: it was.
        shares: this process's micro-batches.
    """

    row: dict[str, Any]
    refused: str | None
    shares: list[Share]


class WindowStep:
    """Makes the optimizer steps of a training, one window at a time."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Any],
        loader: BatchLoader[Any],
        optimizer: Optimizer,
        config: TrainingConfig,
        processes: Processes,
        *,
        step: int,
        weight: Callable[[Any], Any] | None,
        drops: Callable[[], int] = lambda: 0,
    ) -> None:
        """The learning rate starts at its value for ``step``; the schedule keeps no state of its own."""
        self._model = model
        self._loss_fn = compiled(loss_fn) if config.compile else loss_fn
        self._loader = loader
        self._optimizer = optimizer
        self._processes = processes
        self._count = config.micro_batches
        self._autocast = _autocast(model, config.precision)
        self._rates = ScheduledRates(optimizer, make_schedule(config.schedule, config.schedule_steps, drops), step)
        self._accumulator = GradientAccumulator(
            model, optimizer, max_norm=config.max_norm or None, scheduler=self._rates, process_group=processes.group
        )
        self._epochs: list[tuple[int | None, bool]] = []
        self._windows = self._accumulator.windows(
            _Stream(self._batches(), loader), micro_batches=self._count, weight=weight
        )

    def make(self) -> Outcome:
        """The next window. All processes refuse it, or none."""
        self._rates.set()  # an evaluation may have dropped the rate, or a group been added
        lr = float(self._optimizer.param_groups[0]["lr"])
        window = next(self._windows)
        epochs, self._epochs = self._epochs, []
        for batch in window:
            with self._autocast():
                returned = Returned.of(self._loss_fn(self._model, batch))
            window.backward(returned.loss, returned.weight)
        self._processes.same_buffers(self._model)
        totals = window.totals
        shares = [
            Share(epoch, *first, last, dict(others))
            for (epoch, last), ((_, first), *others) in zip(epochs, map(dict.items, window.parts()), strict=True)
        ]
        # A loss may be infinite where every gradient is finite (a saturated clamp): refused as well.
        if not totals.empty and not math.isfinite(totals.loss):
            window.discard()
            row = _row(totals.loss, None, lr, None, self._count, totals.losses)
            return Outcome(row, "the loss is not finite", shares)
        update = window.step()
        row = _row(update.loss, update.grad_norm, lr, update.weight, self._count, update.losses)
        refused = _REASONS.get(update.skipped, update.skipped) if update.skipped else None
        return Outcome(row, refused, shares)

    def _batches(self) -> Iterator[Any]:
        """The micro-batches of the loader, each taken when its window needs it: between steps the position is exact."""
        while True:
            before = getattr(self._loader, "epoch", None)
            try:
                batch = self._loader.next_batch()
            except StopIteration as error:
                raise RunError(
                    f"the loader, {type(self._loader).__name__}, is at its end, but training goes on: next_batch() "
                    "must begin again then."
                ) from error
            self._epochs.append((before, getattr(self._loader, "epoch", None) != before))
            yield batch


class _Stream:
    """Batches of a loader with its ``collate_fn``, which decides how their items are counted."""

    def __init__(self, batches: Iterator[Any], loader: BatchLoader[Any]) -> None:
        self._batches = batches
        self.collate_fn = getattr(loader, "collate_fn", None)

    def __iter__(self) -> Iterator[Any]:
        return self._batches


def _autocast(model: nn.Module, precision: str) -> Callable[[], AbstractContextManager[object]]:
    if precision == "float32":
        return nullcontext
    device = device_of(model).type
    return lambda: torch.autocast(device, dtype=torch.bfloat16)


def _row(
    loss: float, grad_norm: float | None, lr: float, weight: float | None, count: int, losses: Mapping[str, float]
) -> dict[str, Any]:
    row = {"loss": loss, "grad_norm": grad_norm, "lr": lr, "weight": weight, "micro_batches": count}
    if losses.keys() <= {WITHOUT_NAME}:
        return row
    return {**row, **{f"loss/{name}": each for name, each in losses.items()}}


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
        ConfigError: an argument is out of range.

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
                loss = Returned.of(loss_fn(trial, batches.next_batch())).total
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
