"""Warnings of this package: things that run, but that a user should know of."""

import sys
import warnings
from pathlib import Path

_HERE = str(Path(__file__).parent)


class AccumulationWarning(UserWarning):
    """The loop runs, but its result may differ from the full batch, or not be what was meant."""


def warn(message: str) -> None:
    """Warn at the user's line: the first frame that is not in this package."""
    level = 2
    # Python 3.12 has skip_file_prefixes for this; 3.11 counts frames by hand.
    while (frame := sys._getframe(level - 1)).f_code.co_filename.startswith(_HERE) and frame.f_back is not None:
        level += 1
    warnings.warn(message, AccumulationWarning, stacklevel=level)
