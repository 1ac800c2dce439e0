"""Windows whose losses are added and divided by nothing."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.errors import AccumulationError, ConfigError

pytestmark = pytest.mark.fault("accumulation", 15)


def sum_loss(model, batch):
    return mse_loss(model(batch[0]), batch[1], reduction="sum")


def model_and_batch(items):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return model, (torch.randn(items, 3).double(), torch.randn(items, 2).double())


def plain(model, batch):
    reference = copy.deepcopy(model)
    loss = sum_loss(reference, batch)
    loss.backward()
    return loss.item(), [p.grad for p in reference.parameters()]


def assert_same(model, expected):
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-13)


class Weight(nn.Module):
    """``w * x``, so that an update at learning rate 1 is the gradient: a sum of inputs."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.w * x


def setup(**options):
    model = Weight()
    return model, GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), form=st.sampled_from(["windows", "manual", "pieces"]))
def test_any_window_has_the_gradient_of_one_backward_of_the_sum(sizes, form):
    model, batch = model_and_batch(sum(sizes))
    expected_loss, expected = plain(model, batch)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    micros = list(zip(batch[0].split(sizes), batch[1].split(sizes), strict=True))
    if form == "manual":
        for micro in micros:
            accumulator.backward(sum_loss(model, micro), reduction="undivided")
        found = None
    else:
        cut = {"micro_batches": len(sizes)} if form == "windows" else {"micro_batch_size": sizes[0]}
        found = next(accumulator.windows(micros if form == "windows" else [batch], **cut))
        for micro in found:
            found.backward(sum_loss(model, micro), reduction="undivided")
        assert_same(model, expected)
    update = accumulator.step() if found is None else found.step()
    assert (update.loss, update.weight) == (pytest.approx(expected_loss, rel=1e-12), 1.0)


@settings(max_examples=15, deadline=None)
@given(items=st.integers(1, 9), size=st.integers(1, 10), coupled=st.booleans())
def test_a_batch_in_one_call_equals_its_backward(items, size, coupled):
    model, batch = model_and_batch(items)
    expected_loss, expected = plain(model, batch)
    loss = accumulate(model, sum_loss, batch, micro_batch_size=size, reduction="undivided", coupled=coupled)
    assert_same(model, expected)
    assert (loss, loss.weight) == (pytest.approx(expected_loss, rel=1e-12), 1.0)
    assert loss.losses == {"loss": pytest.approx(expected_loss, rel=1e-12)}


@pytest.mark.parametrize("loader", [[torch.tensor([1.0]), torch.tensor([2.0, 3.0])], [1.0, 5.0], [{"a": "b"}, None]])
def test_no_weights_are_needed_or_used(loader):
    model, accumulator = setup()
    for window in accumulator.windows(loader, micro_batches=2):
        for index, _ in enumerate(window):
            window.backward(model(torch.tensor(index + 1.0)), reduction="undivided")
        assert window.step().loss == 0.0
    assert model.w.item() == -3.0


def test_a_tail_is_no_special_case():
    model, accumulator = setup()
    moved = []
    for window in accumulator.windows(torch.ones(5, 1), micro_batches=2):
        for x in window:
            window.backward(model(x).sum(), reduction="undivided")
        moved.append(window.step().grad_norm)
    assert (moved, model.w.item()) == ([2.0, 2.0, 1.0], -5.0)


def test_weights_fill_windows_and_do_not_divide():
    model, accumulator = setup()
    for window in accumulator.windows(torch.ones(4, 1), max_weight=6, weight=lambda x: 3):
        for x in window:
            window.backward(model(x).sum(), reduction="undivided")
        assert window.step().micro_batches == 2
    assert model.w.item() == -4.0


def test_named_losses_are_added_and_reported_apart():
    model, accumulator = setup()
    window = next(accumulator.windows(torch.ones(3, 2), micro_batches=3, weight=lambda x: {"a": 7, "b": 9}))
    for x in window:
        window.backward({"a": model(x).sum() + 1, "b": 2 * model(x[0])}, reduction="undivided")
    assert model.w.grad == 12.0
    update = window.step()
    assert (update.loss, update.losses, update.weight) == (3.0, {"a": 3.0, "b": 0.0}, 1.0)


