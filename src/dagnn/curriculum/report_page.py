"""The picture of a run's report, and one HTML file with all of it: curves, errors with their steps, the machine."""

import html
import io
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from dagnn.curriculum.evaluation_file import Evaluation, Example
from dagnn.errors import DagnnError, check_installed

_SHOWN_OPERATORS = 12
_SMOOTHED = 50  # steps: one point of the smoothed loss is the mean of this many
_EXPLAINED, _SECONDS = 10, 10.0  # wrong answers that are worked out again, step by step, and the time for all
_BUDGET = 500  # rewrite steps of each: to write out those of one that comes to no end takes longer than to find them
_STEPS_SHOWN = 200
_VERSIONS_OF = ("dagnn", "torch", "numpy", "numba", "scipy")
# By the place of a level: told apart by every kind of eye, on white and on black.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
_NEUTRAL = "#808080"  # of everything else that is drawn, for the same reason


@dataclass(frozen=True)
class Curves:
    """What the plots show.

    Attributes:
        title: of the whole picture.
        steps: rows of metrics.jsonl, with ``step``, ``loss`` and ``lr``.
        accuracy_of_level: level -> (step, accuracy 0 .. 1), in the order of the steps.
        errors: operator of the expression -> reason -> wrong answers; None before they were evaluated.
    """

    title: str
    steps: Sequence[Mapping[str, Any]]
    accuracy_of_level: Mapping[int, Sequence[tuple[int, float]]]
    errors: Mapping[str, Mapping[str, int]] | None


@dataclass(frozen=True)
class Explained:
    """A wrong answer of an evaluation, worked out again: ``lines`` are what ``dagnn solve --steps`` says of it."""

    level: int
    example: Example
    lines: tuple[str, ...]


def draw_curves(curves: Curves, kind: Literal["png", "svg"]) -> bytes:
    """The four plots, as a PNG on white, or as an SVG without a ground.

    Matplotlib's objects with the Agg canvas, never pyplot: that looks for a display, and on a server finds none.
    """
    check_installed("a picture", "dagnn[plot]", "matplotlib")
    # Imported here: it takes half a second, and only a report needs it.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "dagnn", "svg.fonttype": "path"}
    if kind == "svg":  # read on white and on black
        parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        settings |= dict.fromkeys(parts, _NEUTRAL)
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        if kind == "png":
            figure.suptitle(curves.title, parse_math=False)  # a directory may be called $x
        plots = figure.subplots(2, 2)
        _draw_loss(plots[0, 0], curves.steps)
        _draw_accuracy(plots[0, 1], curves.accuracy_of_level)
        _draw_lr(plots[1, 0], curves.steps)
        _draw_errors(plots[1, 1], curves.errors)
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format=kind, transparent=kind == "svg", metadata={"Date": None} if kind == "svg" else None
        )
    return buffer.getvalue()


def _title(axes: Any, text: str) -> None:
    """At the left, so that the legend beside it covers no line."""
    axes.set_title(text, loc="left", fontsize=11)


def _draw_loss(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    _title(axes, "loss")
    axes.set(xlabel="step")
    numbers = [row["step"] for row in steps]
    losses = [float(row["loss"]) for row in steps]
    axes.plot(numbers, losses, color="0.7", linewidth=0.6, label="each step")
    blocks = [range(i, min(i + _SMOOTHED, len(losses))) for i in range(0, len(losses), _SMOOTHED)]
    means = [sum(losses[i] for i in block) / len(block) for block in blocks]
    middles = [(numbers[block[0]] + numbers[block[-1]]) / 2 for block in blocks]
    axes.plot(middles, means, color=_COLOURS[0], label=f"mean of {_SMOOTHED}")
    # A logarithm only where there is something to take it of: one positive loss.
    if any(loss > 0 for loss in losses):
        axes.set_yscale("log", nonpositive="mask")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=9)


def _draw_accuracy(axes: Any, accuracy_of_level: Mapping[int, Sequence[tuple[int, float]]]) -> None:
    """A strip for each level, from 0 to 100 %: levels that are all right would hide each other on one axis."""
    _title(axes, "accuracy, judged by the engine")
    axes.set(xlabel="step")
    levels = sorted(accuracy_of_level, reverse=True)  # the first on top
    for place, level in enumerate(levels):
        points = accuracy_of_level[level]
        numbers, heights = [step for step, _ in points], [place + 0.8 * accuracy for _, accuracy in points]
        colour = _COLOURS[(level - 1) % len(_COLOURS)]
        axes.axhline(place, color=_NEUTRAL, linewidth=0.4)
        axes.fill_between(numbers, place, heights, color=colour, alpha=0.25, linewidth=0)
        axes.plot(numbers, heights, marker="o", markersize=3, color=colour)
    last = [f"level {level}: {100 * accuracy_of_level[level][-1][1]:.1f} %" for level in levels]
    axes.set_yticks([place + 0.4 for place in range(len(levels))], last)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, None), ylim=(-0.1, max(1, len(levels))))


