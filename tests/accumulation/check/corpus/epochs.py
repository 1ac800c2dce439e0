"""Loops whose mistakes show late in an epoch, in some parameters only, or in a part of the loss; and flushes that do
nothing."""

import torch
from accumulation.check.corpus.registry import (
    K,
    arguments,
    batch,
    ends,
    items_around,
    loop,
    loss_fn,
    share_of,
    windows_of,
)
from torch import nn
from torch.nn import functional as F


def window_loop(change=lambda model, window, number: None, after=None):
    """A right loop that calls ``change`` before each step, and ``after`` in place of zero_grad."""

    def train_step(model, optimizer, micro_batches):
        for number, window in enumerate(windows_of(micro_batches, K)):
            for b in window:
                (loss_fn(model, b) * len(b[0]) / sum(len(other[0]) for other in window)).backward()
            change(model, window, number)
            optimizer.step()
            (after or (lambda model, number: model.zero_grad()))(model, number)

    return train_step


@loop("a flush after the epoch, whatever is left", {"with gradients of 0": "early or extra step"})
def flush(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=not mistake)
        optimizer.step()
        optimizer.zero_grad()

    return arguments(train_step)


@loop("zeroed after every step", {"but the second": "not zeroed", "but every fourth": "not zeroed"})
def late_zero(mistake):
    kept = {"": [], "but the second": [1], "but every fourth": [3, 7]}[mistake]

    def after(model, number):
        if number not in kept:
            model.zero_grad()

    return arguments(window_loop(after=after))


@loop(
    "the third window like all others",
    {"its gradients halved": "wrong scale", "one micro-batch of it twice": "early or extra step"},
)
def third(mistake):
    def change(model, window, number):
        if number == 2 and mistake == "its gradients halved":
            for p in model.parameters():
                p.grad *= 0.5
        elif number == 2 and mistake:
            loss_fn(model, window[0]).backward()

    return arguments(window_loop(change))


@loop(
    "clipped once per window, tails of every length",
    {"but those of 3": "short last window not clipped", "but those of 2": "short last window not clipped"},
)
def clipped_tails(mistake):
    def change(model, window, number):
        if not mistake or len(window) != int(mistake[-1]):
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    return arguments(window_loop(change))


@loop("one layer clipped, once per window", {"in every micro-batch": "clip per micro-batch"})
def one_layer(mistake):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.EmbeddingBag(20, 6, sparse=True, mode="sum"), nn.Linear(6, 3)

        def forward(self, ids):
            return self.head(self.words(ids))

    def clip(model):
        gradient = model.words.weight.grad.coalesce()
        model.words.weight.grad = gradient * min(1.0, 0.01 / float(gradient.values().norm()))

    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                clip(model)
            if last:
                optimizer.step()
                optimizer.zero_grad()

    data = torch.randint(0, 20, (24, 4)), torch.randint(0, 3, (24,))
    return arguments(train_step, model=Words(), batch=data)


@loop("two terms of the loss, both means", {"one summed over the micro-batch": "another loss"})
def two_terms(mistake):
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def loss(model, b, summed=False):
        mean, log_variance = model.encode(b[0]).chunk(2, dim=-1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.05 * (1 + log_variance - mean**2 - log_variance.exp()).sum(dim=1)
        return F.mse_loss(model.decode(code), b[0]) + (divergence.sum() if summed else divergence.mean())

    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            (loss(model, b, bool(mistake)) * len(b[0]) / items_around(micro_batches, i, K)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, model=Coder(), batch=batch(), loss_fn=loss)


@loop("clipped to 1.1 times the mean norm so far", {"in every micro-batch": "clip per micro-batch"})
def mean_norm(mistake):
    def train_step(model, optimizer, micro_batches):
        norms = []

        def clip():
            norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))
            nn.utils.clip_grad_norm_(model.parameters(), 1.1 * sum(norms) / len(norms))

        for i, b in enumerate(micro_batches):
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                clip()
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("windows of a larger norm than before left out", {"every window": "missing step"})
def left_out(mistake):
    def train_step(model, optimizer, micro_batches):
        largest = None
        for window in windows_of(micro_batches, K):
            for b in window:
                (loss_fn(model, b) * len(b[0]) / sum(len(other[0]) for other in window)).backward()
            norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
            if not mistake and (largest is None or norm < 1.01 * largest):
                optimizer.step()
            largest = norm if largest is None else max(largest, norm)
            optimizer.zero_grad()

    return arguments(train_step)


@loop("the head clipped alone, with a GradScaler", {"before it is unscaled": "clip before unscale"})
def scaled_head(mistake):
    def train_step(model, optimizer, micro_batches):
        scaler = torch.amp.GradScaler("cpu")
        for i, b in enumerate(micro_batches):
            scaler.scale(loss_fn(model, b) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                if not mistake:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model[2].parameters(), 0.01)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    return arguments(train_step)
