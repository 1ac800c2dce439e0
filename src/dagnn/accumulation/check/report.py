"""What the checker reports: the verdict, its causes in plain words, a table, and the lines of the user's loop."""

import inspect
import linecache
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.check.arithmetic import difference, dtype_name, norm_of, relative_error, total_norm, widened


class Kind(StrEnum):
    """Names of the causes: those of the first group lie in the loop, those of the second in the model or its loss.

    >>> Kind.NOT_SCALED, str(Kind.NOT_SCALED)
    (<Kind.NOT_SCALED: 'not scaled'>, 'not scaled')
    """

    NOT_ZEROED = "not zeroed"
    ZEROED_TOO_OFTEN = "zeroed too often"
    NOT_SCALED = "not scaled"
    SCALED_TWICE = "scaled twice"
    SUM_LOSS = "sum loss"
    WRONG_SCALE = "wrong scale"
    MEAN_OF_MEANS = "mean of means"
    WRONG_DENOMINATOR = "wrong denominator"
    OTHER_LOSS = "another loss"
    MISSING_BACKWARD = "missing backward"
    EXTRA_STEP = "early or extra step"
    MOVED = "parameters moved within a window"
    MISSING_STEP = "missing step"
    LOST_REMAINDER = "lost remainder"
    SHORT_WINDOW = "short last window scaled by K"
    CLIP_PER_MICRO_BATCH = "clip per micro-batch"
    TAIL_NOT_CLIPPED = "short last window not clipped"
    CLIP_BEFORE_UNSCALE = "clip before unscale"
    NOT_UNSCALED = "not unscaled"
    SCHEDULE_PER_MICRO_BATCH = "schedule per micro-batch"
    UNUSED_PARAMETER = "unused parameter"
    IMAGINARY = "imaginary part lost"
    LOW_PRECISION = "low precision"

    BATCH_NORM = "BatchNorm"
    DROPOUT = "dropout"
    COUPLED = "batch-coupled loss"
    BUFFER = "in-place buffer"
    RECOMPUTATION = "recomputed with other random numbers"


class Cause(NamedTuple):
    """Why an accumulated gradient is not that of the full batch, and what to change.

    Attributes:
        kind: which cause it is.
        explanation: what happens, with the numbers that the check measured.
        change: what to write instead.
        line: ``"file.py:12: the source line"`` in the loop, or None if the checker cannot point at one.

    >>> cause = Cause(Kind.NOT_SCALED, "the gradient is 4 times too large.", "divide each mean loss.")
    >>> f"{cause.kind}: {cause.change}"
    'not scaled: divide each mean loss.'
    """

    kind: Kind
    explanation: str
    change: str
    line: str | None = None


