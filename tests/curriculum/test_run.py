"""The main job in small: it learns, it repeats itself to the byte, and Ctrl-C costs nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_curriculum import SMALL, config_of, last_bytes, rows_without_clock

from dagnn.cli import main
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.evaluation_file import Evaluation
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.run import train
from dagnn.errors import ConfigError, RunError
from dagnn.rewriting.dataset import FILE_NAME, read_neighbourhoods
from dagnn.training.log import read_metrics
from dagnn.training.run.checkpoints import read_checkpoint
from dagnn.training.run.directory import RunDirectory


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "small"
    return path, train(config_of(path), note=lambda line: None)


def test_loss_falls_and_weights_change(finished):
    path, _ = finished
    losses = [row["loss"] for row in read_metrics(path / "metrics.jsonl") if row["kind"] == "step"]
    assert len(losses) == 24
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    first, last = (read_checkpoint(path / "checkpoints" / f"step-{step:08d}") for step in (15, 24))
    changed = [
        name for name, tensor in last.tensors["model"].items() if not torch.equal(tensor, first.tensors["model"][name])
    ]
    assert len(changed) == len(last.tensors["model"])


def test_the_run_holds_its_evaluation_of_every_level(finished):
    path, evaluation = finished
    assert Evaluation.read(path) == evaluation
    assert sorted(evaluation.levels) == [1, 2, 3, 4, 5, 6, 7]
    assert all(result.expressions == 3 and len(result.examples) == 3 for result in evaluation.levels.values())
    assert evaluation.step == 24
    assert evaluation.parameters == sum(
        tensor.numel() for tensor in read_checkpoint(path / "checkpoints/step-00000024").tensors["model"].values()
    )


@pytest.mark.fault("training_and_command", 9)
def test_a_resume_of_a_complete_run_says_that_no_step_was_left(finished):
    path, evaluation = finished
    before, notes = rows_without_clock(path), []
    assert train(config_of(path), resume=True, note=notes.append) == evaluation  # not asked again
    assert notes == ["no step was left: the run ended at step 24; --max-steps with more goes on"]
    assert rows_without_clock(path) == before


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(finished, tmp_path):
    path, _ = finished
    train(config_of(tmp_path / "same"), note=lambda line: None)
    train(config_of(tmp_path / "other", seed=1, max_steps=6, eval_every=0, test_samples=1), note=lambda line: None)
    assert last_bytes(tmp_path / "same") == last_bytes(path)
    assert rows_without_clock(tmp_path / "same") == rows_without_clock(path)
    losses = [
        [row["loss"] for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "step"][:5]
        for run in (path, tmp_path / "other")
    ]
    assert all(one != other for one, other in zip(*losses, strict=True))


def test_accumulated_micro_batches_train_like_the_whole_batch(tmp_path):
    """Sums in another order: equal to rounding, through every step."""
    for count in (1, 4):
        train(config_of(tmp_path / str(count), micro_batches=count, max_steps=8), note=lambda line: None)
    whole, parts = (
        [row["loss"] for row in read_metrics(tmp_path / count / "metrics.jsonl") if row["kind"] == "step"]
        for count in ("1", "4")
    )
    assert len(whole) == 8
    assert parts == pytest.approx(whole, rel=1e-4)
    first, other = (
        read_checkpoint(tmp_path / count / "checkpoints/step-00000008").tensors["model"] for count in ("1", "4")
    )
    for name, tensor in first.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("alignment", ["order", "searched"])
def test_both_alignments_and_all_loss_terms_train(tmp_path, alignment):
    changes = {"loss__alignment": alignment, "loss__beta": 0.5, "loss__gamma": 0.1, "max_steps": 8}
    train(config_of(tmp_path / "run", **changes), note=lambda line: None)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run/metrics.jsonl") if row["kind"] == "step"]
    assert losses[-1] < losses[0]


def test_a_progressive_run_opens_a_level_when_the_newest_is_learned(tmp_path):
    config = config_of(
        tmp_path / "run",
        curriculum__order="progressive",
        curriculum__levels=[1, 2],
        curriculum__samples=[300],
        curriculum__threshold=0.5,
        curriculum__minimum_steps=50,
        model__width=64,
        batch_size=128,
        ema_decay=0.9,
        optimizer__lr=5e-3,
        schedule__name="constant",
        eval_every=50,
        eval_samples=10,
        max_steps=250,
        checkpoint__save_every=0,
    )
    evaluation = train(config, note=lambda line: None)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    (promoted,) = [row for row in rows if row["kind"] == "promotion"]
    assert promoted["level"] == 2
    asked = [row for row in rows if row["kind"] == "evaluation" and "accuracy/1" in row]
    assert next(row["step"] for row in asked if row["accuracy/1"] >= 0.5) == promoted["step"]
    levels = [row["level"] for row in rows if row["kind"] == "step"]
    assert levels == [1] * promoted["step"] + [2] * (250 - promoted["step"])
    assert evaluation.levels[2].samples_seen == 300


def test_levels_that_never_opened_were_not_learned_from(tmp_path):
    config = config_of(tmp_path / "run", curriculum__order="progressive", max_steps=6)
    evaluation = train(config, note=lambda line: None)
    assert [result.samples_seen for result in evaluation.levels.values()] == [30, 0, 0, 0, 0, 0, 0]


def test_too_few_slots_are_refused_with_the_number_needed(tmp_path):
    with pytest.raises(ConfigError, match=r"num_slots = 4: the longest replacement has \d+ nodes"):
        train(config_of(tmp_path / "run", model__num_slots=4), note=lambda line: None)


def command(path, *extra) -> list[str]:
    flags = [
        word
        for key, value in SMALL.items()
        for word in (f"--{key.replace('_', '-')}", *(map(str, value) if isinstance(value, list) else (str(value),)))
    ]
    return [sys.executable, "-m", "dagnn.cli", "train", "--run-directory", str(path), *flags, *extra]


def test_ctrl_c_and_resume_give_the_bytes_of_never_stopping(tmp_path):
    train(
        config_of(tmp_path / "whole", max_steps=120, eval_every=60, checkpoint__save_every=50), note=lambda line: None
    )

    steps = ["--max-steps", "120", "--eval-every", "60", "--checkpoint.save-every", "50"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    stopped = subprocess.Popen(command(tmp_path / "stopped", *steps), **options)
    metrics = tmp_path / "stopped/metrics.jsonl"
    while stopped.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < 10):
        time.sleep(0.01)
    stopped.send_signal(signal.SIGINT)
    _, told = stopped.communicate()
    assert stopped.returncode == 130, told
    assert "Traceback" not in told
    assert not (tmp_path / "stopped/evaluation.json").exists()

    assert main(["train", "--resume", str(tmp_path / "stopped")]) == 0
    assert last_bytes(tmp_path / "stopped") == last_bytes(tmp_path / "whole")
    assert rows_without_clock(tmp_path / "stopped") == rows_without_clock(tmp_path / "whole")
    levels = [json.loads((tmp_path / run / "evaluation.json").read_text())["levels"] for run in ("stopped", "whole")]
    accuracies = [{level: result["accuracy"] for level, result in each.items()} for each in levels]
    assert accuracies[0] == accuracies[1]


def test_a_used_run_directory_is_refused_and_left_alone(finished):
    path, _ = finished
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match=r"already holds a run: go on with --resume .*, or choose another"):
        train(config_of(path), note=lambda line: None)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_neighbourhoods_are_read_again_and_a_damaged_file_is_traced_again(finished):
    path, _ = finished
    kept = read_neighbourhoods(path, SIGNATURE)
    assert kept is not None
    collected, cost = kept
    assert len(collected) > 500
    assert cost.seconds > 0
    content = (path / FILE_NAME).read_bytes()
    try:
        (path / FILE_NAME).write_bytes(content[: len(content) // 2])
        assert read_neighbourhoods(path, SIGNATURE) is None
        evaluation = train(RunDirectory.read(path).config(CurriculumConfig), resume=True, note=lambda line: None)
        assert evaluation.step == 24
        again = read_neighbourhoods(path, SIGNATURE)
        assert again is not None
        assert again[0].neighbourhoods == collected.neighbourhoods
        assert (again[0].counts == collected.counts).all()
    finally:
        (path / FILE_NAME).write_bytes(content)
