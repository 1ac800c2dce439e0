"""The picture of a run: loss, accuracy per level, learning rate, and what the errors were made on."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN_OPERATORS = 12
_SMOOTHED = 50  # steps: one point of the smoothed loss is the mean of this many


def draw_curves(
    title: str,
    steps: Sequence[Mapping[str, Any]],
    accuracy_of_level: Mapping[int, Sequence[tuple[int, float]]],
    errors: Mapping[str, Mapping[str, int]] | None,
) -> bytes:
    """The four panels as a PNG.

    Matplotlib's objects with the Agg canvas, never pyplot: that looks for a display, and on a server finds none.

    Args:
        title: of the whole picture.
        steps: rows of metrics.jsonl, with ``step``, ``loss`` and ``lr``.
        accuracy_of_level: level -> (step, accuracy 0 .. 1), in the order of the steps.
        errors: operator of the expression -> reason -> wrong answers; None before they were evaluated.
    """
    # Imported here: it takes half a second, and only a report needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)  # a directory may be called $x
    panels = figure.subplots(2, 2)
    _draw_loss(panels[0, 0], steps)
    _draw_accuracy(panels[0, 1], accuracy_of_level)
    _draw_lr(panels[1, 0], steps)
    _draw_errors(panels[1, 1], errors)
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
        told = "not evaluated yet" if errors is None else "none"
        axes.text(0.5, 0.5, told, ha="center", va="center", transform=axes.transAxes)
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
