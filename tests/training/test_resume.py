"""Where a run lies, and which settings a resume may change."""

from pathlib import Path

import pytest

from dagnn.errors import ConfigError
from dagnn.training.config import TrainingConfig, training_settings
from dagnn.training.resume import find_run, resumed_config, same_training


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
    stored = TrainingConfig()
    flags = {"threads": "2", "checkpoint.save_every": "10", "checkpoint.keep_last": 9, "run_directory": "elsewhere"}
    config = resumed_config(stored, flags)
    assert (config.threads, config.checkpoint.save_every, config.run_directory) == (2, 10, "elsewhere")
    assert resumed_config(stored, {"optimizer.lr": 1e-3}) == stored


def test_everything_else_is_refused():
    stored = TrainingConfig()
    others = {"seed": 1, "optimizer.lr": 0.5, "max_steps": 9000, "batch_size": 64, "eval_every": 3, "loss.alpha": 2.0}
    with pytest.raises(ConfigError) as error:
        resumed_config(stored, others)
    lines = str(error.value).split("\n")
    assert lines[0] == "6 settings are wrong:"
    assert (
        "  optimizer.lr = 0.5: the run has 0.001, and a resumed run keeps it: leave it out, or begin a new run."
        in lines
    )
    assert all(key in training_settings() for key in others)


def test_max_steps_may_change_when_the_schedule_does_not_look_at_it():
    stored = TrainingConfig().changed({"schedule.name": "warmup"})
    assert resumed_config(stored, {"max_steps": 9000}).max_steps == 9000
    same_training(stored, stored.changed({"max_steps": 9000}))
    with pytest.raises(ConfigError, match="max_steps = 9000: the run has 3000"):
        same_training(TrainingConfig(), TrainingConfig(max_steps=9000))
