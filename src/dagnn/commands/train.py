"""`dagnn train`: its flags, a new training or one that goes on, in one process or in those that torchrun started."""

import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional, cast

from tyro.conf import arg

from dagnn.commands import complain, parsed_with_rest, say
from dagnn.errors import ConfigError, closest, did_you_mean
from dagnn.training.config import TrainingConfig
from dagnn.training.settings import Setting, settings_of

_RESUME_HELP = "auto: go on if run_directory holds a run; latest: go on with it; or a run or checkpoint to go on with"
_TASK_HELP = "a task of your own in place of the curriculum: a RewritingTask, or a function that returns a TrainingTask"
_PROFILE_HELP = "write a trace of the first 20 steps into profile.json of the run; --profile-steps: of how many"
_RESCHEDULE_HELP = "when max_steps changes at a resume: keep the curve of the learning rate, or stretch it"
_PROFILE_STEPS = 20
_LINES = 25  # of a curve of learning rates


class Job(NamedTuple):
    """What is trained: the curriculum, or a task of the user's own."""

    config: type[TrainingConfig]
    train: Callable[..., object]
    search_lr: Callable[..., Any]
    report: Callable[[str], Sequence[str]]  # run directory -> lines to print after the training
    flags: str = ""  # to be given again with --resume


def run(arguments: Sequence[str]) -> int:
    """Runs `dagnn train` with these arguments and returns the exit code."""
    job = _job(arguments)
    given, unknown = _parsed(arguments, job)
    if given.dry_run:
        print(_plan(given, unknown, job)[0].to_toml(), end="")
        return 0

    if given.find_lr:
        return _find_lr(job, _plan(given, unknown, job))

    from dagnn.training.processes import process_group
    from dagnn.training.signals import TrainingInterrupted, leaving_on_signals

    with leaving_on_signals(), process_group() as processes:
        # One process decides: another could look while the run directory is being made.
        config, resume, step = processes.by_first(lambda: _plan(given, unknown, job))
        note = say if processes.is_first else _silent
        try:
            job.train(config, resume=resume, step=step, reschedule=given.reschedule, note=note)
        except TrainingInterrupted as interrupted:
            if processes.is_first:
                complain(f"{interrupted} Go on with dagnn train --resume {config.run_directory}{job.flags}")
            return interrupted.exit_code
        if processes.is_first:
            print(*job.report(config.run_directory), sep="\n")
    return 0


def _job(arguments: Sequence[str]) -> Job:
    """The job that the command line names. A module is imported here, and no file or variable can name one."""
    name = None
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        if argument == "--task" or argument.startswith("--task="):
            name = argument.partition("=")[2] or following
    if name is None:
        return _curriculum()
    from dagnn.commands.own_task import OwnTask, results_of

    task = OwnTask.load(name)
    return Job(task.config_class, task.train, task.search_lr, results_of, f" --task {name}")


def _curriculum() -> Job:
    from dagnn.curriculum.config import CurriculumConfig

    def train(config: TrainingConfig, **options: Any) -> object:
        from dagnn.curriculum import run  # what --help does not wait for

        return run.train(cast(CurriculumConfig, config), **options)

    def search_lr(config: TrainingConfig, **options: Any) -> Any:
        from dagnn.curriculum import run

        return run.search_lr(cast(CurriculumConfig, config), **options)

    def report(directory: str) -> list[str]:
        from dagnn.curriculum.report import report_after_training

        found = report_after_training(directory, complain)
        return [] if found is None else [found.text]

    return Job(CurriculumConfig, train, search_lr, report)


