"""Losses over the whole window with the memory of a micro-batch."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.accumulation.coupled import PiecewiseModules
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


class Contrastive(nn.Module):
    """A model that computes its loss itself, as those of transformers do."""

    def __init__(self, dropout=0.0, aside=False, normed=False):
        super().__init__()
        self.towers = TwoTowers(dropout)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)])
        self.norm = nn.Sequential(nn.BatchNorm1d(3) if normed else nn.Identity())
        self.aside, self.seen = aside, []

    def forward(self, left, right):
        self.seen = []
        left, right = self.towers(left, right)
        for block in self.blocks:
            left, right = block(left), block(right)
            self.seen += [left] if self.aside else []
        logits = self.norm(left) @ normalize(right).T * self.towers.log_scale.exp()
        return cross_entropy(logits, torch.arange(len(logits))) + sum(z.square().mean() for z in self.seen)


def in_pieces(model, batch, size):
    """The loss, and the gradients in the model; the modules that ran in pieces."""
    modules = PiecewiseModules(model)
    model.eval()
    assert modules.find(lambda few: model(few["a"], few["b"]), batch, 7, size)
    model.train()
    with modules.running(len(batch["a"]), size):
        loss = model(batch["a"], batch["b"])
    loss.backward(retain_graph=True)
    modules.finish(lambda roots, gradients, retain: torch.autograd.backward(roots, gradients, retain_graph=retain))
    return loss, set(modules.names)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_modules_inside_a_model_run_in_pieces_with_the_gradient_of_the_full_batch(size):
    _, batch = setup()
    model = Contrastive().double()
    reference, items = copy.deepcopy(model), []
    model.towers.left[1].register_forward_hook(lambda module, args, output: items.append(len(output)))
    expected = reference(batch["a"], batch["b"])
    expected.backward()

    loss, names = in_pieces(model, batch, size)

    assert names == {"towers", "blocks.0", "blocks.1"}  # a single layer runs as a whole
    assert max(items[-2 * (-(-7 // size)) :]) == size  # both passes
    assert relative_error(model, reference) <= 1e-12 and loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_modules_in_pieces_draw_the_same_dropout_masks_twice():
    _, batch = setup()
    model = Contrastive(dropout=0.5).double()
    reference = copy.deepcopy(model)
    torch.manual_seed(3)
    in_pieces(model, batch, 2)

    torch.manual_seed(3)
    a, b = batch["a"], batch["b"]
    towers = [reference.towers(a[i : i + 2], b[i : i + 2]) for i in range(0, 7, 2)]
    reference.towers.forward = lambda left, right: tuple(torch.cat(parts) for parts in zip(*towers, strict=True))
    reference(a, b).backward()

    assert relative_error(model, reference) <= 1e-12


def test_a_module_that_couples_items_runs_as_a_whole():
    _, batch = setup()
    model = Contrastive(normed=True).double()
    reference = copy.deepcopy(model)
    reference(batch["a"], batch["b"]).backward()

    _, names = in_pieces(model, batch, 2)

    assert names == {"towers", "blocks.0", "blocks.1"} and relative_error(model, reference) <= 1e-12


class Keeping(nn.Sequential):
    """Hands its sum on past its output."""

    def forward(self, inputs):
        output = super().forward(inputs)
        self.kept = output.square().mean(0)
        return output


def test_no_module_runs_in_pieces_where_one_hands_values_on_past_its_outputs():
    _, batch = setup()
    model = Contrastive().double()
    model.blocks[0] = Keeping(*model.blocks[0])
    plain = model.forward
    model.forward = lambda left, right: plain(left, right) + model.blocks[0].kept.mean()
    reference = copy.deepcopy(model)
    plain_reference = type(reference).forward
    reference.forward = lambda left, right: plain_reference(reference, left, right) + reference.blocks[0].kept.mean()
    reference(batch["a"], batch["b"]).backward()

    _, names = in_pieces(model, batch, 2)

    assert names == set() and relative_error(model, reference) <= 1e-12
