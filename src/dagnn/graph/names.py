"""Names of nodes: the one form of every name, an order that no hash seed changes, and edges by name as indices."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from operator import index
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph.edges import check_edges, check_is_int64, node_count

PLAIN = frozenset({int, str, bytes, type(None)})
"""Types whose values are names in their one form already."""


def canonical_names(names: Iterable[Any], where: Callable[[int], str] = "names[{}] is".format) -> tuple[Hashable, ...]:
    """Every name in its one form; ``where(i)`` is how the DtypeError for a name i that cannot be one begins."""
    given = tuple(names)
    # Their types first, as a set: a million names take 15 ms that way, and ten times as long one by one.
    if set(map(type, given)) <= PLAIN:
        return given
    forms = list[Hashable]()
    for place, name in enumerate(given):
        try:
            forms.append(canonical(name))
        except DtypeError as error:
            raise DtypeError(f"{where(place)} {error}") from None
    return tuple(forms)


def canonical(name: Any) -> Hashable:
    """The one form of ``name``: two names are equal if, and only if, their forms have one type and one text.

    The message of the DtypeError for no name is the end of a sentence, which the caller begins with the place.

    >>> canonical((np.int64(3), np.str_("a"), 2.0, True))
    (3, 'a', 2, 1)
    """
    return name if type(name) in PLAIN else _reader(type(name))(name)  # type: ignore[arg-type]


@lru_cache(256)
def _reader(kind: type) -> Callable[[Any], Hashable]:
    """The function that brings a name of this type into its one form."""
    # str.__str__ and int.__index__, not str and int: subclasses may override what those call.
    readers: tuple[tuple[type, Callable[[Any], Hashable]], ...] = (
        (np.timedelta64, _refuse),  # to NumPy an integer
        (np.longdouble, _refuse),
        (np.integer, index),
        (np.bool_, int),
        (np.floating, lambda name: _number(name.item())),
        (str, str.__str__),
        (int, int.__index__),  # bool too
        (float, _number),
        (bytes, bytes),
        (tuple, _tuple),
        (frozenset, lambda name: frozenset(map(canonical, name))),
    )
    return next((read for base, read in readers if issubclass(kind, base)), _refuse)


def _tuple(name: tuple[Any, ...]) -> tuple[Hashable, ...]:
    if type(name) is tuple and PLAIN.issuperset(map(type, name)):
        return name
    return tuple(map(canonical, name))


def _number(name: float) -> int | float:
    if name != name:
        _refuse(name)
    return int(name) if name.is_integer() else float.__float__(name)


def sort_key(name: Hashable) -> tuple[str, Any, str]:
    """The sort key of a name in its one form: type, then ints by value, str by character, the rest by text."""
    if type(name) is int:
        return ("int", name, "")
    return (type(name).__name__, 0, name if type(name) is str else _text(name))


def _text(name: Hashable) -> str:
    """The ``repr``, but with the members of a frozenset sorted: their order differs between processes."""
    if isinstance(name, tuple):
        members = ", ".join(map(_text, name))
        return f"({members},)" if len(name) == 1 else f"({members})"
    if isinstance(name, frozenset):
        members = ", ".join(map(_text, sorted(name, key=sort_key)))
        return f"frozenset({{{members}}})" if name else "frozenset()"
    return repr(name)


def _refuse(name: Any) -> Never:
    if isinstance(name, Tensor | np.ndarray):
        raise DtypeError(f"{name!r}, which cannot name a node: take the number out of it, with .item() or .tolist().")
    if isinstance(name, float):
        raise DtypeError("nan, which cannot name a node, because it does not equal itself: find where it comes from.")
    raise DtypeError(
        f"{name!r}, which cannot name a node: only str, int, float, bytes, None, and tuples and frozensets of those "
        "sort alike in every process. Give the node a str or a number of its own (for dates and the like, str of it)."
    )


_NO_PAIRS = (str, bytes, set, frozenset, Mapping)
"""Types with a length but no first and second: a set of two has the order of the hash seed, a mapping yields keys."""


class NodeNames:
    """The nodes ``0 .. num_nodes - 1`` and, if they have any, their names.

    An int means the index of a node, unless there are numbers among the names.
    """

    def __init__(self, num_nodes: int, names: tuple[Hashable, ...] | None = None) -> None:
        self.num_nodes = num_nodes
        self.names = names
        self._index_of: dict[Hashable, int] | None = None

    def name_of(self, node: int) -> Hashable:
        """The name of a node; its index where nodes have no names."""
        return node if self.names is None else self.names[node]

    def index_of(self, name: Any, argument: str | None = None) -> int:
        """The node called ``name``; in an error, ``argument`` is the list that the name is from."""
        where = f"{argument}: " if argument else ""
        kind = type(name)
        if self.names is None or (kind is not str and _is_int(kind) and not self.has_numbers):
            if not _is_int(kind):
                raise GraphError(f"{where}unknown node {name!r}: the nodes have no names, only numbers.")
            if not 0 <= name < self.num_nodes:
                allowed = f"0 .. {self.num_nodes - 1}" if self.num_nodes else "none"
                raise GraphError(f"{where}unknown node {name}: num_nodes={self.num_nodes} allows {allowed}.")
            return int(name)
        try:
            return self.table[name if kind is str or kind is int else canonical(name)]
        except (KeyError, DtypeError):
            raise GraphError(f"{where}unknown node {name!r}: the names are {_some(self.names)}.") from None

    def indices_of(self, nodes: Any, argument: str) -> NDArray[np.int64]:
        """Indices of ``nodes``, each once, in their order; for a set, which has none, in the order of the nodes.

        A tensor or array of ints holds indices, one of bools is a mask; any other iterable holds names.
        """
        _check_whole(argument, nodes)
        if _holds_names(nodes, have_numbers=self.has_numbers):
            nodes = nodes.tolist()
        if isinstance(nodes, Tensor | np.ndarray):
            if nodes.dtype in (torch.bool, np.bool_) and list(nodes.shape) == [self.num_nodes]:
                return np.flatnonzero(nodes.cpu().numpy() if isinstance(nodes, Tensor) else nodes)
            check_is_int64(argument, nodes)
            if nodes.ndim != 1:
                raise GraphError(f"{argument} must have the shape [count], got {list(nodes.shape)}.")
            indices = np.array(nodes.cpu().numpy() if isinstance(nodes, Tensor) else nodes)
            if indices.size and (indices.min() < 0 or indices.max() >= self.num_nodes):
                bad = next(i for i in indices.tolist() if not 0 <= i < self.num_nodes)
                self._refuse_index(bad, argument)
        elif isinstance(nodes, str | bytes) or not isinstance(nodes, Iterable):
            raise GraphError(f"{argument} must be a list of nodes, got {nodes!r}.")
        else:
            indices = np.array([self.index_of(node, argument) for node in nodes], dtype=np.int64)
        ordered = np.sort(indices)
        if (ordered[1:] == ordered[:-1]).any():
            listed, counts = np.unique(indices, return_counts=True)
            twice = int(listed[counts.argmax()])
            raise GraphError(f"{argument} lists the node {self.name_of(twice)} twice: list every node once.")
        return ordered if isinstance(nodes, set | frozenset) else indices

    def ends_of(self, edges: Any, argument: str) -> NDArray[np.int64]:
        """int64 ``[n, 2]``: the nodes of edges given as pairs of names, or by index as a tensor or array of ints."""
        _check_whole(argument, edges)
        if _holds_names(edges, have_numbers=self.has_numbers):
            edges = edges.tolist()
        if isinstance(edges, Tensor | np.ndarray):
            check_edges(edges, None)
            indices = np.array(edges.cpu().numpy() if isinstance(edges, Tensor) else edges)
            if indices.size and indices.max() >= self.num_nodes:
                self._refuse_index(int(indices.max()), argument)
            return indices
        if hasattr(edges, "to_numpy") and len(getattr(edges, "shape", ())) == 2:  # a frame iterates over its columns
            edges = edges.to_numpy().tolist()
        if isinstance(edges, str | bytes) or not isinstance(edges, Iterable):
            raise DtypeError(f"{argument} must be a tensor, an array or a list of pairs, got {edges!r}.")
        ends = _flattened(list(edges), argument)
        return np.array([self.index_of(end, argument) for end in ends], dtype=np.int64).reshape(-1, 2)

    def _refuse_index(self, index: int, argument: str) -> Never:
        """Raise GraphError for an entry of a tensor or array of indices."""
        allowed = f"0 .. {self.num_nodes - 1}" if self.num_nodes else "none"
        hint = f" A tensor or array of ints holds indices: for names give {argument}.tolist()." if self.names else ""
        raise GraphError(f"{argument}: unknown node {index}: num_nodes={self.num_nodes} allows {allowed}.{hint}")

    @cached_property
    def has_numbers(self) -> bool:
        """Is one of the names a number?"""
        return _has_number(self.names or ())

    @property
    def table(self) -> dict[Hashable, int]:
        """From name to index; made on first use."""
        if self._index_of is None:
            names = self.names or ()
            self._index_of = dict(zip(names, range(len(names)), strict=True))
        return self._index_of


def _check_whole(argument: str, values: Any) -> None:
    """GraphError for a masked array, which yields None, or a value under the mask, for what is not there."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = int(np.ma.getmaskarray(values).sum())
        raise GraphError(f"{argument} has masked entries ({count} of {values.size}), which are no nodes: drop them.")


