"""Parameters that are frozen, exchanged, left over or of another model: moved rightly, or refused."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

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
