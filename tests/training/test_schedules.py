"""Schedules against their closed forms, above all where two pieces meet."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_training import Cycle, config, data, fit_until, linear, mse

from dagnn.training import RunDirectory, Trainer
from dagnn.training.config import SCHEDULES, ScheduleConfig
from dagnn.training.counters import Counters
from dagnn.training.log import read_metrics
from dagnn.training.optimizers import ScheduledRates, cosine, make_schedule, warmup, warmup_cosine


def factors(name, max_steps, **settings):
    schedule = make_schedule(ScheduleConfig(name=name, **settings), max_steps)
    return [schedule(step) for step in range(max_steps)]


def test_constant():
    assert factors("constant", 4) == [1.0] * 4


def test_step_drops_at_multiples_of_its_size():
    assert factors("step", 7, step_size=3, gamma=0.5) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_exponential():
    assert factors("exponential", 4, gamma=0.5) == [1, 0.5, 0.25, 0.125]


def test_cosine_at_start_middle_and_end():
    schedule = make_schedule(ScheduleConfig(name="cosine", final_fraction=0.1), 10)
    assert schedule(0) == 1.0
    assert schedule(5) == pytest.approx(0.55, abs=1e-15)
    assert schedule(10) == schedule(11) == pytest.approx(0.1, abs=1e-15)


def test_warmup_reaches_one_at_its_last_step():
    assert factors("warmup", 6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_warmup_of_zero_starts_at_one():
    assert factors("warmup", 2, warmup_steps=0) == [1.0, 1.0]
    assert factors("warmup_cosine", 5, warmup_steps=0) == factors("cosine", 5)


def test_warmup_cosine_meets_without_a_kink():
    schedule = make_schedule(ScheduleConfig(name="warmup_cosine", warmup_steps=4, final_fraction=0.0), 12)
    assert [schedule(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert schedule(8) == pytest.approx(0.5, abs=1e-15)
    assert schedule(12) == pytest.approx(0.0, abs=1e-15)


@given(st.integers(1, 500), st.floats(0, 1), st.data())
def test_schedules_stay_within_their_bounds_and_a_cosine_falls(num_steps, final_fraction, data):
    warmup_steps = data.draw(st.integers(0, num_steps - 1))
    curve = [warmup_cosine(step, num_steps, warmup_steps, final_fraction) for step in range(num_steps + 1)]
    assert all(0 <= factor <= 1 for factor in curve)
    assert curve[warmup_steps:] == sorted(curve[warmup_steps:], reverse=True)
    assert curve[: warmup_steps + 1] == sorted(curve[: warmup_steps + 1])
    assert curve[-1] == pytest.approx(final_fraction, abs=1e-12)
    for step in range(warmup_steps):
        assert curve[step] == warmup(step, warmup_steps)


@given(st.integers(1, 200), st.integers(0, 300))
def test_cosine_is_the_formula_of_sgdr(num_steps, step):
    t = min(step, num_steps)
    assert cosine(step, num_steps, 0.25) == 0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * (t / num_steps)))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("start", [0, 1, 3, 4, 5, 9])
def test_attached_anywhere_the_rates_are_the_formula(name, start):
    """A resumed scheduler neither lags nor jumps: every rate equals base * f(step), bit for bit."""
    schedule = make_schedule(ScheduleConfig(name=name, warmup_steps=4, step_size=2, gamma=0.9), 10)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.3}])
    if start:
        # As a checkpoint leaves it: the rate of the step before, and the base beside it.
        optimizer.param_groups[0] |= {"lr": 0.123, "initial_lr": 0.3}
    scheduler = ScheduledRates(optimizer, schedule, start)
    for step in range(start, 10):
        assert optimizer.param_groups[0]["lr"] == 0.3 * schedule(step)
        weight.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("shape", [(), (1,)])
def test_rates_that_are_tensors_keep_their_memory(shape):
    weight, rate = torch.nn.Parameter(torch.zeros(1)), torch.full(shape, 0.3, dtype=torch.float64)
    optimizer = torch.optim.SGD([weight], lr=rate)
    scheduler = ScheduledRates(optimizer, lambda step: 0.5**step)
    for step in range(3):
        assert optimizer.param_groups[0]["lr"] is rate  # a compiled step reads this very tensor
        assert float(rate) == 0.3 * 0.5**step
        scheduler.step()


def test_a_group_that_is_added_follows_from_its_own_rate():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = ScheduledRates(optimizer, lambda step: 1.0 / (step + 1))
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.25})
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]


@pytest.mark.fault("training_and_command", 8)
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("patience", [0, 1, 3])
def test_drops_on_a_plateau_are_those_of_torch(mode, patience):
    scores = [0.1, 0.3, 0.3, 0.2, math.nan, 0.4, 0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode, factor=0.5, patience=patience, threshold=0.0, threshold_mode="abs"
    )
    counters = Counters()
    schedule = make_schedule(ScheduleConfig(name="plateau", gamma=0.5), 100, lambda: counters.drops)
    for number, score in enumerate(scores):
        oracle.step(score)
        counters.drop(score, mode, patience)
        assert schedule(number) == optimizer.param_groups[0]["lr"]
    assert counters.drops > 1
    assert Counters.from_json(counters.to_json()) == counters


@pytest.mark.fault("training_and_command", 8)
def test_a_plateau_is_resumed_exactly(tmp_path):
    """Stopped between two drops, at one, and with an evaluation still due."""
    scores = {2: 0.5, 4: 0.4, 6: 0.4, 8: 0.6, 10: 0.1, 12: 0.1, 14: 0.1, 16: 0.2}

    def trained(path, *stops):
        settings = config(
            max_steps=16, eval_every=2, schedule__name="plateau", schedule__patience=1, checkpoint__save_every=0
        )
        for number, limit in enumerate((*stops, None)):
            with RunDirectory.open(path) if number else RunDirectory.create(path, settings) as run:
                evaluate = lambda model, step: {"accuracy": scores[step]}  # noqa: E731
                trainer = Trainer(
                    linear(), mse, Cycle(data(4, 4)), settings, run=run, evaluate=evaluate, show_progress=False
                )
                trainer.resume()
                fit_until(trainer, limit)
                rows = [row for row in read_metrics(run.metrics_path) if row["kind"] == "step"]
        return trainer.model.weight, [row["lr"] for row in rows]

    weight, rates = trained(tmp_path / "whole")
    assert rates == [0.1] * 6 + [0.05] * 6 + [0.025] * 4
    for stops in ((5,), (6,), (7, 12), (11, 13)):
        resumed, again = trained(tmp_path / str(stops), *stops)
        assert torch.equal(resumed, weight) and again == rates
