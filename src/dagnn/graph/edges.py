"""Edges as arrays: their one order, groups by an end (compressed sparse rows), and the checks of what is given."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import CycleError, DtypeError, GraphError
from dagnn.graph.attributes import Attributes

_NameOf: TypeAlias = Callable[[int], object]


class Csr(NamedTuple):
    """Edges grouped by node (compressed sparse rows): node v has ``edge_ids[offsets[v]:offsets[v + 1]]``.

    Attributes:
        offsets: int64 ``[num_nodes + 1]``.
        edge_ids: int64 ``[num_edges]``, rows of ``Dag.edges``.

    >>> from dagnn.graph import Dag
    >>> offsets, edge_ids = Dag([(0, 2), (1, 2), (0, 1)]).csr_by_source
    >>> offsets.tolist(), edge_ids.tolist()
    ([0, 2, 3, 3], [0, 1, 2])
    """

    offsets: Tensor
    edge_ids: Tensor


def grouped(ends: NDArray[np.int64], num_nodes: int) -> Csr:
    """The edges grouped by ``ends``, int64 ``[num_edges]``; those of one node keep their order."""
    offsets = offsets_of(np.bincount(ends, minlength=num_nodes))
    return Csr(torch.from_numpy(offsets), torch.from_numpy(stable_order(ends, num_nodes)))


def offsets_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each group starts, and the end of the last: int64 ``[len(counts) + 1]``."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def stable_order(keys: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
    """Indices that sort ``keys``, equal ones in the order given; every key in ``0 .. bound - 1``."""
    size = len(keys)
    if bound <= 1 << 16:  # sorted digit by digit: half the time of the form below
        return np.argsort(keys.astype(np.uint16), kind="stable")
    if size < 2 or bound > (2**63 - 1) // size:
        return np.argsort(keys, kind="stable")
    # NumPy's sort of int64 values uses vector instructions, its stable argsort does not: 9 ms against 82 ms for a
    # million keys. So the index is put into the low part of the key, and the values are sorted.
    packed = keys * size
    packed += np.arange(size)
    packed.sort()
    packed %= size
    return packed


def canonical_order(
    source: NDArray[np.int64], target: NDArray[np.int64], num_nodes: int, edge_attributes: Attributes, name_of: _NameOf
) -> NDArray[np.int64] | None:
    """Indices that sort the edges by (target, source), or by (target, position); None if they are sorted already.

    GraphError where an edge is repeated, two edges into a node have the same position, or a position is negative.
    """
    position = edge_attributes.get("position")
    if not isinstance(position, Tensor):
        order, repeats = _order(target, source, num_nodes)
        if repeats is not None:
            first, second = repeats
            raise GraphError(
                f"edges {first} and {second} are both {name_of(int(source[first]))} -> {name_of(int(target[first]))} "
                "(duplicate edge): drop one, or tell them apart by the edge attribute 'position'."
            )
        return order

    places = position.numpy()
    if places.size and places.min() < 0:
        edge = _first_true(places < 0)
        raise GraphError(f"edge {edge} has the position {places[edge]}: the first operand has position 0.")
    order, repeats = _order(target, places, int(places.max(initial=0)) + 1)
    if repeats is not None:
        first, second = repeats
        ends = [f"{name_of(int(source[edge]))} -> {name_of(int(target[edge]))}" for edge in repeats]
        what = "the duplicate edges" if ends[0] == ends[1] else "the edges"
        raise GraphError(
            f"{what} {first} ({ends[0]}) and {second} ({ends[1]}) have the same position {places[first]}: give every "
            "edge into a node its own."
        )
    return order


def _order(
    major: NDArray[np.int64], minor: NDArray[np.int64], bound: int
) -> tuple[NDArray[np.int64] | None, tuple[int, int] | None]:
    """The order by (major, minor), and two edges that are alike in both."""
    if major.size and bound > (2**63 - 1) // (int(major.max()) + 1):
        order = np.lexsort((minor, major))
        alike = (np.diff(major[order]) == 0) & (np.diff(minor[order]) == 0)
    else:
        key = major * bound + minor
        if (key[1:] > key[:-1]).all():
            return None, None
        order = stable_order(key, int(key.max()) + 1)
        alike = np.diff(key[order]) == 0
    if alike.any():
        at = _first_true(alike)
        first, second = sorted(order[at : at + 2].tolist())
        return order, (first, second)
    return order, None


MOST_NODES = 2**36  # the levels alone take 8 bytes for each


def check_num_nodes(num_nodes: object, argument: str = "num_nodes") -> int:
    """A number of nodes as an int of at least 0."""
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int | np.integer):
        raise DtypeError(f"{argument} must be an int, got {num_nodes!r}.")
    if not 0 <= num_nodes < MOST_NODES:
        raise GraphError(f"{argument} must be at least 0 and fit in memory, got {num_nodes}.")
    return int(num_nodes)


def check_edges(edges: Tensor | NDArray[np.int64], num_nodes: int | None, *, named: bool = False) -> None:
    """Dtype, shape and range of ``edges``; ``num_nodes=None`` allows any end that is not negative.

    Args:
        named: the nodes have names; ints may be among them.

    Raises:
        DtypeError: not int64.
        GraphError: a shape other than ``[num_edges, 2]``, or an end outside of ``0 .. num_nodes - 1``: the first one.
    """
    if not isinstance(edges, Tensor | np.ndarray):
        raise DtypeError(f"edges must be an int64 tensor or array, got {type(edges).__name__}.")
    check_is_int64("edges", edges)
    shape = list(edges.shape)
    if len(shape) != 2 or shape[1] != 2:
        is_transposed = len(shape) == 2 and shape[0] == 2
        advice = "transpose it with edges.T" if is_transposed else "one row (source, target) for each edge"
        raise GraphError(f"edges must have the shape [num_edges, 2], got {shape}: {advice}.")
    if shape[0] == 0:
        return
    lowest, highest = int(edges.min()), int(edges.max())
    if lowest < 0:
        bad = _first_true((edges < 0).any(1))
        raise GraphError(
            f"edge {bad} is {_arrow(edges, bad)}, but nodes are numbered from 0: number them 0, 1, 2, ... or give "
            "the edges as pairs of names."
        )
    if num_nodes is not None and highest >= num_nodes:
        bad = _first_true((edges >= num_nodes).any(1))
        allowed = f"allows nodes 0 .. {num_nodes - 1}" if num_nodes else "allows none"
        advice = f"raise num_nodes to {highest + 1}, or drop the edge."
        if named:
            advice = "a tensor or array of ints holds indices, for names give edges.tolist()."
        raise GraphError(f"edge {bad} is {_arrow(edges, bad)}, but num_nodes={num_nodes} {allowed}: {advice}")


def node_count(edges: Tensor | NDArray[np.int64], num_nodes: int | None, names: tuple[Hashable, ...] | None) -> int:
    """The number of nodes, by ``names``, ``num_nodes`` or the largest end."""
    given = None if num_nodes is None else check_num_nodes(num_nodes)
    if names is not None:
        if given is not None and given != len(names):
            raise GraphError(
                f"there are {len(names)} names, but num_nodes={given}: list every node in names, in its order, or drop "
                "num_nodes."
            )
        return len(names)
    if given is not None:
        return given
    check_edges(edges, None)
    count = int(edges.max()) + 1 if edges.shape[0] else 0
    if count >= MOST_NODES:
        raise too_many_nodes(count)
    return count


def too_many_nodes(count: int) -> GraphError:
    return GraphError(
        f"{count:,} nodes do not fit in memory: ends of edges are indices of nodes 0, 1, ..., {count - 1}. Number the "
        "nodes from 0, or write names in a list of pairs, as str."
    )


def check_is_int64(argument: str, values: Tensor | NDArray[np.int64]) -> None:
    """DtypeError unless the tensor or array is int64; the message says where it holds a NaN."""
    if values.dtype in (torch.int64, np.int64):
        return
    dtype = str(values.dtype).removeprefix("torch.")
    nan = ""
    bad = torch.isnan(torch.as_tensor(values)) if "float" in dtype else torch.zeros(0)
    if bad.any():
        nan = f", with a NaN in row {int(bad.nonzero()[0][0])}"
    advice = f"{argument}.long()" if isinstance(values, Tensor) else f"{argument}.astype(numpy.int64)"
    raise DtypeError(f"{argument} must be int64, got {dtype}{nan}: number the nodes and convert with {advice}.")


def check_no_self_loop(source: NDArray[np.int64], target: NDArray[np.int64], name_of: _NameOf = str) -> None:
    """CycleError for the first edge that ends where it starts."""
    loops = source == target
    if loops.any():
        edge = _first_true(loops)
        name = name_of(int(source[edge]))
        raise CycleError(f"the edges form a cycle: {name} -> {name} (edge {edge}). A DAG has none: remove this edge.")


def cycle_message(
    source: NDArray[np.int64], target: NDArray[np.int64], levels: NDArray[np.int64], name_of: _NameOf = str
) -> str:
    """One cycle, in the user's names: ``the edges form a cycle: b -> d -> b. ...``.

    Args:
        source, target: int64 ``[num_edges]``, in any order.
        levels: int64 ``[num_nodes]``; -1 marks the nodes on a cycle or behind one, at least one.
        name_of: what to call a node.
    """
    # Every unlevelled node has an unlevelled parent, so walking from parent to parent must come back somewhere.
    inside = (levels[source] < 0) & (levels[target] < 0)
    parent_of = np.full_like(levels, -1)
    parent_of[target[inside]] = source[inside]
    walk, place = [int(np.flatnonzero(levels < 0)[0])], dict[int, int]()
    while walk[-1] not in place:
        place[walk[-1]] = len(walk) - 1
        walk.append(int(parent_of[walk[-1]]))

    cycle = walk[place[walk[-1]] : -1][::-1]
    start = cycle.index(min(cycle))
    names = [str(name_of(node)) for node in (*cycle[start:], *cycle[: start + 1])]
    if len(names) > 12:
        names = [*names[:6], f"... ({len(names) - 9} more)", *names[-3:]]
    return f"the edges form a cycle: {' -> '.join(names)}. A DAG has none: remove one of these edges."


def _first_true(mask: Any) -> int:
    """Index of the first True of a bool tensor or array ``[count]``; there must be one."""
    return int(np.flatnonzero(mask)[0])


def _arrow(edges: Tensor | NDArray[np.int64], row: int) -> str:
    return f"{int(edges[row, 0])} -> {int(edges[row, 1])}"
