"""Whether a loader reuses the buffers of its batches: what each held when it was fetched is what it must still hold.

A window is fetched whole, so a loader that fills one buffer again and again would yield the last batch K times. Two
batches of a window that share memory are the first sign. Whether the contents changed is decided by what a batch held
when it arrived: which objects, and a sample of their values.
"""

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dagnn.accumulation.items import is_structure, parts_of
from dagnn.errors import AccumulationError

_SAMPLE = 1024  # values of a tensor; one with fewer is compared whole
_DEPTH = 4  # of objects that hold objects: they may hold each other in a circle


class _Batch(NamedTuple):
    data: Any
    leaves: Sequence[Any]
    containers: Sequence[int]  # ids of those that may be filled again
    versions: list[int]
    samples: Sequence["_Sample"]  # empty where none were taken


class _Sample(NamedTuple):
    values: bytes | Tensor | None
    whole: bool


class Fetched:
    """The batches of the window that is being fetched.

    Samples are taken in the first window, and as long as batches share memory; a loader that gives each batch its own
    memory costs only a look at the addresses.
    """

    def __init__(self) -> None:
        self._batches: list[_Batch] = []
        self._sampling = True

    def add(self, batch: Any) -> None:
        """Record what ``batch`` holds as it arrives."""
        leaves, containers = _contents(batch)
        samples = [_sample(leaf) for leaf in leaves] if self._sampling else ()
        try:
            versions = [leaf._version for leaf in leaves]
        except (AttributeError, RuntimeError):
            versions = list(map(_version, leaves))
        self._batches.append(_Batch(batch, leaves, containers, versions, samples))

    def end_window(self, *, keep_last: bool = False) -> None:
        """Begin the next window, of which the last batch is the first if ``keep_last``.

        Raises:
            AccumulationError: a batch of the window is not what it was when it arrived.
        """
        batches, self._batches = self._batches, []
        if len(batches) > 1:
            self._sampling = _share_memory(batches)
            changed = [_changed(batch) for batch in batches] if self._sampling else []
            if any(changed):
                raise AccumulationError(
                    f"the loader changed batch {changed.index(True)} of the window after it had yielded it: it fills "
                    "one buffer again and again, but a window is fetched whole before it runs. Let it yield a copy "
                    "(batch.clone()), or use accumulator.backward(loss, weight=n) and accumulator.step(), which look "
                    "at one batch at a time."
                )
        if keep_last:
            self.add(batches[-1].data)


def _share_memory(batches: Sequence[_Batch]) -> bool:
    try:
        # The usual window, quickly: only whole tensors, which lie one after another.
        leaves = [leaf for batch in batches for leaf in batch.leaves]
        starts = [leaf.data_ptr() for leaf in leaves]
        spans = sorted(zip(starts, [leaf.nbytes for leaf in leaves], strict=True))
        apart = all(start + size <= after for (start, size), (after, _) in pairwise(spans))
        containers = [container for batch in batches for container in batch.containers]
        if apart and len(set(containers)) == len(containers) and all(leaf.is_contiguous() for leaf in leaves):
            return False
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # see _address
    seen: set[int] = set()
    ends: dict[int, int] = {}  # number of a batch -> where the memory of its leaves ends, so far
    for batch in batches:
        if not seen.isdisjoint(batch.containers):
            return True
        seen.update(batch.containers)
    numbered = [(*_address(leaf), number) for number, batch in enumerate(batches) for leaf in batch.leaves]
    for start, end, number in sorted(numbered):
        if start < end and any(start < other for index, other in ends.items() if index != number):
            return True
        ends[number] = max(end, ends.get(number, 0))
    return False


def _contents(batch: Any) -> tuple[Sequence[Any], Sequence[int]]:
    """Everything in ``batch`` that is no container, and the ids of its containers."""
    if type(batch) is tuple and len(batch) == 2 and type(batch[0]) is type(batch[1]) is Tensor:
        return batch, ()  # the usual batch, quickly
    leaves: list[Any] = []
    containers: list[int] = []
    _collect(batch, leaves, containers)
    return leaves, containers