def _find_lr(job: Job, plan: tuple[TrainingConfig, bool, int | None]) -> int:
    from dagnn.training.signals import leaving_on_signals

    config, resume, _ = plan
    if resume:
        raise ConfigError("--find-lr looks at a network that is not trained yet: leave --resume out.")
    with leaving_on_signals():
        curve = job.search_lr(config, note=complain)
    every = max(1, len(curve.rates) // _LINES)
    for rate, loss in list(zip(curve.rates, curve.losses, strict=True))[::every]:
        print(f"lr {rate:.2e}  loss {loss:.4g}")
    if curve.suggestion is None:
        print("no rate makes the loss fall")
    else:
        print(f"a tenth of the rate of the lowest loss: --optimizer.lr {curve.suggestion:.2g}")
    return 0


def _parsed(arguments: Sequence[str], job: Job) -> tuple[Any, dict[str, str]]:
    """The arguments, and the unknown flags, which the configuration refuses together with wrong settings."""
    flags = training_flags(job.config)
    text = Optional[str]  # noqa: UP045 - as in _flag: it is faster
    own = [
        ("config", Annotated[text, arg(help="settings in a TOML file; flags beat it", metavar="FILE")], None),
        ("resume", Annotated[text, arg(help=_RESUME_HELP, metavar="auto|latest|PATH")], None),
        ("task", Annotated[text, arg(help=_TASK_HELP, metavar="MODULE:NAME")], None),
        ("reschedule", Annotated[text, arg(help=_RESCHEDULE_HELP, metavar="keep|stretch")], None),
        ("dry_run", Annotated[bool, arg(help="check and print the settings, and train nothing")], False),
        ("find_lr", Annotated[bool, arg(help="print the loss at rising learning rates, and train nothing")], False),
        ("profile", Annotated[bool, arg(help=_PROFILE_HELP)], False),
        ("settings", Annotated[flags, arg(name="", help="")], flags()),
    ]
    # A class made at run time, since the flags of the settings are. An entry is (name, type, default).
    kind: Any = make_dataclass("Train", own, frozen=True)
    kind.__doc__ = (
        "Trains the network on the seven levels of the curriculum, tests it and prints a table; or, with --task, on "
        "a task of your own. Every setting is also an environment variable: DAGNN_<FLAG>."
    )
    given, rest = parsed_with_rest(kind, "train", with_true(arguments, job.config))
    unknown, words = unknown_flags(rest)
    if words:
        raise ConfigError(f"unexpected argument {words[0]!r}: `dagnn train` takes flags only; see dagnn train --help.")
    own_names = [name for name, *_ in own[:-1]]
    for flag in unknown:
        nearest = closest(flag, [*own_names, *settings_of(job.config)])
        if nearest is not None and nearest in own_names:
            raise ConfigError(f"unknown flag --{flag}: {did_you_mean(['--' + nearest.replace('_', '-')], '')}")
    return given, unknown


def _plan(given: Any, unknown: Mapping[str, str], job: Job) -> tuple[TrainingConfig, bool, int | None]:
    """The settings, whether a run goes on, and the step of the checkpoint to go on from (None: the newest)."""
    # torchrun starts a failed training again with the same arguments: it must go on, not begin again or be refused.
    resume = "auto" if given.resume is None and is_restart() else given.resume
    if resume not in (None, "auto", "latest") and given.config is not None:
        raise ConfigError("--config and --resume exclude each other: a resumed run keeps its own settings.")
    if given.reschedule is not None and resume is None:
        raise ConfigError(f"--reschedule {given.reschedule}: it applies to a resumed run: add --resume.")
    flags = {**given_flags(given.settings), **unknown}
    if given.profile:
        flags = {"profile_steps": str(_PROFILE_STEPS), **flags}
    try:
        settings = job.config.given(given.config, flags=flags)
    except ConfigError as error:
        if given.task is None and "task." in str(error):
            raise ConfigError("[task] in the settings is of a task of your own: add --task MODULE:NAME.") from None
        raise
    if resume in (None, "auto", "latest"):
        config = job.config.resolve(environment={}, flags=settings)
        directory, step = Path(config.run_directory), None
        if resume is None or (resume == "auto" and not (directory / "run.json").exists()):
            return config, False, None
    else:
        from dagnn.training.run.resume import find_run

        directory, step = find_run(resume)
    return _going_on(job, directory, settings, given.reschedule), True, step


def is_restart() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def _going_on(job: Job, directory: Path, settings: Mapping[str, Any], reschedule: str | None) -> TrainingConfig:
    from dagnn.training.run.directory import RunDirectory
    from dagnn.training.run.resume import resumed_config

    stored = RunDirectory.read(directory).config(job.config)
    return resumed_config(stored, {**settings, "run_directory": str(directory)}, reschedule=reschedule)


def _silent(line: str) -> None:
    """Prints nothing: only the first process reports."""


def training_flags(config: type[TrainingConfig]) -> type:
    """A dataclass for `tyro.cli` with one field per setting of ``config``, nested alike.

    A flag that is not given stays None, so that `given_flags` can tell it from a default, and every value
    stays text: `TrainingConfig.resolve` converts it and reports all wrong ones at once. Inside a command's own
    dataclass: ``settings: Annotated[training_flags(config), tyro.conf.arg(name="")]``.
    """
    return _flags_of(config, settings_of(config), "")


def with_true(arguments: Sequence[str], config: type[TrainingConfig]) -> list[str]:
    """The arguments with "true" after a yes-or-no setting that stands alone.

    >>> with_true(["--compile", "--seed", "3"], TrainingConfig)
    ['--compile', 'true', '--seed', '3']
    """
    alone = {f"--{key.replace('_', '-')}" for key, setting in settings_of(config).items() if setting.type is bool}
    found: list[str] = []
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue="--"):
        found.append(argument)
        if argument in alone and following.startswith("-"):
            found.append("true")
    return found


