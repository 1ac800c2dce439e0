"""CSV and TensorBoard: derived from metrics.jsonl, whatever was added or went back in between."""

import csv
import io
import math
import sys
import types
from typing import ClassVar

import pytest

from dagnn.cli import main
from dagnn.errors import MissingPackageError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.log import MetricsLog, metrics_csv, with_rates, write_tensorboard
from dagnn.training.run.directory import RunDirectory

ROWS = [
    {"kind": "step", "step": 1, "loss": 2.5, "weight": 8.0, "level": None, "seconds": 0.5},
    {"kind": "refused", "step": 1, "loss": "nan", "weight": None, "seconds": 0.75},
    {"kind": "step", "step": 2, "loss": 2.0, "weight": 4.0, "level": 1, "seconds": 1.0},
    {"kind": "evaluation", "step": 2, "val/acc": 0.5, "../x": 1, "note": 'a,\n"b"', "seconds": 3.0},
    {"kind": "promotion", "step": 2, "level": 2, "active": [1, 2]},
    {"kind": "step", "step": 3, "loss": 1.0, "weight": 4.0, "seconds": 3.0},
]


def test_rate_is_that_of_the_step_alone():
    assert [row.get("samples_per_second") for row in with_rates(ROWS)] == [16.0, None, 16.0, None, None, None]


def test_csv_reads_back_with_columns_that_do_not_shift():
    rows = list(csv.DictReader(io.StringIO(metrics_csv(ROWS))))
    assert len(rows) == len(ROWS)
    assert [row["step"] for row in rows] == ["1", "1", "2", "2", "2", "3"]
    assert [row["loss"] for row in rows] == ["2.5", "nan", "2.0", "", "", "1.0"]
    assert (rows[3]["val/acc"], rows[3]["note"], rows[4]["active"]) == ("0.5", 'a,\n"b"', "1 2")


class Writer:
    """Stands in for torch's SummaryWriter, which needs a package of its own."""

    made: ClassVar[list] = []

    def __init__(self, log_dir, purge_step):
        if "full" in log_dir:
            raise OSError(28, "No space left on device")
        self.purge_step, self.scalars = purge_step, []
        Writer.made.append(self)

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def tensorboard(monkeypatch):
    Writer.made.clear()
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return Writer.made


def test_tensorboard_gets_every_number_and_hides_what_it_had(tensorboard, tmp_path):
    count = write_tensorboard(ROWS, tmp_path / "events")
    (writer,) = tensorboard
    assert writer.purge_step == 0
    assert len(writer.scalars) == count
    assert ("step/loss", 1.0, 3) in writer.scalars
    assert ("evaluation/val/acc", 0.5, 2) in writer.scalars
    assert any(tag == "refused/loss" and math.isnan(value) for tag, value, _ in writer.scalars)
    assert not any("note" in tag or "active" in tag for tag, _, _ in writer.scalars)
    with pytest.raises(RunError, match="full: No space left on device"):
        write_tensorboard(ROWS, tmp_path / "full")


def test_missing_tensorboard_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingPackageError, match=r"pip install .dagnn\[tensorboard\]"):
        write_tensorboard(ROWS, tmp_path)


def test_command_writes_what_it_is_asked_for(tensorboard, tmp_path, capsys):
    with RunDirectory.create(tmp_path / "run", TrainingConfig()) as run, MetricsLog(run.metrics_path) as log:
        for row in ROWS:
            log.write(row["kind"], row["step"], {k: v for k, v in row.items() if k not in ("kind", "step")})
    assert main(["metrics", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == metrics_csv(ROWS)
    assert main(["metrics", str(tmp_path / "run"), "--csv", str(tmp_path / "m.csv"), "--tensorboard", "events"]) == 0
    assert (tmp_path / "m.csv").read_text() == metrics_csv(ROWS)
    assert capsys.readouterr().out == f"{len(tensorboard[0].scalars)} values in events\n"
    assert main(["metrics", str(tmp_path / "run"), "--csv", str(tmp_path / "none" / "m.csv")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.csv", "run"]
