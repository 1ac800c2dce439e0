"""An evaluation within a training: run by every process, its metrics checked, a mean that no partition changes."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from torch import Tensor

from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.counters import StagePromotion
from dagnn.training.loader import BatchLoader
from dagnn.training.processes import Processes
from dagnn.training.run.values import is_dense, json_value
from dagnn.training.signals import EvaluationAborted


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


_MOST_BITS = 1023  # of a whole number that a float can be
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

    ConfigError as of `_metrics_of`; or the monitor is missing where something waits for it, or is no number.
    """
    metrics = _metrics_of(returned)
    stages = () if promotion is None else promotion.stages
    for name in (config.monitor, *(f"accuracy/{stage}" for stage in stages)):
        if not isinstance(value := metrics.get(name, 0.0), Meter | int | float | None):
            raise ConfigError(f"evaluate's {name} is {value!r:.60}: it must be a number.")
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise ConfigError(
                f"evaluate's {name} has {value.bit_length()} bits: it must be a number that a float can be."
            )
    waits = config.checkpoint.keep_best or config.early_stopping.patience or config.schedule.name == "plateau"
    if waits and config.monitor not in metrics:
        raise ConfigError(f"monitor = {config.monitor}: the evaluation returned {', '.join(metrics) or 'nothing'}.")
    return metrics


def score_of(metrics: Mapping[str, Any], config: TrainingConfig) -> float | None:
    """The monitored metric of an evaluation; None when it has none."""
    score = metrics.get(config.monitor)
    return None if score is None else float(score)


def _metrics_of(returned: Any) -> dict[str, Any]:
    """What an evaluation returned, as JSON values: numbers of every kind become Python's. `Meter` stays.

    ConfigError for no mapping by text, something else in it, or a name that rows of metrics.jsonl have.
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
        if isinstance(value, np.ndarray) or (isinstance(value, Tensor) and is_dense(value)):
            value = value.reshape(()) if value.ndim and math.prod(value.shape) == 1 else value  # a mean with keepdim
        metrics[str(name)] = value if isinstance(value, Meter) else json_value(value, f"evaluate's {name}")
    return metrics
