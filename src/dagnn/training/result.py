"""How a training ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagnn.training.clock import Clock
from dagnn.training.counters import Counters


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
