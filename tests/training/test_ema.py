"""Averaged weights: the formula, and a model that is its own again afterwards."""

import pytest
import torch
from torch import nn

from dagnn.errors import RunError
from dagnn.training.averages import WeightAverage
from dagnn.training.run.tensors import averaged_tensors, load_weights


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


class Tied(nn.Module):
    """Ties of every kind: two names, three names, a buffer that views a weight, and a value made when it is saved."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.copies = nn.ModuleList([nn.Linear(3, 4), nn.Linear(3, 4)])
        self.copies[0].weight = self.copies[1].weight = self.embedding.weight
        self.copies[1].bias = self.copies[0].bias
        self.register_buffer("first_rows", self.embedding.weight.detach()[:2])
        self.register_buffer("own", torch.ones(2))
        self.complex = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "norm"] = self.complex.detach().abs().sum()

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        state_dict.pop(prefix + "norm", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def moved(model, average, steps=3):
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.randn(each.shape, generator=generator))
        average.update(step)


def tied_checkpoint(model, average):
    model_group = {name: value.clone() for name, value in model.state_dict().items()}
    return {"model": model_group, "ema": {name: value.clone() for name, value in average.saved().items()}}


@pytest.mark.fault("training_and_command", 1)
def test_averages_of_tied_weights_are_saved_under_each_of_their_names():
    torch.manual_seed(0)
    model = Tied()
    average = WeightAverage(model, 0.9)
    moved(model, average)
    groups = tied_checkpoint(model, average)
    with average.applied():
        expected = {name: value.clone() for name, value in model.state_dict().items()}
    saved = averaged_tensors(groups)
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], value) for name, value in expected.items())
    assert not torch.equal(saved["head.weight"], groups["model"]["head.weight"])

    again = Tied()
    load_weights(again, groups)
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())


@pytest.mark.fault("training_and_command", 1)
def test_averages_of_tied_weights_come_back():
    torch.manual_seed(0)
    model = Tied()
    average = WeightAverage(model, 0.9)
    moved(model, average)
    groups = tied_checkpoint(model, average)
    again = Tied()
    resumed = WeightAverage(again, 0.9)
    again.load_state_dict(groups["model"])
    resumed.load(groups["ema"])
    assert all(torch.equal(value, groups["model"][name]) for name, value in again.state_dict().items())
    assert all(torch.equal(value, average.state_dict()[name]) for name, value in resumed.state_dict().items())


def test_what_is_saved_of_a_plain_model_are_its_averages():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    average = WeightAverage(model, 0.9)
    moved(model, average)
    assert average.saved().keys() == dict(model.named_parameters()).keys()
    assert all(value is average.state_dict()[name] for name, value in average.saved().items())


def test_a_parameter_that_was_replaced_is_named():
    model = nn.Linear(2, 2)
    average = WeightAverage(model, 0.9)
    model.weight = nn.Parameter(torch.ones(2, 2))
    with (
        pytest.raises(RunError, match="the parameter weight was replaced while its average was kept"),
        average.applied(),
    ):
        pass
