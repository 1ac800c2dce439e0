"""metrics.jsonl: what happened in a run, one JSON object a line; exported as CSV and event files."""

import csv
import errno
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dagnn.errors import ConfigError, DataError, RunError, warn
from dagnn.training.counters import strict_json

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a metrics file, oldest first. An incomplete last line is ignored: the run may still be writing it.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object; names the line.
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
        ConfigError: TensorBoard is not installed.
        RunError: the directory cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"TensorBoard cannot be used ({error}): pip install dagnn[tensorboard].") from error
    count = 0
    try:
        with SummaryWriter(log_dir=str(directory), purge_step=0) as writer:
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
