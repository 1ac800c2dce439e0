"""One optimizer step: its micro-batches drawn, computed, accumulated, and the update made or refused."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from dagnn.accumulation import GradientAccumulator
from dagnn.accumulation.items import counter_for
from dagnn.errors import RunError
from dagnn.training.compiled import compiled
from dagnn.training.config import TrainingConfig
from dagnn.training.epochs import Share
from dagnn.training.losses import WITHOUT_NAME, Returned
from dagnn.training.processes import Processes, device_of
from dagnn.training.schedules import ScheduledRates, make_schedule
from dagnn.training.source import BatchSource

_REASONS = {"non-finite": "a gradient is not finite", "empty": "its micro-batches have no items"}


class Outcome(NamedTuple):
    """What a window came to.

    Attributes:
        row: the numbers of its row in metrics.jsonl.
        refused: why no step was made; None: it was.
        shares: this process's micro-batches.
    """

    row: dict[str, Any]
    refused: str | None
    shares: list[Share]


class WindowStep:
    """Makes the optimizer steps of a training, one at a time."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Any],
        source: BatchSource[Any],
        optimizer: Optimizer,
        config: TrainingConfig,
        processes: Processes,
        *,
        step: int,
        weight: Callable[[Any], Any] | None,
        drops: Callable[[], int] = lambda: 0,
    ) -> None:
        """The learning rate starts at its value for ``step``: its position is no state of its own that could differ."""
        self._model = model
        self._loss_fn = compiled(loss_fn) if config.compile else loss_fn
        self._source = source
        self._optimizer = optimizer
        self._processes = processes
        self._count = config.micro_batches
        self._weigh = weight or counter_for(source)
        self._autocast = _autocast(model, config.precision)
        self._rates = ScheduledRates(optimizer, make_schedule(config.schedule, config.schedule_steps, drops), step)
        self._accumulator = GradientAccumulator(
            model,
            optimizer,
            max_norm=config.max_norm or None,
            scheduler=self._rates,
            process_group=processes.group,
        )
        self._epochs: list[tuple[int | None, bool]] = []
        self._windows = self._accumulator.windows(
            _Stream(self._batches(), source), micro_batches=self._count, weight=weight
        )

    def make(self) -> Outcome:
        """The next window. All processes refuse it, or none."""
        self._rates.set()  # an evaluation may have dropped the rate, or a group been added
        lr = float(self._optimizer.param_groups[0]["lr"])
        window, parts = next(self._windows), []
        epochs, self._epochs = self._epochs, []
        for batch in window:
            with self._autocast():
                returned = Returned.of(self._loss_fn(self._model, batch))
            window.backward(returned.loss, returned.weight)
            weight = self._weigh(batch) if returned.weight is None else returned.weight
            parts.append(returned.parts(weight))
        window.settle()
        self._processes.same_buffers(self._model)
        joined = window.joined
        shares = [
            Share(epoch, *first, last, dict(others))
            for (epoch, last), ((_, first), *others) in zip(epochs, (each.items() for each in parts), strict=True)
        ]
        # A loss may be infinite where every gradient is finite (a saturated clamp): refused as well.
        if not joined.empty and not math.isfinite(joined.loss):
            window.discard()
            row = _row(joined.loss, None, lr, None, self._count, joined.losses)
            return Outcome(row, "the loss is not finite", shares)
        update = window.step()
        row = _row(update.loss, update.grad_norm, lr, update.weight, self._count, update.losses)
        refused = _REASONS.get(update.skipped, update.skipped) if update.skipped else None
        return Outcome(row, refused, shares)

    def _batches(self) -> Iterator[Any]:
        """The micro-batches of the source, each taken when its window needs it: between steps the position is exact."""
        while True:
            before = getattr(self._source, "epoch", None)
            try:
                batch = self._source.next_batch()
            except StopIteration as error:
                raise RunError(
                    f"the source, {type(self._source).__name__}, is at its end, but training goes on: next_batch() "
                    "must begin anew then."
                ) from error
            self._epochs.append((before, getattr(self._source, "epoch", None) != before))
            yield batch


class _Stream:
    """Batches of a source, with what made them, which tells how to count them."""

    def __init__(self, batches: Iterator[Any], source: BatchSource[Any]) -> None:
        self._batches = batches
        self.collate_fn = getattr(source, "collate_fn", None)

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
