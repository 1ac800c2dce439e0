"""How many items a batch holds, the default weight of a micro-batch; and several batches as one."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten
from torch.utils.data import default_collate

from dagnn.errors import AccumulationError

# How an error goes on for a batch that cannot be read, when its items must be counted and when it must be split.
CANNOT_COUNT = (
    "so its items cannot be counted: pass weight=... (a function of the micro-batch that returns its number of items, "
    "or whatever its loss divides by)"
)
CANNOT_SPLIT = (
    "so it cannot be split, with or without weight=...: give tensors whose first dimension is the item, or split it "
    "yourself and pass the pieces to windows(pieces, micro_batches=...)"
)


class Parts(list[Any]):
    """A list whose elements are parts of one batch, as ``default_collate`` makes it, and not items."""


def count_items(batch: Any, *, advice: str = CANNOT_COUNT) -> int:
    """Number of items in ``batch``: the one count that all of its parts agree on.

    Args:
        batch: a tensor or array ``[items, ...]``, a nested tensor, a ``PackedSequence``, an object with a length (a
            ``DagBatch``), a list of items, or a tuple, mapping or dataclass of those. Numbers, strings, ``None`` and
            0-dimensional tensors count for nothing. A list or inner tuple of values, mappings, tuples, or tensors of
            several sizes is a list of items; where its tensors may as well be parts of one batch (the same first
            dimension, dtype and number of dimensions), its neighbours decide, or it is refused.
        advice: the end of the error: what cannot be done now, and what to do.

    Raises:
        AccumulationError: nothing in ``batch`` can be counted, two parts disagree, or a list can be read in two ways.

    >>> import torch
    >>> count_items({"inputs": torch.zeros(4, 3), "targets": torch.zeros(4)})
    4
    >>> count_items(([torch.zeros(3, 8, 8), torch.zeros(3, 9, 7)], [{"boxes": torch.zeros(5, 4)}, {}]))
    2
    """
    if type(batch) in (tuple, Parts) and len(batch) == 2 and type(batch[0]) is type(batch[1]) is Tensor:
        # The usual batch, several times faster than the general way below: this runs for every micro-batch.
        inputs, targets = batch
        if inputs.ndim and targets.ndim and inputs.size(0) == targets.size(0):
            return int(inputs.size(0))
    counts = _possible_counts(batch, outer=True)
    if counts is None:
        raise AccumulationError(
            f"a micro-batch of type {type(batch).__name__} holds nothing with a first dimension, {advice}."
        )
    if not counts:
        sizes = sorted(set(_sizes(batch)))
        raise AccumulationError(
            f"the parts of a micro-batch have first dimensions {', '.join(map(str, sizes))}, {advice}."
        )
    if len(counts) > 1:
        raise AccumulationError(_two_readings(batch, counts, advice))
    return counts.pop()


def _possible_counts(batch: Any, *, outer: bool = False) -> set[int] | None:
    """Every number of items that ``batch`` may be read as; None where it says nothing about them.

    A tuple that is the whole batch, ``outer``, is ``(inputs, targets)``, never a list of items.
    """
    if isinstance(batch, PackedSequence):
        return {int(batch.batch_sizes[0])}
    if isinstance(batch, Tensor):
        return {int(batch.size(0))} if batch.ndim else None
    if isinstance(batch, np.ndarray):
        return {int(batch.shape[0])} if batch.ndim else None
    if is_sized(batch) or _is_items(batch):
        return {len(batch)}
    if isinstance(batch, (list, tuple)) and not _is_parts(batch, outer):
        if items := _only_items(batch):
            return {items}
        counts = _agreed(batch)
        items = len(batch) if _alike(batch) else 0
        return counts if not items else {items, *(counts or ())}
    if is_structure(batch):
        return _agreed(parts_of(batch))
    return None


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor in ``batch``, through all of its containers."""
    if isinstance(batch, Tensor):
        yield batch
    elif is_structure(batch):
        for part in parts_of(batch):
            yield from tensors_in(part)


def parts_of(structure: Any) -> Iterable[Any]:
    """The values that a mapping, list, tuple or dataclass holds; nothing for an array."""
    if isinstance(structure, Mapping):
        return structure.values()
    if isinstance(structure, (list, tuple)):
        return structure
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        return [getattr(structure, field.name) for field in dataclasses.fields(structure)]
    return ()


