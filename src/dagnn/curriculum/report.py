"""The report of a run: a table, examples and errors for the terminal, curves as a picture."""

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.evaluation_file import Evaluation, LevelResult, NeighbourhoodCounts
from dagnn.errors import check_installed
from dagnn.files import replace_file
from dagnn.training.log import read_metrics
from dagnn.training.run.directory import RunDirectory

_SHOWN_OPERATORS = 12
_SMOOTHED = 50  # steps: one point of the smoothed loss is the mean of this many


def draw_curves(
    title: str,
    steps: Sequence[Mapping[str, Any]],
    accuracy_of_level: Mapping[int, Sequence[tuple[int, float]]],
    errors: Mapping[str, Mapping[str, int]] | None,
) -> bytes:
    """The four plots as a PNG.

    Matplotlib's objects with the Agg canvas, never pyplot: that looks for a display, and on a server finds none.

    Args:
        title: of the whole picture.
        steps: rows of metrics.jsonl, with ``step``, ``loss`` and ``lr``.
        accuracy_of_level: level -> (step, accuracy 0 .. 1), in the order of the steps.
        errors: operator of the expression -> reason -> wrong answers; None before they were evaluated.
    """
    check_installed("a picture", "dagnn[plot]", "matplotlib")
    # Imported here: it takes half a second, and only a report needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)  # a directory may be called $x
    plots = figure.subplots(2, 2)
    _draw_loss(plots[0, 0], steps)
    _draw_accuracy(plots[0, 1], accuracy_of_level)
    _draw_lr(plots[1, 0], steps)
    _draw_errors(plots[1, 1], errors)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_loss(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    axes.set(title="loss", xlabel="step")
    numbers = [row["step"] for row in steps]
    losses = [float(row["loss"]) for row in steps]
    axes.plot(numbers, losses, color="0.75", linewidth=0.6, label="each step")
    blocks = [range(i, min(i + _SMOOTHED, len(losses))) for i in range(0, len(losses), _SMOOTHED)]
    means = [sum(losses[i] for i in block) / len(block) for block in blocks]
    axes.plot(
        [(numbers[block[0]] + numbers[block[-1]]) / 2 for block in blocks],
        means,
        color="C0",
        label=f"mean of {_SMOOTHED}",
    )
    # A logarithm only where there is something to take it of: one positive loss.
    if any(loss > 0 for loss in losses):
        axes.set_yscale("log", nonpositive="mask")
        axes.legend()


def _draw_accuracy(axes: Any, accuracy_of_level: Mapping[int, Sequence[tuple[int, float]]]) -> None:
    axes.set(title="accuracy, judged by the engine", xlabel="step", ylim=(-0.02, 1.02))
    for level, points in sorted(accuracy_of_level.items()):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=f"C{level}", label=f"level {level}")
    if accuracy_of_level:
        axes.legend()


