"""What `dagnn info` says of a run: step, level, and parameters by module."""

import pytest
import torch
from torch import nn

from dagnn.commands.run import info, parameters_by_module, vector_widths
from dagnn.errors import CheckpointError, RunError
from dagnn.kernels.emit.native import Target
from dagnn.training.config import TrainingConfig
from dagnn.training.counters import StagePromotion
from dagnn.training.run.checkpoints import Checkpoint, CheckpointStore, read_checkpoint
from dagnn.training.run.directory import RunDirectory
from dagnn.training.run.tensors import model_tensors, optimizer_state


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(3, 2)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


@pytest.fixture
def run(tmp_path):
    network = Network()
    optimizer = torch.optim.AdamW(network.named_parameters())
    promotion = StagePromotion((1, 2, 3), minimum_steps=0)
    promotion.observe(10, {1: 1.0})
    with RunDirectory.create(tmp_path / "run", TrainingConfig()) as directory:
        store = CheckpointStore(directory.checkpoints_path, directory.run_id)
        for step in (500, 1500):
            state = {"optimizer": optimizer_state(optimizer, network)[1], "promotion": promotion.state_dict()}
            clock = {"seconds": 60.0, "cpu_seconds": 1234.5}
            tensors = {"model": model_tensors(network)}
            store.save(Checkpoint(directory.run_id, step, 0.5, tensors, state, clock))
    return directory


def test_run_is_described_by_its_newest_checkpoint(run):
    assert info(run.path).splitlines() == [
        f"run {run.run_id} in {run.path}",
        f"step 1,500 of 3,000, in {run.checkpoints_path / 'step-00001500'}",
        "checkpoints of the steps 500, 1,500",
        "level 2 of 3 (progressive)",
        "score 0.5000",
        "60 seconds, 1,234 of the CPU",
        "",
        "37 parameters",
        "  (the model itself)             5",
        "  head                           8",
        "  body.0                        16",
        "  body.1                         8",
    ]


def test_widths_of_vectors_are_a_line_each(monkeypatch):
    monkeypatch.setattr("dagnn.commands.run.host_target", lambda: Target("", "", vector_bytes=32, fma=True))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "AVX2")
    monkeypatch.setenv("DAGNN_VECTOR_BYTES", "32")
    assert vector_widths() == [
        "vectors of our kernels: 32 bytes (DAGNN_VECTOR_BYTES=32)",
        f"PyTorch's CPU capability: {torch.backends.cpu.get_cpu_capability()}",
        "MKL's instructions: AVX2",
    ]

    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS")
    monkeypatch.delenv("DAGNN_VECTOR_BYTES")
    kernels, _, mkl = vector_widths()
    assert kernels == "vectors of our kernels: 32 bytes"
    assert mkl == "MKL's instructions: the processor's best (MKL_ENABLE_INSTRUCTIONS is not set)"

    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert vector_widths()[2] == "MKL's instructions: none in this PyTorch"


def test_one_checkpoint_is_described(run):
    lines = info(run.checkpoints_path / "step-00000500").splitlines()

    assert lines[1].startswith("step 500 of 3,000")
    assert lines[2] == "level 2 of 3 (progressive)"


def test_run_without_a_checkpoint_says_so(tmp_path):
    RunDirectory.create(tmp_path / "run", TrainingConfig()).close()

    assert info(tmp_path / "run").splitlines()[1:] == ["no checkpoint yet"]


def test_missing_run_or_checkpoint_is_an_error(run, tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        info(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint of step 700: it has 500, 1500"):
        info(run.checkpoints_path / "step-00000700")


def test_checkpoint_of_another_form_is_an_error(run):
    checkpoint = read_checkpoint(run.checkpoints_path / "step-00000500")

    assert sum(parameters_by_module(checkpoint).values()) == 37
    with pytest.raises(CheckpointError, match="the checkpoint of step 500 has another form"):
        parameters_by_module(Checkpoint("r", 500, None, checkpoint.tensors, {}))
