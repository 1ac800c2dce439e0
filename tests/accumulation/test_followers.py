"""Averages and schedulers: each moves once per update, with its own model, or is refused when it is given."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import ConfigError


def weight(value=0.0, size=1):
    model = nn.Linear(size, 1, bias=False).double()
    nn.init.constant_(model.weight, value)
    return model


def averaged(model, decay=0.5):
    return AveragedModel(model, avg_fn=lambda average, new, _: decay * average + (1 - decay) * new)


def train(models, ema, updates=2, slopes=(1.0, 100.0)):
    """SGD with learning rate 1, so that model i moves by ``-slopes[i]`` at each update."""
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=1.0)
    accumulator = GradientAccumulator(models, optimizer, ema=ema)
    for window in accumulator.windows([torch.ones(1).double()] * 2 * updates, micro_batches=2):
        for x in window:
            window.backward(sum(s * m.weight.sum() * x.sum() for s, m in zip(slopes, models, strict=False)))
        window.step()


class ByParameters:
    """As ``torch_ema.ExponentialMovingAverage``: holds the parameters, and may be given others."""

    def __init__(self, model):
        self.parameters, self.calls, self.value = list(model.parameters()), 0, 0.0

    def update(self, parameters=None):
        assert parameters is None
        self.calls += 1
        self.value = 0.5 * self.value + 0.5 * float(self.parameters[0].detach().sum())


class ByModel(nn.Module):
    """As timm's ``ModelEmaV3``: a module with ``update(model, step=None)``."""

    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model, step=None):
        for average, new in zip(self.module.parameters(), model.parameters(), strict=True):
            average.lerp_(new, 0.5)


FIRST = -1.5  # the first update copies (torch) or averages; two updates of -1 at decay .5: -1, then -1.5


@pytest.mark.fault("accumulation", 1)
@pytest.mark.parametrize("form", ["list", "list with none", "mapping"])
def test_each_model_has_its_own_average(form):
    a, b = weight(), weight()
    of_a, of_b = averaged(a), averaged(b)
    ema = {"list": [of_a, of_b], "list with none": [of_a, None], "mapping": {b: of_b, a: of_a}}[form]
    train([a, b], ema)
    assert (of_a.module.weight.item(), int(of_a.n_averaged)) == (FIRST, 2)
    if form != "list with none":
        assert (of_b.module.weight.item(), int(of_b.n_averaged)) == (100 * FIRST, 2)


@pytest.mark.fault("accumulation", 1)
def test_one_average_of_several_models_is_taken_where_only_one_fits():
    a, b = weight(), weight(size=2)
    average = averaged(a)
    train([b, a], average, slopes=(100.0, 1.0))
    assert (average.module.weight.item(), int(average.n_averaged)) == (FIRST, 2)


@pytest.mark.fault("accumulation", 1)
@pytest.mark.parametrize(
    "make",
    [averaged, ByModel, lambda a: lambda model: None, lambda a: averaged(nn.ModuleList([a]))],
    ids=["AveragedModel", "timm", "function", "another structure"],
)
def test_one_average_that_may_belong_to_either_model_is_refused(make):
    a, b = weight(), weight()
    with pytest.raises(ConfigError, match="pass one average per model"):
        train([a, b], make(a))


@pytest.mark.fault("accumulation", 1)
def test_objects_with_update_and_functions_are_called_once_per_update():
    a, b = weight(), weight()
    own, calls = ByParameters(a), []
    train([a, b], own)
    assert (own.calls, own.value) == (2, -0.5 * 0.5 - 1.0)
    a = weight()
    average = ByModel(a)
    train([a], average)
    assert average.module.weight.item() == -0.5 * 0.5 - 1.0
    a = weight()
    train([a], lambda model: calls.append(model))
    train([a, weight()], lambda: calls.append("no model"))
    assert calls == [a, a, "no model", "no model"]


