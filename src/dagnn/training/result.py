"""How a training ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
