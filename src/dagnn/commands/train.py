"""`dagnn train`: a new training, or one that goes on, in one process or in those that torchrun started."""

from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from dagnn.commands.arguments import complain, parsed
from dagnn.errors import ConfigError

if TYPE_CHECKING:
    from dagnn.training.config import TrainingConfig

_RESUME_HELP = "auto: go on if run_directory holds a run; latest: go on with it; or a run or checkpoint to go on with"
_RESCHEDULE_HELP = "when max_steps changes at a resume: keep the curve of the learning rate, or stretch it"


def run(arguments: Sequence[str]) -> int:
    """Runs `dagnn train` with these arguments and returns the exit code."""
    given = _parsed(arguments)
    if given.dry_run:
        print(_plan(given)[0].to_toml(), end="")
        return 0

    from dagnn.training.curriculum_run import train
    from dagnn.training.processes import joined
    from dagnn.training.report import report_after_training
    from dagnn.training.signals import TrainingInterrupted, leaving_on_signals

    with leaving_on_signals(), joined() as processes:
        # Decided by one process: another may look when the run directory is just being made.
        config, resume, step = processes.by_first(lambda: _plan(given))
        note = print if processes.is_first else _unsaid
        try:
            train(config, resume=resume, step=step, reschedule=given.reschedule, note=note)
        except TrainingInterrupted as interrupted:
            if processes.is_first:
                complain(str(interrupted))
            return interrupted.exit_code
        report = report_after_training(config.run_directory, complain) if processes.is_first else None
        if report is not None:
            print(report.text)
    return 0


def _parsed(arguments: Sequence[str]) -> Any:
    from dagnn.training.flags import training_flags

    settings = training_flags()
    own = [
        ("config", Annotated[str | None, arg(help="settings in a TOML file; flags beat it", metavar="FILE")], None),
        ("resume", Annotated[str | None, arg(help=_RESUME_HELP, metavar="auto|latest|PATH")], None),
        ("reschedule", Annotated[str | None, arg(help=_RESCHEDULE_HELP, metavar="keep|stretch")], None),
        ("dry_run", Annotated[bool, arg(help="check and print the settings, and train nothing")], False),
        ("settings", Annotated[settings, arg(name="")], settings()),
    ]
    # Made at run time, as the flags of the settings are. An entry is (name, type, default).
    kind = make_dataclass("Train", own, frozen=True)
    kind.__doc__ = (
        "Trains the network on the seven levels. Every setting is also an environment variable: DAGNN_<FLAG>."
    )
    return parsed(kind, "train", arguments)


def _plan(given: Any) -> tuple["TrainingConfig", bool, int | None]:
    """The settings of the training, whether it goes on, and the step of the checkpoint to go on from (None: newest)."""
    from dagnn.training.config import TrainingConfig
    from dagnn.training.flags import given_flags
    from dagnn.training.resume import begun, find_run, is_restart

    # torchrun starts a failed training again with the same arguments: it must not begin anew, or be refused.
    resume = "auto" if given.resume is None and is_restart() else given.resume
    if resume not in (None, "auto", "latest") and given.config is not None:
        raise ConfigError("--config and --resume exclude each other: a resumed run keeps its own settings.")
    if given.reschedule is not None and resume is None:
        raise ConfigError(f"--reschedule {given.reschedule}: it is for a run that goes on: add --resume.")
    said = TrainingConfig.given(given.config, flags=given_flags(given.settings))
    if resume is None:
        return TrainingConfig.resolve(environment={}, flags=said), False, None
    if resume in ("auto", "latest"):
        directory, step = Path(TrainingConfig.resolve(environment={}, flags=said).run_directory), None
        if resume == "auto" and not begun(directory):
            return TrainingConfig.resolve(environment={}, flags=said), False, None
    else:
        directory, step = find_run(resume)
    return _going_on(directory, said, given.reschedule), True, step


def _going_on(directory: Path, said: Mapping[str, Any], reschedule: str | None) -> "TrainingConfig":
    from dagnn.training.resume import resumed_config
    from dagnn.training.run_directory import RunDirectory

    stored = RunDirectory.read(directory).config()
    return resumed_config(stored, {**said, "run_directory": str(directory)}, reschedule=reschedule)


def _unsaid(line: str) -> None:
    """Only the first process speaks."""
