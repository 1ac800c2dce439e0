"""`dagnn metrics`: the rows of a run as CSV, or as event files for TensorBoard."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dagnn.commands.arguments import parsed
from dagnn.errors import RunError


@dataclass(frozen=True)
class Metrics:
    """Writes metrics.jsonl of a run as CSV (to stdout, unless told where), or for TensorBoard."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = "runs/curriculum"
    """run directory"""
    csv: str | None = None
    """file of the CSV; replaced if it is there"""
    tensorboard: str | None = None
    """directory of the event files; needs `pip install dagnn[tensorboard]`"""


def run(arguments: Sequence[str]) -> int:
    """Runs `dagnn metrics` with these arguments and returns the exit code."""
    given = parsed(Metrics, "metrics", arguments)
    from dagnn.training.durable import replace_file
    from dagnn.training.metrics import read_metrics
    from dagnn.training.metrics_export import metrics_csv, write_tensorboard
    from dagnn.training.run_directory import RunDirectory

    rows = read_metrics(RunDirectory.read(given.run).metrics_path)
    if given.csv is not None:
        try:
            replace_file(Path(given.csv), metrics_csv(rows).encode())
        except OSError as error:
            raise RunError(f"cannot write {given.csv}: {error.strerror or error}.") from error
    if given.tensorboard is not None:
        print(f"{write_tensorboard(rows, given.tensorboard):,} values in {given.tensorboard}")
    if given.csv is None and given.tensorboard is None:
        print(metrics_csv(rows), end="")
    return 0
