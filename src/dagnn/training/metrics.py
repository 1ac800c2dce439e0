"""metrics.jsonl: what happened in a run, one JSON object a line, and the one source of its curves.

Every row has ``kind`` and ``step`` (optimizer steps made so far):

    kind          written                          further keys
    "step"        after each optimizer step        loss, grad_norm, lr, weight, micro_batches, level, skipped, seconds
    "refused"     after a window without a step    loss, grad_norm, lr, weight, micro_batches, level, skipped, seconds
    "evaluation"  after each evaluation            what the evaluation returned, and seconds
    "epoch"       after the last step of an epoch  epoch (from 0), loss (mean over its items), weight (their number)
    "promotion"   when a level opens               level, active
    "reschedule"  after a resume that changed it   reschedule, max_steps_before, max_steps
    "processes"   after a resume that changed them processes_before, processes

Rows are strict JSON. A number that is not finite is the string "nan", "inf" or "-inf": it is shown as it is, any
JSON reader reads the line, and ``float(row["loss"])`` gives it back. ``seconds`` is the last key and, being the
clock, the only value that differs between two equal runs.
"""

import errno
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dagnn.errors import DataError, RunError
from dagnn.training.counters import strict_json

_ENCODER = json.JSONEncoder(allow_nan=False)


class MetricsLog:
    """Appends rows; each is with the system when `write` returns, so a killed process loses none of them."""

    def __init__(self, path: Path, *, num_rows: int = 0) -> None:
        """Open for appending after the first ``num_rows`` rows.

        What comes later is cut off: rows after the checkpoint that a run resumes from (they will be written again),
        or half a line that a crash has left.

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
            warnings.warn(f"{path} has {found} rows, the checkpoint was saved after {num_rows}.", stacklevel=2)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one row.

        Raises:
            RunError: it cannot be written; the message names the path.
        """
        row = {"kind": kind, "step": step, **values}
        try:
            line = _ENCODER.encode(row).encode() + b"\n"
        except ValueError:  # a number that is not finite: seldom, so that the usual row need not be walked through
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
    """All rows of a metrics file, oldest first. Half a line at the end is passed over: the run may be going on.

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
