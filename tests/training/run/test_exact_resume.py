"""Stopped anywhere and resumed, a training ends with the same bytes as one that never stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_training import NUM_STEPS, begin_or_go_on, outcome, small_config, small_trainer

from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.training import RunDirectory, StagePromotion, TrainingInterrupted
from dagnn.training.log import read_metrics
from dagnn.training.optimizers import make_schedule

SCRIPT = Path(__file__).parents[2] / "small_training.py"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    begin_or_go_on(directory)
    return outcome(directory)


def stopping_at(step):
    """A hook that asks for a stop in the forward pass after optimizer step ``step - 1``."""

    def during_step(trainer):
        if trainer.step == step - 1:
            trainer.stop.request()

    return during_step


def test_the_job_has_all_that_may_be_forgotten(uninterrupted):
    _, score, files, rows = uninterrupted
    assert set(files) == {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"}
    assert {row["level"] for row in rows if row["kind"] == "step"} == {1, 2, 3}
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, NUM_STEPS + 1))
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [4, 8, 12, 16, 20, 21]
    assert {row["weight"] for row in rows if row["kind"] == "step"} == {7, 8}
    assert score == rows[-1]["accuracy"]


def test_same_seed_twice_gives_the_same_bytes(uninterrupted, tmp_path):
    begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


# Beside the first and the last: before, at and after an evaluation, a checkpoint, a new level. The test below stops
# after each step in turn.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in (1, 3, 4, 5, 12, 20, 21) else pytest.mark.slow)
        for step in range(1, NUM_STEPS + 1)
    ],
)
def test_stop_after_any_step_and_resume(uninterrupted, tmp_path, step):
    with pytest.raises(TrainingInterrupted) as interrupted:
        begin_or_go_on(tmp_path / "run", during_step=stopping_at(step))
    assert (interrupted.value.step, interrupted.value.exit_code) == (step, 130)
    begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_stop_after_every_step(uninterrupted, tmp_path):
    for step in range(1, NUM_STEPS + 1):
        with pytest.raises(TrainingInterrupted):
            begin_or_go_on(tmp_path / "run", during_step=stopping_at(step))
    begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_stop_before_the_first_step(uninterrupted, tmp_path):
    with RunDirectory.create(tmp_path / "run", small_config()) as run:
        trainer = small_trainer(run)
        trainer.stop.request(signal.SIGTERM)
        with pytest.raises(TrainingInterrupted, match=r"stopped by SIGTERM at step 0; saved in .*step-00000000"):
            trainer.fit()
    begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("step", [4, 12, 21])
def test_signal_inside_an_evaluation(uninterrupted, tmp_path, step):
    def during_evaluation(trainer):
        if trainer.step == step:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

    with pytest.raises(TrainingInterrupted):
        begin_or_go_on(tmp_path / "run", during_evaluation=during_evaluation)
    begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_stopped_and_continued_in_one_process(uninterrupted, tmp_path):
    with RunDirectory.create(tmp_path / "run", small_config()) as run:
        trainer = small_trainer(run, during_step=lambda trainer: trainer.stop.request() if trainer.step == 9 else None)
        with pytest.raises(TrainingInterrupted):
            trainer.fit()
        result = trainer.fit()
    assert result.step == NUM_STEPS
    assert outcome(tmp_path / "run") == uninterrupted


def test_resume_from_a_chosen_step_sets_later_checkpoints_aside(uninterrupted, tmp_path):
    begin_or_go_on(tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    first, *later = sorted(path.name for path in checkpoints.glob("step-*"))
    assert len(later) == 2
    with RunDirectory.open(tmp_path / "run") as run:
        trainer = small_trainer(run)
        trainer.resume(int(first.removeprefix("step-")))
        aside = sorted(path.name for path in (checkpoints / "set-aside").iterdir())
        assert aside == [f"{name}.1" for name in later]
        trainer.fit()
    assert outcome(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_damaged_newest_checkpoint_is_passed_over(uninterrupted, tmp_path, file):
    begin_or_go_on(tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-00000021" / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.warns(UserWarning, match=f"passing over checkpoint 21: .*{file} is damaged"):
        begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted
    assert (tmp_path / "run" / "checkpoints" / "set-aside" / "step-00000021.1" / file).exists()


def test_every_checkpoint_damaged_is_an_error_and_not_a_new_beginning(tmp_path):
    begin_or_go_on(tmp_path / "run")
    for model in (tmp_path / "run" / "checkpoints").glob("step-*/model.safetensors"):
        model.unlink()
    with pytest.warns(UserWarning, match="passing over"), pytest.raises(CheckpointError, match="none of the 3 checkp"):
        begin_or_go_on(tmp_path / "run")


def test_fit_refuses_to_begin_over_checkpoints(tmp_path):
    begin_or_go_on(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as run, pytest.raises(RunError, match="call resume"):
        small_trainer(run).fit()


def test_resume_with_other_settings_is_refused(tmp_path):
    begin_or_go_on(tmp_path / "run")
    config = small_config(optimizer__lr=0.1, max_steps=30, threads=0)
    with RunDirectory.open(tmp_path / "run") as run, pytest.raises(ConfigError) as error:
        small_trainer(run, config).resume()
    assert "2 settings are wrong" in str(error.value)
    assert "optimizer.lr = 0.1: the run has 0.05, and a resumed run keeps it" in str(error.value)
    assert "max_steps = 30: the run has 21, and its learning rates follow a warmup_cosine" in str(error.value)


def test_longer_training_equals_one_that_was_long_from_the_start(tmp_path):
    short, long = (
        small_config(schedule__name="constant", max_steps=steps, eval_every=3, checkpoint__save_every=3)
        for steps in (9, 15)
    )
    with RunDirectory.create(tmp_path / "long", long) as run:
        small_trainer(run, long).fit()
    with RunDirectory.create(tmp_path / "extended", short) as run:
        small_trainer(run, short).fit()
        trainer = small_trainer(run, long)
        assert trainer.resume()
        trainer.fit()
        assert run.config().max_steps == 15
    assert outcome(tmp_path / "extended") == outcome(tmp_path / "long")


@pytest.mark.parametrize(("reschedule", "steps"), [("keep", 21), ("stretch", 30)])
def test_rescheduled_training_has_the_chosen_rates_and_says_so(tmp_path, reschedule, steps):
    longer = small_config(max_steps=30)
    begin_or_go_on(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as run:
        with pytest.raises(ConfigError, match="--reschedule keep"):
            small_trainer(run, longer).resume()
        trainer = small_trainer(run, longer)
        assert trainer.resume(reschedule=reschedule)
        trainer.fit()
        assert run.config().schedule_steps == steps
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    (told,) = (row for row in rows if row["kind"] == "reschedule")
    assert told == {"kind": "reschedule", "step": 21, "reschedule": reschedule, "max_steps_before": 21, "max_steps": 30}
    schedule = make_schedule(longer.schedule, steps)
    rates = [row["lr"] for row in rows if row["kind"] == "step" and row["step"] > 21]
    assert rates == [0.05 * schedule(step) for step in range(21, 30)]


def test_another_model_is_refused_and_left_alone(tmp_path):
    begin_or_go_on(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as run:
        trainer = small_trainer(run)
        trainer.model[4] = torch.nn.Linear(6, 2)
        before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
        with pytest.raises(CheckpointError, match=r"4.weight is torch.float32 \[1, 6\] there, torch.float32 \[2, 6\]"):
            trainer.resume()
        assert all(torch.equal(before[name], each) for name, each in trainer.model.state_dict().items())


def test_another_curriculum_is_refused(tmp_path):
    begin_or_go_on(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as run:
        trainer = small_trainer(run)
        trainer._parts.promotion.stages = StagePromotion((1, 2)).stages
        with pytest.raises(CheckpointError, match=r"promoted over stages \[1, 2, 3\]"):
            trainer.resume()


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_signal_to_the_process_saves_and_leaves(uninterrupted, tmp_path, number, exit_code):
    process = subprocess.Popen([sys.executable, SCRIPT, "run", tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
        time.sleep(0.01)
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == exit_code
    assert f"stopped by {number.name} at step" in told
    begin_or_go_on(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def check_storm(directory, kills, seed, uninterrupted):
    command = [sys.executable, SCRIPT, "storm", directory, str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(map(len, found)) >= kills
    for number, steps in enumerate(found):
        assert steps == sorted(steps), "a kill lost a checkpoint"
        assert outcome(directory / str(number)) == uninterrupted


def test_killed_at_random_moments_it_ends_with_the_same_bytes(uninterrupted, tmp_path):
    check_storm(tmp_path, 4, 1, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_hundreds_of_times(uninterrupted, tmp_path, seed):
    check_storm(tmp_path, 50, seed, uninterrupted)