def _draw_lr(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    axes.set(title="learning rate", xlabel="step")
    axes.plot([row["step"] for row in steps], [float(row["lr"]) for row in steps], color="C0")


def _draw_errors(axes: Any, errors: Mapping[str, Mapping[str, int]] | None) -> None:
    axes.set(title="wrong answers by operator and reason")
    if not errors:
        text = "not evaluated yet" if errors is None else "none"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.set(xlabel="wrong answers")
    totals = Counter({operator: sum(reasons.values()) for operator, reasons in errors.items()})
    operators = [operator for operator, _ in totals.most_common(_SHOWN_OPERATORS)][::-1]  # the largest on top
    left = [0] * len(operators)
    for number, reason in enumerate(sorted({reason for reasons in errors.values() for reason in reasons})):
        counts = [errors[operator].get(reason, 0) for operator in operators]
        axes.barh(operators, counts, left=left, color=f"C{number}", label=reason)
        left = [start + count for start, count in zip(left, counts, strict=True)]
    axes.legend()


PICTURE_NAME = "report.png"
_WIDTH = 60  # of an expression in the list of examples
_NOT_YET = "not evaluated yet"
_ACCURACY = re.compile(r"accuracy/(\d+)")


@dataclass(frozen=True)
class Report:
    """What `report` found.

    Attributes:
        text: for a terminal, lines without control characters.
        evaluation: the results by level; its ``summary()`` is what ``--json`` prints.
        picture: the PNG with the curves; None when it could not be made.
        problem: why there is no picture; empty otherwise.
    """

    text: str
    evaluation: Evaluation
    picture: Path | None
    problem: str


def report(run: str | Path, *, picture: str | Path | None = None) -> Report:
    """The report of a run directory, from metrics.jsonl and evaluation.json; the run may still be training.

    Without an evaluation.json of its last step, it says "not evaluated yet" and shows the accuracies of the evaluations
    in metrics.jsonl, made while training. A picture that cannot be made is named in the report and raises no error.

    Args:
        run: the run directory.
        picture: where the PNG goes; None is ``report.png`` in the run directory.

    Raises:
        RunError: there is no run, or its evaluation is damaged.
        DataError: metrics.jsonl is damaged.
    """
    directory = RunDirectory.read(run)
    rows = read_metrics(directory.metrics_path) if directory.metrics_path.exists() else []
    evaluation = Evaluation.read(directory.path)
    if evaluation is None or evaluation.step < max((row.get("step", 0) for row in rows), default=0):
        # None yet, or one from before the run went on.
        evaluation = _from_metrics(rows, directory.config(CurriculumConfig).eval_samples)
    target = directory.path / PICTURE_NAME if picture is None else Path(picture)
    problem = _draw(target, directory.path.name, rows, evaluation)
    errors = errors_table(evaluation)
    lines = [*results_table(evaluation), "", *_examples(evaluation), *([*errors, ""] if errors else [])]
    lines.append(f"no picture: {problem}" if problem else f"curves: {target}")
    text = "\n".join(_printable(line) for line in lines)
    return Report(text, evaluation, None if problem else target, problem)


def report_after_training(run: str | Path, note: Callable[[str], object]) -> Report | None:
    """The report of a run that has just ended, which no fault of a report may spoil.

    Args:
        run: the run directory.
        note: called with one line when there is no report; None is returned then.
    """
    try:
        return report(run)
    except Exception as error:
        note(f"no report: {_printable(str(error)) or type(error).__name__}")
        return None


def results_table(evaluation: Evaluation) -> list[str]:
    """One line per level: accuracy by the engine, samples trained on, samples answered per second.

    Then how many are wrong, what became of neighbourhoods that training did not show, and the cost.
    """
    head = ("level", "accuracy", "expressions", "samples seen", "samples/s")
    lines = [
        (
            str(level),
            f"{100 * result.accuracy:.2f} %",
            str(result.expressions),
            "not known" if result.samples_seen is None else f"{result.samples_seen:,}",
            "not known" if result.samples_per_second is None else f"{result.samples_per_second:,.0f}",
        )
        for level, result in sorted(evaluation.levels.items())
    ]
    cost = [f"step {evaluation.step}"]
    if evaluation.parameters is not None:
        cost.append(f"{evaluation.parameters:,} parameters")
    for name, seconds in (("CPU", evaluation.cpu_seconds), ("wall", evaluation.wall_seconds)):
        if seconds is not None:
            cost.append(f"{seconds:,.0f} {name} seconds")
    note = [] if evaluation.evaluated else [_NOT_YET + (": accuracies of validation, while training" if lines else "")]
    if not lines:
        return [_NOT_YET, ", ".join(cost)]
    return [
        *note,
        *_aligned([head, *lines]),
        *_wrong(evaluation),
        *_neighbourhoods(evaluation.neighbourhoods),
        ", ".join(cost),
    ]


def errors_table(evaluation: Evaluation) -> list[str]:
    """One line per operator of the expressions with wrong answers, these by reason; no lines where all are right."""
    errors = _all_errors(evaluation)
    if not errors:
        return []
    reasons = sorted({reason for counts in errors.values() for reason in counts})
    ranked = sorted(errors.items(), key=lambda item: (-item[1].total(), item[0]))
    lines = [(operator, *(str(counts[reason] or "") for reason in reasons)) for operator, counts in ranked]
    return _aligned([("wrong answers by operator", *reasons), *lines])


def _wrong(evaluation: Evaluation) -> list[str]:
    """What is not the network's alone: ten decimals, or the steps of the budget, may be too few for an expression."""
    wrong, missed = (
        sum(getattr(result, name) for result in evaluation.levels.values()) for name in ("wrong", "engine_misses")
    )
    return [f"{wrong:,} wrong, of which {missed:,} the engine's own steps miss too"] if wrong else []


def _neighbourhoods(counts: NeighbourhoodCounts | None) -> list[str]:
    """How the network did where training had not shown it the answer."""
    if counts is None:
        return []
    line = f"{counts.asked:,} distinct neighbourhoods asked, {counts.unseen:,} of them never trained on"
    if counts.unseen:
        line += f": {100 * counts.unseen_right / counts.unseen:.2f} % of those right"
    kept = [
        (kind, f"{100 * count.right / max(1, count.total):.2f} %", f"{count.total:,}")
        for kind, count in counts.held_out.items()
    ]
    return [
        line,
        *(_aligned([("neighbourhoods kept from training", "right", "neighbourhoods"), *kept]) if kept else []),
    ]


def accuracies(row: Mapping[str, Any]) -> dict[int, float]:
    """Accuracy by level in an "evaluation" row of metrics.jsonl; levels without a number are left out.

    >>> accuracies({"kind": "evaluation", "step": 100, "accuracy/1": 0.5, "accuracy/2": "nan", "accuracy": 0.4})
    {1: 0.5}
    """
    matches = {_ACCURACY.fullmatch(key): value for key, value in row.items()}
    found = {int(match[1]): float(value) for match, value in matches.items() if match and value is not None}
    return {level: accuracy for level, accuracy in found.items() if not math.isnan(accuracy)}


def _from_metrics(rows: Sequence[Mapping[str, Any]], expressions: int) -> Evaluation:
    """What can be said of a run that has no evaluation.json; its evaluations asked ``expressions`` per level."""
    levels: dict[int, LevelResult] = {}
    for row in rows:
        if row.get("kind") == "evaluation":
            levels |= {
                level: LevelResult(accuracy, expressions, samples_seen=None, samples_per_second=None)
                for level, accuracy in accuracies(row).items()
            }
    # Of the run so far, over all its sessions: the clock goes on where a resume begins.
    seconds = max((float(row["seconds"]) for row in rows if "seconds" in row), default=None)
    step = max((row.get("step", 0) for row in rows), default=0)
    return Evaluation(levels, None, seconds, None, step, evaluated=False)


def _draw(target: Path, title: str, rows: Sequence[Mapping[str, Any]], evaluation: Evaluation) -> str:
    """Draws the picture and returns what went wrong: matplotlib may be broken or missing, the disk full."""
    try:
        accuracy_of_level: dict[int, list[tuple[int, float]]] = {}
        for row in rows:
            if row.get("kind") == "evaluation":
                for level, accuracy in accuracies(row).items():
                    accuracy_of_level.setdefault(level, []).append((row["step"], accuracy))
        for level, result in evaluation.levels.items():
            points = accuracy_of_level.setdefault(level, [])
            if not points or points[-1][0] < evaluation.step:
                points.append((evaluation.step, result.accuracy))
        steps = [row for row in rows if row.get("kind") == "step"]
        errors = _all_errors(evaluation) if evaluation.evaluated else None
        replace_file(target, draw_curves(title, steps, accuracy_of_level, errors))
    except Exception as error:
        return _printable(str(error)) or type(error).__name__
    return ""


def _all_errors(evaluation: Evaluation) -> dict[str, Counter[str]]:
    """Operator -> reason -> wrong answers, over all levels."""
    total: dict[str, Counter[str]] = {}
    for result in evaluation.levels.values():
        for operator, reasons in result.errors.items():
            total.setdefault(operator, Counter()).update(reasons)
    return total


def _examples(evaluation: Evaluation) -> list[str]:
    lines = []
    for level, result in sorted(evaluation.levels.items()):
        if result.examples:
            lines.append(f"level {level}")
        for example in result.examples:
            mark = "right" if example.right else "WRONG"
            answer = _short(example.answer) or "no answer"
            lines.append(f"  {mark}  {_short(example.input)} -> {answer}")
            if not example.right:
                lines.append(f"         expected {_short(example.expected)}" + f": {example.error}")
    return [*lines, ""] if lines else []


def _aligned(lines: Iterable[tuple[str, ...]]) -> list[str]:
    """Columns of one width each, the first to the left and the others to the right."""
    rows = list(lines)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _printable(text: str) -> str:
    """One line without control characters: names and expressions come from files, which may be a stranger's."""
    return "".join(character if character.isprintable() else " " for character in text).strip("\n")
