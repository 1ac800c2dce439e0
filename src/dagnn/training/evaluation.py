"""An evaluation within a training: asked of every process, its metrics checked, a mean that no partition changes."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.loader import BatchSource
from dagnn.training.processes import Processes
from dagnn.training.promotion import LevelPromotion
from dagnn.training.run.values import json_value
from dagnn.training.signals import EvaluationAborted


@dataclass(frozen=True)
class Tally:
    """The sum of values over examples, and how many there were: an evaluation returns it for a share of the examples.

    Sums are exact (fractions), so that one process and seven give the same mean to the last bit. A value that is
    not finite makes the mean what a plain sum would: nan or an infinity.

    Attributes:
        total: sum of weight * value.
        count: sum of the weights.

    >>> Tally.of([0.1, 0.2]).merged(Tally.of([0.3])).mean == Tally.of([0.3, 0.2, 0.1]).mean
    True
    """

    total: Fraction | float
    count: Fraction

    @classmethod
    def of(cls, values: Iterable[float], weights: Iterable[float] | None = None) -> "Tally":
        """The tally of these values, each of weight 1 or of its own finite weight."""
        total: Fraction | float = Fraction(0)
        count = Fraction(0)
        pairs = ((value, 1.0) for value in values) if weights is None else zip(values, weights, strict=True)
        for value, weight in pairs:
            value = value if isinstance(value, int | float | Fraction) else float(value)  # NumPy's and torch's numbers
            count += Fraction(weight)
            exact = math.isfinite(value) and not isinstance(total, float)
            total = total + Fraction(value) * Fraction(weight) if exact else float(total) + float(value) * weight
        return cls(total, count)

    def merged(self, other: "Tally") -> "Tally":
        """The tally of both shares."""
        return Tally(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """nan when nothing was counted."""
        return float(self.total / self.count) if self.count else math.nan


def joined_metrics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One evaluation out of those of all processes: tallies are merged, other values are those of the first."""
    joined: dict[str, Any] = {}
    for name, value in parts[0].items():
        if isinstance(value, Tally):
            for part in parts[1:]:
                value = value.merged(part[name])
            value = value.mean
        joined[name] = value
    return joined


_TAKEN = ("kind", "step", "seconds")  # keys of a row of metrics.jsonl


def evaluated(
    evaluate: Callable[[], Mapping[str, Any]], source: BatchSource[Any], processes: Processes
) -> dict[str, Any] | None:
    """The metrics of all processes together; None where a signal has aborted one of them.

    Then, and after an error, the source is as before: an evaluation may weigh examples anew, and will do so again.

    Raises:
        RunError: the evaluation of another process has failed.
        Exception: what this one raised.
    """
    data = copy.deepcopy(source.state_dict())
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
        return joined_metrics(parts)
    source.load_state_dict(data)
    failed = [told for _, told in everywhere if told is not None]
    if failed:
        raise failure or RunError(f"the evaluation failed in another process: {failed[0]}")
    return None


def checked_metrics(returned: Any, config: TrainingConfig, promotion: LevelPromotion | None) -> dict[str, Any]:
    """below what an evaluation returned, in which those that decide something are numbers.

    Raises:
        ConfigError: as below; or the monitor is missing where something waits for it, or is no number.
    """
    metrics = _metrics_of(returned)
    levels = () if promotion is None else promotion.levels
    for name in (config.monitor, *(f"accuracy/{level}" for level in levels)):
        if not isinstance(metrics.get(name, 0.0), Tally | int | float | None):
            raise ConfigError(f"evaluate's {name} is {metrics[name]!r:.60}: it must be a number.")
    if config.monitor not in metrics and _waits_for_monitor(config):
        raise ConfigError(f"monitor = {config.monitor}: the evaluation returned {', '.join(metrics) or 'nothing'}.")
    return metrics


def score_of(metrics: Mapping[str, Any], config: TrainingConfig) -> float | None:
    """The monitored metric of an evaluation; None when it has none."""
    score = metrics.get(config.monitor)
    return None if score is None else float(score)


def _metrics_of(returned: Any) -> dict[str, Any]:
    """What an evaluation returned, as JSON values: numbers of every kind become Python's. `Tally` stays.

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
            told = "is taken by every row" if name in _TAKEN else f"is of the type {type(name).__name__}"
            raise ConfigError(f"evaluate returned a metric called {name!r}, which {told}: call it by another text.")
        metrics[str(name)] = value if isinstance(value, Tally) else json_value(value, f"evaluate's {name}")
    return metrics


def _waits_for_monitor(config: TrainingConfig) -> bool:
    plateau = config.schedule.name == "plateau"
    return bool(config.checkpoint.keep_best or config.early_stopping.patience or plateau)