def checked_names(names: Any, argument: str = "names") -> tuple[Hashable, ...]:
    """``names`` as a tuple of different names, each in its one form."""
    _check_whole(argument, names)
    if isinstance(names, np.ndarray) and names.ndim == 1:
        names = list(names) if names.dtype.kind in "mM" else names.tolist()
    if isinstance(names, str | bytes | Tensor | np.ndarray) or not isinstance(names, Iterable):
        raise DtypeError(f"{argument} must be a list of names, one per node, got {names!r}.")
    if isinstance(names, set | frozenset | Mapping):
        raise DtypeError(f"{argument} must be a list, in the order of the nodes, got a {type(names).__name__}.")
    result = canonical_names(names, (argument + "[{}] is").format)
    if len(set(result)) < len(result):
        first = dict[Hashable, int]()
        for i, name in enumerate(result):
            if first.setdefault(name, i) != i:
                raise GraphError(
                    f"{argument} holds {name!r} twice, at {first[name]} and {i}: every node needs its own."
                )
    return result


def _has_number(names: tuple[Hashable, ...]) -> bool:
    """Is one of the names, all in their one form, a number?"""
    return not {int, float}.isdisjoint(map(type, names))


def _holds_names(values: Any, *, have_numbers: bool) -> bool:
    """Is it an array of names rather than of indices: text, objects, or floats where names are numbers?"""
    return isinstance(values, np.ndarray) and values.dtype.kind not in ("biucmM" if have_numbers else "biufcmM")


