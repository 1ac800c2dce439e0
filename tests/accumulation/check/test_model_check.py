"""check_equivalence: causes that lie in the model or its loss, and right models."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, mse_loss

from dagnn.accumulation.check import check_equivalence
from dagnn.errors import ConfigError


def batch(items=16):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(items, 5, generator=generator), torch.randn(items, 2, generator=generator)


def mse(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def kinds(report):
    assert report.equal == (not report.causes), str(report)
    return [str(cause.kind) for cause in report.causes]


class RunningScale(nn.Module):
    """Divides by a running size of its inputs, which every forward pass updates."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)
        self.register_buffer("size", torch.ones(()))

    def forward(self, x):
        output = self.inner(x / self.size.clone())
        self.size.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return output


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x):
        return self.inner(dropout(x, 0.5, self.training))


class Centered(nn.Module):
    """Subtracts the mean of its batch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x):
        return self.inner(x - x.mean(dim=0)).square()


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x):
        weight, bias = self.inner.weight.bfloat16(), self.inner.bias.bfloat16()
        return (x.bfloat16() @ weight.T + bias).to(x.dtype)


def network(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), *layers, nn.Linear(6, 2))


@pytest.mark.parametrize(
    ("model", "loss_fn", "causes"),
    [
        (network(nn.Tanh()), mse, []),
        (network(nn.LayerNorm(6)), mse, []),
        (network(nn.BatchNorm1d(6)), mse, ["BatchNorm"]),
        (network(nn.BatchNorm1d(6)).eval(), mse, []),
        (network(nn.Dropout(0.5)), mse, ["dropout"]),
        (nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.5)), mse, ["dropout"]),
        (network(nn.Dropout(0.5)).eval(), mse, []),
        (network(nn.Dropout(0.5), nn.BatchNorm1d(6)), mse, ["dropout", "BatchNorm"]),
        (FunctionalDropout(), mse, ["dropout"]),
        (RunningScale(), mse, ["in-place buffer"]),
        (Centered(), mse, ["batch-coupled loss"]),
        (Half(), mse, []),
        (network(nn.Tanh()), lambda m, b: mse_loss(m(b[0]), b[1], reduction="sum"), ["sum loss"]),
        (
            network(nn.Tanh()),
            lambda m, b: cross_entropy(m(b[0]) @ m(b[0]).T, torch.arange(len(b[0]))),
            ["batch-coupled loss"],
        ),
        (
            network(nn.Tanh()),
            lambda m, b: (m(b[0]).square() * b[1].exp()).sum() / b[1].exp().sum(),
            ["wrong denominator"],
        ),
    ],
)
def test_each_model_has_its_cause_and_no_other(model, loss_fn, causes):
    assert kinds(check_equivalence(model, loss_fn, batch())) == causes


def test_ignored_targets_need_a_weight():
    targets = torch.tensor([0, 1, -100, -100, -100, 1, 0, 1, -100, 0])
    data = (batch(10)[0], targets)

    def loss_fn(model, data):
        return cross_entropy(model(data[0]), data[1])

    assert kinds(check_equivalence(network(), loss_fn, data)) == ["wrong denominator"]
    assert kinds(check_equivalence(network(), loss_fn, data, weight=lambda d: (d[1] >= 0).sum())) == []
    # A micro-batch without a single valid target, whose loss is nan.
    splits = [[2, 3, 5]]
    assert kinds(check_equivalence(network(), loss_fn, data, splits=splits)) == ["wrong denominator"]
    weighted = check_equivalence(network(), loss_fn, data, splits=splits, weight=lambda d: (d[1] >= 0).sum())
    assert weighted.equal


def test_equal_weights_for_unequal_micro_batches():
    report = check_equivalence(network(), mse, batch(), splits=[[10, 4, 2]], weight=lambda b: 1)
    assert kinds(report) == ["mean of means"]
    assert "0.625, 0.25, 0.125" in report.causes[0].explanation


def test_unused_parameter_is_a_note_and_no_cause():
    model = network(nn.Tanh())
    model.register_parameter("spare", nn.Parameter(torch.zeros(3)))
    report = check_equivalence(model, mse, batch())
    assert report.equal
    assert "the loss does not use spare" in str(report)


def test_loss_that_cannot_run_in_float64_is_compared_in_its_own_precision():
    weights = torch.tensor([1.0, 2.0])  # float32, inside the loss

    def loss_fn(model, data):
        return cross_entropy(model(data[0]), data[1], weight=weights)

    data = (batch()[0], torch.arange(16) % 2)
    report = check_equivalence(network(), loss_fn, data, weight=lambda d: weights[d[1]].sum())
    assert (report.equal, report.precision) == (True, "float32")


def test_nothing_of_the_users_changes():
    model = network(nn.BatchNorm1d(6), nn.Dropout(0.5))
    mse(model, batch()).backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    check_equivalence(model, mse, batch())
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert model.training


def test_report_shows_verdict_cause_and_table():
    report = check_equivalence(network(), lambda m, b: mse_loss(m(b[0]), b[1], reduction="sum"), batch())
    text = str(report)
    assert text.startswith("NOT EQUAL to the full batch: sum loss.")
    assert "change  use a mean loss times its share" in text
    assert "0.weight" in text and "float64" in text
    assert not report
    assert report.table[0].parameter == "0.weight"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": (torch.zeros(1, 5), torch.zeros(1, 2))}, "the batch has 1 item"),
        ({"splits": [[3, 3]]}, "add up to the 16 items"),
        ({"loss_fn": lambda m, b: 3.0}, "loss_fn must return one number as a tensor"),
        ({"loss_fn": lambda m, b: b[0].sum().requires_grad_()}, "does not depend on the model"),
        ({"model": nn.Tanh()}, "no parameter that requires a gradient"),
    ],
)
def test_check_that_cannot_run(arguments, message):
    arguments = {"model": network(), "loss_fn": mse, "batch": batch()} | arguments
    with pytest.raises(ConfigError, match=message):
        check_equivalence(arguments.pop("model"), arguments.pop("loss_fn"), arguments.pop("batch"), **arguments)


def test_a_loss_of_predictions_and_targets_is_told_how_it_is_called():
    labelled = (torch.randn(8, 3), torch.randint(0, 2, (8,)))
    with pytest.raises(TypeError) as caught:
        check_equivalence(nn.Linear(3, 2), cross_entropy, labelled)
    assert caught.value.__notes__ == [
        "loss_fn is called as loss_fn(model, batch), and returns the mean loss of the batch."
    ]