def _collect(value: Any, leaves: list[Any], containers: list[int], depth: int = 0) -> None:
    if isinstance(value, (Tensor, np.ndarray)):
        leaves.append(value)
        return
    parts = parts_of(value) if is_structure(value) else _attributes(value) if depth < _DEPTH else None
    if parts is None:
        leaves.append(value)
        return
    if not isinstance(value, tuple):
        containers.append(id(value))
    for part in parts:
        _collect(part, leaves, containers, depth + 1)


def _attributes(value: Any) -> list[Any] | None:
    """What an object of a user's own class holds, which may be filled again as a list may; None for anything else."""
    if isinstance(value, (type, ModuleType)) or callable(value):
        return None
    held = getattr(value, "__dict__", None)
    slots = [slot for cls in type(value).__mro__ for slot in _slots_of(cls)]
    if not isinstance(held, dict) and not slots:
        return None
    return [*(held or {}).values(), *(getattr(value, slot) for slot in slots if hasattr(value, slot))]


def _slots_of(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    # Python calls a private one by the name of its class, too.
    prefix = f"_{cls.__name__.lstrip('_')}"
    return [prefix + name if name.startswith("__") and not name.endswith("__") else name for name in names]


def _span(tensor: Tensor) -> tuple[int, int]:
    """Where the values of a tensor begin and end in memory."""
    start, count = tensor.data_ptr(), tensor.numel()
    if count and not tensor.is_contiguous():
        count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + count * tensor.element_size()


def _address(leaf: Any) -> tuple[int, int]:
    """Where the values of a tensor or array begin and end; an empty span for anything else."""
    try:
        if not isinstance(leaf, np.ndarray):
            return _span(leaf)
        start = end = int(leaf.__array_interface__["data"][0])
        for size, stride in zip(leaf.shape, leaf.strides, strict=True):
            start, end = start + min(0, (size - 1) * stride), end + max(0, (size - 1) * stride)
        return (start, end + leaf.itemsize) if leaf.size else (0, 0)
    except (AttributeError, RuntimeError, NotImplementedError):  # no tensor, or a sparse or nested one with several
        return 0, 0


def _version(leaf: Any) -> int:
    try:
        return int(leaf._version)
    except (AttributeError, RuntimeError):  # no tensor, or one of inference mode, which has none
        return 0


def _changed(batch: _Batch) -> bool:
    leaves, _ = _contents(batch.data)
    if len(leaves) != len(batch.leaves):
        return True
    for index, (now, before, version) in enumerate(zip(leaves, batch.leaves, batch.versions, strict=True)):
        plain = isinstance(now, (int, float, str, bytes)) and type(now) is type(before) and now == before
        written = not plain and (now is not before or _version(now) != version)
        if not batch.samples:
            if written:
                return True
            continue
        first, second = batch.samples[index], _sample(now)
        if first.values is not None and second.values is not None and not _equal(first.values, second.values):
            return True
        # Written to, yet the sampled values are equal: only a comparison of all values proves it unchanged.
        if written and not (first.whole and second.whole):
            return True
    return False


def _equal(before: bytes | Tensor, now: bytes | Tensor) -> bool:
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return torch.equal(before, now)
    return before == now


def _sample(leaf: Any) -> _Sample:
    """Bits of values that lie evenly in the memory of a tensor or array: a copy."""
    if isinstance(leaf, Tensor):
        if leaf.numel() == 0:
            return _Sample(b"", True)
        try:
            span = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
            step = -(-span // _SAMPLE)
            sample = leaf.detach().as_strided((-(-span // step),), (step,)).clone()
            return _Sample(sample.view(torch.uint8), step == 1)
        except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, quantised
            return _Sample(None, False)
    if isinstance(leaf, np.ndarray):
        step = -(-max(leaf.size, 1) // _SAMPLE)
        return _Sample(leaf.ravel()[::step].tobytes(), step == 1)
    return _Sample(None, False)
