"""A checkpoint of every released version is kept, and is read, verified and gone on with by this one.

`golden/<version>` is the small job of tests/small_training.py, stopped after step 10 by that version.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from small_training import NUM_STEPS, small_trainer

from dagnn import __version__
from dagnn.curriculum.config import CurriculumConfig
from dagnn.training.log import read_metrics
from dagnn.training.run.checkpoint_commands import list_checkpoints, verify
from dagnn.training.run.checkpoints import FORMAT, read_checkpoint
from dagnn.training.run.directory import RunDirectory

GOLDEN = sorted((Path(__file__).parent / "golden").iterdir())


def test_this_format_has_its_golden_checkpoint():
    formats = {
        json.loads(path.read_bytes())["format"] for run in GOLDEN for path in run.glob("checkpoints/*/manifest*")
    }
    assert formats == set(range(1, FORMAT + 1))
    assert __version__.split(".")[:2] <= GOLDEN[-1].name.split(".")[:2]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_it_holds_what_it_held(golden):
    assert verify(golden)[0].startswith("step 10 is whole")
    assert list_checkpoints(golden)[0].startswith("step 10")
    checkpoint = read_checkpoint(golden / "checkpoints" / "step-00000010")
    assert (checkpoint.run_id, checkpoint.step) == (RunDirectory.read(golden).run_id, 10)
    assert sorted(checkpoint.tensors) == ["ema", "model", "optimizer"]
    assert {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors["model"].items()} == {
        "0.weight": (6, 4),
        "0.bias": (6,),
        "1.mean": (6,),
        "4.weight": (1, 6),
        "4.bias": (1,),
    }
    assert all(torch.isfinite(tensor).all() for group in checkpoint.tensors.values() for tensor in group.values())
    assert checkpoint.state["promotion"]["open"] == 2
    assert checkpoint.state["counters"]["step"] == 10


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_it_is_gone_on_with(golden, tmp_path):
    shutil.copytree(golden, tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as run:
        # As `dagnn train --resume`: defaults may have changed since.
        trainer = small_trainer(run, run.config(CurriculumConfig))
        assert trainer.resume()
        result = trainer.fit()
    assert result.step == NUM_STEPS
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, NUM_STEPS + 1))
    assert rows[: len(read_metrics(golden / "metrics.jsonl"))] == read_metrics(golden / "metrics.jsonl")
