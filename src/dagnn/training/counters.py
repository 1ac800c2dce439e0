"""The small numbers of a training: steps, refusals, best score, patience, open stages, time; and how it ended."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagnn.errors import CheckpointError, ConfigError
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
        if not _beats(score, self.best_score, mode):
            return False
        self.best_score, self.best_step = score, self.step
        return True

    def wait(self, score: float, mode: str, min_delta: float) -> None:
        """Count an evaluation with this score towards early stopping. NaN and infinity beat nothing."""
        if _beats(score, self.waited_from, mode, by=min_delta):
            self.waited_from, self.waited = score, 0
        else:
            self.waited += 1

    def restart_waiting(self) -> None:
        """Start waiting afresh: a harder stage lowers every score."""
        self.waited, self.waited_from = 0, None
        self.plateau_waited, self.plateau_from = 0, None

    def drop(self, score: float | None, mode: str, patience: int) -> bool:
        """Count an evaluation; True when the learning rate drops. As torch's ReduceLROnPlateau(threshold=0)."""
        if score is None:
            return False
        if _beats(score, self.plateau_from, mode):
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


def _beats(score: float, best: float | None, mode: str, *, by: float = 0.0) -> bool:
    """Is the score better by more than this? NaN and infinity beat nothing."""
    sign = 1.0 if mode == "max" else -1.0
    return math.isfinite(score) and (best is None or sign * (score - best) > by)


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

    >>> TrainingResult.of(Counters(step=3, loss=0.5), Clock(), None, stopped_early=False).step
    3
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
        self.order, self.threshold = order, threshold
        self.minimum_steps, self.patience = minimum_steps, patience
        self._num_open = len(self.stages) if order == "mixed" else 1
        self._since_step, self._passed, self._finished = 0, 0, False

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
