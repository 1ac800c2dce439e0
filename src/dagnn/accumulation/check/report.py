"""What the checker found, as an object and as text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.check.causes import Cause


class Row(NamedTuple):
    """One parameter: its accumulated gradient against that of the full batch."""

    parameter: str
    ratio: float  # projection on the full-batch gradient: 1 is right, K is K times too large
    error: float  # norm of the difference over the norm of the full-batch gradient


@dataclass(frozen=True)
class Report:
    """The verdict of the checker. ``print(report)`` shows it; ``bool(report)`` is ``report.equal``."""

    equal: bool
    causes: tuple[Cause, ...]
    table: tuple[Row, ...]
    advice: tuple[str, ...]  # one sentence per cause, and notes that are no error
    precision: str  # dtype in which gradients were compared

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        worst = max((row.error for row in self.table), default=0.0)
        if self.equal:
            lines = [f"EQUAL: the accumulated gradient is that of the full batch (worst error {worst:.1e})."]
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
    return Report(
        equal=equal,
        causes=tuple(causes),
        table=tuple(_row(*row) for row in zip(names, actual, expected, strict=True)),
        advice=(*(cause.change for cause in causes), *notes),
        precision=str(precision).removeprefix("torch."),
    )


def relative_error(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """Norm of the difference over the norm of ``expected``, all tensors together; None counts as zero."""
    difference = [_norm(_minus(a, e)) for a, e in zip(actual, expected, strict=True)]
    scale = [_norm(e) for e in expected]
    total = sum(s * s for s in scale) ** 0.5
    error = sum(d * d for d in difference) ** 0.5 / total if total else float(any(difference))
    return float("inf") if math.isnan(error) else error


def _row(name: str, actual: Tensor | None, expected: Tensor | None) -> Row:
    scale = _norm(expected)
    if actual is None or expected is None or not scale:
        same = _norm(actual) == scale
        return Row(name, 1.0 if same else 0.0 if _norm(actual) == 0 else float("inf"), 0.0 if same else 1.0)
    ratio = float((actual.double() * expected.double()).sum()) / scale**2
    return Row(name, ratio, _norm(_minus(actual, expected)) / scale)


def _minus(actual: Tensor | None, expected: Tensor | None) -> Tensor | None:
    if actual is None or expected is None:
        return actual if expected is None else expected
    return actual.double() - expected.double()


def _norm(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float(torch.linalg.vector_norm(tensor.double()))
