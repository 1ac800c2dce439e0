"""Cutting one batch into micro-batches of a given number of items."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dagnn.accumulation.items import count_items, is_items, is_sized
from dagnn.errors import AccumulationError, ConfigError


def split_batch(batch: Any, micro_batch_size: int) -> list[Any]:
    """``batch`` as a list of micro-batches of ``micro_batch_size`` items, the last one with what remains.

    Args:
        batch: what :func:`~dagnn.accumulation.items.count_items` can count: tensors and arrays are sliced (views, no
            copies), lists of plain values are sliced, graph batches are rebuilt, containers are cut part by part and
            keep their type. Numbers, strings, ``None`` and 0-dimensional tensors go to every micro-batch.
        micro_batch_size: at least 1.

    Raises:
        ConfigError: ``micro_batch_size`` is not a positive whole number.
        AccumulationError: the items cannot be counted.

    >>> import torch
    >>> [micro["x"].tolist() for micro in split_batch({"x": torch.arange(5)}, 2)]
    [[0, 1], [2, 3], [4]]
    """
    if isinstance(micro_batch_size, bool) or not isinstance(micro_batch_size, int) or micro_batch_size < 1:
        raise ConfigError(f"micro_batch_size must be a positive whole number, got {micro_batch_size!r}.")
    num_items = count_items(batch)
    starts = range(0, num_items, micro_batch_size)
    return [slice_batch(batch, start, min(start + micro_batch_size, num_items)) for start in starts]


def slice_batch(batch: Any, start: int, stop: int) -> Any:
    """Items ``start .. stop - 1`` of ``batch``, in the same structure."""
    if isinstance(batch, PackedSequence):
        padded, lengths = pad_packed_sequence(batch, batch_first=True)
        return pack_padded_sequence(padded[start:stop], lengths[start:stop], batch_first=True, enforce_sorted=False)
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch[start:stop] if batch.ndim else batch
    if is_sized(batch):
        return type(batch).from_dags([batch[i] for i in range(start, stop)])
    if is_items(batch):
        return batch[start:stop] if batch else batch
    if isinstance(batch, Mapping):
        return _rebuild(batch, {key: slice_batch(part, start, stop) for key, part in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(slice_batch(part, start, stop) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(slice_batch(part, start, stop) for part in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch) if field.init}
        return dataclasses.replace(batch, **{name: slice_batch(part, start, stop) for name, part in parts.items()})
    return batch


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
