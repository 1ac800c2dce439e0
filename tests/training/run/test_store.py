"""The checkpoints of a run: what is kept, what is found, and what a failing disk leaves."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from dagnn.errors import CheckpointError, RunError
from dagnn.training.run import checkpoints as checkpoint_store
from dagnn.training.run.checkpoints import Checkpoint, CheckpointStore


def checkpoint(step, score=None, run_id="run-1", value=1.0):
    tensors = {"model": {"a": torch.tensor([float(step), value])}, "optimizer": {}}
    return Checkpoint(run_id, step, score, tensors, {"step": step})


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", "run-1", keep_last=2)


def names(store):
    return sorted(path.name for path in store.path.iterdir())


def test_save_and_load(store):
    path = store.save(checkpoint(7, 0.5))
    assert path == store.path / "step-00000007"
    assert store.load(7).tensors["model"]["a"].tolist() == [7.0, 1.0]
    assert store.latest().step == 7
    assert names(store) == ["step-00000007"]


def test_empty_store(store):
    assert (store.steps(), store.latest(), store.best()) == ([], None, None)
    store.recover()
    with pytest.raises(CheckpointError, match="has no checkpoint of step 3: it has none"):
        store.load(3)
    store.save(checkpoint(5))
    with pytest.raises(CheckpointError, match="has no checkpoint of step 3: it has 5"):
        store.load(3)


def test_newest_by_step_are_kept_whatever_the_file_times_and_digits(store):
    for step in (900, 1000, 1100):
        path = store.save(checkpoint(step))
        os.utime(path, (2_000_000_000 - step, 2_000_000_000 - step))
    assert store.steps() == [1000, 1100]
    store.save(checkpoint(100_000_001))
    assert store.steps() == [1100, 100_000_001]


@pytest.mark.parametrize(("mode", "best", "kept"), [("max", 2, [2, 3, 5, 6]), ("min", 4, [1, 4, 5, 6])])
def test_best_are_kept_beside_the_newest(tmp_path, mode, best, kept):
    store = CheckpointStore(tmp_path / "c", "run-1", keep_last=2, keep_best=2, mode=mode)
    for step, score in [(1, 0.3), (2, 0.9), (3, 0.8), (4, 0.1), (5, None), (6, 0.5)]:
        store.save(checkpoint(step, score))
    assert store.steps() == kept
    assert store.best() == best


def test_worsening_scores_never_remove_the_newest(tmp_path):
    store = CheckpointStore(tmp_path / "c", "run-1", keep_last=1, keep_best=2)
    for step in range(1, 11):
        store.save(checkpoint(step, 1.0 - step / 10))
        assert store.latest().step == step
    assert store.steps() == [1, 2, 10]


def test_of_equal_scores_the_earlier_is_best(tmp_path):
    store = CheckpointStore(tmp_path / "c", "run-1", keep_last=1, keep_best=1)
    for step in (1, 2, 3):
        store.save(checkpoint(step, 0.5))
    assert (store.steps(), store.best()) == ([1, 3], 1)


def test_saving_a_step_again_replaces_it(store):
    store.save(checkpoint(4, value=1.0))
    store.save(checkpoint(4, value=2.0))
    assert store.load(4).tensors["model"]["a"].tolist() == [4.0, 2.0]
    assert names(store) == ["step-00000004"]


def test_damaged_newest_is_passed_over_with_a_warning(store):
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    (store.path_of(2) / "model.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"passing over checkpoint 2: .*step-00000002/model\.safetensors is damaged"):
        assert store.latest().step == 1


def test_when_all_are_damaged_nothing_is_made_up(store):
    store.save(checkpoint(1))
    (store.path_of(1) / "manifest.json").unlink()
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match=r"none of the 1 checkpoints in .* is whole"):
        store.latest()


def test_moved_and_foreign_checkpoints_are_not_taken(store, tmp_path):
    store.save(checkpoint(1))
    shutil.copytree(store.path_of(1), store.path_of(2))
    with pytest.raises(CheckpointError, match="holds step 1: it was moved there from elsewhere"):
        store.load(2)
    other = CheckpointStore(store.path, "run-2")
    other.save(checkpoint(3, run_id="run-2"))
    with pytest.raises(CheckpointError, match="belongs to run run-2, this is run run-1"):
        store.load(3)


def test_other_names_are_no_checkpoints(store):
    store.save(checkpoint(1))
    for name in ("step-5", "step-000000001", "step-0000000x", "notes", ".writing-step-00000009"):
        (store.path / name).mkdir()
    assert store.steps() == [1]


def test_recover_clears_what_a_killed_save_left_and_takes_back_what_it_had_moved(store):
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    shutil.copytree(store.path_of(2), store.path / ".writing-step-00000003")
    shutil.copytree(store.path_of(2), store.path / ".removing-step-00000000")
    shutil.copytree(store.path_of(2), store.path / ".replaced-step-00000002")
    store.path_of(1).rename(store.path / ".replaced-step-00000001")
    store.recover()
    assert names(store) == ["step-00000001", "step-00000002"]
    assert store.load(1).step == 1


def test_set_aside_keeps_everything(store):
    for step in (1, 2):
        store.save(checkpoint(step))
    store.set_aside_after(1)
    store.save(checkpoint(2))
    store.set_aside_after(1)
    assert store.steps() == [1]
    assert sorted(path.name for path in (store.path / "set-aside").iterdir()) == ["step-00000002.1", "step-00000002.2"]


@pytest.fixture
def failing(monkeypatch):
    """Make the n-th call of an operation fail, as a full or broken disk would."""

    def fail(owner, name, number, code):
        real, calls = getattr(owner, name), []

        def broken(*args, **kwargs):
            calls.append(args)
            if len(calls) == number:
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, broken)
        return calls

    return fail


# One save: 5 files (model, optimizer, state, clock, manifest), then the directory, two renames at most, the parent.
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EPERM])
@pytest.mark.parametrize(
    ("operation", "number"), [("fsync", n) for n in range(1, 8)] + [("rename", 1), ("rename", 2), ("mkdir", 1)]
)
def test_failing_save_leaves_the_checkpoints_that_were(store, failing, monkeypatch, operation, number, code, again):
    if operation == "rename" and number == 2 and not again:
        return  # a new step needs one rename only
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    with monkeypatch.context():
        owner = os if operation == "fsync" else type(store.path)
        calls = failing(owner, operation, number + (operation == "mkdir"), code)
        with pytest.raises(RunError) as error:
            store.save(checkpoint(2 if again else 3, value=5.0))
        assert len(calls) >= number
    step = "00000002" if again else "00000003"
    assert f"cannot write the checkpoint {store.path}/step-{step}: {os.strerror(code)}. The checkpoint of" in str(
        error.value
    )
    monkeypatch.undo()
    store.recover()
    assert all(not name.startswith(".") for name in names(store))
    assert store.load(1).step == 1
    found = store.latest()
    if not again:
        assert found.step == 2 or (operation, number) == ("fsync", 7)
    else:
        assert found.tensors["model"]["a"].tolist() in ([2.0, 1.0], [2.0, 5.0])
    store.save(checkpoint(4))
    assert store.latest().step == 4


def test_full_disk_in_the_middle_of_a_file(store, monkeypatch):
    store.save(checkpoint(1))

    def half(path, content):
        path.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    from dagnn.training.run import checkpoints as module

    monkeypatch.setattr(module, "write_new", half)
    with pytest.raises(
        RunError, match=r"step-00000002: No space left on device\. The checkpoint of step 1 is untouched"
    ):
        store.save(checkpoint(2))
    assert names(store) == ["step-00000001"]
    assert store.latest().step == 1


def test_first_save_on_a_full_disk(store, failing):
    failing(os, "fsync", 1, errno.ENOSPC)
    with pytest.raises(RunError, match="No earlier checkpoint exists"):
        store.save(checkpoint(1))
    assert store.steps() == []


def test_old_checkpoint_that_cannot_be_removed_is_a_warning(store, monkeypatch):
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    rename = type(store.path).rename

    def stuck(path, target):
        if path.name == "step-00000001":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return rename(path, target)

    monkeypatch.setattr(type(store.path), "rename", stuck)
    with pytest.warns(UserWarning, match="cannot remove the old checkpoint .*step-00000001: Operation not permitted"):
        store.save(checkpoint(3))
    assert store.steps() == [1, 2, 3]


def test_order_of_a_save(store, monkeypatch):
    """Files, manifest, directory, rename, parent, and only then the removal of what is too old."""
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    events = []
    fsync, rename, remove = os.fsync, type(store.path).rename, checkpoint_store.remove_tree

    def name_of(descriptor):
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(("fsync", name_of(fd))), fsync(fd))[1])
    monkeypatch.setattr(
        type(store.path), "rename", lambda path, to: (events.append(("rename", path.name)), rename(path, to))[1]
    )
    monkeypatch.setattr(
        checkpoint_store,
        "remove_tree",
        lambda path: (path.exists() and events.append(("remove", path.name)), remove(path))[1],
    )
    store.save(checkpoint(3))
    assert events == [
        ("fsync", "model.safetensors"),
        ("fsync", "optimizer.safetensors"),
        ("fsync", "state.json"),
        ("fsync", "clock.json"),
        ("fsync", "manifest.json"),
        ("fsync", ".writing-step-00000003"),
        ("rename", ".writing-step-00000003"),
        ("fsync", "checkpoints"),
        ("rename", "step-00000001"),
        ("remove", ".removing-step-00000001"),
    ]


@pytest.mark.fault("training_and_command", 2)
def test_foreign_checkpoints_are_neither_counted_nor_ranked_nor_touched(tmp_path):
    """Whole ones of another run, with high steps and scores; own ones copied and renamed; parts of any."""
    store = CheckpointStore(tmp_path / "c", "run-1", keep_last=1, keep_best=1)
    store.save(checkpoint(1, 0.5))
    CheckpointStore(store.path, "run-2", keep_last=9).save(checkpoint(5000, 0.9, run_id="run-2"))
    CheckpointStore(store.path, "run-2", keep_last=9).save(checkpoint(2, 0.9, run_id="run-2"))
    shutil.copytree(store.path_of(1), store.path / "step-00000900")
    (store.path / "step-00000800").mkdir()
    (store.path / ".my-step-00000003").mkdir()
    (store.path / ".replaced-notes-step-00000003").mkdir()
    before = {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}
    assert (store.best(), store.steps(), store.all_steps()) == (1, [1, 800], [1, 2, 800, 900, 5000])
    store.recover()
    for step in (3, 4, 5):
        store.save(checkpoint(step, 0.1))
        assert store.load(step).step == step
    with pytest.warns(UserWarning, match="passing over checkpoint"):
        assert store.latest().step == 5
    assert store.best() == 1
    store.set_aside_after(5)
    foreign = [path for path in before if "step-00000001" not in path.parts]
    assert foreign and all(path.read_bytes() == before[path] for path in foreign)
    assert names(store) == sorted(
        [f"step-{step:08d}" for step in (1, 2, 5, 900, 5000)]
        + ["set-aside", ".my-step-00000003", ".replaced-notes-step-00000003"]
    )
    assert [path.name for path in (store.path / "set-aside").iterdir()] == ["step-00000800.1"]


@pytest.mark.fault("training_and_command", 2)
def test_a_foreign_checkpoint_in_the_place_of_an_own_one_is_set_aside(store):
    CheckpointStore(store.path.parent / "o", "run-2").save(checkpoint(4, run_id="run-2"))
    store.path.mkdir()
    (store.path.parent / "o" / "step-00000004").rename(store.path / "step-00000004")
    with pytest.warns(UserWarning, match="belongs to run run-2"):
        assert store.latest() is None  # the run itself has none yet
    store.save(checkpoint(4))
    assert store.latest().run_id == "run-1"
    kept = CheckpointStore(store.path / "set-aside", "run-2").path / "step-00000004.1" / "state.json"
    assert kept.exists()


@pytest.mark.fault("training_and_command", 2)
def test_a_later_checkpoint_of_the_run_put_back_by_hand_does_not_remove_what_is_saved(store):
    for step in (1, 2):
        store.save(checkpoint(step))
    store.set_aside_after(1)
    store.keep_last = 1
    (store.path / "set-aside" / "step-00000002.1").rename(store.path_of(2))
    shutil.copytree(store.path_of(2), store.path.parent / "kept")
    store.save(checkpoint(1, value=3.0))
    assert store.load(1).tensors["model"]["a"].tolist() == [1.0, 3.0]
    assert store.steps() == [1, 2]
