"""`dagnn checkpoint`: verify, list, export; importing is tested with what strangers send, in tests/faults."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from small_training import begin_or_go_on

from dagnn.cli import main
from dagnn.errors import CheckpointError, RunError
from dagnn.training.run.checkpoint_commands import export_weights, list_checkpoints, verify, write_weights
from dagnn.training.run.checkpoints import CheckpointStore
from dagnn.training.run.directory import RunDirectory


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    begin_or_go_on(path)
    return path


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def test_verify_looks_at_every_checkpoint_of_a_run(run, capsys):
    assert [line.split(":")[0] for line in verify(run)] == [f"step {step} is whole" for step in (18, 20, 21)]
    assert main(["checkpoint", "verify", str(run)]) == 0
    assert capsys.readouterr().out.count("is whole") == 3


def test_one_checkpoint_is_verified_in_its_run_and_away_from_it(run, tmp_path):
    newest = run / "checkpoints" / "step-00000021"
    assert len(verify(newest)) == 1
    shutil.move(newest, tmp_path / "elsewhere")
    assert verify(tmp_path / "elsewhere")[0].startswith("step 21 is whole: 5 files")


def test_verify_names_every_damaged_file_with_exit_code_2(run, capsys):
    for name, file in (("step-00000018", "model.safetensors"), ("step-00000021", "clock.json")):
        place = run / "checkpoints" / name / file
        place.write_bytes(place.read_bytes()[:-1] + b"?")
    assert main(["checkpoint", "verify", str(run)]) == 2
    told = capsys.readouterr().err
    assert "step-00000018/model.safetensors is damaged" in told and "step-00000021/clock.json is damaged" in told
    assert told.count("\n") == 1


def test_verify_finds_checkpoints_that_were_moved_or_belong_to_others(run, trained):
    checkpoints = run / "checkpoints"
    shutil.rmtree(checkpoints / "step-00000018")
    (checkpoints / "step-00000020").rename(checkpoints / "step-00000018")
    with pytest.raises(CheckpointError, match="step-00000018 holds step 20: it was moved"):
        verify(run)
    (run / "run.json").write_text('{"run": "other"}')
    with pytest.raises(CheckpointError, match=r"belongs to run .*, this is run other"):
        verify(checkpoints / "step-00000021")


def test_list_tells_step_score_size_newest_and_best(run, capsys):
    lines = list_checkpoints(run)
    assert [line.split("  ")[0] for line in lines] == ["step 18", "step 20", "step 21"]
    assert "accuracy 0." in lines[2] and lines[2].endswith("bytes  newest") and lines[1].endswith("bytes  best")
    (run / "checkpoints" / "step-00000020" / "manifest.json").write_text("{}")
    assert main(["checkpoint", "list", str(run)]) == 0
    assert "step 20  damaged: " in capsys.readouterr().out


def test_run_without_checkpoints_and_no_run(tmp_path):
    from small_training import small_config

    RunDirectory.create(tmp_path / "run", small_config()).close()
    assert verify(tmp_path / "run") == list_checkpoints(tmp_path / "run") == ["no checkpoint yet"]
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        export_weights(tmp_path / "run", tmp_path / "w")
    with pytest.raises(RunError, match="holds no run"):
        verify(tmp_path / "none")


def test_export_gives_the_averaged_weights_or_those_of_the_last_step(run, tmp_path, capsys):
    store = CheckpointStore(run / "checkpoints", RunDirectory.read(run).run_id)
    tensors = store.load(21).tensors
    assert main(["checkpoint", "export", str(run), str(tmp_path / "averaged")]) == 0
    assert capsys.readouterr().out == f"5 tensors in {tmp_path / 'averaged'}\n"
    for name, tensor in load_file(tmp_path / "averaged").items():
        assert torch.equal(tensor, tensors["ema"].get(name, tensors["model"][name]))
    export_weights(run / "checkpoints" / "step-00000021", tmp_path / "last", averaged=False)
    assert all(torch.equal(tensor, tensors["model"][name]) for name, tensor in load_file(tmp_path / "last").items())


def test_export_never_overwrites_and_leaves_nothing_behind(run, tmp_path):
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(RunError, match=r"cannot write .*taken: File exists"):
        export_weights(run, tmp_path / "taken")
    with pytest.raises(RunError, match=r"cannot write .*absent/w"):
        export_weights(run, tmp_path / "absent" / "w")
    assert (tmp_path / "taken").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


def test_weights_read_from_a_file_and_written_again_are_the_same(tmp_path):
    write_weights(tmp_path / "a", {"w": torch.randn(300)}, {})
    write_weights(tmp_path / "b", load_file(tmp_path / "a"), {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_subcommands_are_listed_and_a_misspelt_one_gets_a_suggestion(capsys):
    assert main(["checkpoint"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")] == [
        "verify", "list", "export", "import",
    ]  # fmt: skip
    assert main(["checkpoint", "verfy"]) == 2
    assert "did you mean verify?" in capsys.readouterr().err
    assert main(["checkpoint", "zzz"]) == 2
    assert "the commands are verify, list, export, import" in capsys.readouterr().err
    for name in ("verify", "list", "export", "import"):
        assert main(["checkpoint", name, "--help"]) == 0
