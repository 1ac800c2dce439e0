"""Run directories: begun once, used by one process, refused in clear words otherwise."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.run_directory import RunDirectory

CONFIG = TrainingConfig(seed=5)


def test_create_lays_out_the_run(tmp_path):
    with RunDirectory.create(tmp_path / "a" / "b", CONFIG) as run:
        assert sorted(path.name for path in run.path.iterdir()) == ["config.toml", "lock", "run.json"]
        assert run.config() == CONFIG
        assert json.loads((run.path / "run.json").read_bytes())["run"] == run.run_id
        assert run.metrics_path == run.path / "metrics.jsonl"
        assert run.checkpoints_path == run.path / "checkpoints"


def test_an_empty_directory_may_be_used(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    assert RunDirectory.read(tmp_path).config() == CONFIG


def test_run_ids_differ(tmp_path):
    ids = {RunDirectory.create(tmp_path / str(number), CONFIG).run_id for number in range(3)}
    assert len(ids) == 3


def test_used_directory_is_refused_and_left_alone(tmp_path):
    RunDirectory.create(tmp_path / "run", CONFIG).close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(RunError, match=r"already holds a run: go on with --resume .*, or choose another"):
        RunDirectory.create(tmp_path / "run", TrainingConfig(seed=6))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_directory_with_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunError, match=r"is not empty \(it holds thesis\.tex\)"):
        RunDirectory.create(tmp_path, CONFIG)


def test_beginning_that_was_killed_may_be_begun_again(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    (tmp_path / "run.json").rename(tmp_path / ".writing-run.json")
    RunDirectory.create(tmp_path, CONFIG).close()


def test_open_and_read_need_a_run(tmp_path):
    for take in (RunDirectory.open, RunDirectory.read):
        with pytest.raises(RunError, match=r"holds no run: .*run\.json is missing"):
            take(tmp_path)
        with pytest.raises(RunError, match="holds no run"):
            take(tmp_path / "absent")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_damaged_run_file_is_named(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        RunDirectory.open(tmp_path)


def test_damaged_configuration_is_named(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        (tmp_path / "config.toml").write_text("seed = -1")
        with pytest.raises(ConfigError, match=r"seed = -1: allowed is .* \[file .*config\.toml\]"):
            run.config()


def test_lock_is_held_by_one_and_let_go(tmp_path):
    run = RunDirectory.create(tmp_path, CONFIG)
    with pytest.raises(RunError, match="another process is using the run in"):
        RunDirectory.open(tmp_path)
    assert RunDirectory.read(tmp_path).run_id == run.run_id
    run.close()
    run.close()
    with RunDirectory.open(tmp_path) as again:
        assert again.run_id == run.run_id


def test_of_many_at_once_one_gets_the_directory(tmp_path):
    def take():
        try:
            return RunDirectory.create(tmp_path / "run", CONFIG)
        except RunError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        taken = [result.result() for result in [pool.submit(take) for _ in range(8)]]
    (run,) = [each for each in taken if isinstance(each, RunDirectory)]
    assert all("another process is using" in each for each in taken if each is not run)
    assert RunDirectory.read(tmp_path / "run").run_id == run.run_id
    run.close()


def test_a_killed_process_holds_nothing(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-c", hold, tmp_path / "lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with pytest.raises(RunError, match="another process is using the run in"):
            RunDirectory.open(tmp_path)
        process.kill()
    RunDirectory.open(tmp_path).close()


def test_store_config_replaces_in_one_step(tmp_path, monkeypatch):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.store_config(TrainingConfig(seed=8))
        assert run.config().seed == 8

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"cannot write .*config\.toml: No space left on device"):
            run.store_config(TrainingConfig(seed=9))
        assert run.config().seed == 8
        assert not list(tmp_path.glob(".writing-*"))


def test_create_on_a_full_disk(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device"):
        RunDirectory.create(tmp_path / "run", CONFIG)
    monkeypatch.undo()
    RunDirectory.create(tmp_path / "run", CONFIG).close()


def test_place_that_cannot_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot make the run directory .*file"):
        RunDirectory.create(tmp_path / "file", CONFIG)
