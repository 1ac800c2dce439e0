"""Mistakes that do not show at the parameters given, or in windows of equal micro-batches."""

import copy

import torch
from accumulation.check.corpus.registry import (
    K,
    arguments,
    batch,
    ends,
    loop,
    loss_fn,
    network,
    share_of,
    windows_of,
)
from torch import nn
from torch.nn import functional as F


def two_terms(mistake, first, second, **options):
    """``first`` divided as it should be, ``second`` only if there is no mistake."""

    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            share = share_of(micro_batches, i)
            (first(model, inputs) * share + second(model, inputs) * (1.0 if mistake else share)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, loss_fn=lambda model, b: first(model, b) + second(model, b), **options)


@loop("distance to a reference policy, where it still is", {"not divided": "not scaled"})
def reference_policy(mistake):
    model = network()
    reference = copy.deepcopy(model).double().requires_grad_(False)

    def divergence(model, batch):
        x, y = batch
        own = model(x).log_softmax(-1).gather(1, y[:, None])[:, 0]
        ratio = reference(x.double()).log_softmax(-1).gather(1, y[:, None])[:, 0].to(own.dtype) - own
        return (ratio.exp() - ratio - 1).mean()

    return two_terms(mistake, loss_fn, divergence, model=model)


@loop("penalty to the pretrained weights, where they still are", {"in every micro-batch": "not scaled"})
def pretrained(mistake):
    model = network()
    start = [p.detach().double().clone() for p in model.parameters()]

    def penalty(model, batch):
        return sum((p - s.to(p.dtype)).square().sum() for p, s in zip(model.parameters(), start, strict=True))

    return two_terms(mistake, loss_fn, penalty, model=model)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(5, 2))

    def forward(self, x, down):
        return self.head(self.base(x) + x @ down.T @ self.up.T)


@loop("a low-rank adapter that begins with 0", {"detached but in the last micro-batch": "another loss"})
def adapter(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            is_last = ends(i, len(micro_batches), K)
            down = model.down if is_last or not mistake else model.down.detach()
            (F.cross_entropy(model(x, down), y) * share_of(micro_batches, i)).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(
        train_step, model=Adapted(), loss_fn=lambda model, b: F.cross_entropy(model(b[0], model.down), b[1])
    )


@loop("divided by items", {"a short last window as a mean of means": "mean of means"})
def uneven_tail(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            items = sum(len(x) for x, _ in window)
            for inputs in window:
                even = mistake and len(window) < K
                (loss_fn(model, inputs) * (1 / len(window) if even else len(inputs[0]) / items)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("a mean over all items of a masked loss", {"divided by what the mask leaves": "wrong denominator"})
def masked_mean(mistake):
    def masked(model, batch, over_all=True):
        x, y, mask = batch
        values = F.cross_entropy(model(x), y, reduction="none") * (mask > 0)
        return F.cross_entropy(model(x), y) + (values.mean() if over_all else values.sum() / (mask > 0).sum())

    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            (masked(model, inputs, not mistake) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    x, y = batch()
    mask = torch.ones(24)
    mask[[0, 4, 5, 10, 15, 16, 22]] = -1.0  # some, not all, of every two neighbours
    return arguments(train_step, batch=(x, y, mask), loss_fn=masked)


@loop("a second term", {"of the last micro-batch alone": "another loss"})
def last_term(mistake):
    def term(model, batch):
        return model(batch[0]).square().mean()

    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            share, is_last = share_of(micro_batches, i), ends(i, len(micro_batches), K)
            second = (1.0 if is_last else 0.0) if mistake else share
            (loss_fn(model, inputs) * share + term(model, inputs) * second).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, loss_fn=lambda model, b: loss_fn(model, b) + term(model, b))


@loop("the larger half of a gradient kept", {"in every micro-batch": "clip per micro-batch"})
def thinned(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            (loss_fn(model, inputs) * share_of(micro_batches, i)).backward()
            if mistake:
                for p in model.parameters():
                    p.grad.mul_(p.grad.abs() >= p.grad.abs().flatten().median())
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)
