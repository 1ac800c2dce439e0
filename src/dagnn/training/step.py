"""One optimizer step: micro-batches computed and accumulated, the update made or refused."""

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
from dagnn.accumulation.shares import by_name, declared_weight
from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.loader import BatchLoader
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
        """Read a loss function's value; ConfigError where losses by name have weights of their own that differ,
        or two have the same name as text."""
        weight = None
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value
        if not isinstance(value, Mapping):
            return cls(value, weight)
        losses, weights = {}, {}
        for name, each in by_name(value, "the losses").items():
            losses[name], own = each if isinstance(each, tuple) and len(each) == 2 else (each, None)
            if own is not None:
                weights[name] = declared_weight(own)
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


def check_functions(*, loss_fn: Any, **others: Any) -> None:
    """Raise ConfigError unless ``loss_fn`` can be called, and each of the ``others`` that is not None."""
    for name, function in {"loss_fn": loss_fn, **others}.items():
        if not callable(function) and (function is not None or name == "loss_fn"):
            raise ConfigError(f"{name} must be a function, got {type(function).__name__}: {function!r:.60}.")


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
