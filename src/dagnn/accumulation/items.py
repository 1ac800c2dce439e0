"""How many items a batch holds: the default weight of a micro-batch."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from dagnn.errors import AccumulationError


def count_items(batch: Any) -> int:
    """Number of items in ``batch``: the first dimension that all of its tensors share.

    Args:
        batch: a tensor or array ``[items, ...]``, a ``PackedSequence``, an object with a length (a ``DagBatch``),
            a list of plain values, or a tuple, list, mapping or dataclass of those. Numbers, strings, ``None`` and
            0-dimensional tensors count for nothing.

    Raises:
        AccumulationError: nothing in ``batch`` has a first dimension, or two parts disagree.

    >>> import torch
    >>> count_items({"inputs": torch.zeros(4, 3), "targets": torch.zeros(4)})
    4
    """
    if type(batch) is tuple and len(batch) == 2 and type(batch[0]) is type(batch[1]) is Tensor:
        # The usual batch, several times faster than the general way below: this runs for every micro-batch.
        inputs, targets = batch
        if inputs.ndim and targets.ndim and inputs.shape[0] == targets.shape[0]:
            return int(inputs.shape[0])
    sizes = sorted(set(_sizes(batch)))
    if len(sizes) == 1:
        return sizes[0]
    if not sizes:
        raise AccumulationError(
            f"a micro-batch of type {type(batch).__name__} holds no tensor with a first dimension, so its items cannot "
            "be counted: pass weight=... (a function of the micro-batch that returns its number of items)."
        )
    raise AccumulationError(
        f"the parts of a micro-batch have first dimensions {', '.join(map(str, sizes))}, so its items cannot be "
        "counted: pass weight=... (a function of the micro-batch that returns the number its loss divides by)."
    )


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor in ``batch``, through all of its containers."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_in(part)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors_in(getattr(batch, field.name))


def is_items(value: Any) -> bool:
    """True for a list or tuple of plain values (strings, numbers, graphs), which is cut between its elements.

    A list or tuple that holds tensors or containers is a structure: its parts are cut each along their own items.
    """
    return isinstance(value, (list, tuple)) and not any(is_structure(part) or is_sized(part) for part in value)


def is_structure(value: Any) -> bool:
    """True for containers and tensors: whatever may have items inside."""
    return isinstance(value, (Tensor, np.ndarray, Mapping, list, tuple)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def is_sized(value: Any) -> bool:
    """True for an object that holds graphs and gives them by index: it has ``from_dags``, a length and ``[i]``."""
    return hasattr(value, "from_dags") and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _sizes(batch: Any) -> Iterator[int]:
    if isinstance(batch, PackedSequence):
        yield int(batch.batch_sizes[0])
    elif isinstance(batch, (Tensor, np.ndarray)):
        if batch.ndim:
            yield int(batch.shape[0])
    elif is_sized(batch) or is_items(batch):
        yield len(batch)
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _sizes(part)
    elif isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        for part in batch:
            yield from _sizes(part)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _sizes(getattr(batch, field.name))
