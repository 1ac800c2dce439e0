"""metrics.jsonl: strict rows, each once, whatever a crash has left."""

import errno
import json
import os

import pytest

from dagnn.errors import DataError, RunError
from dagnn.training.log import MetricsLog, read_metrics


def write_rows(path, count):
    with MetricsLog(path) as log:
        for step in range(1, count + 1):
            log.write("step", step, {"loss": step / 2})


def test_rows_come_back_in_order(tmp_path):
    write_rows(tmp_path / "m", 3)
    assert read_metrics(tmp_path / "m") == [{"kind": "step", "step": i, "loss": i / 2} for i in (1, 2, 3)]


def test_each_row_is_in_the_file_at_once(tmp_path):
    log = MetricsLog(tmp_path / "m")
    log.write("step", 1, {"loss": 1.0})
    assert len(read_metrics(tmp_path / "m")) == 1
    log.sync()
    log.close()
    log.close()


def test_numbers_that_are_not_finite_are_strings_in_strict_json(tmp_path):
    with MetricsLog(tmp_path / "m") as log:
        log.write(
            "refused", 4, {"loss": float("nan"), "nested": {"a": [float("inf"), -float("inf"), 1.5]}, "none": None}
        )

    def refuse(name):
        raise AssertionError(name)

    (line,) = (tmp_path / "m").read_text().splitlines()
    row = json.loads(line, parse_constant=refuse)
    assert row == {"kind": "refused", "step": 4, "loss": "nan", "nested": {"a": ["inf", "-inf", 1.5]}, "none": None}
    assert float(row["nested"]["a"][1]) == -float("inf")


def test_resuming_cuts_what_came_after_the_checkpoint(tmp_path):
    write_rows(tmp_path / "m", 5)
    with MetricsLog(tmp_path / "m", num_rows=3) as log:
        assert log.num_rows == 3
        log.write("step", 4, {"loss": 9.0})
        assert log.num_rows == 4
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [1, 2, 3, 4]
    assert read_metrics(tmp_path / "m")[-1]["loss"] == 9.0


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_half_a_last_line_is_repaired(tmp_path, cut):
    write_rows(tmp_path / "m", 4)
    content = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(content[:-cut])
    assert len(read_metrics(tmp_path / "m")) == 3
    with MetricsLog(tmp_path / "m", num_rows=3) as log:
        log.write("step", 4, {"loss": 2.0})
    assert (tmp_path / "m").read_bytes() == content


def test_rows_that_are_missing_are_told(tmp_path):
    write_rows(tmp_path / "m", 2)
    with pytest.warns(UserWarning, match="has 2 rows, the checkpoint was saved after 3"):
        MetricsLog(tmp_path / "m", num_rows=3).close()


def test_reader_names_a_damaged_line(tmp_path):
    (tmp_path / "m").write_text('{"kind": "step"}\n{"kind"\n')
    with pytest.raises(DataError, match="m, line 2: "):
        read_metrics(tmp_path / "m")
    (tmp_path / "m").write_text("[1]\n")
    with pytest.raises(DataError, match="line 1: expected a JSON object, got list"):
        read_metrics(tmp_path / "m")
    with pytest.raises(DataError, match=r"cannot read .*absent: No such file"):
        read_metrics(tmp_path / "absent")


def test_full_disk_names_the_file(tmp_path):
    class Full:
        def __init__(self, written):
            self.written = written

        def write(self, line):
            if self.written is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.written

        def close(self):
            pass

    log = MetricsLog(tmp_path / "m")
    log.close()
    for written in (None, 3):
        log._file = Full(written)
        with pytest.raises(RunError, match=r"cannot write .*/m: No space left on device"):
            log.write("step", 1, {})
    assert log.num_rows == 0


def test_unusable_path_is_named(tmp_path):
    with pytest.raises(RunError, match=r"cannot open .*missing/m: No such file"):
        MetricsLog(tmp_path / "missing" / "m")