def given_flags(flags: Any, prefix: str = "") -> dict[str, str]:
    """The flags that were typed: dotted key -> text, for ``TrainingConfig.resolve(flags=...)``."""
    given: dict[str, str] = {}
    for each in fields(flags):
        value = getattr(flags, each.name)
        if is_dataclass(value):
            given |= given_flags(value, f"{prefix}{each.name}.")
        elif value is not None:
            given[prefix + each.name] = value if isinstance(value, str) else " ".join(value)
    return given


def unknown_flags(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Flags that no command knows, as settings for ``TrainingConfig.given`` to refuse with its suggestion, and the
    words that belong to no flag.

    >>> unknown_flags(["--bach-size", "3", "--sed=1", "--optimizer.lrr"])
    ({'bach_size': '3', 'sed': '1', 'optimizer.lrr': ''}, [])
    >>> unknown_flags(["twice"])
    ({}, ['twice'])
    """
    flags: dict[str, str] = {}
    words = []
    key = None
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            key = name.replace("-", "_")
            flags[key] = value
        elif key is None:
            words.append(argument)
        else:
            flags[key] = f"{flags[key]} {argument}".strip()
    return flags, words


def _flags_of(config: type, settings: Mapping[str, Setting], prefix: str) -> type:
    hints = typing.get_type_hints(config)
    members: dict[str, tuple[Any, Any]] = {}
    for key, setting in settings.items():
        head, nested, _ = key.removeprefix(prefix).partition(".")
        if not nested:
            members[head] = (_flag(setting), field(default=None))
        elif head not in members:
            inside = {each: value for each, value in settings.items() if each.startswith(f"{prefix}{head}.")}
            section = _flags_of(hints[head], inside, f"{prefix}{head}.")
            # Without this help tyro would search for the source of these classes, which have none.
            options = arg(help=(hints[head].__doc__ or "").partition("\n")[0])
            members[head] = (Annotated[section, options], field(default_factory=section))
    return make_dataclass(
        f"{config.__name__}Flags", [(head, kind, default) for head, (kind, default) in members.items()], frozen=True
    )


def _flag(setting: Setting) -> Any:
    is_list = typing.get_origin(setting.type) is tuple
    default = " ".join(map(str, setting.default)) if is_list else setting.default
    options = arg(
        help=f"{setting.help} ({setting.allowed}; {f'default {default}' if str(default) else 'none by default'})",
        metavar="LIST" if is_list else setting.type.__name__.upper(),
        help_behavior_hint="",
    )
    # typing.Optional, None first: for `str | None` tyro loads typeguard, which takes a third of the time of --help.
    kind: Any = typing.Union[None, tuple[str, ...]] if is_list else typing.Union[None, str]  # noqa: UP007
    return Annotated[kind, options]
