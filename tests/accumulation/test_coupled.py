"""Losses over the whole window with the memory of a micro-batch."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.errors import AccumulationError


class TwoTowers(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))
        self.right = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))
        self.project = nn.Linear(3, 3)
        self.log_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, left, right):
        return self.left(left), self.right(right)


def info_nce(model, batch):
    left, right = model(batch["a"], batch["b"])
    logits = normalize(left) @ normalize(right).T * model.log_scale.exp()
    return cross_entropy(logits, torch.arange(len(logits)))


def chained(model, batch):
    left, right = model.left(batch["a"]), model.right(batch["b"])
    shared = (left * right).tanh()
    logits = model.project(shared) @ model.project(shared + right).T * model.log_scale.exp()
    return cross_entropy(logits, torch.arange(len(logits))) + shared.square().mean()


def setup(dropout=0.0, items=7):
    torch.manual_seed(0)
    model = TwoTowers(dropout).double()
    return model, {"a": torch.randn(items, 4).double(), "b": torch.randn(items, 5).double()}


@torch.no_grad()
def relative_error(model, reference):
    pairs = [
        (p.grad, r.grad) for p, r in zip(model.parameters(), reference.parameters(), strict=True) if r.grad is not None
    ]
    scale = max(float(r.abs().max()) for _, r in pairs)
    return max(float((p - r).abs().max()) for p, r in pairs) / scale


@pytest.mark.parametrize("loss_fn", [info_nce, chained])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_cached_gradient_equals_the_full_batch(loss_fn, size):
    model, batch = setup()
    reference = copy.deepcopy(model)
    expected = loss_fn(reference, batch)
    expected.backward()
    loss = accumulate(model, loss_fn, batch, micro_batch_size=size, coupled=True)
    assert relative_error(model, reference) <= 1e-12
    assert loss == pytest.approx(expected.item(), rel=1e-12)


def test_loss_on_halves_is_another_loss():
    model, batch = setup()
    reference = copy.deepcopy(model)
    info_nce(reference, batch).backward()
    accumulate(model, info_nce, batch, micro_batch_size=4)
    assert relative_error(model, reference) > 0.1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_second_pass_draws_the_same_dropout_masks(size):
    model, batch = setup(dropout=0.5)
    reference = copy.deepcopy(model)
    torch.manual_seed(3)
    accumulate(model, info_nce, batch, micro_batch_size=size, coupled=True)
    after = torch.rand(1)

    torch.manual_seed(3)
    pieces = [reference(batch["a"][i : i + size], batch["b"][i : i + size]) for i in range(0, 7, size)]

    def same_masks(left, right):
        return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])

    same_masks.log_scale = reference.log_scale
    info_nce(same_masks, batch).backward()
    assert relative_error(model, reference) <= 1e-12
    assert torch.equal(after, torch.rand(1))


def test_zero_logits_give_the_logarithm_of_the_whole_window():
    model, batch = setup(items=4)
    with torch.no_grad():
        for parameter in model.left.parameters():
            parameter.zero_()
    loss = accumulate(
        model,
        lambda m, b: cross_entropy(m(b["a"], b["b"])[0] @ m(b["a"], b["b"])[1].T, torch.arange(4)),
        batch,
        micro_batch_size=2,
        coupled=True,
    )
    assert loss == pytest.approx(math.log(4), rel=1e-12)


def test_running_statistics_move_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    inputs = torch.randn(6, 4).double()
    accumulate(model, lambda m, x: m(x).std(dim=0).sum(), inputs, micro_batch_size=2, coupled=True, batch_norm="ignore")
    assert int(model[1].num_batches_tracked) == 3  # three pieces, not six


def test_model_that_returns_a_loss_is_refused():
    _, batch = setup()
    with pytest.raises(AccumulationError, match="must return one row per item"):
        accumulate(nn.MSELoss(), lambda m, b: m(b["a"], b["a"]), batch, micro_batch_size=2, coupled=True)


def test_coupled_update_steps_like_the_full_batch():
    model, batch = setup()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    info_nce(reference, batch).backward()
    optimizer.step()
    GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1)).update(
        batch, info_nce, micro_batch_size=2, coupled=True
    )
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
