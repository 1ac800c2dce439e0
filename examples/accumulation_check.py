"""Is a hand-written accumulation loop right? `dagnn check examples/accumulation_check.py:wrong` reports the same."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import dagnn

K = 4


def loss_fn(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def mean_of_means(model, optimizer, micro_batches):
    """The loop of most tutorials: right only while all micro-batches have the same size."""
    for i, (inputs, targets) in enumerate(micro_batches):
        (mse_loss(model(inputs), targets) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()  # dagnn: ignore[lost-remainder] (dagnn lint finds that, here is what running it adds)
            optimizer.zero_grad()


def weighted(model, optimizer, micro_batches):
    """The same with shares, and with a short last window."""
    for start in range(0, len(micro_batches), K):
        window = micro_batches[start : start + K]
        items = sum(len(inputs) for inputs, _ in window)
        for inputs, targets in window:
            (mse_loss(model(inputs), targets) * len(inputs) / items).backward()
        optimizer.step()
        optimizer.zero_grad()


def arguments(train_step):
    torch.manual_seed(0)
    return {
        "train_step": train_step,
        "model": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
        "batch": (torch.randn(32, 6), torch.randn(32, 2)),
        "loss_fn": loss_fn,
        "micro_batches": K,
    }


def wrong():
    return arguments(mean_of_means)


def right():
    return arguments(weighted)


if __name__ == "__main__":
    for case in (wrong, right):
        print(f"{case().pop('train_step').__name__}:")
        print(dagnn.check_loop(**case()), end="\n\n")
