"""metrics.jsonl in forms that other programs read: CSV, and event files for TensorBoard. Both are derived anew."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagnn.errors import ConfigError, RunError

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
