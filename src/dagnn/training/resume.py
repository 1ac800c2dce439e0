"""What a resumed run is: where it lies, and which of its settings may be given anew."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagnn.training.config import TrainingConfig
from dagnn.training.settings import flatten, refuse

# These change where or when something is kept or shown, and no number of the training.
_FREE = {"threads", "run_directory", "checkpoint.save_every", "checkpoint.keep_last", "checkpoint.keep_best"}
# Schedules whose learning rate at a step does not depend on how many steps there will be.
_ENDLESS = ("constant", "step", "exponential", "warmup")


def find_run(path: str | Path) -> tuple[Path, int | None]:
    """The run directory, and the step when ``path`` is one of its checkpoints (None: the newest).

    >>> find_run("runs/a/checkpoints/step-00000500")
    (PosixPath('runs/a'), 500)
    >>> find_run("runs/a")
    (PosixPath('runs/a'), None)
    """
    path = Path(path)
    match = re.fullmatch(r"step-(\d{8,})", path.name)
    if match and path.parent.name == "checkpoints":
        return path.parent.parent, int(match[1])
    return path, None


def resumed_config(stored: TrainingConfig, flags: Mapping[str, Any]) -> TrainingConfig:
    """The run's own configuration with the flags given at the resume.

    May change: what decides only where and how often things are kept (``threads`` too: it does not alter the
    data or the formulas), and ``max_steps`` under a schedule that does not look at it.

    Raises:
        ConfigError: a flag would change the training itself; a resume then would be no resume.
    """
    wanted = stored.changed(flags)
    free = _FREE | ({"max_steps"} if stored.schedule.name in _ENDLESS else set())
    refuse(
        [
            f"{key} = {theirs}: the run has {mine}, and a resumed run keeps it: leave it out, or begin a new run."
            for key, (mine, theirs) in stored.differences(wanted).items()
            if key not in free
        ]
    )
    return wanted


def same_training(stored: TrainingConfig, given: TrainingConfig) -> None:
    """Raise ConfigError where `resumed_config` would refuse what ``given`` says."""
    resumed_config(stored, flatten(given))
