"""The command `dagnn`: every subcommand reads its flags and makes one call into the packages.

A command imports what it needs when it runs: `dagnn --help` must not wait for torch.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Literal, TextIO

from tyro.conf import Positional, arg

from dagnn import __version__
from dagnn.commands import DEFAULT_RUN, Command, complain, dispatch, flushed, open_streams, parsed
from dagnn.errors import ConfigError, DagnnError
from dagnn.training.log import write_line

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 130, 141
_ABOUT = "Neural networks shaped like DAGs, trained with gradients you can trust."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    0: done; 1: not so, of a check; 2: a wrong argument, file or run, with one line on stderr; 130 and 143: stopped by
    Ctrl-C and SIGTERM, the training saved; 141: the reader of the output went away.
    """
    open_streams()
    code = _run(sys.argv[1:] if arguments is None else arguments)
    flushed(sys.stderr)
    return code if flushed(sys.stdout) or code else EXIT_BROKEN_PIPE


def _run(arguments: Sequence[str]) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _dispatch(arguments)
    except DagnnError as error:
        complain(str(error))
        return EXIT_ERROR
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as error:
        complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return EXIT_ERROR
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("--version", "version"):
        print(f"dagnn {__version__}")
        return 0
    try:
        return dispatch("dagnn", COMMANDS, arguments, about=_ABOUT, more=", `dagnn --version` prints the version")
    except SystemExit as stop:  # tyro has printed a command's --help
        return stop.code if isinstance(stop.code, int) else 0


@dataclass(frozen=True)
class Evaluate:
    """Tests the network of a run on fresh expressions of every level; the exact engine judges the answers."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory, or one of its checkpoints"""
    expressions: int = 500
    """expressions per level"""
    split: str = "test"
    """test or validation: neither is ever trained on"""
    seed: int | None = None
    """seed of the expressions; the run's own when not given"""
    depth: int | None = None
    """depth of the expressions, in place of the levels' own; tests the levels that have one"""
    digits: int | None = None
    """digits of the whole numbers of levels 1 to 3, in place of their own"""
    finer: bool = False
    """let the network work out by smaller steps facts about digits that it is not sure of, as dagnn solve does"""
    task: Annotated[str | None, arg(metavar="MODULE:NAME")] = None
    """of a run of a task of your own, as in dagnn train; its test= then says what is asked"""
    json: bool = False
    """print JSON"""


def _evaluate(arguments: Sequence[str]) -> int:
    given = parsed(Evaluate, "evaluate", arguments)
    if given.task is not None:
        if given != Evaluate(given.run, task=given.task, json=given.json):
            raise ConfigError("--task goes with RUN and --json alone: its test= says what is asked.")
        from dagnn.commands.own_task import evaluated

        print(evaluated(given.run, given.task, as_json=given.json))
        return 0
    from dagnn.curriculum.accuracy import evaluate
    from dagnn.curriculum.report import errors_table, results_table

    found = evaluate(
        given.run,
        expressions=given.expressions,
        split=given.split,
        seed=given.seed,
        depth=given.depth,
        digits=given.digits,
        finer=given.finer,
    )
    if given.json:
        print(json.dumps(found.summary()))
    else:
        errors = errors_table(found)
        print("\n".join([*results_table(found), *([""] if errors else []), *errors]))
    return 0


@dataclass(frozen=True)
class Solve:
    """Lets the network of a run answer one expression, and the exact engine judge the answer.

    Exit status: 0 whatever the verdict is, 2 where there is none: the expression cannot be read, or the run.
    """

    expression: Positional[Annotated[str, arg(metavar="EXPRESSION")]]
    """such as "(derive (^ x 2) x)"; quote it"""
    run: str = DEFAULT_RUN
    """run directory, or one of its checkpoints"""
    steps: bool = False
    """print every step that changes something: its number, the network's confidence in it, before -> after"""
    budget: int = 200_000
    """steps, after which the network is stopped"""
    seconds: float = 60.0
    """time, after which it is stopped"""


def _solve(arguments: Sequence[str]) -> int:
    # A space before -x^2, which would pass for an option; no option but -h has one dash.
    words = [f" {word}" if re.match(r"-(?!-|h$)", word) else word for word in arguments]
    given = parsed(Solve, "solve", words)
    from dagnn.curriculum.solving import solve

    solution = solve(given.run, given.expression, budget=given.budget, seconds=given.seconds, trace=given.steps)
    print("\n".join(solution.lines))
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
    digits: int | None = None
    """digits of the whole numbers of levels 1 to 3, in place of their own"""
    distinct: bool = False
    """pass over expressions that came before"""
    output: str | None = None
    """file to write; stdout when not given"""


