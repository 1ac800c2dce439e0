"""Parameters, schedulers and averages: each moves once per update, with its own model, or is refused."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError


class Sum(nn.Module):
    """w + v, each with the gradient 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.v = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return (self.w + self.v) * x


def run(accumulator, model, windows=1, inside=None, between=None):
    for number, window in enumerate(accumulator.windows([torch.ones(1).double()] * 2 * windows, micro_batches=2)):
        for index, x in enumerate(window):
            if inside is not None and index == 1:
                inside()
            window.backward(model(x).mean())
        window.step()
        if between is not None and number == 0:
            between()


def test_a_window_that_reaches_no_parameter_of_the_optimizer_is_refused():
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    window = next(accumulator.windows([torch.ones(3, 2)], micro_batches=1))
    for x in window:
        window.backward(other(x).mean())
    with pytest.raises(AccumulationError, match="none of the 2 parameters that the optimizer holds got a gradient"):
        window.step()


@pytest.mark.fault("accumulation", 2)
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_a_frozen_layer_does_not_move_by_gradients_of_a_loop_before(optimizer_class):
    model = Sum()
    optimizer = optimizer_class(model.parameters(), lr=1.0)
    (model(torch.ones(()).double()) * 0.0225).backward()  # a warm-up that leaves its gradients behind
    model.v.requires_grad_(False)
    run(GradientAccumulator(model, optimizer), model, windows=3)
    assert model.v.item() == 0.0
    assert model.v.grad is None
    if optimizer_class is torch.optim.SGD:
        assert model.w.item() == -3.0


@pytest.mark.fault("accumulation", 2)
def test_layers_may_be_frozen_and_unfrozen_between_windows():
    model = Sum()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    run(accumulator, model, windows=3, between=lambda: model.v.requires_grad_(False))
    assert (model.w.item(), model.v.item()) == (-3.0, -1.0)
    model(torch.ones(()).double()).backward()  # somebody's gradient, while it is frozen: none
    run(accumulator, model, windows=2, between=lambda: model.v.requires_grad_(True))
    assert (model.w.item(), model.v.item()) == (-5.0, -2.0)


@pytest.mark.fault("accumulation", 2)
@pytest.mark.parametrize("frozen_before", [False, True])
def test_a_layer_frozen_or_unfrozen_inside_a_window_is_refused(frozen_before):
    model = Sum()
    model.v.requires_grad_(not frozen_before)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(AccumulationError, match=r"v was (un)?frozen inside a window"):
        run(accumulator, model, inside=lambda: model.v.requires_grad_(frozen_before))
    assert (model.w.item(), model.v.item()) == (0.0, 0.0)
    run(accumulator, model)  # the next window is clean
    assert (model.w.item(), model.v.item()) == (-1.0, -1.0 if frozen_before else 0.0)


@pytest.mark.fault("accumulation", 3)
def test_a_parameter_exchanged_in_its_group_gets_its_own_gradient():
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulator = GradientAccumulator(model, optimizer)
    moved = []
    for _ in range(3):
        model.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer.param_groups[0]["params"][0] = model.w
        for _ in range(2):
            run(accumulator, model)
            moved.append(model.w.item())
    assert moved == [-1.0, -2.0] * 3


@pytest.mark.fault("accumulation", 3)
def test_groups_may_be_added_and_replaced_whole_between_windows():
    model = Sum()
    optimizer = torch.optim.SGD([model.w], lr=1.0)
    accumulator = GradientAccumulator(model, optimizer)
    run(accumulator, model)
    model.v.grad = None  # nobody's until now
    optimizer.add_param_group({"params": [model.v], "lr": 10.0})
    run(accumulator, model)
    assert (model.w.item(), model.v.item()) == (-2.0, -10.0)
    optimizer.param_groups[1] = {**optimizer.param_groups[1], "params": [model.v], "lr": 1.0}
    run(accumulator, model)
    assert (model.w.item(), model.v.item()) == (-3.0, -11.0)


@pytest.mark.fault("accumulation", 3)
def test_groups_changed_inside_a_window_are_refused():
    model = Sum()
    optimizer = torch.optim.SGD([model.w], lr=1.0)
    accumulator = GradientAccumulator(model, optimizer)
    with pytest.raises(AccumulationError, match="parameter groups of the optimizer changed inside a window"):
        run(accumulator, model, inside=lambda: optimizer.add_param_group({"params": [model.v]}))


def replaced(model):
    model.w = nn.Parameter(model.w.detach().clone())


def assigned(model):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


