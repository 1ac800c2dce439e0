"""Files lost, emptied or swapped between checkpoints of one run: noticed, and the older checkpoint is taken."""

import shutil

import pytest
from small_training import begin_or_go_on, outcome, small_trainer

from dagnn.cli import main
from dagnn.errors import CheckpointError
from dagnn.training import RunDirectory
from dagnn.training.run.checkpoints import CheckpointStore

FILES = ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json", "clock.json", "manifest.json"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    begin_or_go_on(path)
    return path


def lose(newest, older, file):
    (newest / file).unlink()


def empty(newest, older, file):
    (newest / file).write_bytes(b"")


def swap(newest, older, file):
    shutil.copy(older / file, newest / file)


@pytest.mark.parametrize("damage", [lose, empty, swap])
@pytest.mark.parametrize("file", FILES)
def test_damaged_newest_is_noticed_and_the_older_taken(trained, tmp_path, capsys, damage, file):
    shutil.copytree(trained, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    newest, older = checkpoints / "step-00000021", checkpoints / "step-00000020"
    damage(newest, older, file)
    store = CheckpointStore(checkpoints, RunDirectory.read(tmp_path / "run").run_id)
    with pytest.raises(CheckpointError, match="step-00000021"):
        store.load(21)
    with pytest.warns(UserWarning, match=r"passing over checkpoint 21: .*step-00000021"):
        assert store.latest().step == 20
    assert main(["checkpoint", "verify", str(tmp_path / "run")]) == 2
    assert "step-00000021" in capsys.readouterr().err


def test_damage_is_seen_before_the_trainer_changes_and_the_run_ends_with_the_same_bytes(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    for step in (18, 20, 21):
        (tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "optimizer.safetensors").write_bytes(b"")
    with RunDirectory.open(tmp_path / "run") as run:
        trainer = small_trainer(run)
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none of the 3 checkpoints"):
            trainer.resume()
        assert all((a == b).all() for a, b in zip(before, trainer.model.parameters(), strict=True))
    shutil.copytree(trained, tmp_path / "again")
    lose(tmp_path / "again" / "checkpoints" / "step-00000021", None, "manifest.json")
    with pytest.warns(UserWarning, match="passing over checkpoint 21"):
        begin_or_go_on(tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(trained)