@pytest.mark.parametrize("how", ["non-finite", "drop()"])
def test_a_dropped_micro_batch_leaves_the_sum_of_the_others(how):
    model, accumulator = setup(on_nonfinite="drop")
    window = next(accumulator.windows(torch.tensor([[1.0], [9.0], [3.0]]), micro_batches=3))
    for x in window:
        if how == "drop()" and x == 9:
            window.drop()
        else:
            window.backward((model(x) * (float("inf") if x == 9 else 1)).sum(), reduction="undivided")
    assert model.w.grad == 4.0
    assert (window.step().micro_batches, model.w.item()) == (2, -4.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_losses_add_up_exactly(dtype):
    w = nn.Parameter(torch.zeros((), dtype=dtype))
    accumulator = GradientAccumulator(nn.ParameterList([w]), torch.optim.SGD([w], lr=1.0))
    window = next(accumulator.windows(torch.ones(1025, 1, dtype=dtype), micro_batches=1025))
    for x in window:
        window.backward((w * x).sum(), reduction="undivided")
    assert w.grad == 1025.0
    window.discard()


@pytest.mark.parametrize("eager", ["momentum", "last"])
def test_eager_updates_take_undivided_losses(eager):
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager=eager)
    for window in accumulator.windows(torch.ones(4, 1), micro_batches=2):
        for x in window:
            window.backward(model(x).sum(), reduction="undivided")
        window.step()
    assert model.w.item() == -5.0  # 2, then 2 + 0.5 * 2


def test_a_window_that_is_saved_half_done_goes_on():
    model, accumulator = setup()
    window = next(accumulator.windows(torch.tensor([[1.0], [2.0], [4.0]]), micro_batches=3))
    state = None
    for x in window:
        window.backward(model(x).sum() + 1, reduction="undivided")
        state = state or accumulator.state_dict(inside_window=True)
    right = window.step()

    model, accumulator = setup()
    accumulator.load_state_dict(state)
    window = next(accumulator.windows(torch.tensor([[1.0], [2.0], [4.0]]), micro_batches=3))
    for x in window:
        window.backward(model(x).sum() + 1, reduction="undivided")
    assert window.step() == right
    assert model.w.item() == -7.0


def test_what_contradicts_it_is_refused():
    model, accumulator = setup()
    (x,) = torch.ones(1, 1)
    with pytest.raises(AccumulationError, match=r"weight=2 came with reduction='undivided', which divides by nothing"):
        accumulator.backward(model(x).sum(), weight=2, reduction="undivided")
    with pytest.raises(ConfigError, match="reduction must be 'mean', 'sum', 'none' or 'undivided', got 'total'"):
        accumulator.backward(model(x).sum(), weight=2, reduction="total")
    with pytest.raises(AccumulationError, match=r"must be one number for reduction='undivided', got the shape \[2\]"):
        accumulator.backward(model(torch.ones(2)), reduction="undivided")
    for first, second in (("mean", "undivided"), ("undivided", "mean")):
        window = next(accumulator.windows(torch.ones(2, 1), micro_batches=2))
        with pytest.raises(AccumulationError, match="some losses of this window came with reduction='undivided' and"):
            for micro, reduction in zip(window, (first, second), strict=True):
                window.backward(model(micro).sum(), reduction=reduction)
        window.discard()
    with pytest.raises(AccumulationError, match="weight=3 came with"):
        accumulate(model, lambda m, b: (m(b).sum(), 3), torch.ones(4), micro_batch_size=2, reduction="undivided")
    with pytest.raises(ConfigError, match=r"weight=\.\.\. and reduction='undivided', which divides by nothing"):
        accumulate(model, lambda m, b: m(b).sum(), torch.ones(4), micro_batch_size=2, weight=len, reduction="undivided")
