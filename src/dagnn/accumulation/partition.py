"""Partition a stream of batches into windows, each fetched whole and unchanged, and a batch into micro-batches.

A window is fetched whole, so a loader that fills one buffer again and again would yield the last batch K times. Two
batches of a window that share memory are the first sign. Whether the contents changed is decided by what a batch held
when it arrived: which objects, and a sample of their values.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dagnn.accumulation.items import (
    CANNOT_SPLIT,
    Parts,
    as_parts,
    count_items,
    holds_list_of_items,
    is_collated,
    is_list_of_items,
    is_sized,
    is_structure,
    parts_of,
)
from dagnn.accumulation.shares import SINGLE, KnownWeights, Weights, check_weights
from dagnn.errors import AccumulationError, ConfigError

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

        AccumulationError where a batch of the window is not what it was when it arrived.
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
        # The usual window, quickly: only tensors, no two of which begin at one place.
        places = [leaf.data_ptr() for batch in batches for leaf in batch.leaves]
        places += [container for batch in batches for container in batch.containers]
        if len(set(places)) == len(places):
            return False
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # see _address
    seen: set[int] = set()
    for batch in batches:
        addresses = {*map(_address, batch.leaves), *batch.containers}
        addresses.discard(0)
        if not seen.isdisjoint(addresses):
            return True
        seen |= addresses
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
    held = getattr(value, "__dict__", None)
    if isinstance(value, (type, ModuleType)) or callable(value) or not isinstance(held, dict):
        return None
    return list(held.values())


def _address(leaf: Any) -> int:
    """Where the values of a tensor or array begin; 0 for anything else."""
    try:
        return int(leaf.__array_interface__["data"][0] if isinstance(leaf, np.ndarray) else leaf.data_ptr())
    except (AttributeError, RuntimeError, NotImplementedError):  # no tensor, or a sparse or nested one with several
        return 0


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


Tail = Literal["flush", "carry", "drop"]
WeightFn = Callable[[Any], Any]


class MicroBatch(NamedTuple):
    """One micro-batch and its weights; ``weights`` is None where its items could not be counted."""

    data: Any
    weights: Weights | None


class PartitionRule(NamedTuple):
    """When a window is full: exactly one of the first three is set."""

    micro_batches: int | None
    micro_batch_size: int | None
    max_weight: float | None
    weight: WeightFn | None
    tail: Tail

    def check(self) -> None:
        """Raise ConfigError for values that make no windows."""
        given = [
            name for name in ("micro_batches", "micro_batch_size", "max_weight") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ConfigError(
                "windows() needs exactly one of micro_batches=K (batches per window), micro_batch_size=n (every batch "
                f"is a window, split into pieces of n items) and max_weight=w, got {' and '.join(given) or 'none'}."
            )
        value = getattr(self, given[0])
        whole = given[0] != "max_weight"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
            raise ConfigError(f"{given[0]} must be a positive {'whole ' if whole else ''}number, got {value!r}.")
        if self.tail not in ("flush", "carry", "drop"):
            raise ConfigError(
                "tail must be 'flush' (run a short last window), 'carry' (keep its micro-batches for the next call of "
                f"windows) or 'drop' (leave them out), got {self.tail!r}."
            )
        if self.weight is not None and not callable(self.weight):
            raise ConfigError(f"weight must be a function of a micro-batch, got {type(self.weight).__name__}.")


def partition_windows(loader: Iterable[Any], rule: PartitionRule, carried: list[Any]) -> Iterator[list[MicroBatch]]:
    """Windows of ``loader``: each a list of micro-batches, complete unless it is the last.

    Args:
        loader: yields batches; read only as far as the current window.
        carried: batches left by an earlier call, run first. Filled again when ``tail`` is "carry".
    """
    collated = is_collated(loader)
    # Only what is fetched while others wait can be written over; a list is there already, a collated batch is new.
    look = rule.micro_batches != 1 and not collated and not isinstance(loader, (list, tuple))
    loader = itertools.chain(carried.copy(), loader)
    carried.clear()
    if rule.micro_batch_size is not None:
        for batch in loader:
            pieces = split_batch(as_parts(batch) if collated else batch, rule.micro_batch_size)
            yield [counted(micro, rule.weight, items=items) for micro, items in pieces]
        return

    window: list[MicroBatch] = []
    filled = 0.0
    fetched = Fetched()
    for batch in loader:
        if look:
            fetched.add(batch)
        micro = counted(batch, rule.weight, collated=collated)
        if rule.max_weight is not None:
            weight = _main_weight(micro)
            if window and filled + weight > rule.max_weight:
                fetched.end_window(keep_last=look)
                yield window
                window, filled = [], 0.0
            filled += weight
        window.append(micro)
        if len(window) == rule.micro_batches:
            fetched.end_window()
            yield window
            window = []
    fetched.end_window()
    if window and rule.tail == "flush":
        yield window
    elif rule.tail == "carry":
        carried.extend(micro.data for micro in window)


def counted(data: Any, weight: WeightFn | None, *, collated: bool = False, items: int | None = None) -> MicroBatch:
    """``data`` with its weights: from ``weight``, else the number of its items.

    Args:
        collated: ``default_collate`` made it, whose lists hold parts of one batch.
        items: that number, where it is known.
    """
    if weight is not None:
        return MicroBatch(data, check_weights(weight(data), "weight(micro_batch)"))
    if items is not None:
        return MicroBatch(data, {SINGLE: float(items)})
    try:
        return MicroBatch(data, {SINGLE: float(count_items(as_parts(data) if collated else data))})
    except AccumulationError:
        # Not an error yet: the weight may come with backward, which raises if it does not.
        return MicroBatch(data, None)


def _main_weight(micro: MicroBatch) -> float:
    if micro.weights is None:
        count_items(micro.data)  # raises, with the reason
        raise AssertionError
    return next(iter(micro.weights.values()))


class Outline(NamedTuple):
    """What one process sends to all others about its part of the next window."""

    has_window: bool
    micro_batches: int
    totals: Weights | None  # None when the items of a micro-batch could not be counted
    declared: bool

    @classmethod
    def of(cls, micros: list[MicroBatch] | None, *, declared: bool) -> "Outline":
        """The outline of ``micros``, which are None where this process has no batches left."""
        totals: Weights = {}
        for micro in micros or []:
            if micro.weights is None:
                return cls(True, len(micros or []), None, declared)
            for name, weight in micro.weights.items():
                totals[name] = totals.get(name, 0.0) + weight
        return cls(micros is not None, len(micros or []), totals, declared)


def known_weights(outlines: list[Outline], micros: list[MicroBatch]) -> KnownWeights | None:
    """The window over all processes, with this process's own ``micros``; None where items could not be counted."""
    totals: Weights = {}
    for outline in outlines:
        if outline.totals is None:
            return None
        for name, weight in outline.totals.items():
            totals[name] = totals.get(name, 0.0) + weight
    return KnownWeights([micro.weights or {} for micro in micros], totals, outlines[0].declared)


