"""check_loop: what it leaves alone, what it refuses, what it shows, and the same verdict whatever K is."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from dagnn.accumulation.check import check_loop
from dagnn.errors import AccumulationError, ConfigError


def loss_fn(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def not_scaled(model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches):
        mse_loss(model(x), y).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
            optimizer.step()
            optimizer.zero_grad()


def test_nothing_of_the_users_changes(subject):
    model, batch = subject
    loss_fn(model, batch).backward()
    before, gradients = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    check_loop(not_scaled, model, batch, loss_fn=loss_fn)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


def test_report_points_at_the_line_and_shows_the_ratio(subject):
    model, batch = subject
    report = check_loop(not_scaled, model, batch, loss_fn=loss_fn)
    (cause,) = report.causes
    line = not_scaled.__code__.co_firstlineno + 2
    assert cause.line == f"test_loop_check.py:{line}: mse_loss(model(x), y).backward()"
    assert cause.explanation == "the gradient is 4 times too large: losses are added, not averaged."
    assert all(row.ratio == pytest.approx(4.0) for row in report.table)
    assert "4 times too large" in str(report)


def test_causes_of_the_model_are_found_beside_those_of_the_loop(subject):
    _, batch = subject
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))

    def train_step(model, optimizer, micro_batches):
        model.train()  # must not bring BatchNorm back while the loop is examined
        not_scaled(model, optimizer, micro_batches)

    report = check_loop(train_step, model, batch, loss_fn=loss_fn)
    assert [str(cause.kind) for cause in report.causes] == ["BatchNorm", "not scaled"]


def test_buffer_that_passes_change_does_not_hide_a_cause_of_the_loop(subject):
    class RunningScale(nn.Linear):
        def __init__(self):
            super().__init__(5, 2)
            self.register_buffer("size", torch.ones(()))

        def forward(self, x):
            output = super().forward(x / self.size.clone())
            self.size.mul_(0.9).add_(0.1 * x.detach().abs().mean())
            return output

    report = check_loop(not_scaled, RunningScale(), subject[1], loss_fn=loss_fn)
    assert [str(cause.kind) for cause in report.causes] == ["in-place buffer", "not scaled"]


def test_loss_times_zero_is_another_loss(subject):
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(5, 2), nn.Linear(5, 2)

    def parts(model, batch):
        return mse_loss(model.left(batch[0]), batch[1]), mse_loss(model.right(batch[0]), batch[1])

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            left, right = parts(model, batch)
            window = micro_batches[i - i % 4 : i - i % 4 + 4]
            ((left + 0 * right) * len(batch[0]) / sum(len(x) for x, _ in window)).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    report = check_loop(train_step, TwoHeads(), subject[1], loss_fn=lambda model, batch: sum(parts(model, batch)))
    (cause,) = report.causes
    assert cause.kind == "another loss"
    assert cause.explanation.startswith("backward passes give right.weight, right.bias a gradient of 0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batches": 0}, "micro_batches must be a whole number of at least 1"),
        ({"micro_batches": 9}, "the batch has 32 items, too few"),
        ({"each_call": "day"}, "each_call must be 'epoch' or 'window'"),
        ({"train_step": lambda model: None}, "train_step must take"),
        ({"model": nn.Tanh()}, "no parameter that requires a gradient"),
    ],
)
def test_check_that_cannot_run(subject, arguments, message):
    model, batch = subject
    arguments = {"train_step": not_scaled, "model": model, "batch": batch, "loss_fn": loss_fn} | arguments
    with pytest.raises(ConfigError, match=message):
        check_loop(arguments.pop("train_step"), arguments.pop("model"), arguments.pop("batch"), **arguments)


def test_too_few_parameters_to_tell_micro_batches_apart(subject):
    def tiny_loss(model, batch):
        return (model(batch[0][:, :1]) - batch[1][:, :1]).square().mean()

    def train_step(model, optimizer, micro_batches):
        for batch in micro_batches:
            tiny_loss(model, batch).backward()
        optimizer.step()

    with pytest.raises(ConfigError, match="cannot be told apart in 2 parameters"):
        check_loop(train_step, nn.Linear(1, 1), subject[1], loss_fn=tiny_loss)


def test_loop_that_raises(subject):
    model, batch = subject
    with pytest.raises(AccumulationError, match="it raised ZeroDivisionError"):
        check_loop(lambda m, o, b: 1 / 0, model, batch, loss_fn=loss_fn)


LOOPS = {
    # name: (factor of a loss by (sizes in the window, own size, K), zero after the step, cause)
    "right": (lambda sizes, n, k: n / sum(sizes), True, []),
    "not scaled": (lambda sizes, n, k: 1.0, True, ["not scaled"]),
    "mean of means": (lambda sizes, n, k: 1 / len(sizes), True, ["mean of means"]),
    "scaled twice": (lambda sizes, n, k: n / sum(sizes) / len(sizes), True, ["scaled twice"]),
    "not zeroed": (lambda sizes, n, k: n / sum(sizes), False, ["not zeroed"]),
    "short window": (
        lambda sizes, n, k: n / sum(sizes) * len(sizes) / k,
        True,
        ["short last window scaled by K"],
    ),
}


def loop(name, k, loss):
    factor, zero, _ = LOOPS[name]

    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            window = micro_batches[i - i % k : i - i % k + k]
            (loss(model(x), y) * factor([len(a) for a, _ in window], len(x), k)).backward()
            if (i + 1) % k == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

    return train_step


@given(
    name=st.sampled_from(list(LOOPS)),
    k=st.integers(2, 7),
    seed=st.integers(0, 10_000),
    classify=st.booleans(),
    hidden=st.integers(6, 12),
)
def test_verdict_depends_on_neither_k_nor_the_model_nor_the_data(name, k, seed, classify, hidden):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    items = 6 * k + 1
    targets = torch.randint(0, 3, (items,)) if classify else torch.randn(items, 3)
    loss = cross_entropy if classify else mse_loss
    report = check_loop(
        loop(name, k, loss),
        model,
        (torch.randn(items, 7), targets),
        loss_fn=lambda m, b: loss(m(b[0]), b[1]),
        micro_batches=k,
    )
    assert [str(cause.kind) for cause in report.causes] == LOOPS[name][2], str(report)
    assert report.equal == (name == "right")