def read_edges(
    edges: Any, names: tuple[Hashable, ...] | None, num_nodes: int | None
) -> tuple[NDArray[np.int64], "NodeNames"]:
    """Edges in any form, checked, as indices; and the nodes, as many as ``num_nodes`` or ``names`` says, or as needed.

    Returns:
        A new array int64 ``[num_edges, 2]``, in C order; and the nodes with their names, given or found.
    """
    is_tensor = isinstance(edges, Tensor)
    if not is_tensor and hasattr(edges, "shape"):
        if len(edges.shape) == 2 and hasattr(edges, "to_numpy"):  # a frame: it iterates over its columns
            edges = edges.to_numpy().tolist()
        _check_whole("edges", edges)
    is_array = isinstance(edges, np.ndarray)
    if is_tensor or (is_array and not _holds_names(edges, have_numbers=_has_number(names or ()))):
        rows, known = edges, names
    else:
        rows, known = _read_pairs(edges, names)
    count = node_count(rows, num_nodes, known)
    check_edges(rows, count, named=known is not None)
    # A copy, because the user may write to the original. In C order: a transposed edge_index would keep its layout.
    ends = np.array(rows.cpu().numpy() if isinstance(rows, Tensor) else rows, order="C")
    return ends, NodeNames(count, known)


