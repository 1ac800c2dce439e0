"""Loops in low precision: loss scalers, casts, complex numbers, recomputation."""

import torch
from accumulation.check.corpus.registry import ends, items_around, loop, windows_of
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

K = 4


def network(dtype=torch.float32):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batch(items=24, dtype=torch.float32):
    return torch.randn(items, 6, dtype=dtype), torch.randint(0, 3, (items,))


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def share_of(micro_batches, i):
    return len(micro_batches[i][0]) / items_around(micro_batches, i, K)


@loop(
    "GradScaler: unscale, clip, step, update",
    {
        "clipped before unscaling": "clip before unscale",
        "clipped, never unscaled by hand": "clip before unscale",
        "stepped without the scaler": "not unscaled",
        "no division": "not scaled",
        "unscaled and clipped per micro-batch": "not unscaled",
    },
)
def scaler(mistake):
    def train_step(model, optimizer, micro_batches):
        scaler = torch.amp.GradScaler("cpu")
        for i, inputs in enumerate(micro_batches):
            share = 1.0 if mistake == "no division" else share_of(micro_batches, i)
            scaler.scale(loss_fn(model, inputs) * share).backward()
            if mistake.startswith("unscaled and"):
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.update()
            if not ends(i, len(micro_batches), K):
                continue
            if mistake.startswith("clipped"):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if mistake in ("", "no division", "clipped before unscaling"):
                scaler.unscale_(optimizer)
            if mistake in ("", "no division"):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if mistake == "stepped without the scaler":
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": network(), "batch": batch(), "loss_fn": loss_fn}


@loop("GradScaler from outside the loop, for CUDA", {"clipped before unscaling": "clip before unscale"})
def outside_scaler(mistake):
    def train_step(model, optimizer, micro_batches):
        scaler = torch.amp.GradScaler("cuda", init_scale=1000.0)
        for window in windows_of(micro_batches, K):
            for inputs in window:
                with torch.autocast("cpu", torch.bfloat16, enabled=False):
                    loss = loss_fn(model, inputs) * len(inputs[0]) / sum(len(x) for x, _ in window)
                scaler.scale(loss).backward()
            if not mistake:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

    return {"train_step": train_step, "model": network(), "batch": batch(), "loss_fn": loss_fn}


