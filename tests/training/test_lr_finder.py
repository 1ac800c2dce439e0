"""The learning-rate finder: a sensible rate, and no trace of the search."""

import copy
import random

import numpy as np
import pytest
import torch
from small_training import LevelSource, small_config, small_trainer
from torch import nn

from dagnn.accumulation.random_states import rng_state
from dagnn.cli import main
from dagnn.errors import AccumulationError, ConfigError
from dagnn.training import LrCurve, find_lr
from dagnn.training.processes import Processes


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def mse(model, batch):
    random.random(), np.random.rand()  # noqa: NPY002 - what user code may do
    return nn.functional.mse_loss(model(batch[0]), batch[1])


@pytest.fixture
def source():
    source = LevelSource(Processes())
    source.open((1, 2))
    source.next_batch()
    return source


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))


def state_of(model, source):
    return copy.deepcopy([list(model.state_dict().values()), source.state_dict(), rng_state(), model.training])


def same(before, after):
    return all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)) and before[1:] == after[1:]


def test_search_leaves_no_trace(source):
    network = model().eval()
    before = state_of(network, source)
    curve = find_lr(network, mse, source, sgd, steps=30, lowest=1e-4, highest=10.0)
    assert same(before, state_of(network, source))
    assert all(parameter.grad is None for parameter in network.parameters())
    assert len(curve.rates) == len(curve.losses) <= 30


def test_search_leaves_no_trace_after_an_error_either(source):
    network, before = model(), None
    before = state_of(network, source)

    def broken(model, batch):
        torch.rand(1)
        if len(calls) == 3:
            raise RuntimeError("broken")
        calls.append(0)
        return mse(model, batch)

    calls = []
    with pytest.raises(RuntimeError, match="broken"):
        find_lr(network, broken, source, sgd)
    assert same(before, state_of(network, source))


def test_it_stops_where_the_loss_diverges_and_suggests_a_lower_rate(source):
    network = nn.Linear(4, 1)
    nn.init.constant_(network.weight, 5.0)
    curve = find_lr(network, mse, source, sgd, lowest=1e-3, highest=1e4, steps=80)
    assert curve.rates[-1] < 1e3
    assert curve.rates[0] <= curve.suggestion < curve.rates[-1]
    assert list(curve.rates) == sorted(curve.rates)


def test_noise_among_rates_that_change_nothing_is_not_suggested():
    curve = LrCurve((1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0), (9.0, 5.0, 7.0, 6.0, 4.0, 3.0, 8.0))
    assert curve.suggestion == 1e-1 / 10


def test_no_suggestion_where_nothing_is_learned(source):
    flat = find_lr(nn.Linear(4, 1), lambda model, batch: model(batch[0]).sum() * 0 + 1, source, sgd, steps=5)
    assert flat.suggestion is None


@pytest.mark.parametrize("wrong", [{"lowest": 0.0}, {"lowest": 2.0}, {"highest": float("inf")}, {"steps": 1}])
def test_wrong_arguments_are_named(source, wrong):
    with pytest.raises(ConfigError, match=r"expected 0 < lowest < highest|steps must be at least 2"):
        find_lr(nn.Linear(4, 1), mse, source, sgd, **wrong)


def test_trainer_searches_for_its_own_optimizer_and_then_trains_as_if_it_had_not(tmp_path):
    trained = {}
    for name in ("searched", "plain"):
        trainer = small_trainer(None, small_config(max_steps=5, eval_every=0, curriculum__order="mixed"))
        if name == "searched":
            curve = trainer.find_lr(lowest=1e-3, highest=1.0, steps=12)
            assert 1 < len(curve.rates) <= 12 and curve.rates[0] == 1e-3
        trainer.fit()
        trained[name] = copy.deepcopy(
            [trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.loader.drawn]
        )
    names = trained["plain"][0]
    assert all(torch.equal(trained["plain"][0][name], trained["searched"][0][name]) for name in names)
    assert trained["searched"][2][-10:] == trained["plain"][2]
    # After it has trained, the search begins at its place and leaves it there.
    position = trainer.loader.state_dict()
    trainer.find_lr(steps=5)
    assert trainer.loader.state_dict() == position


def test_command_prints_the_curve_and_keeps_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--curriculum.levels", "1", "--curriculum.samples", "40", "--curriculum.preset", "small"]
    small += ["--curriculum.certify", "false"]
    small += ["--batch-size", "16", "--model.width", "16", "--threads", "1", "--run-directory", "run"]
    assert main(["train", "--find-lr", *small]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lr 1.00e-06  loss ")
    assert lines[-1].startswith("a tenth of the rate of the lowest loss: --optimizer.lr 0.0") and 10 < len(lines) < 60
    assert list(tmp_path.iterdir()) == []
    assert main(["train", "--find-lr", "--resume", "run"]) == 2


@pytest.mark.parametrize(
    ("returned", "error", "told"),
    [
        (lambda loss: "x", ConfigError, "loss must be a tensor, got str"),
        (lambda loss: {"a": loss, "b": 1.0}, ConfigError, "loss 'b' must be a tensor, got float"),
        (lambda loss: loss[None], AccumulationError, r"loss must be 0-dimensional, got the shape \[1\]"),
        (lambda loss: loss.detach(), AccumulationError, "loss does not depend on a parameter"),
        (lambda loss: {}, ConfigError, "the losses are an empty mapping"),
    ],
)
def test_what_is_no_loss_is_refused_as_in_a_training(returned, error, told):
    batches = [(torch.ones(4, 3), torch.zeros(4, 1))]
    with pytest.raises(error, match=told):
        find_lr(nn.Linear(3, 1), lambda model, batch: returned(mse(model, batch)), batches, sgd, steps=2)
