"""Training loops as projects write them: each as it is right, and with planted mistakes and the cause to be named."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Case(NamedTuple):
    name: str
    mistake: str  # empty for the loop as it is right
    cause: str | None  # the one that must be named
    make: Callable[[], dict[str, Any]]  # the arguments of check_loop

    def arguments(self) -> dict[str, Any]:
        torch.manual_seed(0)
        return self.make()

    def __str__(self) -> str:
        return f"{self.name}: {self.mistake or 'right'}"


CASES: list[Case] = []


def loop(name: str, mistakes: Mapping[str, str] | None = None) -> Callable[[Callable[[str], dict]], Callable]:
    """Register ``make(mistake)``, which returns the arguments of check_loop; an empty mistake is the right loop."""

    def register(make: Callable[[str], dict]) -> Callable:
        for mistake, cause in {"": None, **(mistakes or {})}.items():
            CASES.append(Case(name, mistake, cause, partial(make, mistake)))
        return make

    return register


def windows_of(micro_batches: list, k: int) -> list[list]:
    return [micro_batches[i : i + k] for i in range(0, len(micro_batches), k)]


def ends(i: int, total: int, k: int) -> bool:
    return (i + 1) % k == 0 or i + 1 == total


def items_around(micro_batches: list, i: int, k: int) -> int:
    """Items of the window that micro-batch i belongs to."""
    return sum(len(b[0]) for b in micro_batches[i - i % k : i - i % k + k])


# What most loops train: a classifier of 24 items, in windows of 4 micro-batches.
K = 4


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(items=24):
    return torch.randn(items, 6), torch.randint(0, 3, (items,))


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def share_of(micro_batches, i):
    return len(micro_batches[i][0]) / items_around(micro_batches, i, K)


def arguments(train_step, **options):
    return {"train_step": train_step, "model": network(), "batch": batch(), "loss_fn": loss_fn} | options
