"""The small numbers of a training: steps, refusals, best score, patience, time; and how the training ended."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagnn.training.config import TrainingConfig


@dataclass
class Counters:
    """Plain values that change from step to step and come back on resume.

    Attributes:
        step: optimizer steps made.
        skipped: windows whose step was refused.
        refused_in_a_row: of those, since the last step that was made.
        loss: of the last step; None before it.
        evaluation, evaluated_step: what the last evaluation returned, and when.
        evaluation_due: an evaluation belongs to this moment and is not made yet.
        save_due: a checkpoint belongs to this moment (after the evaluation).
        best_score, best_step: of the monitored metric.
        waited_from: the score that early stopping waits to be beaten; None before the first.
        waited: evaluations in a row that did not beat it.
        plateau_from, plateau_waited: the same for a plateau of the learning rate, since its last drop.
        drops: of the learning rate on plateaus.
        epoch: sums of the epoch under way, as `EpochMeans.to_json` gives them.
        num_rows: metrics rows written.
    """

    step: int = 0
    skipped: int = 0
    refused_in_a_row: int = 0
    loss: float | None = None
    evaluation: dict[str, Any] = field(default_factory=dict)
    evaluated_step: int | None = None
    evaluation_due: bool = False
    save_due: bool = False
    best_score: float | None = None
    best_step: int | None = None
    num_rows: int = 0
    waited_from: float | None = None
    waited: int = 0
    epoch: list[Any] = field(default_factory=list)
    plateau_from: float | None = None
    plateau_waited: int = 0
    drops: int = 0

    def take(self, score: float | None, config: TrainingConfig) -> list[str]:
        """Count the evaluation just recorded, with this score; returns lines about what it decides."""
        lines, mode, schedule = [], config.monitor_mode, config.schedule
        if schedule.name == "plateau" and self.drop(score, mode, schedule.patience):
            lines.append(f"plateau: the learning rate drops to {schedule.gamma**self.drops:.4g} of its base")
        if score is not None and self.rank(score, mode):
            self.save_due = self.save_due or config.checkpoint.keep_best > 0
        if score is not None and config.early_stopping.patience:
            self.wait(score, mode, config.early_stopping.min_delta)
            if self.stop_early(config):
                self.save_due = True
                lines.append(f"early stopping: {config.monitor} is no better since {self.waited_from}")
        if self.evaluation.get("finished"):
            self.save_due = True
            lines.append(f"finished at step {self.step}: there is nothing left to learn")
        return lines

    def stop_early(self, config: TrainingConfig) -> bool:
        """Whether training ends now: the monitor got no better for long enough, or the evaluation was final."""
        patience = config.early_stopping.patience
        return (patience > 0 and self.waited >= patience) or bool(self.evaluation.get("finished"))

    def rank(self, score: float, mode: str) -> bool:
        """Note this score, reached at ``step``; True when it is the best so far. NaN and infinity never are."""
        if not math.isfinite(score):
            return False
        sign = 1.0 if mode == "max" else -1.0
        if self.best_score is not None and sign * score <= sign * self.best_score:
            return False
        self.best_score, self.best_step = score, self.step
        return True

    def wait(self, score: float, mode: str, min_delta: float) -> None:
        """Count an evaluation with this score towards early stopping. NaN and infinity beat nothing."""
        sign = 1.0 if mode == "max" else -1.0
        beaten = math.isfinite(score) and (self.waited_from is None or sign * (score - self.waited_from) > min_delta)
        if beaten:
            self.waited_from, self.waited = score, 0
        else:
            self.waited += 1

    def restart_waiting(self) -> None:
        """Forget what was waited for: a harder stage lowers every score."""
        self.waited, self.waited_from = 0, None
        self.plateau_waited, self.plateau_from = 0, None

    def drop(self, score: float | None, mode: str, patience: int) -> bool:
        """Count an evaluation; True when the learning rate drops. As torch's ReduceLROnPlateau(threshold=0)."""
        if score is None:
            return False
        sign = 1.0 if mode == "max" else -1.0
        if math.isfinite(score) and (self.plateau_from is None or sign * (score - self.plateau_from) > 0):
            self.plateau_from, self.plateau_waited = score, 0
        else:
            self.plateau_waited += 1
        if self.plateau_waited <= patience:
            return False
        self.plateau_waited = 0
        self.drops += 1
        return True

    def to_json(self) -> dict[str, Any]:
        """JSON values; a number that is not finite becomes a string, as in the metrics file."""
        values = dataclasses.asdict(self)
        values["evaluation"] = strict_json(self.evaluation)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Counters":
        """What `to_json` wrote."""
        return cls(**values)


def strict_json(value: Any) -> Any:
    """The value with every number that JSON has no word for as the string "nan", "inf" or "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return value


class Clock:
    """Seconds of wall and of processor time, over all sessions of a training."""

    def __init__(self, seconds: float = 0.0, cpu_seconds: float = 0.0) -> None:
        """Start from what earlier sessions have spent."""
        self._before = (seconds, cpu_seconds)
        self._since: tuple[float, float] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time inside counts."""
        self._since = (time.monotonic(), time.process_time())
        try:
            yield
        finally:
            self._before, self._since = (self.seconds, self.cpu_seconds), None

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return self._before[0] + (0.0 if self._since is None else time.monotonic() - self._since[0])

    @property
    def cpu_seconds(self) -> float:
        """Processor time of this process so far, all threads."""
        return self._before[1] + (0.0 if self._since is None else time.process_time() - self._since[1])

    def to_json(self) -> dict[str, float]:
        """The arguments of a clock that continues from here."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended.

    Attributes:
        step: optimizer steps made, in all sessions.
        loss: of the last step; None when there was none.
        skipped: windows whose step was refused.
        evaluation: what the last evaluation returned; empty without one.
        best_score, best_step: of the monitored metric; None without one.
        seconds, cpu_seconds: spent in `Trainer.fit`, in all sessions.
        checkpoint: the last one; None without a run directory.
        stopped_early: the monitor had not got better for ``early_stopping.patience`` evaluations.
    """

    step: int
    loss: float | None
    skipped: int
    evaluation: Mapping[str, Any]
    best_score: float | None
    best_step: int | None
    seconds: float
    cpu_seconds: float
    checkpoint: Path | None
    stopped_early: bool = False

    @classmethod
    def of(cls, counters: Counters, clock: Clock, checkpoint: Path | None, stopped_early: bool) -> "TrainingResult":
        """The result of a training with these numbers."""
        return cls(
            step=counters.step,
            loss=counters.loss,
            skipped=counters.skipped,
            evaluation=dict(counters.evaluation),
            best_score=counters.best_score,
            best_step=counters.best_step,
            seconds=clock.seconds,
            cpu_seconds=clock.cpu_seconds,
            checkpoint=checkpoint,
            stopped_early=stopped_early,
        )