def _draw_lr(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    _title(axes, "learning rate")
    axes.set(xlabel="step")
    axes.plot([row["step"] for row in steps], [float(row["lr"]) for row in steps], color=_COLOURS[0])


def _draw_errors(axes: Any, errors: Mapping[str, Mapping[str, int]] | None) -> None:
    _title(axes, "wrong answers by operator and reason")
    if not errors:
        text = "not evaluated yet" if errors is None else "none"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.set(xlabel="wrong answers")
    axes.xaxis.get_major_locator().set_params(integer=True)
    totals = Counter({operator: sum(reasons.values()) for operator, reasons in errors.items()})
    operators = [operator for operator, _ in totals.most_common(_SHOWN_OPERATORS)][::-1]  # the largest on top
    left = [0] * len(operators)
    for number, reason in enumerate(sorted({reason for reasons in errors.values() for reason in reasons})):
        counts = [errors[operator].get(reason, 0) for operator in operators]
        axes.barh(operators, counts, left=left, color=_COLOURS[number % len(_COLOURS)], label=reason)
        left = [start + count for start, count in zip(left, counts, strict=True)]
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=9)


def errors_with_steps(run: str | Path, evaluation: Evaluation) -> list[Explained]:
    """The wrong answers that a run's evaluation kept, worked out again by its newest checkpoint, for some seconds."""
    wrong = [
        (level, example)
        for level, result in sorted(evaluation.levels.items())
        for example in result.examples
        if not example.right
    ]
    if not wrong:
        return []
    # Here: it loads torch and the engine, and most runs are right.
    from dagnn.curriculum.parsing import parse
    from dagnn.curriculum.solving import network_of, solve_with

    found: list[Explained] = []
    try:
        model, trained = network_of(run)
    except DagnnError as error:
        return [Explained(level, example, (f"not worked out: {error}",)) for level, example in wrong]
    start = time.monotonic()
    for number, (level, example) in enumerate(wrong):
        left = _SECONDS - (time.monotonic() - start)
        lines: list[str] = []
        if number < _EXPLAINED and left > 0:
            try:
                expression = parse(example.input)
                solved = solve_with(model, expression, trained=trained, budget=_BUDGET, seconds=left, trace=True)
                lines = solved.lines
            except DagnnError as error:
                lines = [f"not worked out: {error}"]
        found.append(Explained(level, example, tuple(_shortened(lines))))
    return found


def _shortened(lines: list[str]) -> list[str]:
    """The first steps, and the verdict, which comes last."""
    more = len(lines) - _STEPS_SHOWN
    return lines if more <= 0 else [*lines[: _STEPS_SHOWN - 12], f"... {more:,} more ...", *lines[-12:]]


def machine() -> dict[str, str]:
    """The machine and the versions at hand, in words."""
    versions = {}
    for name in _VERSIONS_OF:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": platform.platform(),
        "processor": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "Python": platform.python_version(),
        **versions,
    }


def page(
    curves: Curves,
    results: Sequence[str],
    errors: Sequence[str],
    evaluation: Evaluation,
    explained: Sequence[Explained],
    settings: str,
) -> bytes:
    """The whole report as one HTML file, which loads nothing and runs nothing.

    Args:
        curves: for the plots.
        results, errors: lines of the tables for a terminal.
        evaluation: with its examples.
        explained: wrong answers with their steps.
        settings: text of config.toml.
    """
    svg = re.sub(r"^.*?(?=<svg)", "", draw_curves(curves, "svg").decode(), flags=re.DOTALL)  # without its XML head
    none = "<p>none</p>" if evaluation.evaluated else "<p>not evaluated yet</p>"
    parts = [
        ("Accuracy", _lines(results)),
        ("Curves", f"<figure>{svg}</figure>"),
        ("Errors", (_lines(errors) if errors else "") + "".join(map(_explained, explained)) or none),
        ("Examples", "".join(_examples(evaluation))),
        ("Written on", _table(machine().items())),
        ("Settings", f"<details><summary>config.toml</summary>{_lines([settings])}</details>"),
    ]
    body = "".join(f"<h2>{name}</h2>{content}" for name, content in parts if content)
    title = _escaped(f"{curves.title}: report")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,'
        'initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    ).encode()


_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:68rem;margin:1.5rem auto;"
    "padding:0 1rem;background:#fff;color:#1b1f24}pre{overflow-x:auto;font-size:13px;background:#f3f4f6;padding:.6rem}"
    "figure{margin:0;overflow-x:auto}svg{width:100%;min-width:44rem;height:auto}table{border-collapse:collapse}"
    "td{padding:.2rem .8rem .2rem 0;vertical-align:top;overflow-wrap:anywhere}summary{cursor:pointer;"
    "overflow-wrap:anywhere}details{margin:.3rem 0}.wrong{color:#b3261e}@media(prefers-color-scheme:dark){"
    "body{background:#14181d;color:#e6e9ed}pre{background:#1f252c}.wrong{color:#ff8a80}}"
)


def _escaped(text: str) -> str:
    """Names and expressions come from files, which may be a stranger's."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else " " for c in text))


def _lines(lines: Iterable[str]) -> str:
    return f"<pre>{_escaped(chr(10).join(lines))}</pre>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><td>{_escaped(a)}</td><td>{_escaped(b)}</td></tr>" for a, b in rows) + "</table>"


def _explained(found: Explained) -> str:
    example = found.example
    answer = f"{example.answer or 'no answer'}, not {example.expected} ({example.error})"
    head = f'<span class="wrong">level {found.level}</span> {_escaped(example.input)} &rarr; {_escaped(answer)}'
    return f"<details><summary>{head}</summary>{_lines(found.lines)}</details>" if found.lines else f"<p>{head}</p>"


def _examples(evaluation: Evaluation) -> Iterable[str]:
    for level, result in sorted(evaluation.levels.items()):
        right = [(example.input, example.answer) for example in result.examples if example.right]
        if right:
            yield f"<details><summary>level {level}, right</summary>{_table(right)}</details>"
