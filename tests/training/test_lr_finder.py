"""The learning-rate finder: a sensible rate, and no trace of the search."""

import copy
import random

import numpy as np
import pytest
import torch
from small_training import LevelSource
from torch import nn

from dagnn.errors import ConfigError
from dagnn.training import find_lr
from dagnn.training.processes import Processes
from dagnn.training.rng import rng_state


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


def test_no_suggestion_where_nothing_is_learned(source):
    flat = find_lr(nn.Linear(4, 1), lambda model, batch: model(batch[0]).sum() * 0 + 1, source, sgd, steps=5)
    assert flat.suggestion is None


@pytest.mark.parametrize("wrong", [{"lowest": 0.0}, {"lowest": 2.0}, {"highest": float("inf")}, {"steps": 1}])
def test_wrong_arguments_are_named(source, wrong):
    with pytest.raises(ConfigError, match=r"expected 0 < lowest < highest|steps must be at least 2"):
        find_lr(nn.Linear(4, 1), mse, source, sgd, **wrong)
