"""What a training records and shows: metrics.jsonl and its exports, lines on the terminal, a profile of some steps.

Every command prints through this file, so it loads torch only where steps are profiled.
"""

import csv
import errno
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from dagnn.errors import DataError, RunError, library, warn
from dagnn.files import replaced_file
from dagnn.training.counters import strict_json

if TYPE_CHECKING:
    from torch.profiler import profile


_ENCODER = json.JSONEncoder(allow_nan=False)


class MetricsLog:
    """Appends rows to ``metrics.jsonl``. The system has a row when `write` returns: a killed process loses none.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "metrics.jsonl")
    >>> with MetricsLog(path) as log:
    ...     log.write("step", 1, {"loss": 0.5})
    >>> read_metrics(path)
    [{'kind': 'step', 'step': 1, 'loss': 0.5}]
    """

    def __init__(self, path: Path, *, num_rows: int = 0) -> None:
        """Open for appending after the first ``num_rows`` rows.

        Later rows are cut off: those after the checkpoint that a run resumes from, which come again, and the half
        line that a crash leaves.

        Raises:
            RunError: the file cannot be opened or cut.
        """
        self.path = path
        self.num_rows = num_rows
        try:
            # Unbuffered: a row is one write, and a failed one leaves nothing behind to be written at exit.
            self._file = path.open("ab", buffering=0)
            found, size = _first_rows(path, num_rows)
            self._file.truncate(size)
        except OSError as error:
            raise RunError(f"cannot open {path}: {error.strerror or error}.") from error
        if found < num_rows:
            warn(f"{path} has {found} rows, the checkpoint was saved after {num_rows}.")

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one row.

        Raises:
            RunError: it cannot be written; the message names the path.
        """
        row = {"kind": kind, "step": step, **values}
        try:
            line = _ENCODER.encode(row).encode() + b"\n"
        except ValueError:  # a number that is not finite; rare, so the usual row is not searched for one
            line = _ENCODER.encode(strict_json(row)).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror or error}.") from error
        self.num_rows += 1

    def sync(self) -> None:
        """Wait until the disk has every row. Raises RunError."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror or error}.") from error

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a metrics file, oldest first. An incomplete last line is ignored: the run may still be writing it.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object; names the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "metrics.jsonl")
    >>> with path.open("w") as file:
    ...     print('{"kind": "epoch", "step": 1}', file=file)
    >>> read_metrics(path)
    [{'kind': 'epoch', 'step': 1}]
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    rows = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: {error}.") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}.")
        rows.append(row)
    return rows


def _first_rows(path: Path, num_rows: int) -> tuple[int, int]:
    """How many of the first ``num_rows`` rows are complete, and the bytes that they take."""
    found = size = 0
    with path.open("rb") as file:
        while found < num_rows and (line := file.readline()).endswith(b"\n"):
            found, size = found + 1, size + len(line)
    return found, size


_FIRST_COLUMNS = ("kind", "step")
_RATE = "samples_per_second"


