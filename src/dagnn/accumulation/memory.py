"""Memory of a forward pass: measured, compared with a budget, and what runs out of it."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dagnn.errors import AccumulationError, ConfigError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_memory(memory: str | int) -> int:
    """Bytes in ``memory``: a number of bytes or a text such as "2GiB", "500 MB".

    >>> parse_memory("2GiB")
    2147483648
    """
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", memory.lower()) if isinstance(memory, str) else None
    if match is None or not float(match[1]):
        raise ConfigError(f"memory must be a size such as '2GiB' or '500MB', or a number of bytes, got {memory!r}.")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def is_out_of_memory(error: BaseException) -> bool:
    """True for what torch and Python raise when an allocation fails, on a device or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def activation_bytes(run: Callable[[], Any], known: Iterable[Tensor]) -> int:
    """Memory that a forward pass keeps for its backward pass, in bytes.

    Counts each storage once that autograd saves while ``run`` is called, but not those of ``known`` (parameters,
    buffers, the batch), which exist anyway. On a CUDA device the peak of the allocator counts, if that is more.
    """
    skip = {_storage_key(tensor) for tensor in known}
    saved: dict[tuple[torch.device, int], int] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = _storage_key(tensor)
        if key not in skip:
            saved[key] = tensor.untyped_storage().nbytes()
        return tensor

    device = next((tensor.device for tensor in known if tensor.is_cuda), None)
    before = 0
    if device is not None:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    peak = torch.cuda.max_memory_allocated(device) - before if device is not None else 0
    del result
    return max(peak, sum(saved.values()))


def largest_fitting(measure: Callable[[int], int], budget: int, most: int) -> int:
    """The largest number of items ``1 .. most`` for which ``measure(items) <= budget``; few measurements.

    Memory grows almost linearly with the items, so a line through the last two measurements is a good next guess;
    each measurement also halves off one side, so that a curve which is not linear ends too. AccumulationError if even
    one item does not fit.
    """
    fits, too_many = 0, most + 1
    points: list[tuple[int, int]] = []
    guess = 1
    while too_many - fits > 1:
        used = measure(guess)
        points.append((guess, used))
        if used <= budget:
            fits = guess
        else:
            too_many = guess
        guess = max(fits + 1, min(too_many - 1, _next_guess(points, budget)))
    if fits == 0:
        raise AccumulationError(
            f"one item needs {points[0][1]:,} bytes of activations, but memory={budget:,} allows less: raise memory, "
            "or checkpoint parts of the model (torch.utils.checkpoint)."
        )
    return fits


def _next_guess(points: list[tuple[int, int]], budget: int) -> int:
    if len(points) == 1:
        return 2
    (n1, b1), (n2, b2) = points[-2:]
    if n1 == n2 or (b2 - b1) * (n2 - n1) <= 0:
        return 2 * n2
    slope = (b2 - b1) / (n2 - n1)
    return int((budget - b2) / slope) + n2


def _storage_key(tensor: Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()
