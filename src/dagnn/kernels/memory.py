"""Memory that one step leaves for the next.

Memory that the system has just handed out costs a page fault for every 4 KiB: for the gates of 512 small graphs as much
as their matrix products.
"""

import torch
from torch import Tensor

# Pieces that are kept for each dtype: one for the pass that is running, one for its gradients.
_KEPT = 2
_kept: dict[torch.dtype, list[Tensor]] = {}


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
        pieces = _kept.setdefault(memory.dtype, [])
        pieces.append(memory)
        if len(pieces) > _KEPT:  # a smaller one goes
            pieces.sort(key=len)
            del pieces[0]


def _take(length: int, dtype: torch.dtype) -> Tensor:
    pieces = _kept.get(dtype, [])
    try:
        memory = pieces.pop()  # one step: two threads never get the same
    except IndexError:
        return torch.empty(length, dtype=dtype)
    # One that is far too large would be held for nothing while it is in use.
    return memory if length <= len(memory) <= 4 * length + (1 << 20) else torch.empty(length, dtype=dtype)
