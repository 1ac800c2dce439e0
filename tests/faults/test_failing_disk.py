"""Every call of a save fails once, in every way a disk fails: the checkpoints that were are found, and nothing else."""

import errno
import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from small_training import begin_or_go_on, outcome, small_config, small_trainer

from dagnn.errors import RunError
from dagnn.training import RunDirectory
from dagnn.training.run.checkpoints import Checkpoint, CheckpointStore

# What a save asks of the system, by the names under which Python offers it. A directory is removed through
# descriptors (rmtree), a file is written through os.write, and a rename is one.
CALLS = ("open", "write", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
CODES = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.EPERM)


class Disk:
    """Counts the calls of a save, notes them, and lets one of them fail."""

    def __init__(self, monkeypatch, folder, *, fail_at=None, code=0):
        self.calls = []
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name), folder, fail_at, code))

    def _watched(self, name, real, folder, fail_at, code):
        def call(target, *args, **kwargs):
            place = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target)
            inside = str(place).startswith(str(folder)) or kwargs.get("dir_fd") is not None
            if inside:
                self.calls.append((name, place.name))
                if len(self.calls) == fail_at:
                    raise OSError(code, os.strerror(code), str(place))
            return real(target, *args, **kwargs)

        return call


def checkpoint(step):
    tensors = {"model": {"a": torch.tensor([float(step)])}, "optimizer": {}}
    return Checkpoint("run-1", step, None, tensors, {"step": step})


def two_checkpoints(folder):
    store = CheckpointStore(folder, "run-1", keep_last=2)
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    return store


def calls_of_a_save(folder, step):
    store = two_checkpoints(folder)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, folder)
        store.save(checkpoint(step))
    return disk.calls


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "a step again"])
@pytest.mark.parametrize(
    "code",
    [pytest.param(code, marks=[pytest.mark.slow] if code in (errno.EIO, errno.EPERM) else []) for code in CODES],
    ids=errno.errorcode.get,
)
def test_each_call_of_a_save_fails_once(tmp_path, step, code):
    number = len(calls_of_a_save(tmp_path / "counted", step))
    assert number > 25
    two_checkpoints(tmp_path / "before")
    for fail_at in range(1, number + 1):
        folder = tmp_path / str(fail_at)
        shutil.copytree(tmp_path / "before", folder)
        store = CheckpointStore(folder, "run-1", keep_last=2)
        told = ""
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            disk = Disk(patch, folder, fail_at=fail_at, code=code)
            try:
                store.save(checkpoint(step))
            except RunError as error:
                told = str(error)
        failed = disk.calls[fail_at - 1]
        # Before the new checkpoint is in place a failure is an error that names it; after it, the old are cleared.
        if told:
            assert f"cannot write the checkpoint {folder}/step-{step:08d}: {os.strerror(code)}" in told, failed
        else:
            assert store.load(step).step == step, failed
            assert all("cannot remove the old checkpoint" in str(each.message) for each in warned)

        assert store.latest().step in (2, step), failed  # found by a reader too, which clears nothing
        again = CheckpointStore(folder, "run-1", keep_last=2)
        again.recover()
        assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [], failed
        assert again.latest().step in (2, step), failed
        assert again.load(2).tensors["model"]["a"].tolist() == [2.0]
        again.save(checkpoint(4))
        assert again.latest().step == 4


def test_calls_of_a_save_come_in_the_order_that_survives_a_crash(tmp_path):
    """Each file opened, written, synced; then the manifest; then the folder; the rename; its parent; the removal."""
    calls = calls_of_a_save(tmp_path / "c", 3)
    files = ["model.safetensors", "optimizer.safetensors", "state.json", "clock.json", "manifest.json"]
    assert [call for call in calls if call[1] in files][:15] == [
        (call, name) for name in files for call in ("open", "write", "fsync")
    ]
    at = calls.index
    assert (
        at(("mkdir", ".writing-step-00000003"))
        < at(("open", "model.safetensors"))
        < at(("fsync", "manifest.json"))
        < at(("fsync", ".writing-step-00000003"))
        < at(("rename", ".writing-step-00000003"))
        < at(("fsync", "c"))
        < at(("rename", "step-00000001"))
        < at(("rmdir", ".removing-step-00000001"))
    )
    renames = [name for call, name in calls if call in ("rename", "replace")]
    assert renames == [".writing-step-00000003", "step-00000001"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    begin_or_go_on(directory)
    return outcome(directory)


def calls_of_a_training(directory):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, directory)
        begin_or_go_on(directory)
    return len(disk.calls)


def check_training_that_fails_at(directory, fail_at, code, uninterrupted):
    """A training in which one call fails, and that is started again, has the bytes of one in which none did."""
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Disk(patch, directory, fail_at=fail_at, code=code)
        try:
            begin_or_go_on(directory)
        except RunError as error:
            assert str(directory) in str(error)
    begin_or_go_on(directory)
    assert outcome(directory) == uninterrupted
    checkpoints = directory / "checkpoints"
    assert [path.name for path in checkpoints.iterdir() if path.name.startswith(".")] == []


def test_training_survives_a_failure_at_any_part_of_it(tmp_path, uninterrupted):
    number = calls_of_a_training(tmp_path / "counted")
    for part in range(12):
        check_training_that_fails_at(tmp_path / str(part), 1 + part * number // 12, errno.EIO, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_training_survives_a_failure_of_every_single_call(tmp_path, uninterrupted, code):
    for fail_at in range(1, calls_of_a_training(tmp_path / "counted") + 1):
        check_training_that_fails_at(tmp_path / str(fail_at), fail_at, code, uninterrupted)


def test_directory_that_may_not_be_written_is_named(tmp_path, monkeypatch):
    with RunDirectory.create(tmp_path / "run", small_config()) as run:
        Disk(monkeypatch, run.checkpoints_path, fail_at=1, code=errno.EROFS)
        with pytest.raises(RunError, match=r"step-00000003: Read-only file system\. No earlier checkpoint exists"):
            small_trainer(run).fit()
