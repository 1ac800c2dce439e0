"""What all commands share: finding the command, reading its arguments, and writing to streams that may be closed.

Each module holds a group of subcommands that would make cli.py too long, and is loaded when its command runs.
"""

import contextlib
import dataclasses
import io
import os
import re
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO, TypeVar

import tyro

from dagnn.errors import ConfigError, DagnnError, DataError, DtypeError, GraphError, closest, did_you_mean
from dagnn.training.log import printable, write_line

__all__ = [
    "DEFAULT_RUN",
    "Arguments",
    "Command",
    "as_options",
    "complain",
    "dispatch",
    "flushed",
    "open_streams",
    "parsed",
    "parsed_with_rest",
    "say",
    "say_aside",
    "users_error",
    "users_errors",
]

DEFAULT_RUN = "runs/curriculum"

Arguments = TypeVar("Arguments")
_STREAMS = ("stdin", "stdout", "stderr")
# What tyro prints about a value that may be left out; how it tried each type follows.
_OPTIONAL = re.compile(r"no type matching \{None\}\|(\w+) could be instantiated from \[(.*?)\]\. Got errors: .*")
_NONE_OR = re.compile(r"\{None\}\|(\w+)")
_NO_DEFAULT = re.compile(r"\(default:((?:\s|│|\x1b\[[\d;]*m)*)(None|)\)")  # maybe over the end of a line in a frame
_NARROWEST, _WIDEST = 60, 200  # columns
_CONFIG = (tyro.conf.FlagCreatePairsOff,)


class Command(NamedTuple):
    """A command: one line for the list of commands, and what runs it, given the arguments after its name."""

    summary: str
    run: Callable[[Sequence[str]], int]


def dispatch(
    program: str, commands: Mapping[str, Command], arguments: Sequence[str], *, about: str = "", more: str = ""
) -> int:
    """Runs the command that the first argument names and returns its exit code; without one, lists them all.

    Args:
        program: how the user calls it, such as ``dagnn checkpoint``.
        about, more: for the list: what the program is, and what its last line adds.

    Raises:
        ConfigError: there is no such command; the message has the nearest.
    """
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        width = max(map(len, commands))
        lines = [f"  {each.ljust(width)}  {command.summary}" for each, command in commands.items()]
        usage = [f"usage: {program} COMMAND [OPTIONS]", *(["", about] if about else [])]
        print("\n".join([*usage, "", *lines, "", f"`{program} COMMAND --help` lists the options of a command{more}."]))
        return 0
    if name not in commands:
        nearest = closest(name, commands)
        called = f"{program} {name}".removeprefix("dagnn ")
        advice = did_you_mean([nearest] if nearest else [], f"the commands are {', '.join(commands)}.")
        raise ConfigError(f"unknown command {called!r}: {advice}")
    return commands[name].run(arguments[1:])


def parsed(kind: type[Arguments], name: str, arguments: Sequence[str]) -> Arguments:
    """The arguments of a command.

    Raises:
        ConfigError: an argument is wrong; what tyro prints about it, in one line.
        SystemExit: ``--help`` was printed.
    """
    with _one_error(name):
        return tyro.cli(kind, prog=f"dagnn {name}", args=arguments, config=_CONFIG)


def parsed_with_rest(kind: type[Arguments], name: str, arguments: Sequence[str]) -> tuple[Arguments, list[str]]:
    """The arguments of a command, and those that it does not know. Errors as of `parsed`."""
    with _one_error(name):
        return tyro.cli(kind, prog=f"dagnn {name}", args=arguments, config=_CONFIG, return_unknown_args=True)


@contextlib.contextmanager
def _one_error(name: str) -> Iterator[None]:
    """Turns what tyro prints about wrong arguments into a ConfigError."""
    printed, helped = io.StringIO(), _Help()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(helped), _fit_width():
            yield
    except SystemExit as stop:
        if not stop.code:
            print(_readable_help(helped.getvalue()), end="")
            raise
        raise ConfigError(f"{_in_one_line(printed.getvalue())}; see dagnn {name} --help.") from None


