"""Attributes: what nodes and edges carry, a tensor or a tuple with one entry for each; checked, compared, hashed."""

from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, GraphError

Attribute: TypeAlias = Tensor | tuple[Any, ...]
Attributes: TypeAlias = Mapping[str, Attribute]

NO_ATTRIBUTES: Attributes = MappingProxyType({})


def checked_attributes(
    given: Mapping[str, Any] | None, count: int, of: str, names: tuple[Hashable, ...] | None = None
) -> dict[str, Attribute]:
    """Copies of the attributes: a tensor or array becomes a CPU tensor, any other iterable a tuple.

    Args:
        given: name -> one value per node or edge (a tensor: ``[count, ...]``), or None for no attributes.
        count: how many nodes or edges there are.
        of: "node" or "edge", for the messages.
        names: of the nodes, if they have any: a column with these labels must have them in this order.

    Raises:
        DtypeError: no mapping, a name that is no str, or values that are no dense tensor, array or list.
        GraphError: another number of values, or a column labelled in another order.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DtypeError(f"{of}_attributes must map a name to its values, got {type(given).__name__}.")
    attributes = dict[str, Attribute]()
    for name, values in given.items():
        if not isinstance(name, str):
            raise DtypeError(f"{of}_attributes: an attribute is named by a str, got {name!r}.")
        attributes[name] = _checked(values, f"{of}_attributes[{name!r}]")
        if names is not None:
            _check_labels(values, names, f"{of}_attributes[{name!r}]")
        if of == "edge" and name == "position":
            attributes[name] = _positions(attributes[name])
        length = len(attributes[name]) if not isinstance(values, Tensor | np.ndarray) or values.ndim else None
        if length != count:
            got = "a single value" if length is None else f"{length} values"
            raise GraphError(f"{of}_attributes[{name!r}] has {got}, expected {count}: one for each {of}.")
    return attributes


def check_choice(known: Iterable[str], of: str, chosen: Iterable[str] | None, has_any: bool = True) -> list[str]:
    """The attributes to read from another library's graph: those chosen, which must be there; None chooses all.

    Args:
        known: the names of what the nodes or edges carry there.
        of: "node" or "edge", for the messages.
        has_any: are there nodes (edges) at all? Where there are none, nobody knows what they would carry.

    Raises:
        DtypeError: no list of names.
        GraphError: one that is not there.
    """
    names = list(known)
    if chosen is None:
        return names
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        raise DtypeError(f"{of}_attributes must be a list of names, got {chosen!r}.")
    keys = list(dict.fromkeys(chosen))
    for key in keys:
        if key not in names and has_any:
            raise GraphError(
                f"{of}_attributes: no {of} has {key!r}; there are {', '.join(map(repr, names)) or 'none'}."
            )
    return [key for key in keys if key in names]


def take(attributes: Attributes, indices: NDArray[np.int64]) -> dict[str, Attribute]:
    """The entries at ``indices``, in that order."""
    rows = torch.from_numpy(indices)
    listed = indices.tolist()
    return {
        name: values[rows] if isinstance(values, Tensor) else tuple(map(values.__getitem__, listed))
        for name, values in attributes.items()
    }


def same_attributes(a: Attributes, b: Attributes) -> bool:
    """Same names, types and values; tensors bit for bit, so a NaN equals itself."""
    if a.keys() != b.keys():
        return False
    for name, x in a.items():
        y = b[name]
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            if x.dtype != y.dtype or x.shape != y.shape or tensor_bytes(x) != tensor_bytes(y):
                return False
        elif isinstance(x, Tensor) or isinstance(y, Tensor) or not _same_items(x, y):
            return False
    return True


def attributes_key(attributes: Attributes) -> int:
    """A hash, equal for the same attributes; of values that cannot be hashed, only the number counts."""
    parts = list[tuple[str, object]]()
    for name in sorted(attributes):
        values = attributes[name]
        try:
            if isinstance(values, tuple) and Tensor in set(map(type, values)):
                raise TypeError("a Tensor hashes by its place in memory")
            parts.append((name, hash(tensor_bytes(values) if isinstance(values, Tensor) else values)))
        except TypeError:
            parts.append((name, len(values)))
    return hash(tuple(parts))


def tensor_bytes(tensor: Tensor) -> bytes:
    """The memory of a CPU tensor, of any dtype."""
    if not tensor.numel():
        return b""  # some empty tensors have strides that cannot be viewed as bytes
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _same_items(x: tuple[Any, ...], y: tuple[Any, ...]) -> bool:
    try:
        return x == y
    except (ValueError, RuntimeError):  # arrays or tensors, which compare element by element
        return len(x) == len(y) and all(map(_same, x, y))


def _same(a: Any, b: Any) -> bool:
    """Are two values the same, arrays and tensors bit for bit?"""
    if isinstance(a, np.ndarray | Tensor) or isinstance(b, np.ndarray | Tensor):
        if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tobytes() == b.tobytes() if isinstance(a, np.ndarray) else tensor_bytes(a) == tensor_bytes(b)
    return a is b or bool(a == b)


def _checked(values: Any, where: str) -> Attribute:
    if isinstance(values, Tensor):
        if values.layout is not torch.strided or values.is_meta or values.is_quantized or values.is_nested:
            raise DtypeError(f"{where} must be a dense tensor with values, got a {_form(values)}: convert it first.")
        return values.detach().cpu().clone().contiguous()
    if isinstance(values, np.ndarray):
        if np.ma.is_masked(values):
            raise DtypeError(f"{where} is a masked array: fill it with .filled(value).")
        if values.dtype.kind in "biufc" and values.dtype.itemsize <= 8 * (1 + (values.dtype.kind == "c")):
            return torch.tensor(values.astype(values.dtype.newbyteorder("="), copy=False), device="cpu")
        return tuple(values) if values.dtype.kind in "mM" else tuple(values.tolist())  # else ints, of nanoseconds
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise DtypeError(f"{where} must be a tensor or a list, got {values!r}.")
    items = tuple(values)
    return tuple(map(plain, items)) if any(issubclass(kind, np.generic) for kind in set(map(type, items))) else items


def _check_labels(values: Any, names: tuple[Hashable, ...], where: str) -> None:
    """GraphError for a column of pandas whose labels are the names of the nodes in another order."""
    labels = getattr(values, "index", None)
    if not hasattr(values, "to_numpy") or labels is None or hasattr(labels, "step"):  # 0, 1, 2, ... are no labels
        return
    listed = list(labels)
    if listed != list(names) and set(listed) == set(names):
        raise GraphError(
            f"{where} is labelled with the names of the nodes, but in another order: give values.loc[list(names)], "
            "or values.to_numpy() if its labels mean nothing."
        )


def _form(tensor: Tensor) -> str:
    kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else tensor.layout
    return f"{kind} tensor on {tensor.device}"


def plain(value: Any) -> Any:
    """A NumPy scalar as a number or str of Python; any other value unchanged."""
    is_plain = isinstance(value, np.number | np.bool_ | np.character) and not isinstance(value, np.timedelta64)
    return value.item() if is_plain else value


def _positions(values: Attribute) -> Tensor:
    """Positions as int64 ``[num_edges]``, also where they come as a list."""
    if isinstance(values, tuple) and all(type(value) is int for value in values):
        values = torch.tensor(values, dtype=torch.int64, device="cpu")
    if not isinstance(values, Tensor) or values.dtype != torch.int64 or values.ndim != 1:
        got = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else repr(values[:3])
        raise DtypeError(f"edge_attributes['position'] must be int64 [num_edges], got {got}.")
    return values
