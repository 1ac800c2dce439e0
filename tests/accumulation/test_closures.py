"""Optimizers that compute the loss themselves, over a whole window."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation over plain SGD. Source: Foret et al., ICLR 2021, algorithm 1."""

    def __init__(self, parameters, lr, rho=0.05):
        super().__init__(parameters, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        moves = [p.grad * self.param_groups[0]["rho"] / norm for p in parameters]
        for p, move in zip(parameters, moves, strict=True):
            p.add_(move)
        self.zero_grad()
        closure()
        for p, move in zip(parameters, moves, strict=True):
            p.sub_(move).sub_(self.param_groups[0]["lr"] * p.grad)


def setup(dropout=0.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2)).double()
    return model, (torch.randn(11, 3).double(), torch.randn(11, 2).double())


def loss_fn(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def assert_equal(ours, theirs):
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_lbfgs_over_windows_equals_lbfgs_on_the_full_batch():
    ours, batch = setup()
    theirs = copy.deepcopy(ours)
    make = lambda m: torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")  # noqa: E731
    accumulator, optimizer = GradientAccumulator(ours, make(ours)), make(theirs)

    def closure():
        optimizer.zero_grad()
        loss = loss_fn(theirs, batch)
        loss.backward()
        return loss

    for step in range(1, 4):
        update = accumulator.update(batch, loss_fn, micro_batch_size=4)
        assert update.step == step
        assert update.loss == pytest.approx(float(optimizer.step(closure).detach()), rel=1e-9)
        assert_equal(ours, theirs)


def test_sam_over_windows_equals_sam_on_the_full_batch():
    ours, batch = setup()
    theirs = copy.deepcopy(ours)
    optimizer = Sam(theirs.parameters(), lr=0.1)
    accumulator = GradientAccumulator(ours, Sam(ours.parameters(), lr=0.1))

    def closure():
        with torch.enable_grad():
            loss_fn(theirs, batch).backward()

    for _ in range(3):
        optimizer.zero_grad()
        closure()
        optimizer.step(closure)
        accumulator.update(batch, loss_fn, micro_batch_size=4, closure=True)
        assert_equal(ours, theirs)


def test_every_evaluation_draws_the_same_random_numbers():
    model, batch = setup(dropout=0.5)
    states = []

    def recording(model, micro):
        states.append(torch.get_rng_state())
        return loss_fn(model, micro)

    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    GradientAccumulator(model, optimizer).update(batch, recording, micro_batch_size=4)
    evaluations = [states[i : i + 3] for i in range(0, len(states), 3)]
    assert len(evaluations) > 1
    for evaluation in evaluations[1:]:
        assert all(torch.equal(a, b) for a, b in zip(evaluation, evaluations[0], strict=True))


def test_window_step_names_the_way_out():
    model, batch = setup()
    accumulator = GradientAccumulator(model, torch.optim.LBFGS(model.parameters()))
    window = next(accumulator.windows([batch], micro_batches=1))
    for micro in window:
        window.backward(loss_fn(model, micro))
    with pytest.raises(AccumulationError, match=r"LBFGS computes the loss several times .* accumulator.update"):
        window.step()


def test_closure_needs_one_optimizer():
    model, batch = setup()
    optimizers = [torch.optim.LBFGS(model[0].parameters()), torch.optim.SGD(model[3].parameters(), lr=0.1)]
    with pytest.raises(ConfigError, match="one optimizer and no scaler"):
        GradientAccumulator(model, optimizers).update(batch, loss_fn, micro_batch_size=4)


def test_first_gradient_that_is_not_finite_skips_the_update():
    model, batch = setup()
    before = [p.clone() for p in model.parameters()]
    accumulator = GradientAccumulator(model, torch.optim.LBFGS(model.parameters()))
    update = accumulator.update(batch, lambda m, b: loss_fn(m, b) * float("inf"), micro_batch_size=4)
    assert (update.skipped, update.step) == ("non-finite", 0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
