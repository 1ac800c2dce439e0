"""An evaluation within a training: asked of every process, its metrics checked, and without a trace where it fails."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.plain_values import json_value
from dagnn.training.processes import Processes
from dagnn.training.promotion import LevelPromotion
from dagnn.training.signals import EvaluationAborted
from dagnn.training.source import BatchSource
from dagnn.training.tally import Tally, joined_metrics

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
