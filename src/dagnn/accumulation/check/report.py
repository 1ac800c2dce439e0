"""What the checker found, as an object and as text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.check.arithmetic import widened
from dagnn.accumulation.check.causes import Cause


class Row(NamedTuple):
    """One parameter: its accumulated gradient against that of the full batch."""

    parameter: str
    ratio: float  # projection on the full-batch gradient: 1 is right, K is K times too large
    error: float  # norm of the difference over the norm of the full-batch gradient of all parameters


@dataclass(frozen=True)
class Report:
    """The verdict of the checker. ``print(report)`` shows it; ``bool(report)`` is ``report.equal``."""

    equal: bool
    causes: tuple[Cause, ...]
    table: tuple[Row, ...]
    advice: tuple[str, ...]  # one sentence per cause, and notes that are no error
    precision: str  # dtype in which gradients were compared
    error: float  # of the whole gradient, relative to its norm

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.equal:
            lines = [f"EQUAL: the accumulated gradient is that of the full batch (worst error {self.error:.1e})."]
        else:
            found = ", ".join(str(cause.kind) for cause in self.causes) or "no known cause"
            lines = [f"NOT EQUAL to the full batch: {found}."]
        for cause in self.causes:
            lines += ["", f"{cause.kind}: {cause.explanation}"]
            lines += [f"  at      {cause.line}"] if cause.line else []
            lines += [f"  change  {cause.change}"]
        notes = [note for note in self.advice if note not in {cause.change for cause in self.causes}]
        lines += [f"note: {note}" for note in notes]
        width = max((len(row.parameter) for row in self.table), default=0)
        lines += ["", f"{'parameter':<{max(width, 9)}}  {'ratio':>10}  {'error':>9}   ({self.precision})"]
        lines += [f"{row.parameter:<{max(width, 9)}}  {row.ratio:>10.4g}  {row.error:>9.1e}" for row in self.table]
        return "\n".join(lines)


def make_report(
    causes: Sequence[Cause],
    names: Sequence[str],
    actual: Sequence[Tensor | None],
    expected: Sequence[Tensor | None],
    *,
    equal: bool,
    precision: torch.dtype,
    notes: Sequence[str] = (),
) -> Report:
    """A report with the table of ``actual`` against ``expected`` gradients; None stands for no gradient."""
    whole = total_norm(expected)
    return Report(
        equal=equal,
        causes=tuple(causes),
        table=tuple(_row(*row, whole) for row in zip(names, actual, expected, strict=True)),
        advice=(*(cause.change for cause in causes), *notes),
        precision=str(precision).removeprefix("torch."),
        error=relative_error(actual, expected),
    )


def relative_error(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """Norm of the difference over the norm of ``expected``, all tensors together; None counts as zero."""
    error, scale = total_norm(_minus(a, e) for a, e in zip(actual, expected, strict=True)), total_norm(expected)
    if math.isnan(error) or math.isnan(scale):
        return math.inf
    return error / scale if scale else float(error > 0)


def ratio_of(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> tuple[float, float]:
    """How many times ``expected`` is in ``actual``, and the relative rest."""
    pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if a is not None and e is not None]
    square = sum(float((e.conj() * e).real.sum()) for _, e in pairs)
    ratio = sum(float((e.conj() * a).real.sum()) for a, e in pairs) / square if square else 0.0
    return ratio, relative_error(actual, [None if e is None else e * ratio for e in expected])


def total_norm(tensors: Iterable[Tensor | None]) -> float:
    """L2 norm of all tensors together, in float64."""
    return math.sqrt(sum(_norm(tensor) ** 2 for tensor in tensors))


def _row(name: str, actual: Tensor | None, expected: Tensor | None, whole: float) -> Row:
    scale = _norm(expected)
    error = _norm(_minus(actual, expected)) / whole if whole else float(_norm(actual) > 0)
    if actual is None or expected is None or scale <= 1e-9 * whole:
        # No ratio can be taken of a gradient that is zero up to rounding, as that of an attention's key biases.
        same = error <= 1e-9 or _norm(actual) == scale
        return Row(name, 1.0 if same else 0.0 if _norm(actual) == 0 else math.inf, error)
    ratio = float((widened(expected).conj() * widened(actual)).sum().real) / scale**2
    return Row(name, ratio, error)


def _minus(actual: Tensor | None, expected: Tensor | None) -> Tensor | None:
    if actual is None or expected is None:
        return actual if expected is None else expected
    return widened(actual) - widened(expected)


def _norm(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float(torch.linalg.vector_norm(widened(tensor)))