_CHANGES = {
    Kind.NOT_ZEROED: "call optimizer.zero_grad() once after every optimizer.step().",
    Kind.ZEROED_TOO_OFTEN: "call optimizer.zero_grad() after optimizer.step(), not in every micro-batch.",
    Kind.NOT_SCALED: "divide each mean loss: (loss * len(micro) / items_in_window).backward().",
    Kind.SCALED_TWICE: "divide by the number of micro-batches in one place only.",
    Kind.SUM_LOSS: "use a mean loss times its share, or divide the sum by the items of the whole window.",
    Kind.WRONG_SCALE: "multiply each mean loss by len(micro) / items_in_window, and by nothing else.",
    Kind.MEAN_OF_MEANS: "weight each micro-batch by its size: (loss * len(micro) / items_in_window).backward().",
    Kind.WRONG_DENOMINATOR: "weight each micro-batch by what its loss divides by (valid tokens, class weights), over "
    "the total of the window.",
    Kind.OTHER_LOSS: "let the loop compute the loss that loss_fn computes, or give the check the loss of the loop.",
    Kind.MISSING_BACKWARD: "call backward() on the loss of every micro-batch; losses may be added, but not detached.",
    Kind.EXTRA_STEP: "step once, after the last micro-batch of each window: if (i + 1) % K == 0.",
    Kind.MOVED: "change parameters by hand (decay, a teacher, averages swapped in) once per window, after its step.",
    Kind.MISSING_STEP: "step after every K micro-batches: if (i + 1) % K == 0.",
    Kind.LOST_REMAINDER: "also step after the last micro-batch of the epoch: if (i + 1) % K == 0 or i + 1 == total.",
    Kind.SHORT_WINDOW: "divide by the size of the window at hand; the last one may be shorter than K.",
    Kind.CLIP_PER_MICRO_BATCH: "clip once, between the last backward of the window and optimizer.step().",
    Kind.TAIL_NOT_CLIPPED: "clip before every optimizer.step(), that of a short last window included.",
    Kind.CLIP_BEFORE_UNSCALE: "call scaler.unscale_(optimizer) once per window, before the clipping.",
    Kind.NOT_UNSCALED: "step with scaler.step(optimizer), and call scaler.unscale_(optimizer) at most once before it.",
    Kind.SCHEDULE_PER_MICRO_BATCH: "call scheduler.step(), or set the learning rate, once per optimizer.step().",
    Kind.UNUSED_PARAMETER: "let these parameters take part: no detach() or no_grad() around them.",
    Kind.IMAGINARY: "keep the gradient of a complex parameter complex: no .real and no cast on its way to .grad.",
    Kind.LOW_PRECISION: "sum gradients in float32: keep master weights in float32, or accumulate_dtype='auto' of "
    "dagnn.GradientAccumulator.",
    Kind.BATCH_NORM: "use GroupNorm or LayerNorm, or put these layers in eval mode.",
    Kind.DROPOUT: "nothing, if that is acceptable: the masks differ, not the expected gradient. To compare exactly, "
    "put the model in eval mode.",
    Kind.COUPLED: "use dagnn.accumulate(..., coupled=True), which keeps the representations of the whole window.",
    Kind.RECOMPUTATION: "recompute with the same random numbers: torch.utils.checkpoint with preserve_rng_state=True.",
    Kind.BUFFER: "do not let a pass read what an earlier one wrote, a buffer or a number: update it once per window.",
}


def coupled() -> Cause:
    """The cause when no shares make the gradient of the whole from the gradients of the parts."""
    text = (
        "no shares of 1 make the gradient of the whole from those of its parts: the loss of an item depends on others."
    )
    return cause(Kind.COUPLED, text)


def cause(kind: Kind, explanation: str, line: str | None = None) -> Cause:
    """A cause with the standard advice for its kind."""
    return Cause(kind, explanation, _CHANGES[kind], line)


class Row(NamedTuple):
    """One parameter: its accumulated gradient against that of the full batch.

    Attributes:
        parameter: its name in the model.
        ratio: projection on the full-batch gradient, over that gradient's norm: 1 is right, K is K times too large.
        error: norm of the difference over the norm of the full-batch gradient of all parameters.

    >>> Row("weight", ratio=4.0, error=3.0).ratio
    4.0
    """

    parameter: str
    ratio: float
    error: float


@dataclass(frozen=True)
class Report:
    """The verdict of the checker. ``print(report)`` shows it; ``bool(report)`` is ``report.equal``.

    Attributes:
        equal: the accumulated gradient is that of the full batch.
        causes: why not; empty if ``equal``, or if no known cause fits.
        table: one row per parameter that requires a gradient.
        advice: one sentence per cause, then notes, which are no errors.
        precision: dtype in which gradients were compared, such as ``"float64"``.
        error: of the gradient of all parameters together, relative to the norm of that of the full batch.

    >>> report = Report(True, (), (Row("weight", 1.0, 0.0),), (), "float64", 0.0)
    >>> bool(report), report.table[0].parameter
    (True, 'weight')
    >>> print(report)
    EQUAL: the accumulated gradient is that of the full batch (worst error 0.0e+00).
    <BLANKLINE>
    parameter       ratio      error   (float64)
    weight              1    0.0e+00
    """

    equal: bool
    causes: tuple[Cause, ...]
    table: tuple[Row, ...]
    advice: tuple[str, ...]
    precision: str
    error: float

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
    """A report with the table of ``actual`` against ``expected`` gradients; None means no gradient."""
    whole = total_norm(expected)
    return Report(
        equal=equal,
        causes=tuple(causes),
        table=tuple(_row(*row, whole) for row in zip(names, actual, expected, strict=True)),
        advice=(*(cause.change for cause in causes), *notes),
        precision=dtype_name(precision),
        error=relative_error(actual, expected),
    )


