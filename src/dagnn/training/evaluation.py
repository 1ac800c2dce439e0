"""An evaluation within a training: run by every process, its metrics checked, and which stage opens next."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.loader import BatchLoader
from dagnn.training.processes import Processes
from dagnn.training.run.values import json_value
from dagnn.training.signals import EvaluationAborted


class StagePromotion:
    """State machine over the stages of a curriculum, which are numbered.

    *Progressive*: training starts on the first stage. An evaluation passes when the newest stage's accuracy is at
    least ``threshold`` and at least ``minimum_steps`` optimizer steps were made on it; ``patience`` passes in a row
    open the next stage. An evaluation that does not pass starts the row again, and so does one whose accuracy is
    not a number. When the last stage passes, `finished` becomes True.

    *Mixed*: every stage is open from the start and nothing is promoted; `finished` stays False.

    Attributes:
        stages: all stages, in order.
        order, threshold, minimum_steps, patience: as given.

    >>> promotion = StagePromotion((1, 2, 3), threshold=0.9)
    >>> promotion.observe(step=100, accuracy_of={1: 0.95})
    True
    >>> promotion.stage, promotion.active
    (2, (1, 2))
    """

    def __init__(
        self,
        stages: Sequence[int],
        *,
        order: str = "progressive",
        threshold: float = 0.99,
        minimum_steps: int = 0,
        patience: int = 1,
    ) -> None:
        """Start on the first stage, or on all of them when ``order`` is "mixed".

        Raises:
            ConfigError: no stages, or another order than "mixed" and "progressive".
        """
        if not stages:
            raise ConfigError(f"stages = {list(stages)}: give at least one.")
        if order not in ("mixed", "progressive"):
            raise ConfigError(f"order = {order}: allowed is one of mixed, progressive.")
        self.stages = tuple(stages)
        self.order = order
        self.threshold = threshold
        self.minimum_steps = minimum_steps
        self.patience = patience
        self._num_open = len(self.stages) if order == "mixed" else 1
        self._since_step = 0
        self._passed = 0
        self._finished = False

    @property
    def active(self) -> tuple[int, ...]:
        """The open stages, oldest first."""
        return self.stages[: self._num_open]

    @property
    def stage(self) -> int:
        """The newest open stage."""
        return self.stages[self._num_open - 1]

    @property
    def finished(self) -> bool:
        """Whether the last stage has passed too (progressive only)."""
        return self._finished

    def observe(self, step: int, accuracy_of: Mapping[int, float]) -> bool:
        """Take one evaluation into account; True when it opened a stage.

        Args:
            step: optimizer steps made so far.
            accuracy_of: stage -> accuracy in 0 .. 1. Only the newest stage counts; without it the evaluation changes
                nothing.
        """
        if self.order == "mixed" or self._finished or self.stage not in accuracy_of:
            return False
        # `not >=`: a NaN accuracy is not a pass.
        if not accuracy_of[self.stage] >= self.threshold or step - self._since_step < self.minimum_steps:
            self._passed = 0
            return False
        self._passed += 1
        if self._passed < self.patience:
            return False

        self._passed = 0
        if self._num_open == len(self.stages):
            self._finished = True
            return False
        self._num_open += 1
        self._since_step = step
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        return {
            "levels": list(self.stages),  # the key of checkpoints that exist
            "order": self.order,
            "open": self._num_open,
            "since_step": self._since_step,
            "passed": self._passed,
            "finished": self._finished,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: the state belongs to other stages or another order.
        """
        if tuple(state["levels"]) != self.stages or state["order"] != self.order:
            raise CheckpointError(
                f"the checkpoint was promoted over stages {list(state['levels'])} ({state['order']}), this run has "
                f"{list(self.stages)} ({self.order}): use the run's own configuration."
            )
        self._num_open = int(state["open"])
        self._since_step = int(state["since_step"])
        self._passed = int(state["passed"])
        self._finished = bool(state["finished"])


