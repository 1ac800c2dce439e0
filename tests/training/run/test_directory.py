"""Run directories: begun once, used by one process, refused in clear words otherwise."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dagnn.errors import ConfigError, RunError
from dagnn.training.config import TrainingConfig
from dagnn.training.run.directory import RunDirectory

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


@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "checkpoints", ".writing-config.toml", "report.png", "leads-nowhere", "checkpoints/set-aside"],
)
def test_links_in_a_run_are_refused_and_what_they_lead_to_is_kept(tmp_path, name):
    """metrics.jsonl is cut at a resume, config.toml and report.png are written: not through a stranger's link."""
    RunDirectory.create(tmp_path / "run", CONFIG).close()
    (tmp_path / "mine").write_text("dear to me")
    (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / ("none" if name == "leads-nowhere" else "mine"))
    for use in (RunDirectory.open, RunDirectory.read):
        with pytest.raises(RunError, match=f"{name} is a link or no plain file: .* itself may be a link"):
            use(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    for use in (RunDirectory.open, lambda path: RunDirectory.create(path, CONFIG)):
        with pytest.raises(RunError, match="no plain file"):
            use(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "dear to me"
    (tmp_path / "run" / name).unlink()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "run")
    RunDirectory.open(tmp_path / "elsewhere").close()


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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: this child only waits
def test_a_forked_worker_does_not_hold_the_run_after_its_parent(tmp_path):
    run = RunDirectory.create(tmp_path, CONFIG)
    told, wait = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wait)
        run.close()  # nothing of the parent's
        os.read(told, 1)
        os._exit(0)
    with pytest.raises(RunError, match="another process is using the run"):
        RunDirectory.open(tmp_path)
    run.close()
    RunDirectory.open(tmp_path).close()
    os.close(wait)
    assert os.waitpid(child, 0)[1] == 0
    os.close(told)


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


@pytest.mark.parametrize("version", ["99.0.0", "0.99", "99"])
def test_a_run_of_a_newer_version_is_read_with_a_warning(tmp_path, version):
    RunDirectory.create(tmp_path, TrainingConfig()).close()
    content = json.loads((tmp_path / "run.json").read_bytes())
    (tmp_path / "run.json").write_text(json.dumps(content | {"dagnn": version}))
    with pytest.warns(UserWarning, match=f"begun by dagnn {version}"):
        RunDirectory.read(tmp_path)


@pytest.mark.parametrize("version", ["0.0.1", "unknown", None])
def test_a_run_of_an_older_version_is_read_without_a_word(tmp_path, version):
    RunDirectory.create(tmp_path, TrainingConfig()).close()
    content = json.loads((tmp_path / "run.json").read_bytes())
    (tmp_path / "run.json").write_text(json.dumps(content | {"dagnn": version}))
    assert RunDirectory.read(tmp_path).run_id == content["run"]
