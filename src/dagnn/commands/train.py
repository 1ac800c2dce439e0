"""`dagnn train`: a new training, or one that goes on, in one process or in those that torchrun started."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

from tyro.conf import arg

from dagnn.commands.arguments import complain, parsed_with_rest
from dagnn.commands.streams import say
from dagnn.errors import ConfigError

if TYPE_CHECKING:
    from dagnn.training.config import TrainingConfig

_RESUME_HELP = "auto: go on if run_directory holds a run; latest: go on with it; or a run or checkpoint to go on with"
_PROFILE_HELP = "write a trace of the first 20 steps into profile.json of the run; --profile-steps: of how many"
_RESCHEDULE_HELP = "when max_steps changes at a resume: keep the curve of the learning rate, or stretch it"
_PROFILE_STEPS = 20
_LINES = 25  # of a curve of learning rates


def run(arguments: Sequence[str]) -> int:
    """Runs `dagnn train` with these arguments and returns the exit code."""
    given, unknown = _parsed(arguments)
    if given.dry_run:
        print(_plan(given, unknown)[0].to_toml(), end="")
        return 0

    if given.find_lr:
        return _find_lr(_plan(given, unknown))

    from dagnn.training.curriculum_run import train
    from dagnn.training.processes import joined
    from dagnn.training.report import report_after_training
    from dagnn.training.signals import TrainingInterrupted, leaving_on_signals

    with leaving_on_signals(), joined() as processes:
        # Decided by one process: another may look when the run directory is just being made.
        config, resume, step = processes.by_first(lambda: _plan(given, unknown))
        note = say if processes.is_first else _unsaid
        try:
            train(config, resume=resume, step=step, reschedule=given.reschedule, note=note)
        except TrainingInterrupted as interrupted:
            if processes.is_first:
                complain(f"{interrupted} Go on with dagnn train --resume {config.run_directory}")
            return interrupted.exit_code
        report = report_after_training(config.run_directory, complain) if processes.is_first else None
        if report is not None:
            print(report.text)
    return 0


def _find_lr(plan: tuple["TrainingConfig", bool, int | None]) -> int:
    from dagnn.training.curriculum_run import search_lr
    from dagnn.training.signals import leaving_on_signals

    config, resume, _ = plan
    if resume:
        raise ConfigError("--find-lr looks at a network that is not trained yet: leave --resume out.")
    with leaving_on_signals():
        curve = search_lr(config, note=complain)
    every = max(1, len(curve.rates) // _LINES)
    for rate, loss in list(zip(curve.rates, curve.losses, strict=True))[::every]:
        print(f"lr {rate:.2e}  loss {loss:.4g}")
    if curve.suggestion is None:
        print("no rate makes the loss fall")
    else:
        print(f"a tenth of the rate of the lowest loss: --optimizer.lr {curve.suggestion:.2g}")
    return 0


def _parsed(arguments: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """The arguments, and the flags that there are not, to be refused together with wrong settings."""
    from dagnn.training.config import training_settings
    from dagnn.training.flags import spelt_out, training_flags, unknown_flags

    settings = training_flags()
    text = Optional[str]  # noqa: UP045 - as in training/flags.py: it is faster
    own = [
        ("config", Annotated[text, arg(help="settings in a TOML file; flags beat it", metavar="FILE")], None),
        ("resume", Annotated[text, arg(help=_RESUME_HELP, metavar="auto|latest|PATH")], None),
        ("reschedule", Annotated[text, arg(help=_RESCHEDULE_HELP, metavar="keep|stretch")], None),
        ("dry_run", Annotated[bool, arg(help="check and print the settings, and train nothing")], False),
        ("find_lr", Annotated[bool, arg(help="print the loss at rising learning rates, and train nothing")], False),
        ("profile", Annotated[bool, arg(help=_PROFILE_HELP)], False),
        ("settings", Annotated[settings, arg(name="", help="")], settings()),
    ]
    # Made at run time, as the flags of the settings are. An entry is (name, type, default).
    kind: Any = make_dataclass("Train", own, frozen=True)
    kind.__doc__ = (
        "Trains the network on the seven levels. Every setting is also an environment variable: DAGNN_<FLAG>."
    )
    given, rest = parsed_with_rest(kind, "train", spelt_out(arguments))
    unknown, words = unknown_flags(rest)
    if words:
        raise ConfigError(f"unexpected argument {words[0]!r}: `dagnn train` takes flags only; see dagnn train --help.")
    own_names = [name for name, *_ in own[:-1]]
    for flag in unknown:
        nearest = difflib.get_close_matches(flag, [*own_names, *training_settings()], n=1)
        if nearest and nearest[0] in own_names:
            raise ConfigError(f"unknown flag --{flag}: did you mean --{nearest[0].replace('_', '-')}?")
    return given, unknown


def _plan(given: Any, unknown: Mapping[str, str]) -> tuple["TrainingConfig", bool, int | None]:
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
    flags = {**given_flags(given.settings), **unknown}
    if given.profile:
        flags = {"profile_steps": str(_PROFILE_STEPS), **flags}
    said = TrainingConfig.given(given.config, flags=flags)
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
