"""Stopping inside a window or at its boundary, and going on as if nothing had happened."""

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