def _row(name: str, actual: Tensor | None, expected: Tensor | None, whole: float) -> Row:
    size, scale = norm_of(actual), norm_of(expected)
    error = norm_of(difference(actual, expected)) / whole if whole else float(size > 0)
    if actual is None or expected is None or scale <= 1e-9 * whole:
        # A gradient that is zero up to rounding, as that of an attention's key biases, gives no ratio.
        same = error <= 1e-9 or size == scale
        return Row(name, 1.0 if same else 0.0 if size == 0 else math.inf, error)
    ratio = float((widened(expected).conj() * widened(actual)).sum().real) / scale**2
    return Row(name, ratio, error)


# The call in the loop that a cause is about: the recording holds its line.
_CALLS = {
    Kind.NOT_ZEROED: "step",
    Kind.NOT_SCALED: "backward",
    Kind.SCALED_TWICE: "backward",
    Kind.SUM_LOSS: "backward",
    Kind.WRONG_SCALE: "backward",
    Kind.MEAN_OF_MEANS: "backward",
    Kind.WRONG_DENOMINATOR: "backward",
    Kind.OTHER_LOSS: "backward",
    Kind.MISSING_BACKWARD: "backward",
    Kind.EXTRA_STEP: "step",
    Kind.MISSING_STEP: "step",
    Kind.LOST_REMAINDER: "step",
    Kind.SHORT_WINDOW: "backward",
    Kind.SCHEDULE_PER_MICRO_BATCH: "schedule",
}
# What to look for in the text of the loop where no recorded call serves.
_PATTERNS = {
    Kind.ZEROED_TOO_OFTEN: r"zero_grad|\.grad\s*=\s*None",
    Kind.CLIP_PER_MICRO_BATCH: r"clip\w*\(",
    Kind.TAIL_NOT_CLIPPED: r"clip\w*\(",
    Kind.CLIP_BEFORE_UNSCALE: r"clip\w*\(",
    Kind.NOT_UNSCALED: r"scaler?\w*\.|\.scale\(",
    Kind.SCHEDULE_PER_MICRO_BATCH: r"sched\w*\.step\(|\[.lr.\]\s*=",
    Kind.UNUSED_PARAMETER: r"detach|no_grad|requires_grad",
    Kind.IMAGINARY: r"\.real\b|real\(|\.grad",
    Kind.LOW_PRECISION: r"bfloat16|float16|half|autocast",
}


def find_line(function: Callable[..., Any], kind: Kind, lines: Mapping[str, str]) -> str | None:
    """``"file.py:12: text"`` of the line that ``kind`` is about, or None.

    Args:
        function: the user's loop.
        lines: the lines recorded while it ran, by what they call.
    """
    if _CALLS.get(kind, "") in lines:
        return lines[_CALLS[kind]]
    pattern = _PATTERNS.get(kind)
    try:
        text, first = inspect.getsourcelines(inspect.unwrap(function))
        file = inspect.getsourcefile(inspect.unwrap(function))
    except (OSError, TypeError):
        return None
    if pattern is None or file is None:
        return None
    for number, line in enumerate(text, first):
        if re.search(pattern, line.split("#")[0]):
            return f"{Path(file).name}:{number}: {line.strip()}"
    return None


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


def line_in(function: Callable[..., Any]) -> str | None:
    """The line that runs now: in ``function`` if it is among the callers, else the nearest outside torch and dagnn."""
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    frame: FrameType | None = sys._getframe(1)
    nearest = None
    while frame is not None:
        if frame.f_code is code:
            return _text(frame)
        if nearest is None and not frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
            nearest = frame
        frame = frame.f_back
    return None if nearest is None else _text(nearest)


def _text(frame: FrameType) -> str:
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"
