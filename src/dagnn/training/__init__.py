"""A trainer for any model: configuration, loop, schedules, stages, checkpoints, metrics."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagnn.training.config import TrainingConfig as TrainingConfig
    from dagnn.training.counters import StagePromotion as StagePromotion
    from dagnn.training.counters import TrainingResult as TrainingResult
    from dagnn.training.evaluation import Meter as Meter
    from dagnn.training.loader import BatchLoader as BatchLoader
    from dagnn.training.loader import DatasetLoader as DatasetLoader
    from dagnn.training.loader import IterableLoader as IterableLoader
    from dagnn.training.loader import MappedLoader as MappedLoader
    from dagnn.training.log import MetricsLog as MetricsLog
    from dagnn.training.log import read_metrics as read_metrics
    from dagnn.training.lr_finder import LrCurve as LrCurve
    from dagnn.training.lr_finder import find_lr as find_lr
    from dagnn.training.processes import Processes as Processes
    from dagnn.training.processes import TrainingInterrupted as TrainingInterrupted
    from dagnn.training.processes import process_group as process_group
    from dagnn.training.run.checkpoints import Checkpoint as Checkpoint
    from dagnn.training.run.checkpoints import CheckpointStore as CheckpointStore
    from dagnn.training.run.checkpoints import read_checkpoint as read_checkpoint
    from dagnn.training.run.checkpoints import verify_checkpoint as verify_checkpoint
    from dagnn.training.run.directory import RunDirectory as RunDirectory
    from dagnn.training.run.directory import open_run as open_run
    from dagnn.training.trainer import Trainer as Trainer

# Loaded on first use (PEP 562): a configuration, and so `dagnn train --help`, does not wait for torch.
_MODULE_OF = {
    "BatchLoader": "dagnn.training.loader",
    "Checkpoint": "dagnn.training.run.checkpoints",
    "CheckpointStore": "dagnn.training.run.checkpoints",
    "DatasetLoader": "dagnn.training.loader",
    "IterableLoader": "dagnn.training.loader",
    "LrCurve": "dagnn.training.lr_finder",
    "MappedLoader": "dagnn.training.loader",
    "Meter": "dagnn.training.evaluation",
    "MetricsLog": "dagnn.training.log",
    "Processes": "dagnn.training.processes",
    "RunDirectory": "dagnn.training.run.directory",
    "StagePromotion": "dagnn.training.counters",
    "Trainer": "dagnn.training.trainer",
    "TrainingConfig": "dagnn.training.config",
    "TrainingInterrupted": "dagnn.training.processes",
    "TrainingResult": "dagnn.training.counters",
    "find_lr": "dagnn.training.lr_finder",
    "open_run": "dagnn.training.run.directory",
    "process_group": "dagnn.training.processes",
    "read_checkpoint": "dagnn.training.run.checkpoints",
    "read_metrics": "dagnn.training.log",
    "verify_checkpoint": "dagnn.training.run.checkpoints",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dagnn.training' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
