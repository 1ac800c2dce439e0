"""Memory that one step leaves for the next.

Memory that the system has just handed out costs a page fault for every 4 KiB: for the gates of 512 small graphs as much
as their matrix products.
"""

import torch
from torch import Tensor

from dagnn.graph.lasting import lasting

# Pieces that are kept for each dtype: one for the pass that is running, one for its gradients.
_KEPT = 2
# By their identity: a dict gains and loses an entry in one step, also where other threads, or the garbage collector in
# the middle of what this one does, change it too. A lock would have to survive both, and a fork.
_kept: dict[torch.dtype, dict[int, Tensor]] = {dtype: {} for dtype in (torch.float32, torch.float64)}


class Borrowed:
    """A flat tensor of a length, for as long as this object lives. Its numbers are what the last user left.

    Attributes:
        numbers: ``[length]``, at a multiple of 64 bytes.
    """

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self._memory = _take(length, dtype)
        self.numbers = self._memory[:length]

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        if memory is None:
            return
        pieces = _kept[memory.dtype]
        pieces[id(memory)] = memory
        if len(pieces) > _KEPT:  # the smallest one goes
            smallest = min(list(pieces.values()), key=Tensor.numel, default=None)
            pieces.pop(id(smallest), None)


def _take(length: int, dtype: torch.dtype) -> Tensor:
    try:
        _, memory = _kept[dtype].popitem()  # one step: two threads never get the same
    except KeyError:
        return _new(length, dtype)
    # One that is far too large would be held for nothing while it is in use.
    return memory if length <= memory.numel() <= 4 * length + (1 << 20) else _new(length, dtype)


def _new(length: int, dtype: torch.dtype) -> Tensor:
    with lasting():
        return torch.empty(length, dtype=dtype, device="cpu")
