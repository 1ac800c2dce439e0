"""Cutting one batch into micro-batches of a given number of items."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dagnn.accumulation.items import (
    CUT,
    Parts,
    count_items,
    holds_list_of_items,
    is_list_of_items,
    is_sized,
    is_structure,
    parts_of,
)
from dagnn.errors import AccumulationError, ConfigError


def split_batch(batch: Any, micro_batch_size: int) -> list[tuple[Any, int]]:
    """``batch`` as micro-batches of ``micro_batch_size`` items, the last one with what remains; each with its number.

    Args:
        batch: what :func:`~dagnn.accumulation.items.count_items` can count: tensors and arrays are sliced (views, no
            copies), lists of items are sliced, graph batches are rebuilt, containers are cut part by part and
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
    num_items = count_items(batch, advice=CUT)
    starts = range(0, num_items, micro_batch_size)
    sizes = [min(micro_batch_size, num_items - start) for start in starts]
    return [
        (slice_batch(batch, start, start + size, num_items), size) for start, size in zip(starts, sizes, strict=True)
    ]


def slice_batch(batch: Any, start: int, stop: int, num_items: int | None = None) -> Any:
    """Items ``start .. stop - 1`` of the ``num_items`` in ``batch`` (counted if not given), in the same structure."""
    num_items = count_items(batch, advice=CUT) if num_items is None else num_items
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


def join_batches(parts: list[Any]) -> Any:
    """Inverse of slicing for what models return: tensors, and tuples, lists and mappings of tensors."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return _rebuild(first, {key: join_batches([part[key] for part in parts]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join_batches(list(group)) for group in zip(*parts, strict=True)))
    if isinstance(first, (list, tuple)):
        return type(first)(join_batches(list(group)) for group in zip(*parts, strict=True))
    if first is None:
        return None
    raise AccumulationError(f"outputs of type {type(first).__name__} cannot be joined: return tensors.")


def _rebuild(like: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(like) is dict:
        return parts
    try:
        return type(like)(parts)  # type: ignore[call-arg]  # OrderedDict, UserDict, BatchEncoding: all take a mapping
    except TypeError:
        return parts
