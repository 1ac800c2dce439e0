"""The line of a user's loop that a cause points at."""

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import dagnn
from dagnn.accumulation.check.causes import Kind

_LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (torch, dagnn) if module.__file__)

# Where the loop calls what a cause is about, as noted while it ran.
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
# What else to look for in the source of the loop.
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
    """``"file.py:12: source"`` of what ``kind`` is about, or None.

    Args:
        function: the user's loop.
        lines: the lines that were noted while it ran, by what they call.
    """
    if _CALLS.get(kind, "") in lines:
        return lines[_CALLS[kind]]
    pattern = _PATTERNS.get(kind)
    try:
        source, first = inspect.getsourcelines(inspect.unwrap(function))
        file = inspect.getsourcefile(inspect.unwrap(function))
    except (OSError, TypeError):
        return None
    if pattern is None or file is None:
        return None
    for number, line in enumerate(source, first):
        if re.search(pattern, line.split("#")[0]):
            return f"{Path(file).name}:{number}: {line.strip()}"
    return None


def line_in(function: Callable[..., Any]) -> str | None:
    """The line that runs now: in ``function`` itself if it is among the callers, else the user's nearest."""
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