@pytest.mark.fault("accumulation", 1)
@pytest.mark.parametrize(
    ("ema", "message"),
    [
        (lambda a, b: [averaged(a)], "1 averages, but there are 2 models"),
        (lambda a, b: {weight(): averaged(a)}, "which is not the accumulator's model"),
        (lambda a, b: [averaged(weight(size=3)), None], "are not those of its model"),
        (lambda a, b: [AveragedModel, None], "ema must have update_parameters"),
        (lambda a, b: [lambda model, step: None, None], "must be called with model, step"),
        (lambda a, b: nn.Linear(1, 1), "ema must have update_parameters"),
    ],
)
def test_averages_that_cannot_be_right_are_refused_at_construction(ema, message):
    a, b = weight(), weight()
    with pytest.raises(ConfigError, match=message):
        train([a, b], ema(a, b))


class Timm:
    """As timm's schedulers: ``step`` needs the epoch."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, epoch, metric=None):
        raise AssertionError("must not be called")


@pytest.mark.fault("accumulation", 12)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Timm, r"the step\(\) of Timm needs epoch"),
        (lambda o: [torch.optim.lr_scheduler.StepLR(o, 1), Timm(o)], "Timm needs epoch"),
        (torch.optim.lr_scheduler.ReduceLROnPlateau, "follows a metric"),
        (lambda o: torch.optim.lr_scheduler.StepLR, r"must have a step\(\) method"),
        (lambda o: o, r"must have a step\(\) method"),
        (lambda o: [None], r"must have a step\(\) method"),
        (lambda o: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(weight().parameters()), 1), "another optimizer"),
        (lambda o: [torch.optim.lr_scheduler.ExponentialLR(o, 0.9)] * 2, "the same scheduler twice"),
    ],
)
def test_schedulers_that_cannot_be_stepped_are_refused_at_construction(make, message):
    model = weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ConfigError, match=message):
        GradientAccumulator(model, optimizer, scheduler=make(optimizer))


@pytest.mark.fault("accumulation", 12)
def test_schedulers_of_all_kinds_are_taken():
    model = weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    kinds = torch.optim.lr_scheduler
    chained = kinds.ChainedScheduler([kinds.ExponentialLR(optimizer, 0.5)])
    accumulator = GradientAccumulator(model, optimizer, scheduler=[chained, kinds.StepLR(optimizer, 10)])
    window = next(accumulator.windows([torch.ones(1, 1).double()], micro_batches=1))
    for x in window:
        window.backward(model(x).mean())
    window.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_the_same_model_or_optimizer_twice_is_refused():
    model = weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ConfigError, match="the same module twice"):
        GradientAccumulator([model, model], optimizer)
    with pytest.raises(ConfigError, match="the same optimizer twice"):
        GradientAccumulator(model, [optimizer, optimizer])
    with pytest.raises(ConfigError, match="scaler must be"):
        GradientAccumulator(model, optimizer, scaler=1024.0)


@pytest.mark.fault("accumulation", 15)
def test_a_plateau_schedule_goes_on_as_if_it_had_never_stopped():
    def make():
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return model, optimizer, plateau, GradientAccumulator(model, optimizer)

    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).double()

    def epoch(model, optimizer, plateau, accumulator):
        for window in accumulator.windows(list(x.split(2)), micro_batches=2):
            for part in window:
                window.backward(model(part).square().mean())
            window.step()
        plateau.step(model(x).square().mean().item() + 1)  # after the evaluation, by hand

    whole = make()
    for _ in range(6):
        epoch(*whole)
    first = make()
    for _ in range(3):
        epoch(*first)
    states = copy.deepcopy([part.state_dict() for part in first])
    second = make()
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    for _ in range(3):
        epoch(*second)
    assert torch.equal(whole[0].weight, second[0].weight)
    assert whole[1].param_groups[0]["lr"] == second[1].param_groups[0]["lr"] < 0.5
    assert whole[3].updates == second[3].updates == 12