class _Help(io.StringIO):
    """What `--help` prints; it has colours where stdout is a terminal and nobody has said NO_COLOR."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.__stdout__, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        terminal = sys.__stdout__ is not None and not sys.__stdout__.closed and sys.__stdout__.isatty()
        return terminal and not os.environ.get("NO_COLOR")


def _readable_help(text: str) -> str:
    """Help without the raw words of types, each line as long as it was.

    >>> _readable_help("usage: dagnn x [--seed {None}|INT]\\n│ --seed {None}|INT  a number (default: None) │")
    'usage: dagnn x [--seed INT]\\n│ --seed INT         a number                 │'
    """
    lines = []
    for line in text.splitlines(keepends=True):
        room = " " * len("{None}|") if line.startswith(("│", "\x1b", "|", " ")) else ""  # in a table, not in the usage
        lines.append(_NONE_OR.sub(rf"\1{room}", line))
    return _NO_DEFAULT.sub(lambda m: " " * len("(default:") + m[1] + " " * len(f"{m[2]})"), "".join(lines))


@contextlib.contextmanager
def _fit_width() -> Iterator[None]:
    """Keeps the width of help texts in a range: at 5 columns tyro takes minutes and 4 GB to lay them out."""
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


@contextlib.contextmanager
def as_options(kind: type, phrases: Mapping[str, str] | None = None) -> Iterator[None]:
    """Errors inside name arguments of the library as the options of a command, ``held_out=0.2`` as ``--held-out 0.2``.

    Args:
        kind: the dataclass of the command's arguments.
        phrases: what the library says -> what the command says; they are replaced before.
    """
    try:
        yield
    except (ConfigError, DataError, DtypeError, GraphError) as error:
        text = str(error)
        for phrase, other in (phrases or {}).items():
            text = text.replace(phrase, other)
        text = _with_options(text, {field.name for field in dataclasses.fields(kind)})
        if text == str(error):
            raise
        raise type(error)(text) from error


def _with_options(text: str, names: Iterable[str]) -> str:
    """The text with arguments as options: those with ``=`` after them, and those that no sentence has as a word.

    >>> _with_options("root='a' feeds others, seed=, early_stopping=True, held_out, root", ["root", "seed", "held_out"])
    "--root 'a' feeds others, --seed, early_stopping=True, --held-out, root"
    """

    def option(found: re.Match[str]) -> str:
        name, after, value = found.groups()
        flag = f"--{name.replace('_', '-')}"
        return found[0] if not after and "_" not in name else f"{flag} " if value is not None else flag

    # No part of a word, a path or a name in quotes; True is a flag alone.
    pattern = rf"(?<![\w'\"/-])({'|'.join(sorted(names))})(?![\w'\"/]|\.\w)(=True\b|=((?=[\w'\"-]))?)?"
    return re.sub(pattern, option, text)


def _in_one_line(box: str) -> str:
    """What tyro printed inside its frame, without title and help texts; its sections are separated by rules.

    Where stdout's encoding has no box characters, there is no frame and the title is a section of its own.
    """
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    sections = " ".join("\n" if line and set(line) <= {"─", "-"} else line for line in lines).split("\n")
    found = [each.strip() for each in sections if not each.strip().startswith(("Argument help", "For full help"))]
    found = [_OPTIONAL.sub(r"\2 is not of the kind \1", " ".join(each.split())) for each in found]
    return "; ".join(found if box.startswith("╭") else found[1:]).rstrip(".") or "wrong arguments"


def open_streams() -> None:
    """Open the standard streams that the process was started without, and let none fail at a character.

    Where descriptor 1 or 2 is free, the next file that is opened takes it, and gets what some library prints.
    """
    for number, name in enumerate(_STREAMS):
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
    """Print a line about progress on stdout, whether or not anybody can read it."""
    write_line(line, sys.stdout)


def flushed(stream: TextIO) -> bool:
    """Flush the stream; False where its reader has gone, and then Python will not try again at exit."""
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


def complain(message: str) -> None:
    """Print one line on stderr, without control characters: the message may quote a stranger's file."""
    write_line(f"dagnn: {printable(' '.join(message.split()))}", sys.stderr)


def say_aside(text: str) -> None:
    """Progress, on stderr, line by line."""
    for line in text.splitlines():
        write_line(printable(line), sys.stderr)


_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def users_errors(called: str, module: str) -> Iterator[None]:
    """Turns errors inside functions of the user's module into a ConfigError that says where, also ``exit()``.

    dagnn's errors say what to do by themselves, and an error without a line of the user's is not theirs: both pass.
    """
    try:
        yield
    except (DagnnError, BrokenPipeError):
        raise
    except (Exception, SystemExit) as error:
        frames = _frames(error)
        ours = isinstance(error, SystemExit) and frames[-1][0].startswith(_PACKAGE)  # a signal
        if ours or not any(_is_users(file, module) for file, _ in frames):
            raise
        raise users_error(error, called, module) from error


def users_error(error: BaseException, called: str, module: str) -> ConfigError:
    """The error on one line, with its place in the user's code: the last line of theirs that it came through."""
    frames = _frames(error)
    file, line = next((frame for frame in reversed(frames) if _is_users(frame[0], module)), frames[-1])
    text = str(error).strip()
    # What a DataLoader's worker raised comes as a text that ends with the error.
    last = text.rpartition("\n")[2] if _is_of_worker(error) else f"{type(error).__name__}: {text.partition(chr(10))[0]}"
    return ConfigError(f"{called}: {last[:340]} ({os.path.relpath(file)}, line {line}).")


def _is_of_worker(error: BaseException) -> bool:
    return str(error).startswith("Caught ") and "\nOriginal Traceback" in str(error)


def _frames(error: BaseException) -> list[tuple[str, int]]:
    """(file, line) from where the error was caught to where it was raised."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if _is_of_worker(error):
        frames += [(file, int(line)) for file, line in _PLACE.findall(str(error))]
    return frames


def _is_users(file: str, module: str) -> bool:
    """Whether ``file`` is of the user's module, which may be installed, or of no library."""
    package = sys.modules.get(module.partition(".")[0])
    folders = [str(Path(path)) + os.sep for path in getattr(package, "__path__", [])]
    if file == getattr(package, "__file__", None) or file.startswith(tuple(folders)):
        return True
    return not file.startswith(("<", _PACKAGE, *_LIBRARIES))
