"""Stopping inside a window or at its boundary, and going on as if nothing had happened."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError

K = 4


def setup(on_nonfinite="skip", dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    accumulator = GradientAccumulator(model, optimizer, max_norm=0.5, on_nonfinite=on_nonfinite)
    generator = torch.Generator().manual_seed(1)
    loader = [
        (torch.randn(n, 3, generator=generator).to(dtype), torch.randn(n, 2, generator=generator).to(dtype))
        for n in (2, 3, 1, 4, 2, 2, 5, 1, 3, 2)
    ]
    return model, optimizer, accumulator, loader


def train(model, accumulator, loader, stop_after=None):
    """Run to the end, or return the states after the micro-batch with the number ``stop_after``."""
    done, losses = 0, []
    for window in accumulator.windows(loader, micro_batches=K):
        for x, y in window:
            window.backward(mse_loss(model(x).float(), y.float()))
            done += 1
            if done == stop_after:
                return accumulator.state_dict(inside_window=True)
        losses.append(window.step().loss)
    return losses


@pytest.mark.parametrize("on_nonfinite", ["skip", "drop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop_after", [1, 4, 6, 9])
def test_resume_inside_a_window_is_byte_equal_to_never_stopping(on_nonfinite, dtype, stop_after):
    model, _, accumulator, loader = setup(on_nonfinite, dtype)
    losses = train(model, accumulator, loader)

    first, optimizer, accumulator, _ = setup(on_nonfinite, dtype)
    state = train(first, accumulator, loader, stop_after)
    file = io.BytesIO()
    torch.save([state, first.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    state, weights, optimizer_state = torch.load(file, weights_only=True)

    second, optimizer, accumulator, _ = setup(on_nonfinite, dtype)
    second.load_state_dict(weights)
    optimizer.load_state_dict(optimizer_state)
    accumulator.load_state_dict(state)
    boundary = (stop_after - 1) // K * K
    rest = train(second, accumulator, loader[boundary:])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), second.parameters(), strict=True))
    assert rest == pytest.approx(losses[-len(rest) :], rel=1e-6)
    assert accumulator.updates == 3


def test_resume_at_the_boundary_is_byte_equal_and_saves_no_tensors():
    model, _, accumulator, loader = setup()
    train(model, accumulator, loader)
    other, optimizer, accumulator, _ = setup()
    train(other, accumulator, loader[:K])
    state = accumulator.state_dict()
    assert not [value for value in state.values() if isinstance(value, torch.Tensor)]
    again = GradientAccumulator(other, optimizer, max_norm=0.5)
    again.load_state_dict(state)
    train(other, again, loader[K:])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert again.updates == 3


def test_window_that_is_open_must_be_asked_for():
    model, _, accumulator, loader = setup()
    window = next(accumulator.windows(loader, micro_batches=K))
    for x, y in window:
        window.backward(mse_loss(model(x), y))
        with pytest.raises(AccumulationError, match=r"state_dict\(\) while a window is open"):
            accumulator.state_dict()
        break


def test_window_whose_mean_is_in_grad_is_not_saved_half_done():
    model, _, accumulator, loader = setup()
    window = next(accumulator.windows(loader, micro_batches=K))
    for x, y in window:
        window.backward(mse_loss(model(x), y))
    with pytest.raises(AccumulationError, match="all 4 micro-batches of this window have run"):
        accumulator.state_dict(inside_window=True)
    window.step()
    accumulator.state_dict()


def test_state_of_another_model_is_refused():
    model, _, accumulator, loader = setup()
    state = train(model, accumulator, loader, 2)
    other = nn.Linear(3, 2)
    accumulator = GradientAccumulator(other, torch.optim.SGD(other.parameters(), lr=0.1))
    accumulator.load_state_dict(state)
    with pytest.raises(ConfigError, match="the saved window had 4 parameters"):
        next(accumulator.windows(loader, micro_batches=K))


def line(dtype=torch.float32, **options):
    """The gradient of the mean output is the mean of the inputs, and a step makes the weight its negative."""
    model = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    return model, GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)


def ones(*sizes, dtype=torch.float32):
    return [torch.ones(size, 1, dtype=dtype) for size in sizes]


def saved(loader, weight=None, **options):
    """The state after the first micro-batch of two."""
    model, accumulator = line(loader[0].dtype, **options)
    window = next(accumulator.windows(loader, micro_batches=2, weight=weight))
    window.backward(model(next(iter(window))).mean())
    return accumulator.state_dict(inside_window=True)


def gone_on(state, loader, weight=None, **options):
    model, accumulator = line(loader[0].dtype, **options)
    accumulator.load_state_dict(state)
    for window in accumulator.windows(loader, micro_batches=2, weight=weight):
        for x in window:
            window.backward(model(x).mean())
        window.step()
    return model.weight.item()


def test_a_window_goes_on_only_with_the_weights_that_it_was_divided_by():
    state = saved(ones(1, 3))
    assert gone_on(state, ones(1, 3)) == -1.0
    with pytest.raises(ConfigError, match="the weight 1 of 'loss' in micro-batch 0, but this one has 7"):
        gone_on(state, ones(7, 3))
    with pytest.raises(ConfigError, match="the weight 4 of 'loss' in all micro-batches together, but this one has 10"):
        gone_on(state, ones(1, 9))
    with pytest.raises(ConfigError, match="the weight 1 of 'loss' in micro-batch 0, but this one has 2"):
        gone_on(state, ones(1, 3), weight=lambda x: 2 * len(x))
    with pytest.raises(ConfigError, match="the weight 1 of 'loss' in micro-batch 0, but this one has 0"):
        gone_on(state, ones(1, 3), weight=lambda x: {"a": len(x)})
    swapped = saved(ones(2, 3), weight=lambda x: 3 - len(x))  # a micro-batch of weight 0 had no gradient to divide
    assert gone_on(swapped, ones(2, 3), weight=lambda x: 3 - len(x)) == -1.0


def test_a_refused_window_is_closed_and_runs_again_from_its_start():
    model, accumulator = line()
    accumulator.load_state_dict(saved(ones(1, 3)))
    with pytest.raises(ConfigError):
        next(accumulator.windows(ones(7, 3), micro_batches=2))
    for window in accumulator.windows(ones(7, 3), micro_batches=2):
        for x in window:
            window.backward(model(x).mean())
        window.step()
    assert model.weight.item() == -1.0


def test_a_state_is_loaded_as_often_as_you_like():
    state = saved(ones(1, 3))
    before = copy.deepcopy(state)
    assert [gone_on(state, ones(1, 3)) for _ in range(2)] == [-1.0, -1.0]
    assert torch.equal(state["window"]["sums"][0], before["window"]["sums"][0])


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("sums", None), ("sums", [None]), ("sums", [[[1.0]]]), ("sums", 3),
        ("done", "1"), ("done", -1), ("done", 2), ("done", 0), ("done", True), ("num_run", 0), ("num_run", None),
        ("shares", None), ("shares", {}), ("scale", None), ("scale", {}), ("scale", 3),
    ],
)  # fmt: skip
def test_a_window_whose_parts_do_not_fit_is_refused(part, value):
    state = saved(ones(1, 3))
    _, accumulator = line()
    with pytest.raises(ConfigError, match=r"the saved window is not what state_dict\(inside_window=True\) gave"):
        accumulator.load_state_dict({**state, "window": {**state["window"], part: value}})
    lacking = {key: each for key, each in state["window"].items() if key != part}
    with pytest.raises(ConfigError, match="the saved window is not what"):
        accumulator.load_state_dict({**state, "window": lacking})
    assert gone_on({**state, "window": None}, ones(1, 3)) == -1.0


@pytest.mark.parametrize("window", [{}, [1], 3, "x"])
def test_what_is_no_window_is_refused(window):
    _, accumulator = line()
    with pytest.raises(ConfigError, match="its part 'done' is missing"):
        accumulator.load_state_dict({"version": 1, "updates": 0, "window": window})


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (None, "NoneType"), ([1], "list"), ({}, "its keys are none"), ({"version": 2, "updates": 1}, "its keys are"),
        ({"version": 1, "updates": True}, "its updates are True"),
        ({"version": 1, "updates": -1}, "its updates are -1"),
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(state, told):
    _, accumulator = line()
    with pytest.raises(ConfigError, match=f"not the state of a GradientAccumulator of version 1: {told}"):
        accumulator.load_state_dict(state)


f16, f32, f64 = torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ((f32, "auto"), (f64, "auto"), "a sum in torch.float32, but .* torch.float64 parameter are summed in torch.f"),
        ((f64, "auto"), (f32, "auto"), "a sum in torch.float64, but .* summed in torch.float32"),
        ((f16, "auto"), (f16, None), "a sum in torch.float32, but .* summed in torch.float16"),
        ((f16, None), (f16, "auto"), "a sum in torch.float16, but .* summed in torch.float32"),
        ((f32, "auto"), (f32, f64), "a sum in torch.float32, but .* summed in torch.float64"),
    ],
)
def test_a_window_that_is_summed_in_another_dtype_is_refused(first, second, told):
    state = saved(ones(1, 3, dtype=first[0]), accumulate_dtype=first[1])
    assert gone_on(state, ones(1, 3, dtype=first[0]), accumulate_dtype=first[1]) == -1.0
    with pytest.raises(ConfigError, match=told):
        gone_on(state, ones(1, 3, dtype=second[0]), accumulate_dtype=second[1])


def test_the_manual_form_goes_on_after_what_it_had_summed():
    model, accumulator = line()
    accumulator.backward(model(torch.ones(1, 1)).mean(), weight=1)
    state = accumulator.state_dict(inside_window=True)
    model, accumulator = line()
    accumulator.load_state_dict(state)
    accumulator.backward(model(torch.full((1, 1), 3.0)).mean(), weight=1)
    assert (accumulator.step().weight, model.weight.item()) == (2.0, -2.0)
    for ended in (GradientAccumulator.step, GradientAccumulator.flush):
        model, accumulator = line()
        accumulator.load_state_dict(state)
        assert (ended(accumulator).micro_batches, model.weight.item()) == (1, -1.0)
