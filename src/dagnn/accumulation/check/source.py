"""The line of a user's loop that a cause points at."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagnn.accumulation.check.causes import Kind

_BACKWARD, _STEP = r"\.backward\(", r"\.step\("
_PATTERNS = {
    Kind.NOT_ZEROED: _STEP,
    Kind.ZEROED_TOO_OFTEN: r"zero_grad|\.grad\s*=\s*None",
    Kind.NOT_SCALED: _BACKWARD,
    Kind.SCALED_TWICE: _BACKWARD,
    Kind.SUM_LOSS: _BACKWARD,
    Kind.WRONG_SCALE: _BACKWARD,
    Kind.MEAN_OF_MEANS: _BACKWARD,
    Kind.WRONG_DENOMINATOR: _BACKWARD,
    Kind.EXTRA_STEP: _STEP,
    Kind.MISSING_STEP: _STEP,
    Kind.LOST_REMAINDER: _STEP,
    Kind.SHORT_WINDOW: _BACKWARD,
    Kind.CLIP_PER_MICRO_BATCH: r"clip_",
    Kind.SCHEDULE_PER_MICRO_BATCH: r"sched\w*\.step\(",
    Kind.UNUSED_PARAMETER: r"detach|no_grad|requires_grad",
    Kind.LOW_PRECISION: r"bfloat16|float16|half|autocast",
}


def find_line(function: Callable[..., Any], kind: Kind) -> str | None:
    """``"file.py:12: source"`` of the first line in ``function`` that ``kind`` is about, or None."""
    pattern = _PATTERNS.get(kind)
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(function))
        file = inspect.getsourcefile(inspect.unwrap(function))
    except (OSError, TypeError):
        return None
    if pattern is None or file is None:
        return None
    for number, line in enumerate(lines, first):
        if re.search(pattern, line.split("#")[0]):
            return f"{Path(file).name}:{number}: {line.strip()}"
    return None