def with_rates(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, those of steps with ``samples_per_second``: weight over the seconds since the step before.

    Derived here and not written while training, where ``seconds`` is the only value that differs between equal runs.

    >>> rows = [{"kind": "step", "step": 1, "weight": 8, "seconds": 0.5}, {"kind": "epoch", "step": 1}]
    >>> [row.get("samples_per_second") for row in with_rates(rows)]
    [16.0, None]
    """
    found, before = [], 0.0
    for row in rows:
        now = row.get("seconds")
        if row.get("kind") == "step" and isinstance(now, int | float) and now > before:
            row = {**row, _RATE: float(row.get("weight") or 0.0) / (now - before)}
        before = now if isinstance(now, int | float) else before
        found.append(dict(row))
    return found


def metrics_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row; a column per key, whichever row has it first, so that a metric that comes late shifts none."""
    rated = with_rates(rows)
    columns = list(_FIRST_COLUMNS)
    for row in rated:
        columns += [key for key in row if key not in columns]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rated:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return text.getvalue()


def write_tensorboard(rows: Sequence[Mapping[str, Any]], directory: str | Path) -> int:
    """Writes every number as a scalar ``<kind>/<key>`` and returns how many.

    Called again, for a run that went on or back, it hides what it wrote before (``purge_step``): no point is doubled.

    Raises:
        MissingPackageError: TensorBoard is not installed.
        RunError: the directory cannot be written.
    """
    writer_of = library("torch.utils.tensorboard", "--tensorboard", "dagnn[tensorboard]").SummaryWriter
    count = 0
    try:
        with writer_of(log_dir=str(directory), purge_step=0) as writer:
            for row in with_rates(rows):
                for key, value in row.items():
                    number = _number(value)
                    if key != "step" and number is not None:
                        writer.add_scalar(f"{row['kind']}/{key}", number, row["step"])
                        count += 1
    except OSError as error:
        raise RunError(f"cannot write {directory}: {error.strerror or error}.") from error
    return count


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _number(value: Any) -> float | None:
    """The number of a value of metrics.jsonl, where "nan" and "inf" are words; None where it is something else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") and not math.isfinite(float(value)) else None


PROFILE_FILE = "profile.json"
_LINES_PER_RUN = 50
# Without the rate in steps: the values hold samples a second.
_BAR = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} left {remaining}{postfix}"
_RATE_SHOWN = "samples/s"
_IMPORTANCE = ("loss", _RATE_SHOWN, "level", "lr")
_LEAST_BAR = 10  # columns; where there are not so many, the values that matter less are left out


def printable(text: str) -> str:
    r"""The text with every control character as its escape; on one line.

    A name in a stranger's file must not move the cursor or colour the screen.

    >>> print(printable("weight\x1b[2J\nnext"))
    weight\x1b[2J\nnext
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def write_line(text: str, stream: TextIO | None) -> bool:
    """Writes a line, with escapes for what the stream's encoding lacks; False where nobody can read it any more.

    The reader of a pipe may have gone, a terminal may be closed, a program without a console has no streams at all.
    """
    if stream is None:
        return False
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):  # gone; closed
        return False
    return True


def _is_terminal(stream: Any) -> bool:
    """Whether a person looks at it. Streams that are closed or only half a file are no terminals."""
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


class Progress:
    """Shows steps, loss, learning rate and evaluations.

    On a terminal: a tqdm bar that starts at the step resumed from, its rate measured in this session only. Elsewhere
    (a file, a pipe): at most one line every ``max_steps / 50`` steps, and the last step always. Where nobody can read
    it any more, training goes on without it.
    """

    def __init__(self, max_steps: int, *, step: int = 0, stream: TextIO | None = None, shown: bool = True) -> None:
        """Start at ``step``. ``stream``: None is stderr, so that stdout stays free for results."""
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._max_steps = max_steps
        self._interval = max(1, -(-max_steps // _LINES_PER_RUN))
        self._first_step, self._started = step, time.monotonic()
        self._items = 0.0
        self._bar: Any = None
        self._shown = shown and self._stream is not None and not self._stream.closed
        if self._shown and self._stream is not None and _is_terminal(self._stream):
            with self._while_read():
                from tqdm import tqdm

                self._bar = tqdm(total=max_steps, initial=step, file=self._stream, dynamic_ncols=True, bar_format=_BAR)

    def step(self, step: int, values: Mapping[str, Any], items: float | None = None) -> None:
        """After an optimizer step.

        Args:
            values: short words and numbers to show beside it.
            items: examples in it; their rate in this session is shown.
        """
        self._items += items or 0.0
        due = step % self._interval == 0 or step == self._max_steps
        if self._bar is None and not (self._shown and due):
            return
        if self._items:
            values = {**values, _RATE_SHOWN: f"{self._items / max(time.monotonic() - self._started, 1e-9):,.0f}"}
        words = {key: f"{key} {_short(value)}" for key, value in values.items() if value is not None}
        text = " ".join(words.values())
        if self._bar is not None:
            with self._while_read():
                self._bar.set_postfix_str(" ".join(self._fitting(words)), refresh=False)
                self._bar.update(step - self._bar.n)
        else:
            self._line(f"step {step}/{self._max_steps} {text} {self._time_left(step)}")

    def note(self, text: str) -> None:
        """One line that stays, such as an evaluation."""
        if self._bar is not None:
            with self._while_read():
                self._bar.write(text, file=self._stream)
        elif self._shown:
            self._line(text)

    def close(self) -> None:
        """Close the bar; it stays on the screen."""
        if self._bar is not None:
            with self._while_read():
                self._bar.close()

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        """Inside, an error of the stream turns the display off: its reader has gone."""
        try:
            yield
        except (OSError, ValueError):
            if self._bar is not None:
                self._bar.disable = True  # else tqdm writes once more when it is thrown away
            self._bar, self._shown = None, False

    def _fitting(self, words: Mapping[str, str]) -> list[str]:
        """The values that leave room for a bar, in their order."""
        steps = len(f"100% || {self._max_steps}/{self._max_steps} left 00:00, ")
        columns = _columns(self._stream) - steps - _LEAST_BAR
        kept: list[str] = []
        for key in sorted(words, key=lambda key: _IMPORTANCE.index(key) if key in _IMPORTANCE else len(_IMPORTANCE)):
            if len(" ".join([*(words[each] for each in kept), words[key]])) <= columns:
                kept.append(key)
        return [text for key, text in words.items() if key in kept]

    def _line(self, text: str) -> None:
        self._shown = write_line(text, self._stream)

    def _time_left(self, step: int) -> str:
        seconds = (time.monotonic() - self._started) / max(1, step - self._first_step) * (self._max_steps - step)
        return f"left {int(seconds) // 60}:{int(seconds) % 60:02d}"


def evaluation_lines(step: int, metrics: Mapping[str, Any]) -> list[str]:
    """An evaluation for people: one line, and one more for each metric that has parts, ``name/part``.

    >>> evaluation_lines(40, {"accuracy": 0.9751, "accuracy/1": 1.0, "accuracy/2": 0.9502, "loss": 0.25})
    ['evaluation at step 40: accuracy 0.9751, loss 0.25', '  accuracy  1: 1  2: 0.95']
    """
    numbers = {name: value for name, value in metrics.items() if isinstance(value, float)}
    parts: dict[str, list[str]] = {}
    for name, value in numbers.items():
        whole, slash, part = name.partition("/")
        if slash:
            parts.setdefault(whole, []).append(f"{part}: {value:.3g}")
    totals = [f"{name} {_short(value)}" for name, value in numbers.items() if "/" not in name]
    head = f"evaluation at step {step}" + (f": {', '.join(totals)}" if totals else "")
    return [head, *(f"  {whole}  {'  '.join(shown)}" for whole, shown in parts.items())]


def _columns(stream: TextIO | None) -> int:
    """Columns of a terminal; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream is not None else 80
    except (OSError, ValueError):
        return int(os.environ.get("COLUMNS", "80")) if os.environ.get("COLUMNS", "80").isdecimal() else 80


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class StepProfiler:
    """Profiles the first steps of a session of training; makes no number of it different."""

    def __init__(self, target: Path | None, num_steps: int, note: Callable[[str], object] = print) -> None:
        """Nothing is measured before `running`.

        Args:
            target: where the trace goes. None, or no steps: nothing is profiled.
            note: called with a line that says where it went.
        """
        self._note = note
        self._target = target
        self._left = num_steps if target is not None else 0
        self._profile: profile | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Profile the training inside; a trace that is not written yet is written at its end, however it ends."""
        if self._left > 0:
            import torch
            from torch.profiler import ProfilerActivity, profile

            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            self._profile = profile(activities=activities)
            self._profile.start()
        try:
            yield
        finally:
            self._write()

    def step(self) -> None:
        """After every optimizer step. Raises RunError: the trace cannot be written."""
        self._left -= 1
        if self._left <= 0:
            self._write()

    def _write(self) -> None:
        if self._profile is None:
            return
        ended, self._profile = self._profile, None
        ended.stop()
        assert self._target is not None
        try:
            # A trace of an earlier session stays whole until there is a new one.
            with replaced_file(self._target) as temporary:
                ended.export_chrome_trace(str(temporary))
            self._note(f"profile in {self._target}: open it in https://ui.perfetto.dev or chrome://tracing")
        except (OSError, RuntimeError) as error:
            raise RunError(f"cannot write {self._target}: {getattr(error, 'strerror', None) or error}.") from error
