"""The streams of a command: whatever is closed, gone or in another encoding, there is no traceback."""

import io
import os
import sys
from typing import TextIO

from dagnn.training.text import write_line

_NAMES = ("stdin", "stdout", "stderr")


def open_streams() -> None:
    """Give the process the streams that it was started without, and none that fails at a character.

    A file that is opened where descriptor 1 or 2 is free would get what some library prints there.
    """
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))  # noqa: PTH123, SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(line: str) -> None:
    """A line on stdout about what is being done; nobody has to read it."""
    write_line(line, sys.stdout)


def let_go(stream: TextIO) -> bool:
    """Write what is left in the stream; False where its reader has gone, and then Python will not try again at exit."""
    try:
        stream.flush()
        return True
    except (OSError, ValueError):
        pass
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
    except (OSError, ValueError):  # closed, or no file at all
        pass
    return False
