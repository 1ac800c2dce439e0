"""Averaged weights: the formula, and a model that is its own again afterwards."""

import pytest
import torch
from torch import nn

from dagnn.training.ema import WeightAverage


def test_average_is_the_formula():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, 0.5)
    expected = 0.0
    for step, value in enumerate([1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0], 1):
        nn.init.constant_(model.weight, value)
        average.update(step)
        decay = min(0.5, step / (step + 10))
        expected = decay * expected + (1 - decay) * value
        assert average.state_dict()["weight"].item() == pytest.approx(expected, rel=1e-12)


def test_applied_inside_and_bit_for_bit_restored_outside():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    average = WeightAverage(model, 0.9)
    before = [each.clone() for each in model.parameters()]
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(3)
    own = [each.clone() for each in model.parameters()]
    with pytest.raises(RuntimeError, match="in the middle"), average.applied():
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
        raise RuntimeError("in the middle")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), own, strict=True))


def test_state_round_trip_is_a_copy():
    model = nn.Linear(2, 2)
    first, second = WeightAverage(model, 0.9), WeightAverage(model, 0.9)
    nn.init.ones_(model.weight)
    first.update(1)
    second.load_state_dict(first.state_dict())
    kept = {name: each.clone() for name, each in first.state_dict().items()}
    first.update(2)
    assert all(torch.equal(second.state_dict()[name], kept[name]) for name in kept)


def test_tied_weights_are_averaged_once_and_integers_not_at_all():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model.register_parameter("counts", nn.Parameter(torch.arange(3), requires_grad=False))
    assert sorted(WeightAverage(model, 0.9).state_dict()) == ["0.bias", "0.weight", "1.bias"]


def test_model_without_parameters():
    average = WeightAverage(nn.Identity(), 0.9)
    average.update(1)
    with average.applied():
        pass
    assert average.state_dict() == {}