def split_batch(batch: Any, micro_batch_size: int) -> list[tuple[Any, int]]:
    """``batch`` as micro-batches of ``micro_batch_size`` items, the last one with what remains; each with its number.

    Args:
        batch: what :func:`~dagnn.accumulation.items.count_items` can count: tensors and arrays are sliced (views, no
            copies), lists of items are sliced, graph batches are rebuilt, containers are split part by part and
            keep their type. Numbers, strings, ``None`` and 0-dimensional tensors go to every micro-batch.
        micro_batch_size: at least 1.

    Raises:
        ConfigError: ``micro_batch_size`` is not a positive whole number.
        AccumulationError: the items cannot be counted.

    >>> import torch
    >>> [micro["x"].tolist() for micro, _ in split_batch({"x": torch.arange(5)}, 2)]
    [[0, 1], [2, 3], [4]]
    """
    if isinstance(micro_batch_size, bool) or not isinstance(micro_batch_size, int) or micro_batch_size < 1:
        raise ConfigError(f"micro_batch_size must be a positive whole number, got {micro_batch_size!r}.")
    num_items = count_items(batch, advice=CANNOT_SPLIT)
    starts = range(0, num_items, micro_batch_size)
    sizes = [min(micro_batch_size, num_items - start) for start in starts]
    return [
        (slice_batch(batch, start, start + size, num_items), size) for start, size in zip(starts, sizes, strict=True)
    ]


def slice_batch(batch: Any, start: int, stop: int, num_items: int | None = None) -> Any:
    """Items ``start .. stop - 1`` of the ``num_items`` in ``batch`` (counted if not given), in the same structure."""
    num_items = count_items(batch, advice=CANNOT_SPLIT) if num_items is None else num_items
    if stop - start == num_items:
        return list(batch) if isinstance(batch, Parts) else batch
    return _slice(batch, start, stop, num_items, outer=True)


def _slice(
    batch: Any, start: int, stop: int, num_items: int, *, outer: bool = False, beside_items: bool = False
) -> Any:
    if isinstance(batch, PackedSequence):
        padded, lengths = pad_packed_sequence(batch, batch_first=True)
        return pack_padded_sequence(padded[start:stop], lengths[start:stop], batch_first=True, enforce_sorted=False)
    if isinstance(batch, Tensor) and batch.is_nested:
        return torch.nested.as_nested_tensor(list(batch.unbind()[start:stop]), layout=batch.layout)
    if isinstance(batch, Tensor) and batch.is_sparse:
        return batch.index_select(0, torch.arange(start, stop, device=batch.device)) if batch.ndim else batch
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch[start:stop] if batch.ndim else batch
    if is_sized(batch):
        return type(batch).from_dags([batch[i] for i in range(start, stop)])
    if is_list_of_items(batch, num_items, outer=outer, beside_items=beside_items):
        return batch[start:stop]
    if not is_structure(batch):
        return batch

    # The keys of a mapping, or the places of a sequence, with what is in them.
    beside_items = holds_list_of_items(parts_of(batch))
    pieces = [_slice(part, start, stop, num_items, beside_items=beside_items) for part in parts_of(batch)]
    if isinstance(batch, Mapping):
        return _rebuild(batch, dict(zip(batch, pieces, strict=True)))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*pieces)
    if isinstance(batch, (list, tuple)):
        return pieces if isinstance(batch, Parts) else type(batch)(pieces)
    fields = zip(dataclasses.fields(batch), pieces, strict=True)
    return dataclasses.replace(batch, **{field.name: piece for field, piece in fields if field.init})


def _rebuild(like: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(like) is dict:
        return parts
    try:
        return type(like)(parts)  # type: ignore[call-arg]  # OrderedDict, UserDict, BatchEncoding: all take a mapping
    except TypeError:
        return parts
