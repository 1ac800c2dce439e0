"""Arguments and streams of a command: what is wrong, in one line each, and no traceback whatever is closed."""

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

import tyro

from dagnn.errors import ConfigError
from dagnn.training.terminal import printable, write_line

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


Arguments = TypeVar("Arguments")
# What tyro says of a value that may be left out; how it tried each kind follows.
_OPTIONAL = re.compile(r"no type matching \{None\}\|(\w+) could be instantiated from \[(.*?)\]\. Got errors: .*")
_NARROWEST, _WIDEST = 60, 200  # columns
_CONFIG = (tyro.conf.FlagCreatePairsOff,)


def parsed(kind: type[Arguments], name: str, arguments: Sequence[str]) -> Arguments:
    """The arguments of a command.

    Raises:
        ConfigError: what tyro says about a wrong argument, in one line.
        SystemExit: ``--help`` was printed.
    """
    with _in_words(name):
        return tyro.cli(kind, prog=f"dagnn {name}", args=arguments, config=_CONFIG)


def parsed_with_rest(kind: type[Arguments], name: str, arguments: Sequence[str]) -> tuple[Arguments, list[str]]:
    """The arguments of a command, and those that it does not know. Errors as of `parsed`."""
    with _in_words(name):
        return tyro.cli(kind, prog=f"dagnn {name}", args=arguments, config=_CONFIG, return_unknown_args=True)


@contextlib.contextmanager
def _in_words(name: str) -> Iterator[None]:
    """What tyro has to say and to print, in a ConfigError."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), _fit_width():
            yield
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(f"{_in_one_line(told.getvalue())}; see dagnn {name} --help.") from None


@contextlib.contextmanager
def _fit_width() -> Iterator[None]:
    """The terminal's width within what help texts can be laid out in: at 5 columns that takes tyro minutes and 4 GB."""
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def complain(message: str) -> None:
    """One line on stderr without control characters, whatever is in the message: it may quote a stranger's file."""
    write_line(f"dagnn: {printable(' '.join(message.split()))}", sys.stderr)


def _in_one_line(box: str) -> str:
    """What stands inside tyro's frame, without its title and the help texts; rules part its sections.

    Where stdout's encoding has no box characters, there is no frame and the title is a section of its own.
    """
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    sections = " ".join("\n" if line and set(line) <= {"─", "-"} else line for line in lines).split("\n")
    told = [each.strip() for each in sections if not each.strip().startswith(("Argument help", "For full help"))]
    told = [_OPTIONAL.sub(r"\2 is not of the kind \1", " ".join(each.split())) for each in told]
    return "; ".join(told if box.startswith("╭") else told[1:]).rstrip(".") or "wrong arguments"
