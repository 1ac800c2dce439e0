"""A trainer for any model: configuration, loop, schedules, stages, checkpoints, metrics."""

from typing import TYPE_CHECKING

from dagnn import _loaded_on_first_use

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
    from dagnn.training.processes import process_group as process_group
    from dagnn.training.run.checkpoints import Checkpoint as Checkpoint
    from dagnn.training.run.checkpoints import CheckpointStore as CheckpointStore
    from dagnn.training.run.checkpoints import read_checkpoint as read_checkpoint
    from dagnn.training.run.checkpoints import verify_checkpoint as verify_checkpoint
    from dagnn.training.run.directory import RunDirectory as RunDirectory
    from dagnn.training.run.directory import open_run as open_run
    from dagnn.training.signals import TrainingInterrupted as TrainingInterrupted
    from dagnn.training.trainer import Trainer as Trainer
    from dagnn.training.trainer import TrainingTask as TrainingTask

# A configuration, and so `dagnn train --help`, does not wait for torch.
__getattr__, __dir__, __all__ = _loaded_on_first_use(
    __name__,
    {
        "dagnn.training.config": "TrainingConfig",
        "dagnn.training.counters": "StagePromotion TrainingResult",
        "dagnn.training.evaluation": "Meter",
        "dagnn.training.loader": "BatchLoader DatasetLoader IterableLoader MappedLoader",
        "dagnn.training.log": "MetricsLog read_metrics",
        "dagnn.training.lr_finder": "LrCurve find_lr",
        "dagnn.training.processes": "Processes process_group",
        "dagnn.training.run.checkpoints": "Checkpoint CheckpointStore read_checkpoint verify_checkpoint",
        "dagnn.training.run.directory": "RunDirectory open_run",
        "dagnn.training.signals": "TrainingInterrupted",
        "dagnn.training.trainer": "Trainer TrainingTask",
    },
)
