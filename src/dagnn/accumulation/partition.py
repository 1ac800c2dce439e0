"""Partition a stream of batches into windows, and a batch into micro-batches."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dagnn.accumulation.fetched import Fetched
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
from dagnn.accumulation.shares import SINGLE, KnownWeights, Weights, check_finite_totals, check_weights
from dagnn.errors import AccumulationError, ConfigError

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
        if isinstance(value, bool) or not isinstance(value, Integral if whole else Real) or not float(value) > 0:
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
        carried: batches left by an earlier call, run first; each leaves with its window. Filled again when ``tail`` is
            "carry".
    """
    collated = is_collated(loader)
    # Only what is fetched while others wait can be written over; a list is there already, a collated batch is new.
    look = rule.micro_batches != 1 and not collated and not isinstance(loader, (list, tuple))
    # A carried batch stays there until its window is complete: an error of the loader, or a break, must not lose it.
    batches = itertools.chain(zip(carried.copy(), itertools.repeat(1)), zip(loader, itertools.repeat(0)))
    if rule.micro_batch_size is not None:
        for batch, was_carried in batches:
            pieces = split_batch(as_parts(batch) if collated else batch, rule.micro_batch_size)
            del carried[:was_carried]
            yield [counted(micro, rule.weight, items=items) for micro, items in pieces]
        return

    window: list[MicroBatch] = []
    filled, num_carried = 0.0, 0
    fetched = Fetched()
    for batch, was_carried in batches:
        if look:
            fetched.add(batch)
        micro = counted(batch, rule.weight, collated=collated)
        if rule.max_weight is not None:
            weight = _main_weight(micro)
            if window and filled + weight > rule.max_weight:
                fetched.end_window(keep_last=look)
                del carried[:num_carried]
                yield window
                window, filled, num_carried = [], 0.0, 0
            filled += weight
        window.append(micro)
        num_carried += was_carried
        if len(window) == rule.micro_batches:
            fetched.end_window()
            del carried[:num_carried]
            yield window
            window, num_carried = [], 0
    fetched.end_window()
    carried.clear()
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
    check_finite_totals(totals)
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
    if isinstance(micro_batch_size, bool) or not isinstance(micro_batch_size, Integral) or micro_batch_size < 1:
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