@pytest.mark.fault("accumulation", 3)
@pytest.mark.parametrize("exchange", [replaced, assigned])
def test_a_model_whose_parameters_were_replaced_after_the_optimizer_is_refused(exchange):
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulator = GradientAccumulator(model, optimizer)
    run(accumulator, model)
    exchange(model)
    with pytest.raises(AccumulationError, match="was it replaced after the optimizer was made"):
        run(accumulator, model)


@pytest.mark.fault("docs_and_packaging", 7)
@pytest.mark.fault("accumulation", 3)
def test_an_optimizer_of_another_model_is_refused():
    model, other = Sum(), Sum()
    with pytest.raises(ConfigError, match="the optimizer holds no parameter of the model"):
        GradientAccumulator(model, torch.optim.SGD(other.parameters(), lr=1.0))
    with pytest.raises(ConfigError, match="the optimizer holds no parameter of the model"):
        GradientAccumulator(nn.Tanh(), torch.optim.SGD(other.parameters(), lr=1.0))


@pytest.mark.fault("docs_and_packaging", 7)
def test_parameters_of_a_loss_and_parameters_that_nobody_trains_are_legitimate():
    model, criterion = Sum(), Sum()
    optimizer = torch.optim.SGD([model.w, criterion.w], lr=1.0)  # model.v and criterion.v: somebody else's
    accumulator = GradientAccumulator(model, optimizer)
    for window in accumulator.windows([torch.ones(1).double()] * 4, micro_batches=2):
        for x in window:
            window.backward((model(x) + 2 * criterion(x)).mean())
        window.step()
    assert (model.w.item(), criterion.w.item(), model.v.item(), criterion.v.item()) == (-2.0, -4.0, 0.0, 0.0)
    unused = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([*Sum().parameters(), *(model := Sum()).parameters(), unused], lr=1.0)
    run(GradientAccumulator(model, optimizer), model)  # what is foreign and unused stays where it is
    assert unused.abs().sum().item() == 0.0


@pytest.mark.fault("accumulation", 16)
def test_a_lazy_model_gets_its_shapes_in_the_first_window():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(1))
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for window in accumulator.windows([torch.ones(2, 3)] * 2, micro_batches=2):
        for x in window:
            window.backward(model(x).mean())
        gradient = model[0].weight.grad.clone()
        model.zero_grad()
        model(torch.ones(2, 3)).mean().backward()
        assert torch.allclose(gradient, model[0].weight.grad)
        window.discard()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    k=st.integers(1, 3),
    frozen=st.lists(st.sets(st.integers(0, 3)), min_size=6, max_size=6),
    left_over=st.booleans(),
)
def test_gradients_are_those_of_the_window_whatever_is_frozen_and_left_over(sizes, k, frozen, left_over):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    parameters = list(model.parameters())
    accumulator = GradientAccumulator(model, torch.optim.SGD(parameters, lr=0.1))
    loader = [(torch.randn(n, 3).double(), torch.randn(n, 2).double()) for n in sizes]
    if left_over:
        mse_loss(model(loader[0][0]), loader[0][1]).backward()

    def windows():
        for start in range(0, len(loader), k):
            for index, parameter in enumerate(parameters):
                parameter.requires_grad_(index not in frozen[start // k] or len(frozen[start // k]) == 4)
            yield from loader[start : start + k]

    for index, window in enumerate(accumulator.windows(windows(), micro_batches=k)):
        for x, y in window:
            window.backward(mse_loss(model(x), y))
        own = loader[index * k : (index + 1) * k]
        copied = copy.deepcopy(model)
        copied.zero_grad()
        mse_loss(copied(torch.cat([x for x, _ in own])), torch.cat([y for _, y in own])).backward()
        before = [p.detach().clone() for p in parameters]
        for ours, right in zip(parameters, copied.parameters(), strict=True):
            if right.requires_grad:
                assert float((ours.grad - right.grad).abs().max()) <= 1e-12 * float(right.grad.abs().max() + 1e-3)
        window.step()
        for was, now in zip(before, parameters, strict=True):
            assert now.requires_grad or torch.equal(was, now)


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


@pytest.mark.parametrize("replaced", [True, False])
def test_a_parameter_that_leaves_the_model_inside_a_window_is_refused(replaced):
    model = Sum()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))

    def leave():
        del model.v
        model.v = nn.Parameter(torch.ones((), dtype=torch.float64)) if replaced else 0.0

    with pytest.raises(AccumulationError, match=r"v of the shape \[\] was replaced in the model, or left it, inside"):
        run(accumulator, model, inside=leave)
