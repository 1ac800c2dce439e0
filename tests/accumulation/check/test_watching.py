"""`watch`: what hooks say about a running loop, and that they change none of it."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.modules import module as global_hooks

import dagnn
from dagnn.errors import ConfigError


class WithLoss(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 2)

    def forward(self, x, y):
        return {"loss": mse_loss(self.linear(x), y)}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model, optimizer, sizes, mistake="none", *, loss_fn=None, epochs=4, clip=None, scaler=None):
    loss_fn = loss_fn or nn.MSELoss()
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for i, n in enumerate(sizes):
            x, y = torch.randn(n, 20, generator=generator), torch.randn(n, 2, generator=generator)
            if mistake == "zeroed too often":
                optimizer.zero_grad()
            loss = model(x, y)["loss"] if isinstance(model, WithLoss) else loss_fn(model(x), y)
            if mistake == "mean of means" or mistake == "early or extra step":
                loss = loss / len(sizes)
            elif mistake != "not scaled":
                loss = loss * n / sum(sizes)
            if mistake == "scaled twice":
                loss = loss / len(sizes)
            (scaler.scale(loss) if scaler else loss).backward()
            if i + 1 == len(sizes) or mistake == "early or extra step":
                if scaler:
                    scaler.unscale_(optimizer)
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer) if scaler else optimizer.step()
                if scaler:
                    scaler.update()
                if mistake != "not zeroed":
                    optimizer.zero_grad()


def watched(sizes, mistake="none", model=None, **options):
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dagnn.watch(model, optimizer) as watch:
        train(model, optimizer, sizes, mistake, **options)
    return watch


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_a_right_loop_has_shares_of_the_items(sizes):
    watch = watched(sizes)

    assert watch.verdict is True and watch.causes == []
    for step in watch.steps:
        assert step.items == tuple(sizes)
        assert step.weights == pytest.approx([n / sum(sizes) for n in sizes], abs=1e-4)


@pytest.mark.parametrize(
    "mistake",
    ["not zeroed", "zeroed too often", "not scaled", "scaled twice", "mean of means", "early or extra step"],
)
@pytest.mark.parametrize("model", [network, WithLoss])
def test_a_mistake_is_named_with_its_line(mistake, model):
    watch = watched((4, 2, 4, 1) if mistake == "mean of means" else (4, 4, 4, 4), mistake, model())

    assert watch.verdict is False
    assert [str(cause.kind) for cause in watch.causes][:1] == [mistake]
    assert "test_watching.py:" in watch.causes[0].line
    assert mistake in str(watch) and str(watch).startswith("WRONG: ")


def test_clipping_is_no_wrong_scale():
    assert watched((4, 2), clip=1e-3).verdict is True
    assert [str(cause.kind) for cause in watched((4, 4), "not scaled", clip=1e-3).causes] == ["not scaled"]


@pytest.mark.parametrize(("mistake", "verdict"), [("none", True), ("not scaled", False)])
def test_a_loss_scale_is_no_wrong_scale(mistake, verdict):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    assert watched((4, 4), mistake, scaler=scaler).verdict is verdict


def test_a_loss_that_no_hook_sees_is_not_judged():
    watch = watched((4, 4), "not scaled", loss_fn=mse_loss)

    assert watch.verdict is None and watch.steps[0].weights is None
    assert str(watch).startswith("NOT JUDGED: ") and "no mean loss was seen" in str(watch)
    assert watched((4, 4), "not zeroed", loss_fn=mse_loss).verdict is False


def test_a_gradient_that_the_loop_changes_is_not_judged():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: [p.grad.add_(torch.ones_like(p)) for p in model.parameters()] and None)
    with dagnn.watch(model, optimizer) as watch:
        train(model, optimizer, (4, 4))

    assert watch.verdict is None and not watch.steps[0].explained and "something else changes it" in str(watch)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("model", [network, WithLoss])
def test_training_is_the_same_to_the_last_bit(model, optimizer):
    def trained(look):
        torch.manual_seed(3)
        one = model()
        steps = optimizer(one.parameters(), lr=0.05)
        with dagnn.watch(one, steps) if look else contextlib.nullcontext():
            train(one, steps, (4, 3, 2), clip=0.5)
        return [*one.state_dict().values(), torch.get_rng_state()]

    assert all(map(torch.equal, trained(True), trained(False)))


def hooks_of(model, optimizer):
    on_parameters = [len(p._backward_hooks or {}) for p in model.parameters()]
    return [*on_parameters, *(len(m._forward_hooks) for m in model.modules()), len(optimizer._optimizer_step_pre_hooks)]


@pytest.mark.parametrize("end", ["block", "error", "windows"])
def test_all_hooks_go(end):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = hooks_of(model, optimizer), len(global_hooks._global_forward_hooks)
    with contextlib.suppress(ZeroDivisionError), dagnn.watch(model, optimizer, windows=1) as watch:
        assert hooks_of(model, optimizer) != before[0]
        if end == "error":
            raise ZeroDivisionError
        if end == "windows":
            train(model, optimizer, (4, 4))
            assert (hooks_of(model, optimizer), len(global_hooks._global_forward_hooks)) == before
            assert len(watch.steps) == 1

    assert (hooks_of(model, optimizer), len(global_hooks._global_forward_hooks)) == before


def test_passes_without_gradients_do_not_count():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dagnn.watch(model, optimizer) as watch:
        for _ in range(3):
            train(model, optimizer, (4,), epochs=1)
            with torch.no_grad():
                model(torch.randn(7, 20))

    assert watch.verdict is True and {step.items for step in watch.steps} == {(4,)}


def test_large_models_are_sampled():
    model = nn.Sequential(*(nn.Linear(20, 20) for _ in range(40)), nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dagnn.watch(model, optimizer) as watch:
        assert sum(bool(p._backward_hooks) for p in model.parameters()) == 41
        train(model, optimizer, (3, 5))

    assert watch.verdict is True


@pytest.mark.parametrize("windows", [0, -1, True, 1.5])
def test_windows_must_be_a_number(windows):
    model = network()
    with pytest.raises(ConfigError, match=r"^windows must be a whole number of at least 1, got "):
        dagnn.watch(model, torch.optim.SGD(model.parameters()), windows=windows)


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ConfigError, match="holds no parameter of the model"):
        dagnn.watch(network(), torch.optim.SGD(network().parameters()))


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_no_module_or_optimizer_is_refused(swap):
    model = network()
    given = (torch.optim.SGD(model.parameters()), model) if swap else (model, None)
    with pytest.raises(ConfigError, match="a module and an optimizer, in this order, got "):
        dagnn.watch(*given)
