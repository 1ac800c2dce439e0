"""The state that running a model changes besides gradients: random numbers, buffers, and metrics."""

import copy
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class RandomState:
    """The state of every random number generator that a loss may use: torch on all devices, Python, NumPy."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002  # the global generator is what users' code draws from

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


class Snapshot:
    """Random state, buffers of the models and the state of ``others``, to go back to after a failed attempt.

    Args:
        models: their buffers are copied; parameters are not, since nothing steps during an attempt.
        others: objects such as metrics, with ``state_dict`` and ``load_state_dict``, or plain objects whose attributes
            are copied.
    """

    def __init__(self, models: Iterable[nn.Module], others: Sequence[Any] = ()) -> None:
        self.random = RandomState()
        self._buffers: list[tuple[Tensor, Tensor]] = [(b, b.detach().clone()) for m in models for b in m.buffers()]
        self._others = [(other, copy.deepcopy(_state_of(other))) for other in others]

    def restore(self) -> None:
        self.random.restore()
        self.restore_buffers()
        for other, state in self._others:
            if hasattr(other, "load_state_dict"):
                other.load_state_dict(copy.deepcopy(state))
            else:
                vars(other).clear()
                vars(other).update(copy.deepcopy(state))

    @torch.no_grad()
    def restore_buffers(self) -> None:
        for buffer, value in self._buffers:
            buffer.copy_(value)


def _state_of(other: Any) -> Any:
    return other.state_dict() if hasattr(other, "load_state_dict") else vars(other)