def _generate(arguments: Sequence[str]) -> int:
    given = parsed(Generate, "generate", arguments)
    from dagnn.curriculum import GenerationStats, dataset, to_text
    from dagnn.data import Record, write_records
    from dagnn.data.dataset import record_to_line

    if given.count < 0:
        raise ConfigError(f"count must be a whole number of at least 0, got {given.count}.")
    stats = GenerationStats()
    samples = dataset(
        given.level,
        given.count,
        seed=given.seed,
        split=given.split,
        preset=given.preset,
        depth=given.depth,
        digits=given.digits,
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
    write_line(
        f"{len(samples):,} samples of {stats.attempted:,} draws in {stats.seconds:.1f} s "
        f"({stats.samples_per_second:,.0f} a second); dropped: {dropped or 'none'}",
        sys.stderr,
    )
    return 0


@dataclass(frozen=True)
class Report:
    """Shows a run: accuracy by level, examples, errors by operator; the curves as a PNG, and all of it as a page."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory"""
    picture: str | None = None
    """file of the PNG; report.png in the run directory when not given"""
    html: str | None = None
    """file of the page, one HTML file; report.html in the run directory when not given"""
    json: bool = False
    """print JSON"""


def _report(arguments: Sequence[str]) -> int:
    given = parsed(Report, "report", arguments)
    from dagnn.curriculum.report import report

    found = report(given.run, picture=given.picture, html=given.html)
    print(json.dumps(found.evaluation.summary()) if given.json else found.text)
    if given.json and found.problem:
        complain(f"no {'page' if found.picture else 'picture'}: {found.problem}")
    return 0


@dataclass(frozen=True)
class Info:
    """Describes a run or a checkpoint: step, level, parameters by module, and the vectors that compute here."""

    path: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory, or one of its checkpoints"""


def _info(arguments: Sequence[str]) -> int:
    given = parsed(Info, "info", arguments)
    from dagnn.commands.run import info, vector_widths

    print(info(given.path), "", *vector_widths(), sep="\n")
    return 0


@dataclass(frozen=True)
class Ged:
    """Compares two graphs that Dag.to_json wrote: their edit distance, the edits in words, and a picture.

    `dagnn ged search QUERY FOLDER` finds the graphs that are nearest to one graph; its --help lists its options.
    """

    a: Positional[Annotated[str, arg(metavar="A.JSON")]]
    """file of the first graph"""
    b: Positional[Annotated[str, arg(metavar="B.JSON")]]
    """file of the second graph"""
    budget: int = 200_000
    """nodes of the search tree at most; 0 for bounds only"""
    seconds: float | None = None
    """stop the search after that long, with what is known by then"""
    node_insertion: float = 1.0
    """cost of a node that only B has"""
    node_deletion: float = 1.0
    """cost of a node that only A has"""
    node_substitution: float = 1.0
    """cost of another label"""
    edge_insertion: float = 1.0
    """cost of an edge that only B has"""
    edge_deletion: float = 1.0
    """cost of an edge that only A has"""
    edge_substitution: float = 1.0
    """cost of another label"""
    node_label: str = "label"
    """node attribute that holds the labels; names: what nodes are called; none: no labels"""
    edge_label: str = "label"
    """edge attribute that holds the labels; position: the order of operands counts"""
    plot: str | None = None
    """file of the picture, .svg or .png"""
    json: bool = False
    """print JSON"""


def _ged(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["search"]:
        from dagnn.commands.ged import run_search

        return run_search(arguments[1:])
    given = parsed(Ged, "ged", arguments)
    from dagnn.commands.ged import compare_files, options_of

    found = compare_files(given.a, given.b, plot=given.plot, **options_of(given))
    print(json.dumps(found.summary()) if given.json else found.text)
    return 0


@dataclass(frozen=True)
class Check:
    """Whether a loop accumulates the gradient of the full batch, and if not, why and what to change."""

    target: Positional[Annotated[str | None, arg(metavar="FILE:FUNCTION")]] = None
    """a function without arguments that returns what check_equivalence or check_loop takes, or their report"""
    transformers: Annotated[tuple[str, ...] | None, arg(metavar="[CLASS ...]")] = None
    """instead: head classes of the installed transformers, as its Trainer accumulates them; without a name, all"""
    json: bool = False
    """with --transformers: one JSON object per class and line"""


def _check(arguments: Sequence[str]) -> int:
    given = parsed(Check, "check", arguments)
    from dagnn.commands.check import run_check, run_heads

    if (given.target is None) == (given.transformers is None):
        raise ConfigError("give either FILE:FUNCTION or --transformers [CLASS ...]; see dagnn check --help.")
    if given.target is not None:
        return run_check(given.target)
    return run_heads(given.transformers or (), as_json=given.json)


@dataclass(frozen=True)
class Export:
    """Writes a network for programs without dagnn: C99, ONNX, or a program of torch.export."""

    file: Positional[Annotated[str, arg(metavar="RUN_OR_FILE")]]
    """file that DagNN.save wrote, or a run of the curriculum"""
    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """file to write: .c (a header and a test program lie beside it), .onnx or .pt2; of a run .pt2"""
    name: str | None = None
    """of the function in C; by default that of the file"""
    weights: Literal["bfloat16", "int8"] | None = None
    """in C, weights of fewer bits, with a proved bound on what that does to the outputs; needs --within"""
    within: tuple[float, float] | None = None
    """lowest and highest value of the inputs, for that bound"""
    overwrite: bool = False
    """replace files that exist"""


def _export(arguments: Sequence[str]) -> int:
    given = parsed(Export, "export", arguments)
    from pathlib import Path

    from dagnn.nn import DagNN

    if Path(given.file).is_dir():
        from dagnn.commands.run import export_run

        of_c = [name for name in ("name", "weights", "within") if getattr(given, name) is not None]
        return export_run(given.file, given.out, of_c, overwrite=given.overwrite)
    net = DagNN.load(given.file)
    written = net.export(
        given.out, name=given.name, weights=given.weights, within=given.within, overwrite=given.overwrite
    )
    print("\n".join(map(str, written)))
    if given.weights is not None and given.within is not None:
        bounds = net.error_bounds(given.weights, given.within)
        print(*(f"{name}: off by at most {bound:.3g}" for name, bound in bounds.items()), sep="\n")
    return 0


@dataclass(frozen=True)
class Lint:
    """Reads training loops without running them, and reports gradients that are not zeroed, not scaled, or lost."""

    paths: Positional[Annotated[tuple[str, ...], arg(metavar="PATH")]]
    """Python files, notebooks and folders; - reads standard input"""
    select: tuple[str, ...] = ()
    """only these rules"""
    ignore: tuple[str, ...] = ()
    """all but these rules"""
    json: bool = False
    """print JSON"""
    sarif: bool = False
    """print SARIF 2.1.0, for code hosts"""


def _lint(arguments: Sequence[str]) -> int:
    given = parsed(Lint, "lint", arguments)
    from dagnn.commands.check import run_lint

    if not given.paths:
        raise ConfigError("dagnn lint needs a path: a Python file, a notebook, a folder, or - for standard input.")
    if given.json and given.sarif:
        raise ConfigError("give --json or --sarif, not both.")
    form = "json" if given.json else "sarif" if given.sarif else "text"
    return run_lint(given.paths, select=given.select, ignore=given.ignore, form=form)


def _group(module: str, name: str) -> Callable[[Sequence[str]], int]:
    """A function of `dagnn.commands`, whose module is loaded when it runs."""

    def run(arguments: Sequence[str]) -> int:
        return int(getattr(import_module(f"dagnn.commands.{module}"), name)(arguments))

    return run


COMMANDS = {
    "train": Command("train the curriculum, or go on with a run", _group("train", "run")),
    "evaluate": Command("accuracy of a run on fresh expressions, judged by the exact engine", _evaluate),
    "certify": Command(
        "is the network right for every input of a level, or what shows that it is not", _group("run", "run_certify")
    ),
    "solve": Command("one answer of the network, with the engine's verdict", _solve),
    "generate": Command("verified samples of a level as JSON lines", _generate),
    "report": Command("accuracy, examples, errors and curves of a run", _report),
    "check": Command("is an accumulation loop equal to the full batch, and if not, why", _check),
    "lint": Command("read training loops, and report what is wrong with their gradients", _lint),
    "info": Command("step, level and parameters of a run or checkpoint", _info),
    "metrics": Command("what happened in a run as CSV, or for TensorBoard", _group("run", "run_metrics")),
    "checkpoint": Command("verify, list, export and import checkpoints", _group("run", "run_checkpoint")),
    "export": Command("a network as C, ONNX or a program of torch.export", _export),
    "ged": Command("edit distance of two graphs, in words and as a picture; ged search: the nearest of many", _ged),
    "answers": Command(
        "learn an operation from questions and answers, certified for every length; ask it",
        _group("answers", "run_answers"),
    ),
    "visible": Command("fit, explain and draw a network of the shape of a graph", _group("visible", "run_visible")),
}


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without its place in our code."""
    complain(f"warning: {message}")


if __name__ == "__main__":
    sys.exit(main())