def _read_pairs(
    pairs: Any, names: tuple[Hashable, ...] | None
) -> tuple[NDArray[np.int64], tuple[Hashable, ...] | None]:
    """Edges given as a list of pairs, of indices (all int) or of names.

    Returns:
        int64 ``[num_edges, 2]`` and the names: those given, else those found, in order of first appearance (of a set
        of pairs: sorted), else None.
    """
    if isinstance(pairs, np.ndarray):
        pairs = pairs.tolist()
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise DtypeError(f"edges must be a tensor, an array or a list of pairs, got {pairs!r}.")
    if hasattr(pairs, "edges") or hasattr(pairs, "edge_index"):  # iterating, it would yield nodes, graphs or fields
        raise DtypeError(
            f"edges must be a tensor, an array or a list of pairs, got a {type(pairs).__name__}: use Dag.from_networkx "
            "or Dag.from_pyg, and batch[i] for one graph of a batch."
        )
    rows = pairs if isinstance(pairs, Sequence) else list(pairs)
    flat = _flattened(rows)
    types = set(map(type, flat))
    if any(issubclass(t, Tensor) for t in types):
        raise DtypeError("edges must be a tensor or a list of pairs, got a list of tensors: join it with torch.stack.")
    by_number = names is not None and _has_number(names)
    if not by_number and any(issubclass(t, float | bool | np.floating | np.bool_) for t in types):
        bad = next(i for i, end in enumerate(flat) if isinstance(end, float | bool | np.floating | np.bool_))
        raise DtypeError(
            f"edges must hold integers or names, got {flat[bad]!r} in edge {bad // 2}: convert it to an int, or list "
            "the names of all nodes in names=[...]."
        )

    if all(map(_is_int, types)) and not by_number:
        try:
            return np.array(flat, dtype=np.int64).reshape(-1, 2), names
        except OverflowError:
            bad = next(i for i, end in enumerate(flat) if not -(2**63) <= end < 2**63)
            raise GraphError(f"edge {bad // 2} has the end {flat[bad]}, which no int64 holds.") from None
    ends = flat if types <= PLAIN else canonical_names(flat, lambda place: f"edge {place // 2} has the end")
    known = tuple(dict.fromkeys(ends)) if names is None else names
    if names is None and isinstance(pairs, set | frozenset):
        known = tuple(sorted(known, key=sort_key))
    index_of = dict(zip(known, range(len(known)), strict=True))
    try:
        indices = np.fromiter(map(index_of.__getitem__, ends), np.int64, len(ends))
    except KeyError:
        bad = next(i for i, end in enumerate(ends) if end not in index_of)
        u, v = ends[bad - bad % 2 : bad - bad % 2 + 2]
        raise GraphError(
            f"edge {bad // 2} is {u} -> {v}, but {ends[bad]!r} is not among the names {_some(known)}: "
            "add it to names, or drop the edge."
        ) from None
    return indices.reshape(-1, 2), known


def _flattened(rows: Sequence[Any], argument: str = "edges") -> list[Any]:
    """The ends of all edges, one after the other."""
    try:
        pairs = set(map(len, rows)) <= {2} and not any(issubclass(kind, _NO_PAIRS) for kind in set(map(type, rows)))
    except TypeError:
        pairs = False
    if not pairs:
        bad = next(i for i, row in enumerate(rows) if not _is_pair(row))
        raise GraphError(f"{argument} must be pairs (source, target), got {rows[bad]!r} at edge {bad}.")
    return list(chain.from_iterable(rows))


def _is_pair(row: Any) -> bool:
    return hasattr(row, "__len__") and len(row) == 2 and not isinstance(row, _NO_PAIRS)


def _is_int(kind: type) -> bool:
    """Of an index, which a bool never is, nor a time difference (to NumPy an integer)."""
    return kind is int or (issubclass(kind, (int, np.integer)) and not issubclass(kind, (bool, np.timedelta64)))


def _some(names: tuple[Hashable, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "") if names else "(none)"
