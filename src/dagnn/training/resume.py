"""What a resumed run is: where it lies, and which of its settings may be given anew."""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagnn.errors import ConfigError
from dagnn.training.config import TrainingConfig
from dagnn.training.settings import flatten, refuse

if TYPE_CHECKING:
    from dagnn.training.processes import Processes

# These change where or when something is kept or shown, and no number of the training.
_FREE = {
    "threads",
    "run_directory",
    "profile_steps",
    "checkpoint.save_every",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
}
# Schedules whose learning rate at a step does not depend on how many steps there will be.
_ENDLESS = ("constant", "step", "exponential", "warmup", "plateau")
RESCHEDULE = ("keep", "stretch")


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


def begun(directory: Path) -> bool:
    """Whether a run was begun in this directory."""
    return (directory / "run.json").exists()


def is_restart() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def resumed_config(
    stored: TrainingConfig, given: Mapping[str, Any], *, reschedule: str | None = None
) -> TrainingConfig:
    """The run's own configuration with the settings given at the resume.

    May change: what decides only where and how often things are kept (``threads`` too: it does not alter the
    data or the formulas), and ``max_steps``. Under a cosine, whose learning rates depend on ``max_steps``, it takes a
    word on what becomes of them.

    Args:
        stored: of the run.
        given: dotted key -> value.
        reschedule: "keep" goes on along the run's curve, and at its final learning rate after its end; "stretch" goes
            over to the curve that spans the new ``max_steps``. Without a change of ``max_steps`` it says nothing.

    Raises:
        ConfigError: a setting would change the training itself; a resume then would be no resume.
    """
    if reschedule is not None and reschedule not in RESCHEDULE:
        raise ConfigError(f"reschedule = {reschedule}: allowed is one of {', '.join(RESCHEDULE)}.")
    wanted = stored.changed(given)
    free, problems = set(_FREE), []
    if stored.schedule.name in _ENDLESS:
        free.add("max_steps")
    elif wanted.max_steps != stored.max_steps:
        free |= {"max_steps", "schedule.steps"}
        if reschedule is None:
            problems.append(
                f"max_steps = {wanted.max_steps}: the run has {stored.max_steps}, and its learning rates follow a "
                f"{stored.schedule.name} that ends at step {stored.schedule_steps}: say --reschedule keep to stay on "
                "that curve, or --reschedule stretch to go over to the one that ends at the new max_steps."
            )
        else:
            steps = stored.schedule_steps if reschedule == "keep" else 0
            wanted = wanted.changed({"schedule.steps": steps})
    problems += [
        f"{key} = {theirs}: the run has {mine}, and a resumed run keeps it: leave it out, or begin a new run."
        for key, (mine, theirs) in stored.differences(wanted).items()
        if key not in free
    ]
    refuse(problems)
    return wanted


def same_training(stored: TrainingConfig, wanted: TrainingConfig, *, reschedule: str | None = None) -> TrainingConfig:
    """What `resumed_config` makes of a whole configuration; raises ConfigError where it does."""
    given = flatten(wanted)
    # Whoever resumes a run that was rescheduled before need not know where its curve ends.
    if wanted.schedule.steps == 0:
        given["schedule.steps"] = stored.schedule.steps
    return resumed_config(stored, given, reschedule=reschedule)


def changes(
    stored: TrainingConfig, wanted: TrainingConfig, reschedule: str | None, num_before: int, processes: "Processes"
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of metrics.jsonl (kind and values) that tell what a resume has changed; with a warning where its bytes will.

    Args:
        stored, wanted: of the run, and from `same_training`.
        reschedule: as given there.
        num_before: how many processes trained before.
        processes: those of now.
    """
    rows: list[tuple[str, dict[str, Any]]] = []
    if reschedule is not None and wanted.max_steps != stored.max_steps:
        told = {"max_steps_before": stored.max_steps, "max_steps": wanted.max_steps}
        rows.append(("reschedule", {"reschedule": reschedule, **told}))
    if num_before != processes.size:
        rows.append(("processes", {"processes_before": num_before, "processes": processes.size}))
        if processes.is_first:
            warnings.warn(
                f"the number of processes was {num_before} and is {processes.size}: the training goes on with the same "
                "batches and other random numbers; it equals one that kept the number to rounding, not to the bit.",
                stacklevel=3,
            )
    return rows