def _is_items(value: Any) -> bool:
    """True for a list or tuple of plain values (strings, numbers, graphs), which is split between its elements."""
    return isinstance(value, (list, tuple)) and not any(is_structure(part) or is_sized(part) for part in value)


def is_list_of_items(value: Any, num_items: int, *, outer: bool, beside_items: bool) -> bool:
    """True for a list of ``num_items`` items, False for parts of them; AccumulationError where it may be either.

    ``beside_items``: a list that can only be one of items stands in the same structure, as the targets of object
    detection stand beside the images.
    """
    if _is_items(value):
        return True
    if not isinstance(value, (list, tuple)) or _is_parts(value, outer) or len(value) != num_items:
        return False
    if _only_items(value):
        return True
    if not _alike(value):
        return False
    counts = _agreed(value)
    if counts is None or num_items not in counts or beside_items:
        return True
    raise AccumulationError(_two_readings(value if outer else None, counts, CANNOT_SPLIT))


def holds_list_of_items(parts: Iterable[Any]) -> bool:
    """True if one of ``parts`` can only be a list of items."""
    return any(isinstance(part, (list, tuple)) and not _is_parts(part, False) and _only_items(part) for part in parts)


def is_structure(value: Any) -> bool:
    """True for containers and tensors: whatever may have items inside."""
    return isinstance(value, (Tensor, np.ndarray, Mapping, list, tuple)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def is_sized(value: Any) -> bool:
    """True for an object that holds graphs and gives them by index: it has ``from_dags``, a length and ``[i]``."""
    return hasattr(value, "from_dags") and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def is_collated(loader: Any) -> bool:
    """True for a ``DataLoader``, a wrapper of one or a progress bar around it, whose lists are parts of one batch."""
    loader = getattr(loader, "iterable", loader)  # tqdm
    return getattr(loader, "collate_fn", None) is default_collate


def as_parts(batch: Any) -> Any:
    """``batch`` of ``default_collate``, with its lists marked as parts: that function never makes a list of items."""
    if type(batch) is list and not _is_items(batch):
        return Parts(as_parts(part) for part in batch)
    if type(batch) is dict:
        return {key: as_parts(part) for key, part in batch.items()}
    return batch


def join_batches(batches: Sequence[Any], *, pad_token: int = 0) -> Any:
    """Several batches as one, in their order; shorter ones are padded at the end.

    Args:
        batches: tensors ``[items, ...]`` in tuples, lists and mappings, with the same structure in all. Other values
            (numbers, strings, None) must be the same in all.
        pad_token: what pads the values under a name with "input_ids"; labels are padded with -100, all else with 0.

    Raises:
        AccumulationError: the structures or other values differ; or lengths differ where no mask of that length (a
            tensor with "mask" in its name) says what is padding.

    >>> import torch
    >>> short, long = ({"input_ids": torch.ones(1, n).long(), "attention_mask": torch.ones(1, n)} for n in (1, 3))
    >>> join_batches([short, long], pad_token=9)["input_ids"].tolist()
    [[1, 9, 9], [1, 1, 1]]
    """
    flat = [tree_flatten_with_path(batch) for batch in batches]
    spec = flat[0][1]
    if any(other != spec for _, other in flat):
        raise AccumulationError(f"{_CANNOT_JOIN}: they have other parts, {' and '.join(_outlines(flat))}.")
    names = [keystr(path) or "the batch" for path, _ in flat[0][0]]
    columns = [[value for _, value in column] for column in zip(*(leaves for leaves, _ in flat), strict=True)]
    masked = {_lengths(column, dim) for name, column in zip(names, columns, strict=True) if "mask" in name
              for dim in range(1, _num_dims(column))}  # fmt: skip
    joined = []
    for name, column in zip(names, columns, strict=True):
        if not _num_dims(column):
            joined.append(_same_value(name, column))
            continue
        for dim in range(1, _num_dims(column)):
            lengths = _lengths(column, dim)
            if len(set(lengths)) > 1 and "label" not in name and lengths not in masked:
                raise AccumulationError(
                    f"{_CANNOT_JOIN}: {name} has the lengths {', '.join(map(str, lengths))}, and no mask of these "
                    "lengths would tell the model what is padding: let the collator add an attention mask, or pad "
                    "all batches to one length."
                )
        fill = -100 if "label" in name else pad_token if "input_ids" in name else 0
        joined.append(_stacked(column, fill))
    return tree_unflatten(joined, spec)


_CANNOT_JOIN = "the micro-batches cannot be joined"


def _outlines(flat: Sequence[tuple[Any, Any]]) -> list[str]:
    """The first two different structures, for a message."""
    texts = {f"[{', '.join(keystr(path) for path, _ in leaves)}]": None for leaves, _ in flat}
    return list(texts)[:2] if len(texts) > 1 else [str(spec) for _, spec in flat[:2]]


def _num_dims(column: Sequence[Any]) -> int:
    """The dimensions of tensors that can be joined; 0 for other values."""
    dims = {value.ndim if isinstance(value, Tensor) else 0 for value in column}
    return dims.pop() if len(dims) == 1 else 0


def _lengths(column: Sequence[Tensor], dim: int) -> tuple[int, ...]:
    return tuple(value.size(dim) for value in column)


def _same_value(name: str, column: Sequence[Any]) -> Any:
    first = column[0]
    for value in column[1:]:
        plain = all(isinstance(each, (int, float, str, bool, type(None))) for each in (first, value))
        if not plain or first != value:
            kinds = " and ".join(
                f"a tensor {list(each.shape)}" if isinstance(each, Tensor) else repr(each)[:60]
                for each in (first, value)
            )
            raise AccumulationError(
                f"{_CANNOT_JOIN}: {name} is {kinds}. Tensors with the items first are joined; other values must be "
                "the same in all micro-batches."
            )
    return first


def _stacked(column: Sequence[Tensor], fill: int) -> Tensor:
    sizes = [max(_lengths(column, dim)) for dim in range(1, column[0].ndim)]
    padded = []
    for value in column:
        if list(value.shape[1:]) != sizes:
            wide = value.new_full([len(value), *sizes], fill)
            wide[tuple(slice(0, n) for n in value.shape)] = value
            value = wide
        padded.append(value)
    return torch.cat(padded)


def _two_readings(batch: Any, counts: set[int], advice: str) -> str:
    """The error for a list that may be parts or items; ``batch`` is the whole batch, where that is the list."""
    if type(batch) is list and not any(isinstance(part, list) for part in batch):
        items = len(batch)
        rows = max(counts - {items}, default=items)
        return (
            f"a list of {items} tensors with {rows} rows each is one batch of {rows} items, or {items} items, and "
            f"nothing in it says which: give tuple(batch) if it is a batch such as [inputs, targets], whose {rows} "
            f"rows are the items; give [(item,) for item in batch] if it holds {items} items."
        )
    readings = " or ".join(map(str, sorted(counts)))
    return (
        f"a list in a micro-batch may hold items or parts of items, which are then {readings} (its length, or the "
        f"first dimension of its tensors), {advice}."
    )


def _is_parts(value: Any, outer: bool) -> bool:
    return isinstance(value, Parts) or hasattr(value, "_fields") or (outer and isinstance(value, tuple))


def _only_items(values: Any) -> int:
    """The length of a list of samples (mappings, tuples, objects, lists of numbers), which cannot be parts; else 0."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        return len(values) if all(isinstance(value, Mapping) for value in values) else 0
    (kind,) = kinds
    samples = issubclass(kind, (Mapping, tuple)) or dataclasses.is_dataclass(kind)
    numbers = kind is list and all(isinstance(x, (int, float)) for value in values for x in value)
    return len(values) if samples or numbers else 0


def _alike(values: Any) -> bool:
    """True where ``values`` may be items of one kind: tensors of one dtype and number of dimensions, lists, graphs."""
    if all(isinstance(value, (Tensor, np.ndarray)) for value in values):
        return len({(type(value), value.dtype, value.ndim) for value in values}) == 1
    return all(isinstance(value, list) for value in values) or all(is_sized(value) for value in values)


def _agreed(parts: Iterable[Any]) -> set[int] | None:
    """The counts that all of ``parts`` allow; None if none of them says anything."""
    agreed: set[int] | None = None
    for part in parts:
        counts = _possible_counts(part)
        if counts is not None:
            agreed = counts if agreed is None else agreed & counts
    return agreed


def _sizes(batch: Any) -> Iterator[int]:
    """Every count in ``batch``, for a message."""
    if isinstance(batch, (Tensor, np.ndarray, PackedSequence)) or is_sized(batch) or _is_items(batch):
        yield from _possible_counts(batch) or ()
    elif is_structure(batch):
        for part in parts_of(batch):
            yield from _sizes(part)
