"""The report of a run: a table, examples and errors for the terminal; `report_page` has its picture and its page."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.evaluation_file import Evaluation, KindCount, LevelResult, NeighbourhoodCounts
from dagnn.curriculum.report_page import Curves, draw_curves, errors_with_steps, page
from dagnn.files import replace_file
from dagnn.training.log import read_metrics
from dagnn.training.run.directory import RunDirectory

PICTURE_NAME, PAGE_NAME = "report.png", "report.html"
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
        page: one HTML file with all of it, and the steps of wrong answers; None when it could not be made.
        problem: why there is no picture or no page; empty otherwise.
    """

    text: str
    evaluation: Evaluation
    picture: Path | None
    page: Path | None
    problem: str


def report(run: str | Path, *, picture: str | Path | None = None, html: str | Path | None = None) -> Report:
    """The report of a run directory, from metrics.jsonl and evaluation.json; the run may still be training.

    Without an evaluation.json of its last step, it says "not evaluated yet" and shows the accuracies of the evaluations
    in metrics.jsonl, made while training. A picture or page that cannot be made is named in the report and raises no
    error.

    Args:
        run: the run directory.
        picture: where the PNG goes; None is ``report.png`` in the run directory.
        html: where the page goes; None is ``report.html`` in the run directory.

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
    page_target = directory.path / PAGE_NAME if html is None else Path(html)
    curves = _curves(directory.path.name, rows, evaluation)
    errors = errors_table(evaluation)
    results = results_table(evaluation)

    def whole_page() -> bytes:
        steps = errors_with_steps(run, evaluation)
        return page(
            curves, _printable_lines(results), _printable_lines(errors), evaluation, steps, _settings(directory)
        )

    no_picture = _written(target, lambda: draw_curves(curves, "png"))
    no_page = _written(page_target, whole_page)
    lines = [*results, "", *_examples(evaluation), *([*errors, ""] if errors else [])]
    lines.append(f"no picture: {no_picture}" if no_picture else f"curves: {target}")
    lines.append(f"no page: {no_page}" if no_page else f"page:   {page_target}")
    text = "\n".join(_printable_lines(lines))
    return Report(
        text, evaluation, None if no_picture else target, None if no_page else page_target, no_picture or no_page
    )


def report_after_training(run: str | Path, note: Callable[[str], object]) -> Report | None:
    """The report of a run that has just ended; None, and a line for ``note``, where a fault prevents it."""
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
    if not counts.held_out:
        return [line]
    head = ("kept from training", "right", "by smaller steps", "calibration error", "neighbourhoods")
    kept = [(kind, *_shown_count(count)) for kind, count in counts.held_out.items()]
    lines = [line, *_aligned([head, *kept])]
    if counts.calibration_error is not None:
        lines.append(f"expected calibration error of all confidences there: {counts.calibration_error:.4f}")
    return lines


def _shown_count(count: KindCount) -> tuple[str, ...]:
    shares = (f"{100 * right / count.total:.2f} %" for right in (count.right, count.finer))
    error = "" if count.calibration_error is None else f"{count.calibration_error:.4f}"
    return (*shares, error, f"{count.total:,}")


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


def _curves(title: str, rows: Sequence[Mapping[str, Any]], evaluation: Evaluation) -> Curves:
    """What the plots show."""
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
    return Curves(title, steps, accuracy_of_level, _all_errors(evaluation) if evaluation.evaluated else None)


def _written(target: Path, content: Callable[[], bytes]) -> str:
    """Writes the file and returns what went wrong: matplotlib may be broken or missing, the disk full."""
    try:
        replace_file(target, content())
    except Exception as error:
        return _printable(str(error)) or type(error).__name__
    return ""


def _settings(directory: RunDirectory) -> str:
    path = directory.path / "config.toml"
    return path.read_text(errors="replace") if path.exists() else ""


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


def _printable_lines(lines: Iterable[str]) -> list[str]:
    return [_printable(line) for line in lines]


def _printable(text: str) -> str:
    """One line without control characters: names and expressions come from files, which may be a stranger's."""
    return "".join(character if character.isprintable() else " " for character in text).strip("\n")
