"""The network of a run as a program of torch.export: it computes the same, in a process without dagnn."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from precision import assert_rounded

from dagnn.cli import main
from dagnn.commands.run import DESCRIPTION, export_program
from dagnn.curriculum.accuracy import model_of
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.run import train
from dagnn.errors import CheckpointError, RunError
from dagnn.training.run.checkpoint_commands import checkpoint_of
from dagnn.training.run.directory import RunDirectory
from dagnn.training.run.tensors import load_model

LOAD = """
import json, sys, torch
described = {"description.json": ""}
program = torch.export.load(sys.argv[1], extra_files=described).module()
rows = torch.load(sys.argv[2])
torch.save([program(each).detach() for each in rows], sys.argv[3])
assert not any(name.startswith("dagnn") for name in sys.modules)
print(described["description.json"])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "run"
    flags = {"run_directory": str(path), "max_steps": 3, "batch_size": 16, "threads": 1, "eval_every": 0}
    flags |= {"curriculum.levels": [1], "curriculum.preset": "small", "curriculum.samples": [40], "test_samples": 1}
    flags |= {"curriculum.certify": False}
    flags |= {"model.width": 16, "schedule.name": "constant", "checkpoint.keep_best": 0}
    train(CurriculumConfig.resolve(environment={}, flags=flags), note=lambda line: None)
    return path


def test_program_computes_the_same_in_a_fresh_process_for_any_batch(run, tmp_path, capsys):
    target = tmp_path / "network.pt2"
    assert main(["checkpoint", "export", str(run), str(target), "--format", "torch-export"]) == 0
    model = model_of(checkpoint_of(run))
    assert capsys.readouterr().out == f"a network of {model.num_parameters():,} parameters in {target}\n"

    rows = [torch.randint(0, model.features.num_rows, size) for size in ((1, 1), (1, 6), (7, 1), (5, 9), (0, 4))]
    torch.save(rows, tmp_path / "rows")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, target, tmp_path / "rows", tmp_path / "logits"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    exact = copy.deepcopy(model).double()
    for found, given in zip(torch.load(tmp_path / "logits"), rows, strict=True):
        # To rounding: how numbers lie in memory decides in what order MKL adds them.
        assert_rounded(found, lambda given=given: exact(given))
    described = json.loads(done.stdout)
    assert (described["run"], described["step"]) == (RunDirectory.read(run).run_id, 3)
    assert described["features"] == model.features.known


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_program_has_the_averaged_weights_or_those_of_the_last_step(run, tmp_path):
    checkpoint = checkpoint_of(run)
    model = model_of(checkpoint)
    rows = torch.randint(0, model.features.num_rows, (4, 5))
    averages = model(rows)
    for averaged in (True, False):
        if not averaged:
            load_model(model, checkpoint.tensors["model"])
            assert (model(rows) - averages).abs().max() > 1e-3
        target = tmp_path / str(averaged)
        newest = run / "checkpoints" / "step-00000003"
        assert export_program(newest, target, averaged=averaged) == model.num_parameters()
        program = torch.export.load(target, extra_files={DESCRIPTION: ""}).module()
        exact = copy.deepcopy(model).double()
        assert_rounded(program(rows), lambda exact=exact: exact(rows))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_dagnn_export_takes_a_run(run, tmp_path, capsys):
    target = tmp_path / "network.pt2"
    assert main(["export", str(run), str(target)]) == 0
    assert capsys.readouterr().out.endswith(f" parameters in {target}\n")
    before = target.read_bytes()
    assert main(["export", str(run), str(target)]) == 2
    assert "File exists" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert main(["export", str(run), str(target), "--overwrite"]) == 0
    for out, more in (("network.c", []), ("network.onnx", []), ("other.pt2", ["--name", "net"])):
        assert main(["export", str(run), str(tmp_path / out), *more]) == 2
        assert "a file that ends in .pt2" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["network.pt2"]


def test_program_never_overwrites_and_leaves_nothing_behind(run, tmp_path):
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(RunError, match=r"cannot write .*taken: File exists"):
        export_program(run, tmp_path / "taken")
    with pytest.raises(RunError, match=r"cannot write .*absent/network: No such file"):
        export_program(run, tmp_path / "absent" / "network")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_checkpoint_of_another_model_is_told(tmp_path):
    from small_training import begin_or_go_on

    begin_or_go_on(tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds no GraphRewriter"):
        export_program(tmp_path / "run", tmp_path / "network")
