"""Every random number generator that training may use: seeded, saved as JSON, and kept from side effects."""

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagnn.accumulation.state import RandomState

# Odd, so that no two ranks below 2**32 share a seed; the golden ratio's spreads them (Knuth, TAOCP 3, 6.4).
_BETWEEN_RANKS = 0x9E3779B1


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch, all devices included. ``seed``: 0 .. 2**32 - 1.

    Each rank draws its own numbers: two processes must not drop the same units of different examples.
    """
    seed = (seed + rank * _BETWEEN_RANKS) % 2**32
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is the one that user code may draw from
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of every global generator, as JSON values."""
    now = RandomState.now()
    version, words, gauss = now.python
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": {
            "key": now.numpy["state"]["key"].tolist(),
            "pos": int(now.numpy["state"]["pos"]),
            "has_gauss": int(now.numpy["has_gauss"]),
            "gauss": float(now.numpy["gauss"]),
        },
        "torch": _text(now.torch),
    }
    if now.cuda:
        state["cuda"] = [_text(each) for each in now.cuda]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put every global generator where `rng_state` found it."""
    version, words, gauss = state["python"]
    saved = state["numpy"]
    RandomState(
        python=(version, tuple(words), gauss),
        numpy={
            "bit_generator": "MT19937",
            "state": {"key": np.array(saved["key"], np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        },
        torch=_tensor(state["torch"]),
        cuda=[_tensor(each) for each in state.get("cuda", [])],
    ).restore()


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace outside."""
    # Not rng_state: for every batch of a loader, the way over JSON would cost more than the batch.
    before = RandomState.now()
    try:
        yield
    finally:
        before.restore()


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
