"""Every random number generator that training may use: seeded, saved as JSON, and kept from side effects."""

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": {
            "key": numpy_state["state"]["key"].tolist(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": _text(torch.get_rng_state()),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [_text(each) for each in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put every global generator where `rng_state` found it."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    saved = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(saved["key"], np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        }
    )
    torch.set_rng_state(_tensor(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_tensor(each) for each in state["cuda"]])


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace outside."""
    # Not rng_state: for every batch of a loader, the way over JSON would cost more than the batch.
    python, numpy, on_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(on_cpu)
        if on_cuda is not None:
            torch.cuda.set_rng_state_all(on_cuda)


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
