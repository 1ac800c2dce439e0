"""Concatenation: the arrays of many Dags, and what they carry, one after the other; for `DagBatch.from_dags`."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph.attributes import Attribute
from dagnn.graph.dag import Dag
from dagnn.graph.edges import offsets_of
from dagnn.graph.levels import peel

Ints: TypeAlias = NDArray[np.int64]
_NUMPY_DTYPES = {
    torch.float16, torch.float32, torch.float64, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip
Kind: TypeAlias = tuple[torch.dtype, torch.Size] | type[tuple[Any, ...]]


class PackedDag(NamedTuple):
    """What a batch needs of a Dag, made once per Dag.

    To collect the tensors of 512 Dags and their kinds takes longer than to concatenate them.
    """

    numbers: bytes
    """Levels, heights, inputs, outputs and edges, int64, one after the other. As five arrays for each of hundreds of
    Dags they lay all over the memory, and finding them took longer than copying them. As bytes and not as an array:
    concatenated in half the time."""
    counts: bytes
    """Nodes, edges, inputs, outputs, int64."""
    kinds: dict[tuple[str, str], Kind]
    """What it carries: ``{("node", "x"): (torch.float32, torch.Size([3])), ("node", "label"): tuple, ...}``. Dags that
    carry the same kinds share one dict, so that `check_alike` compares identities."""
    named: bool
    """Whether its nodes have names."""
    arrays: tuple[NDArray[Any] | None, ...]
    """Its attributes by their sorted names, in the memory of their tensors; None for what NumPy cannot hold."""


def packed_dags(dags: Sequence[Dag]) -> list[PackedDag]:
    """Every Dag packed; a Dag keeps its packed form."""
    packed = [vars(dag).get("_packed") for dag in dags]
    if None in packed:
        new = [dag for dag, known in zip(dags, packed, strict=True) if known is None]
        _find_heights([dag for dag in new if "heights" not in vars(dag)])
        for dag in new:
            vars(dag)["_packed"] = _pack(dag)
        packed = [vars(dag)["_packed"] for dag in dags]
    return packed  # type: ignore[return-value]  # none is None any more


def concatenate(packed: Sequence[PackedDag]) -> dict[str, Tensor]:
    """The tensors of a batch, by the names of `DagBatch`."""
    counts = np.frombuffer(b"".join([each.counts for each in packed]), np.int64)
    nodes_of, edges_of, inputs_of, outputs_of = np.ascontiguousarray(counts.reshape(-1, 4).T)
    numbers = np.frombuffer(b"".join([each.numbers for each in packed]), np.int64)
    lengths = (nodes_of, nodes_of, inputs_of, outputs_of, 2 * edges_of)
    first = offsets_of(sum(lengths[1:], start=lengths[0]))[:-1]
    sections = []
    for length in lengths:
        offsets = offsets_of(length)
        sections.append(numbers.take(np.arange(offsets[-1]) + (first - offsets[:-1]).repeat(length)))
        first = first + length
    levels, heights, inputs, outputs, edges = sections
    node_offsets = offsets_of(nodes_of)
    start = node_offsets[:-1]
    arrays = {
        "edges": (edges + start.repeat(2 * edges_of)).reshape(-1, 2),
        "levels": levels,
        "heights": heights,
        "inputs": inputs + start.repeat(inputs_of),
        "outputs": outputs + start.repeat(outputs_of),
        "node_offsets": node_offsets,
        "edge_offsets": offsets_of(edges_of),
        "input_offsets": offsets_of(inputs_of),
        "output_offsets": offsets_of(outputs_of),
        "graph_of_node": np.arange(len(packed)).repeat(nodes_of),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def concatenate_attributes(
    of: str, dags: Sequence[Dag], packed: Sequence[PackedDag], rows: int
) -> dict[str, Attribute]:
    """The attributes of the nodes or edges of all Dags, ``rows`` in all, one Dag after the other; all of one kind."""
    result = dict[str, Attribute]()
    place = {what: i for i, what in enumerate(sorted(packed[0].kinds))} if packed else {}
    for name in _attributes(of, dags[0]) if dags else ():
        i = place[of, name]
        first = packed[0].arrays[i]
        if first is not None:
            # torch.cat takes ten times as long over hundreds of small tensors, np.concatenate twice as long.
            buffers: list[Any] = [each.arrays[i] for each in packed]
            values = np.frombuffer(bytearray().join(buffers), first.dtype)
            result[name] = torch.from_numpy(values.reshape(rows, *first.shape[1:]))
            continue
        carried = [_attributes(of, dag)[name] for dag in dags]
        if packed[0].kinds[of, name] is tuple:
            result[name] = tuple(chain.from_iterable(carried))
        else:
            result[name] = torch.cat(carried)  # type: ignore[arg-type]
    return result


def _attributes(of: str, dag: Dag) -> Mapping[str, Attribute]:
    return dag.node_attributes if of == "node" else dag.edge_attributes


def check_alike(dags: Sequence[Dag], packed: Sequence[PackedDag]) -> None:
    """GraphError unless all Dags have the same attributes, and all have names or none."""
    first = packed[0].kinds if packed else {}
    for i, each in enumerate(packed):
        if each.kinds is not first and each.kinds != first:
            of, name = what = next(key for key in (*first, *each.kinds) if first.get(key) != each.kinds.get(key))
            raise GraphError(
                f"dags[{i}] and dags[0] differ in {of}_attributes[{name!r}]: {_shown(each.kinds.get(what))} and "
                f"{_shown(first.get(what))}. All graphs of a batch must carry the same."
            )
    named = [each.named for each in packed]
    if any(named) and not all(named):
        with_nodes = [i for i, dag in enumerate(dags) if dag.num_nodes]
        other = next((i for i in with_nodes if named[i] != named[with_nodes[0]]), None)
        if other is not None:
            raise GraphError(
                f"one of dags[{with_nodes[0]}] and dags[{other}] has names and the other has none: in a batch, all "
                "must have names, or none."
            )


def _pack(dag: Dag) -> PackedDag:
    kinds: dict[tuple[str, str], Kind] = {}
    for of in ("node", "edge"):
        for name, values in _attributes(of, dag).items():
            kinds[of, name] = (values.dtype, values.shape[1:]) if isinstance(values, Tensor) else tuple
    kinds = _shared(kinds)
    tensors = (dag.levels, dag.heights, dag.inputs, dag.outputs, dag.edges)
    numbers = np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors])
    counts = np.array((dag.num_nodes, dag.num_edges, len(dag.inputs), len(dag.outputs)), np.int64)
    arrays = tuple([_array(_attributes(of, dag)[name]) for of, name in sorted(kinds)])
    return PackedDag(numbers.tobytes(), counts.tobytes(), kinds, dag.names is not None, arrays)


def _array(values: Attribute) -> NDArray[Any] | None:
    if isinstance(values, Tensor) and values.dtype in _NUMPY_DTYPES:
        return np.ascontiguousarray(values.numpy())
    return None


# A program has seldom more than one or two. They are never dropped, so there is a limit.
_known_kinds: list[dict[tuple[str, str], Kind]] = []
_MAX_KNOWN = 16


def _shared(kinds: dict[tuple[str, str], Kind]) -> dict[tuple[str, str], Kind]:
    """One dict for all that are equal to it."""
    known = next((each for each in _known_kinds if each == kinds), kinds)
    if known is kinds and len(_known_kinds) < _MAX_KNOWN:
        _known_kinds.append(kinds)
    return known


def _find_heights(dags: Sequence[Dag]) -> None:
    """Compute the heights of all these Dags in one pass over their union.

    One by one, 512 small Dags take ten times as long.
    """
    if not dags:
        return
    nodes_of = np.array([dag.num_nodes for dag in dags], dtype=np.int64)
    edges_of = [dag.num_edges for dag in dags]
    offsets = offsets_of(nodes_of)
    edges = np.concatenate([dag.edges.numpy() for dag in dags]) + offsets[:-1].repeat(edges_of)[:, None]
    source, target = np.ascontiguousarray(edges.T)
    num_nodes = int(offsets[-1])
    into = offsets_of(np.bincount(target, minlength=num_nodes))  # the edges of a Dag, and so of all, are by target
    heights = peel(into, source, np.bincount(source, minlength=num_nodes))
    for dag, own in zip(dags, np.split(heights, offsets[1:-1]), strict=True):
        vars(dag)["heights"] = torch.from_numpy(own.copy())  # a view would keep the heights of all the others alive


def _shown(kind: Kind | None) -> str:
    if not isinstance(kind, tuple):
        return "none" if kind is None else "a tuple"
    dtype, shape = kind
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(map(str, ('*', *shape)))}]"
