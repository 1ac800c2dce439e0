"""Where a run lies, and which settings a resume may change."""

from pathlib import Path

import pytest

from dagnn.commands.train import is_restart
from dagnn.curriculum.config import CurriculumConfig
from dagnn.errors import ConfigError
from dagnn.training.optimizers import make_schedule
from dagnn.training.run.resume import find_run, resumed_config, same_training
from dagnn.training.settings import settings_of


@pytest.mark.parametrize(
    ("path", "run", "step"),
    [
        ("runs/a", "runs/a", None),
        ("runs/a/checkpoints/step-00000012", "runs/a", 12),
        ("runs/a/checkpoints/step-123456789", "runs/a", 123456789),
        ("step-00000012", "step-00000012", None),
        ("runs/a/checkpoints/step-12", "runs/a/checkpoints/step-12", None),
    ],
)
def test_find_run(path, run, step):
    assert find_run(path) == (Path(run), step)


def test_what_does_not_touch_the_training_may_change():
    stored = CurriculumConfig()
    flags = {"threads": "2", "checkpoint.save_every": "10", "checkpoint.keep_last": 9, "run_directory": "elsewhere"}
    config = resumed_config(stored, flags)
    assert (config.threads, config.checkpoint.save_every, config.run_directory) == (2, 10, "elsewhere")
    assert resumed_config(stored, {"optimizer.lr": 1e-3}) == stored


def test_everything_else_is_refused():
    stored = CurriculumConfig()
    others = {"seed": 1, "optimizer.lr": 0.5, "max_steps": 9000, "batch_size": 64, "eval_every": 3, "loss.alpha": 2.0}
    with pytest.raises(ConfigError) as error:
        resumed_config(stored, others)
    lines = str(error.value).split("\n")
    assert lines[0] == "6 settings are wrong:"
    assert (
        "  optimizer.lr = 0.5: the run has 0.001, and a resumed run keeps it: leave it out, or begin a new run."
        in lines
    )
    assert all(key in settings_of(CurriculumConfig) for key in others)


def test_max_steps_may_change_when_the_schedule_does_not_look_at_it():
    stored = CurriculumConfig().changed({"schedule.name": "warmup"})
    assert resumed_config(stored, {"max_steps": 9000}).max_steps == 9000
    same_training(stored, stored.changed({"max_steps": 9000}))


COSINE = CurriculumConfig()  # warmup_cosine


def test_under_a_cosine_another_max_steps_takes_a_word():
    with pytest.raises(ConfigError) as error:
        same_training(COSINE, CurriculumConfig(max_steps=9000))
    assert f"max_steps = 9000: the run has {COSINE.max_steps}" in str(error.value)
    assert "--reschedule keep" in str(error.value) and "--reschedule stretch" in str(error.value)
    with pytest.raises(ConfigError, match="reschedule = bend: allowed is one of keep, stretch"):
        resumed_config(COSINE, {}, reschedule="bend")


@pytest.mark.parametrize("max_steps", [2000, 9000])
def test_kept_curve_is_the_old_one_and_a_stretched_one_ends_at_the_new_end(max_steps):
    def rates(config):
        schedule = make_schedule(config.schedule, config.schedule_steps)
        return [schedule(step) for step in range(0, 10_000, 100)]

    kept = resumed_config(COSINE, {"max_steps": max_steps}, reschedule="keep")
    assert (kept.max_steps, kept.schedule.steps) == (max_steps, COSINE.max_steps)
    assert rates(kept) == rates(COSINE)
    stretched = resumed_config(COSINE, {"max_steps": max_steps}, reschedule="stretch")
    assert rates(stretched) == rates(CurriculumConfig(max_steps=max_steps)) != rates(COSINE)


def test_a_second_resume_need_not_know_of_the_first():
    kept = resumed_config(COSINE, {"max_steps": 9000}, reschedule="keep")
    assert same_training(kept, CurriculumConfig(max_steps=9000)) == kept
    assert resumed_config(kept, {"max_steps": 9000}, reschedule="keep") == kept
    again = resumed_config(kept, {"max_steps": 9500}, reschedule="keep")
    assert again.schedule.steps == COSINE.max_steps
    assert same_training(kept, CurriculumConfig(max_steps=9500), reschedule="stretch").schedule_steps == 9500


def test_rescheduling_does_not_let_other_settings_through():
    with pytest.raises(ConfigError, match=r"optimizer\.lr = 0\.5: the run has 0\.001"):
        resumed_config(COSINE, {"max_steps": 9000, "optimizer.lr": 0.5}, reschedule="keep")


@pytest.mark.parametrize(("count", "restarted"), [(None, False), ("0", False), ("2", True)])
def test_restart_by_torchrun_is_noticed(monkeypatch, count, restarted):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if count is not None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert is_restart() is restarted