@dataclass(frozen=True)
class Meter:
    """The sum of values over examples, and how many there were: an evaluation returns it for a share of the examples.

    Sums are exact (fractions), so that one process and seven give the same mean to the last bit. A value that is
    not finite makes the mean what a plain sum would: nan or an infinity.

    Attributes:
        total: sum of weight * value.
        count: sum of the weights.

    >>> Meter.of([0.1, 0.2]).merged(Meter.of([0.3])).mean == Meter.of([0.3, 0.2, 0.1]).mean
    True
    """

    total: Fraction | float
    count: Fraction

    @classmethod
    def of(cls, values: Iterable[float], weights: Iterable[float] | None = None) -> "Meter":
        """The meter of these values, each of weight 1 or of its own finite weight."""
        total: Fraction | float = Fraction(0)
        count = Fraction(0)
        pairs = ((value, 1.0) for value in values) if weights is None else zip(values, weights, strict=True)
        for value, weight in pairs:
            value = value if isinstance(value, int | float | Fraction) else float(value)  # NumPy's and torch's numbers
            count += Fraction(weight)
            exact = math.isfinite(value) and not isinstance(total, float)
            total = total + Fraction(value) * Fraction(weight) if exact else float(total) + float(value) * weight
        return cls(total, count)

    def merged(self, other: "Meter") -> "Meter":
        """The meter of both shares together."""
        return Meter(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """nan when nothing was counted."""
        return float(self.total / self.count) if self.count else math.nan


def merged_metrics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One evaluation out of those of all processes: meters are merged, other values are the first process's."""
    merged: dict[str, Any] = {}
    for name, value in parts[0].items():
        if isinstance(value, Meter):
            for part in parts[1:]:
                value = value.merged(part[name])
            value = value.mean
        merged[name] = value
    return merged


_TAKEN = ("kind", "step", "seconds")  # keys of a row of metrics.jsonl


def evaluated(
    evaluate: Callable[[], Mapping[str, Any]], loader: BatchLoader[Any], processes: Processes
) -> dict[str, Any] | None:
    """The metrics of all processes together; None where a signal has aborted one of them.

    In that case, and after an error, the loader is put back: an evaluation may change the weights of examples, and the
    next one does so again.

    Raises:
        RunError: the evaluation of another process has failed.
        Exception: what this one raised.
    """
    data = copy.deepcopy(loader.state_dict())
    own: Mapping[str, Any] | None = None
    failure: Exception | None = None
    try:
        own = evaluate()
    except EvaluationAborted:
        pass
    except Exception as error:
        failure = error
    everywhere = processes.gather((own, None if failure is None else f"{type(failure).__name__}: {failure}"))
    parts = [part for part, _ in everywhere if part is not None]
    if len(parts) == processes.size:
        return merged_metrics(parts)
    loader.load_state_dict(data)
    failed = [message for _, message in everywhere if message is not None]
    if failed:
        raise failure or RunError(f"the evaluation failed in another process: {failed[0]}")
    return None


def checked_metrics(returned: Any, config: TrainingConfig, promotion: StagePromotion | None) -> dict[str, Any]:
    """What an evaluation returned as JSON values; those that decide something are numbers.

    Raises:
        ConfigError: as `_metrics_of`; or the monitor is missing where something waits for it, or is no number.
    """
    metrics = _metrics_of(returned)
    stages = () if promotion is None else promotion.stages
    for name in (config.monitor, *(f"accuracy/{stage}" for stage in stages)):
        if not isinstance(metrics.get(name, 0.0), Meter | int | float | None):
            raise ConfigError(f"evaluate's {name} is {metrics[name]!r:.60}: it must be a number.")
    if config.monitor not in metrics and _waits_for_monitor(config):
        raise ConfigError(f"monitor = {config.monitor}: the evaluation returned {', '.join(metrics) or 'nothing'}.")
    return metrics


def score_of(metrics: Mapping[str, Any], config: TrainingConfig) -> float | None:
    """The monitored metric of an evaluation; None when it has none."""
    score = metrics.get(config.monitor)
    return None if score is None else float(score)


def _metrics_of(returned: Any) -> dict[str, Any]:
    """What an evaluation returned, as JSON values: numbers of every kind become Python's. `Meter` stays.

    Raises:
        ConfigError: it is no mapping by text, holds something else, or takes a name that rows of metrics.jsonl have.
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise ConfigError(f"evaluate returned a {type(returned).__name__}: return metrics by name, such as a dict.")
    metrics = {}
    for name, value in returned.items():
        if not isinstance(name, str) or name in _TAKEN:
            problem = "is taken by every row" if name in _TAKEN else f"is of the type {type(name).__name__}"
            raise ConfigError(f"evaluate returned a metric called {name!r}, which {problem}: call it by another text.")
        metrics[str(name)] = value if isinstance(value, Meter) else json_value(value, f"evaluate's {name}")
    return metrics


def _waits_for_monitor(config: TrainingConfig) -> bool:
    plateau = config.schedule.name == "plateau"
    return bool(config.checkpoint.keep_best or config.early_stopping.patience or plateau)