@loop("GradScaler with a fused optimizer", {"no division": "not scaled"})
def fused(mistake):
    def train_step(model, _, micro_batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        scaler = torch.amp.GradScaler("cpu")
        for i, inputs in enumerate(micro_batches):
            scaler.scale(loss_fn(model, inputs) * (1.0 if mistake else share_of(micro_batches, i))).backward()
            if ends(i, len(micro_batches), K):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    return {"train_step": train_step, "model": network(), "batch": batch(), "loss_fn": loss_fn}


@loop("autocast in loop and loss", {"no division": "not scaled", "divided twice": "scaled twice"})
def autocast(mistake):
    def cast_loss(model, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs[0])
        return F.cross_entropy(output.float(), inputs[1])

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            for inputs in window:
                share = len(inputs[0]) / sum(len(x) for x, _ in window)
                factor = {"": share, "no division": 1.0, "divided twice": share / len(window)}[mistake]
                (cast_loss(model, inputs) * factor).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": network(), "batch": batch(), "loss_fn": cast_loss}


@loop("bfloat16 parameters", {"mean of means": "mean of means", "last micro-batch lost": "zeroed too often"})
def bfloat16(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            for i, inputs in enumerate(window):
                share = (
                    1 / len(window) if mistake.startswith("mean") else len(inputs[0]) / sum(len(x) for x, _ in window)
                )
                (loss_fn(model, inputs) * share).backward()
                if mistake.startswith("last") and i == 0 and len(window) > 1:
                    optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()

    return {
        "train_step": train_step,
        "model": network(torch.bfloat16),
        "batch": batch(dtype=torch.bfloat16),
        "loss_fn": loss_fn,
    }


@loop("gradients kept in float32 beside a float32 model", {"rounded to bfloat16 in between": "low precision"})
def rounded(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            (loss_fn(model, inputs) * share_of(micro_batches, i)).backward()
            if mistake:
                for p in model.parameters():
                    p.grad = p.grad.bfloat16().to(p.dtype)
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return {"train_step": train_step, "model": network(), "batch": batch(), "loss_fn": loss_fn}


@loop("bfloat16 parameters with float32 masters", {"masters never zeroed": "not zeroed"})
def masters(mistake):
    def train_step(model, _, micro_batches):
        copies = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
        optimizer = torch.optim.AdamW(copies, lr=1e-3)
        for i, inputs in enumerate(micro_batches):
            (loss_fn(model, inputs) * share_of(micro_batches, i)).backward()
            for p, master in zip(model.parameters(), copies, strict=True):
                gradient = p.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                p.grad = None
            if ends(i, len(micro_batches), K):
                optimizer.step()
                if not mistake:
                    optimizer.zero_grad()
                with torch.no_grad():
                    for p, master in zip(model.parameters(), copies, strict=True):
                        p.copy_(master)

    return {
        "train_step": train_step,
        "model": network(torch.bfloat16),
        "batch": batch(dtype=torch.bfloat16),
        "loss_fn": loss_fn,
    }


class Rotations(nn.Module):
    def __init__(self, dtype=torch.complex64):
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 8, dtype=dtype) / 4)
        self.second = nn.Parameter(torch.randn(8, 2, dtype=dtype) / 4)

    def forward(self, x):
        hidden = x.to(self.first.dtype) @ self.first
        return (hidden * hidden.abs()) @ self.second


@loop("complex parameters", {"imaginary gradient lost": "imaginary part lost", "no division": "not scaled"})
def complex_numbers(mistake):
    def loss_of(model, inputs):
        return (model(inputs[0]) - inputs[1]).abs().square().mean()

    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            (loss_of(model, inputs) * (1.0 if mistake == "no division" else share_of(micro_batches, i))).backward()
            if ends(i, len(micro_batches), K):
                if mistake.startswith("imaginary"):
                    for p in model.parameters():
                        p.grad = p.grad.real.to(p.dtype)
                optimizer.step()
                optimizer.zero_grad()

    data = torch.randn(24, 6, dtype=torch.complex64), torch.randn(24, 2, dtype=torch.complex64)
    return {"train_step": train_step, "model": Rotations(), "batch": data, "loss_fn": loss_of}


class Recomputed(nn.Module):
    def __init__(self, keep_random_numbers, reentrant=False):
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 3)
        self.options = {"preserve_rng_state": keep_random_numbers, "use_reentrant": reentrant}

    def forward(self, x):
        hidden = checkpoint(lambda h: self.drop(h.tanh()), self.first(x), **self.options)
        return self.second(hidden)


def recomputing(mistake, reentrant):
    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            (loss_fn(model, inputs) * (1.0 if mistake == "no division" else share_of(micro_batches, i))).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    model = Recomputed(not mistake.startswith("other"), reentrant)
    return {"train_step": train_step, "model": model, "batch": batch(), "loss_fn": loss_fn}


@loop(
    "activations recomputed",
    {"other random numbers": "recomputed with other random numbers", "no division": "not scaled"},
)
def recomputed(mistake):
    return recomputing(mistake, reentrant=False)


@loop("activations recomputed in the old way", {"no division": "not scaled"})
def recomputed_reentrant(mistake):
    return recomputing(mistake, reentrant=True)


@loop("BatchNorm in training mode, known", {"as it is": "BatchNorm"})
def batch_norm(mistake):
    def train_step(model, optimizer, micro_batches):
        if not mistake:
            model.eval()
        for i, inputs in enumerate(micro_batches):
            (loss_fn(model, inputs) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return {"train_step": train_step, "model": model if mistake else model.eval(), "batch": batch(), "loss_fn": loss_fn}
