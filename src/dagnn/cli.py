"""The command `dagnn`: every subcommand reads its flags and makes one call into the packages.

What a command needs is imported when it runs: `dagnn --help` must not wait for torch.
"""

import contextlib
import difflib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO, TypeVar

import tyro
from tyro.conf import Positional, arg

from dagnn._version import __version__
from dagnn.errors import ConfigError, DagnnError

if TYPE_CHECKING:
    from dagnn.training.config import TrainingConfig

DEFAULT_RUN = "runs/curriculum"
EXIT_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 130, 141

Arguments = TypeVar("Arguments")


class Command(NamedTuple):
    """A subcommand: one line for `dagnn --help`, and what runs it, given the arguments after its name."""

    summary: str
    run: Callable[[Sequence[str]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    0: done; 2: a wrong argument, file or run, told in one line on stderr; 130 and 143: stopped by Ctrl-C and by
    SIGTERM, the training saved; 141: whoever read the output went away.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = _dispatch(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except DagnnError as error:
        _complain(str(error))
        return EXIT_ERROR
    except BrokenPipeError:
        # Python flushes stdout once more at exit; into the closed pipe that would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        _complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return EXIT_ERROR
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(_help())
        return 0
    if name in ("--version", "version"):
        print(f"dagnn {__version__}")
        return 0
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"the commands are {', '.join(COMMANDS)}."
        raise ConfigError(f"unknown command {name!r}: {advice}")
    try:
        return COMMANDS[name].run(arguments[1:])
    except SystemExit as stop:  # tyro has printed a command's --help
        return stop.code if isinstance(stop.code, int) else 0


def _train(arguments: Sequence[str]) -> int:
    from dagnn.training.flags import given_flags, training_flags

    settings = training_flags()
    own = [
        ("config", Annotated[str | None, arg(help="settings in a TOML file; flags beat it", metavar="FILE")], None),
        ("resume", Annotated[str | None, arg(help="a run or checkpoint to go on with", metavar="PATH")], None),
        ("dry_run", Annotated[bool, arg(help="check and print the settings, and train nothing")], False),
        ("settings", Annotated[settings, arg(name="")], settings()),
    ]
    # Made at run time, as the flags of the settings are. An entry is (name, type, default).
    kind = make_dataclass("Train", own, frozen=True)
    kind.__doc__ = (
        "Trains the network on the seven levels. Every setting is also an environment variable: DAGNN_<FLAG>."
    )
    given: Any = _parsed(kind, "train", arguments)
    config, step = _training_config(given, given_flags(given.settings))
    if given.dry_run:
        print(config.to_toml(), end="")
        return 0

    from dagnn.training.curriculum_run import train
    from dagnn.training.report import report_after_training
    from dagnn.training.signals import TrainingInterrupted

    try:
        train(config, resume=given.resume is not None, step=step)
    except TrainingInterrupted as interrupted:
        _complain(str(interrupted))
        return interrupted.exit_code
    report = report_after_training(config.run_directory, _complain)
    if report is not None:
        print(report.text)
    return 0


def _training_config(given: Any, flags: dict[str, str]) -> tuple["TrainingConfig", int | None]:
    """The settings of a training, and the step of the checkpoint that it goes on from (None: the newest, or none)."""
    from dagnn.training.config import TrainingConfig

    if given.resume is None:
        return TrainingConfig.resolve(given.config, flags=flags), None
    if given.config is not None:
        raise ConfigError("--config and --resume exclude each other: a resumed run keeps its own settings.")
    from dagnn.training.resume import find_run, resumed_config
    from dagnn.training.run_directory import RunDirectory

    directory, step = find_run(given.resume)
    return resumed_config(RunDirectory.read(directory).config(), {**flags, "run_directory": str(directory)}), step


@dataclass(frozen=True)
class Evaluate:
    """Asks the network of a run fresh expressions of every level; the exact engine judges the answers."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory, or one of its checkpoints"""
    expressions: int = 500
    """expressions per level"""
    split: str = "test"
    """test or validation: neither is ever trained on"""
    seed: int = 0
    """seed of the expressions"""
    json: bool = False
    """print JSON"""


def _evaluate(arguments: Sequence[str]) -> int:
    given = _parsed(Evaluate, "evaluate", arguments)
    from dagnn.training.evaluate import evaluate
    from dagnn.training.report import results_table

    found = evaluate(given.run, expressions=given.expressions, split=given.split, seed=given.seed)
    print(json.dumps(found.summary()) if given.json else "\n".join(results_table(found)))
    return 0


@dataclass(frozen=True)
class Solve:
    """Lets the network of a run answer one expression, and the exact engine judge the answer."""

    expression: Positional[Annotated[str, arg(metavar="EXPRESSION")]]
    """such as "(derive (^ x 2) x)"; quote it"""
    run: str = DEFAULT_RUN
    """run directory, or one of its checkpoints"""


def _solve(arguments: Sequence[str]) -> int:
    given = _parsed(Solve, "solve", arguments)
    from dagnn.training.evaluate import solve

    solution = solve(given.run, given.expression)
    print(f"answer   {solution.answer or 'none'}")
    print(f"verdict  {solution.verdict}")
    print(f"seconds  {solution.seconds:.3f} for {solution.steps} steps")
    return 0


@dataclass(frozen=True)
class Generate:
    """Writes verified samples of one level as JSON lines, and what became of the draws to stderr."""

    level: int
    """level, 1 to 7"""
    count: int = 1000
    """number of samples"""
    seed: int = 0
    """seed of the samples"""
    split: str = "train"
    """train, validation or test: they share no expression"""
    preset: str = "full"
    """size of the numbers: full or small"""
    depth: int | None = None
    """depth of the expressions, in place of the level's own"""
    distinct: bool = False
    """pass over expressions that came before"""
    output: str | None = None
    """file to write; stdout when not given"""


def _generate(arguments: Sequence[str]) -> int:
    given = _parsed(Generate, "generate", arguments)
    from dagnn.curriculum import GenerationStats, dataset, to_text
    from dagnn.data import Record, write_records
    from dagnn.data.record import record_to_line

    stats = GenerationStats()
    samples = dataset(
        given.level,
        given.count,
        seed=given.seed,
        split=given.split,
        preset=given.preset,
        depth=given.depth,
        distinct=given.distinct,
        stats=stats,
    )
    records = (Record(s.id, s.level, to_text(s.input), to_text(s.answer), s.split) for s in samples)
    if given.output is None:
        for record in records:
            print(record_to_line(record))
    else:
        write_records(given.output, records)
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in stats.dropped.items() if count)
    print(
        f"{len(samples):,} samples of {stats.attempted:,} draws in {stats.seconds:.1f} s "
        f"({stats.samples_per_second:,.0f} a second); dropped: {dropped or 'none'}",
        file=sys.stderr,
    )
    return 0


@dataclass(frozen=True)
class Report:
    """Shows a run: accuracy by level, examples, errors by operator, and the curves as a PNG."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory"""
    picture: str | None = None
    """file of the PNG; report.png in the run directory when not given"""
    json: bool = False
    """print JSON"""


def _report(arguments: Sequence[str]) -> int:
    given = _parsed(Report, "report", arguments)
    from dagnn.training.report import report

    found = report(given.run, picture=given.picture)
    print(json.dumps(found.evaluation.summary()) if given.json else found.text)
    if given.json and found.problem:
        _complain(f"no picture: {found.problem}")
    return 0


@dataclass(frozen=True)
class Info:
    """Describes a run or a checkpoint: step, level, and parameters by module."""

    path: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory, or one of its checkpoints"""


def _info(arguments: Sequence[str]) -> int:
    given = _parsed(Info, "info", arguments)
    from dagnn.training.info import info

    print(info(given.path))
    return 0


COMMANDS = {
    "train": Command("train the curriculum, or go on with a run", _train),
    "evaluate": Command("accuracy of a run on fresh expressions, judged by the exact engine", _evaluate),
    "solve": Command("one answer of the network, with the engine's verdict", _solve),
    "generate": Command("verified samples of a level as JSON lines", _generate),
    "report": Command("accuracy, examples, errors and curves of a run", _report),
    "info": Command("step, level and parameters of a run or checkpoint", _info),
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: dagnn COMMAND [OPTIONS]",
            "",
            "Neural networks shaped like DAGs, trained with gradients you can trust.",
            "",
            *lines,
            "",
            "`dagnn COMMAND --help` lists the options of a command, `dagnn --version` prints the version.",
        ]
    )


def _parsed(kind: type[Arguments], name: str, arguments: Sequence[str]) -> Arguments:
    """The arguments of a command.

    Raises:
        ConfigError: what tyro says about a wrong argument, in one line.
        SystemExit: ``--help`` was printed.
    """
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(kind, prog=f"dagnn {name}", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(f"{_in_one_line(told.getvalue())}; see dagnn {name} --help.") from None


def _in_one_line(box: str) -> str:
    """What stands inside tyro's frame, without its title and the help texts; rules part its sections.

    Where stdout's encoding has no box characters, there is no frame and the title is a section of its own.
    """
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    sections = " ".join("\n" if line and set(line) <= {"─", "-"} else line for line in lines).split("\n")
    told = [each.strip() for each in sections if not each.strip().startswith(("Argument help", "For full help"))]
    return "; ".join(told if box.startswith("╭") else told[1:]) or "wrong arguments"


def _complain(message: str) -> None:
    """One line on stderr, whatever is in the message: a problem of a file may quote the file."""
    print(f"dagnn: {' '.join(message.split())}", file=sys.stderr)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as a user wants it: without the place in our code."""
    _complain(f"warning: {message}")


if __name__ == "__main__":
    sys.exit(main())
