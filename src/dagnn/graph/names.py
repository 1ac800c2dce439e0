"""Names of nodes: from what a user calls a node to its index, and back."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph.checks import check_is_int64


class NodeNames:
    """The nodes ``0 .. num_nodes - 1`` and, if they have any, their names.

    An int stands for a node's index, unless the names themselves are ints.
    """

    def __init__(self, num_nodes: int, names: tuple[Hashable, ...] | None = None) -> None:
        self.num_nodes = num_nodes
        self.names = names
        self._index_of: dict[Hashable, int] | None = None

    def name_of(self, node: int) -> Hashable:
        """The name of a node; its index where nodes have no names."""
        return node if self.names is None else self.names[node]

    def index_of(self, name: Any, argument: str | None = None) -> int:
        """The node called ``name``; ``argument`` says in an error which list the name stands in."""
        where = f"{argument}: " if argument else ""
        if self.names is None or (type(name) is int and not has_int(self.names)):
            if isinstance(name, bool) or not isinstance(name, int | np.integer):
                raise GraphError(f"{where}unknown node {name!r}: the nodes have no names, only numbers.")
            if not 0 <= name < self.num_nodes:
                allowed = f"0 .. {self.num_nodes - 1}" if self.num_nodes else "none"
                raise GraphError(f"{where}unknown node {name}: num_nodes={self.num_nodes} allows {allowed}.")
            return int(name)
        try:
            return self.table[name]
        except (KeyError, TypeError):
            raise GraphError(f"{where}unknown node {name!r}: the names are {_some(self.names)}.") from None

    def indices_of(self, nodes: Any, argument: str) -> NDArray[np.int64]:
        """Indices of ``nodes``, each once: a tensor or array holds indices, any other iterable holds names."""
        if isinstance(nodes, Tensor | np.ndarray):
            if nodes.dtype in (torch.bool, np.bool_) and list(nodes.shape) == [self.num_nodes]:
                return np.flatnonzero(nodes.cpu().numpy() if isinstance(nodes, Tensor) else nodes)
            check_is_int64(argument, nodes)
            if nodes.ndim != 1:
                raise GraphError(f"{argument} must have the shape [count], got {list(nodes.shape)}.")
            indices = np.array(nodes.cpu().numpy() if isinstance(nodes, Tensor) else nodes)
            if indices.size and (indices.min() < 0 or indices.max() >= self.num_nodes):
                bad = next(i for i in indices.tolist() if not 0 <= i < self.num_nodes)
                NodeNames(self.num_nodes).index_of(bad, argument)
        elif isinstance(nodes, str | bytes) or not isinstance(nodes, Iterable):
            raise GraphError(f"{argument} must be a list of nodes, got {nodes!r}.")
        else:
            indices = np.array([self.index_of(node, argument) for node in nodes], dtype=np.int64)
        ordered = np.sort(indices)
        if (ordered[1:] == ordered[:-1]).any():
            listed, counts = np.unique(indices, return_counts=True)
            twice = int(listed[counts.argmax()])
            raise GraphError(f"{argument} lists the node {self.name_of(twice)} twice: list every node once.")
        return indices

    @property
    def table(self) -> dict[Hashable, int]:
        """From name to index; made on first use."""
        if self._index_of is None:
            names = self.names or ()
            self._index_of = dict(zip(names, range(len(names)), strict=True))
        return self._index_of


def checked_names(names: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """``names`` as a tuple of different, hashable values."""
    if isinstance(names, str | bytes | Tensor | np.ndarray) or not isinstance(names, Iterable):
        raise DtypeError(f"names must be a list of names, one per node, got {names!r}.")
    result = tuple(names)
    try:
        distinct = set(result)
    except TypeError:
        bad = next(i for i, name in enumerate(result) if not _is_hashable(name))
        raise DtypeError(f"names must be hashable (str, int, tuple, ...), got {result[bad]!r} at {bad}.") from None
    if len(distinct) < len(result):
        first = dict[Hashable, int]()
        for i, name in enumerate(result):
            if first.setdefault(name, i) != i:
                raise GraphError(f"names holds {name!r} twice, at {first[name]} and {i}: every node needs its own.")
    return result


def has_int(names: tuple[Hashable, ...]) -> bool:
    """Is one of the names an int?"""
    return any(issubclass(t, int) for t in set(map(type, names)))


def read_pairs(
    pairs: Iterable[Any], names: tuple[Hashable, ...] | None
) -> tuple[NDArray[np.int64], tuple[Hashable, ...] | None]:
    """Edges given as a list of pairs, of indices (all int) or of names.

    Returns:
        int64 ``[num_edges, 2]`` and the names: those given, else those found, in order of first appearance, else None.
    """
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise DtypeError(f"edges must be a tensor, an array or a list of pairs, got {pairs!r}.")
    rows = pairs if isinstance(pairs, Sequence) else list(pairs)
    flat = _flattened(rows)
    types = set(map(type, flat))
    if any(issubclass(t, Tensor) for t in types):
        raise DtypeError("edges must be a tensor or a list of pairs, got a list of tensors: join it with torch.stack.")
    if types & {float, bool} or any(issubclass(t, np.floating | np.bool_) for t in types):
        bad = next(i for i, end in enumerate(flat) if isinstance(end, float | bool | np.floating | np.bool_))
        raise DtypeError(f"edges must hold integers or names, got {flat[bad]!r} in edge {bad // 2}.")

    if all(issubclass(t, int | np.integer) for t in types) and not (names and has_int(names)):
        try:
            return np.array(flat, dtype=np.int64).reshape(-1, 2), names
        except OverflowError:
            bad = next(i for i, end in enumerate(flat) if not -(2**63) <= end < 2**63)
            raise GraphError(f"edge {bad // 2} has the end {flat[bad]}, which no int64 holds.") from None
    try:
        known = dict.fromkeys(flat) if names is None else dict.fromkeys(names)
        index_of = dict(zip(known, range(len(known)), strict=True))
        indices = np.fromiter(map(index_of.__getitem__, flat), np.int64, len(flat))
    except TypeError:
        bad = next(i for i, end in enumerate(flat) if not _is_hashable(end))
        raise DtypeError(
            f"node names must be hashable (str, int, ...), got {flat[bad]!r} in edge {bad // 2}."
        ) from None
    except KeyError:
        bad = next(i for i, end in enumerate(flat) if end not in index_of)
        u, v = flat[bad - bad % 2 : bad - bad % 2 + 2]
        raise GraphError(
            f"edge {bad // 2} is {u} -> {v}, but {flat[bad]!r} is not among the names {_some(tuple(known))}: "
            "add it to names, or drop the edge."
        ) from None
    return indices.reshape(-1, 2), names if names is not None else tuple(known)


def _flattened(rows: Sequence[Any]) -> list[Any]:
    """The ends of all edges, one after the other."""
    try:
        pairs = set(map(len, rows)) <= {2} and not any(issubclass(t, str | bytes) for t in set(map(type, rows)))
    except TypeError:
        pairs = False
    if not pairs:
        bad = next(i for i, row in enumerate(rows) if not _is_pair(row))
        raise GraphError(f"edges must be pairs (source, target), got {rows[bad]!r} at edge {bad}.")
    return list(chain.from_iterable(rows))


def _is_pair(row: Any) -> bool:
    return hasattr(row, "__len__") and len(row) == 2 and not isinstance(row, str | bytes)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _some(names: tuple[Hashable, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "") if names else "(none)"
