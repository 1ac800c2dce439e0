"""Evaluations within a training: metrics of any kind of number, and what fails costs no step."""

import decimal
import fractions
import json

import numpy as np
import pytest
import torch
from plain_training import Cycle, config, data, linear, mse

from dagnn.errors import ConfigError, RunError
from dagnn.training import Meter, RunDirectory, Trainer
from dagnn.training.log import read_metrics

SETTINGS = {"max_steps": 4, "eval_every": 2, "checkpoint__keep_best": 1, "checkpoint__save_every": 1}


def trained(path, evaluate, **flags):
    settings = config(**{**SETTINGS, **flags})
    with RunDirectory.create(path, settings) as run:
        trainer = Trainer(linear(), mse, Cycle(data(4)), settings, run=run, evaluate=evaluate, show_progress=False)
        return trainer.fit()


@pytest.mark.fault("training_and_command", 4)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.bool_(True), True),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.5]), 0.5),
        (np.array([[0.5]]), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(3), 3),
        (torch.tensor(True), True),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (fractions.Fraction(1, 2), 0.5),
        (decimal.Decimal("0.5"), 0.5),
        (Meter.of([np.float32(0.25), torch.tensor(0.75)]), 0.5),
        (float("nan"), "nan"),
        (np.float32("inf"), "inf"),
        (2**70, 2**70),
    ],
)
def test_metrics_are_numbers_of_any_kind(tmp_path, value, expected):
    result = trained(tmp_path / "run", lambda model, step: {"accuracy": value, np.str_("other"): value})
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "evaluation"]
    assert [row["accuracy"] for row in rows] == [row["other"] for row in rows] == [expected] * 2
    assert type(rows[0]["accuracy"]) is type(expected)
    assert result.checkpoint.name == "step-00000004"
    score = json.loads((result.checkpoint / "manifest.json").read_bytes())["score"]
    assert score == (None if isinstance(expected, str) else expected)


def test_other_metrics_may_be_any_json_value(tmp_path):
    returned = {"accuracy": 1.0, "note": "fine", "table": np.eye(2), "by": {"a": torch.tensor([1, 2])}, "none": None}
    result = trained(tmp_path / "run", lambda model, step: returned)
    assert result.evaluation == {
        "accuracy": 1.0,
        "note": "fine",
        "table": [[1.0, 0.0], [0.0, 1.0]],
        "by": {"a": [1, 2]},
        "none": None,
    }


@pytest.mark.fault("training_and_command", 4)
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ({"accuracy": "0.9"}, "evaluate's accuracy is '0.9': it must be a number"),
        ({"accuracy": np.ones(2)}, r"evaluate's accuracy is \[1.0, 1.0\]: it must be a number"),
        ({"accuracy": 1.0, "odd": object()}, "evaluate's odd is <object .* of the type object: give a number"),
        ({"accuracy": 1 + 2j}, "evaluate's accuracy is .*of the type complex"),
        ({"accuracy": 1.0, "set": {1, 2}}, "evaluate's set is"),
        ({"accuracy": torch.ones(1).to_sparse()}, r"evaluate's accuracy is a tensor on cpu \(torch.sparse_coo\)"),
        ({"accuracy": [torch.eye(2).to_sparse()]}, r"evaluate's accuracy\[0\] is a tensor on cpu \(torch.sparse_coo\)"),
        ({"accuracy": torch.empty(1, device="meta")}, "evaluate's accuracy is a tensor on meta"),
        ({"accuracy": decimal.Decimal("sNaN")}, r"evaluate's accuracy is Decimal\('sNaN'\), which is no float"),
        ({"accuracy": fractions.Fraction(10**400)}, "evaluate's accuracy is Fraction.*, which is no float"),
        ({"accuracy": 1.0, 3: 1.0}, "a metric called 3, which is of the type int"),
        ({"accuracy": 1.0, "step": 5}, "a metric called 'step', which is taken by every row"),
        ({"accuracy": 1.0, "kind": 5}, "a metric called 'kind'"),
        ({"loss": 1.0}, "monitor = accuracy: the evaluation returned loss"),
        (0.9, "evaluate returned a float: return metrics by name"),
        (None, "monitor = accuracy: the evaluation returned nothing"),
    ],
)
def test_what_is_no_metric_is_refused_by_name_and_the_step_is_saved(tmp_path, returned, told):
    with pytest.raises(ConfigError, match=told):
        trained(tmp_path / "run", lambda model, step: returned, checkpoint__save_every=0)
    assert_saved_and_evaluated_again(tmp_path / "run", 2)


@pytest.mark.fault("training_and_command", 4)
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), BrokenPipeError(), RunError("gone")])
def test_an_evaluation_that_fails_costs_no_step(tmp_path, error):
    def evaluate(model, step):
        torch.rand(2)
        raise error

    with pytest.raises(type(error)):
        trained(tmp_path / "run", evaluate, checkpoint__save_every=0)
    assert_saved_and_evaluated_again(tmp_path / "run", 2)


def assert_saved_and_evaluated_again(path, step):
    """The step is on the disk; a resume makes the evaluation, and equals a training that had no such trouble."""
    asked = []

    def evaluate(model, step):
        asked.append(step)
        return {"accuracy": 0.5}

    with RunDirectory.open(path) as run:
        trainer = Trainer(linear(3), mse, Cycle(data(4)), run.config(), run=run, evaluate=evaluate, show_progress=False)
        assert trainer.resume() and trainer.step == step
        trainer.fit()
    assert asked == [2, 4]
    unharmed = Trainer(linear(), mse, Cycle(data(4)), config(**SETTINGS), evaluate=evaluate, show_progress=False)
    unharmed.fit()
    assert torch.equal(unharmed.model.weight, trainer.model.weight)


def test_no_score_is_no_error_where_nothing_waits_for_it(tmp_path):
    assert trained(tmp_path / "1", lambda m, s: None, checkpoint__keep_best=0).evaluation == {}
    assert trained(tmp_path / "2", lambda m, s: {"accuracy": None}).best_score is None


def test_a_metric_too_large_for_a_float_is_refused_and_the_step_is_saved(tmp_path):
    with pytest.raises(ConfigError, match="accuracy has 1329 bits"):
        trained(tmp_path / "run", lambda model, step: {"accuracy": 10**400})
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
