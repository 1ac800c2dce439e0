"""Updates that begin during the window: exact where allowed, refused where not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError


def setup(optimizer_class=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    model.register_parameter("unused", nn.Parameter(torch.ones(2).double()))
    reference = copy.deepcopy(model)
    loader = [(torch.randn(n, 3).double(), torch.randn(n, 2).double()) for n in (3, 1, 4, 2, 2, 5, 1)]
    optimizers = [optimizer_class(m.parameters(), **options) for m in (model, reference)]
    return model, reference, optimizers, loader


def train_both(model, reference, optimizers, loader, eager):
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.8) for o in optimizers]
    accumulator = GradientAccumulator(model, optimizers[0], scheduler=schedules[0], on_nonfinite="raise", eager=eager)
    for _ in range(2):
        for index, window in enumerate(accumulator.windows(loader, micro_batches=3)):
            for x, y in window:
                window.backward(mse_loss(model(x), y))
            window.step()
            optimizers[1].zero_grad()
            part = loader[3 * index : 3 * index + 3]
            mse_loss(reference(torch.cat([x for x, _ in part])), torch.cat([y for _, y in part])).backward()
            optimizers[1].step()
            schedules[1].step()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
                assert ours.grad is None


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.5, "maximize": True, "weight_decay": 0.1},
    ],
)
def test_gradients_in_the_momentum_buffer_equal_sgd_on_the_full_batch(options):
    train_both(*setup(lr=0.1, **options), eager="momentum")


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.1}),
        (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
        (torch.optim.RMSprop, {"lr": 0.01}),
    ],
)
def test_stepping_in_the_last_backward_equals_the_full_batch(optimizer_class, options):
    train_both(*setup(optimizer_class, **options), eager="last")


def test_a_parameter_used_only_in_an_early_micro_batch_is_stepped_too():
    model = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager="last")
    for window in accumulator.windows([torch.ones(1), torch.ones(1)], micro_batches=2):
        for index, x in enumerate(window):
            window.backward((model[index] * x).mean())
        update = window.step()
    assert [float(p.detach()) for p in model] == [-0.5, -0.5]
    assert update.grad_norm == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eager": "each"}, "eager='each' would step Adam after every micro-batch"),
        ({"eager": "now"}, "eager must be None"),
        ({"eager": "last"}, "cannot be used with on_nonfinite='skip'"),
        ({"eager": "last", "on_nonfinite": "raise", "max_norm": 1.0}, "cannot be used with max_norm"),
        ({"eager": "momentum", "on_nonfinite": "raise"}, "needs torch.optim.SGD with momentum .* got Adam"),
    ],
)
def test_refused_at_construction(arguments, message):
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=message):
        GradientAccumulator(model, torch.optim.Adam(model.parameters()), **arguments)


def test_nesterov_is_refused():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    with pytest.raises(ConfigError, match="without nesterov"):
        GradientAccumulator(model, optimizer, on_nonfinite="raise", eager="momentum")


@pytest.mark.parametrize("eager", ["momentum", "last"])
def test_weights_that_come_late_are_an_error(eager):
    model, _, (optimizer, _), loader = setup(lr=0.1, momentum=0.9)
    accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager=eager)
    window = next(accumulator.windows(loader, micro_batches=2))
    with pytest.raises(AccumulationError, match="must be known before the window runs"):
        for x, y in window:
            window.backward(mse_loss(model(x), y), weight=3 * len(x))


@pytest.mark.parametrize("eager", ["momentum", "last"])
def test_gradient_that_is_not_finite_raises(eager):
    model, _, (optimizer, _), loader = setup(lr=0.1, momentum=0.9)
    accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager=eager)
    window = next(accumulator.windows(loader, micro_batches=1))
    with pytest.raises(AccumulationError, match="not finite"):
        for x, y in window:
            window.backward(mse_loss(model(x), y) * float("inf"))
        window.step()


def test_second_backward_in_the_last_micro_batch_is_an_error():
    model, _, (optimizer, _), loader = setup(lr=0.1)
    accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager="last")
    window = next(accumulator.windows(loader, micro_batches=1))
    with pytest.raises(AccumulationError, match="a second backward in the last micro-batch"):
        for x, y in window:
            window.backward(mse_loss(model(x), y))
            window.backward(mse_loss(model(x), y))
