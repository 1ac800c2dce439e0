"""Joining: the arrays of many Dags, and what they carry, one after the other."""

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


class Part(NamedTuple):
    """What a batch needs of a Dag. Made once per Dag: asking 512 Dags for their tensors anew, and
    what kinds they are, takes longer than joining them."""

    numbers: bytes
    """Levels, heights, inputs, outputs and edges, int64, one after the other: five arrays of hundreds of Dags lie in as
    many places of the memory, and finding them took longer than copying them. Bytes are joined in half the time."""
    counts: bytes
    """Nodes, edges, inputs, outputs, int64."""
    kinds: dict[tuple[str, str], Kind]
    """What it carries: ``{("node", "x"): (torch.float32, torch.Size([3])), ("node", "label"): tuple, ...}``. Dags that
    carry the same hold the same object: told apart at a glance."""
    named: bool
    """Whether its nodes have names."""
    arrays: tuple[NDArray[Any] | None, ...]
    """Its attributes by their sorted names, in the memory of their tensors; None for what NumPy cannot hold."""


def parts_of(dags: Sequence[Dag]) -> list[Part]:
    """The part of every Dag, remembered by the Dag."""
    parts = [vars(dag).get("_part") for dag in dags]
    if None in parts:
        new = [dag for dag, part in zip(dags, parts, strict=True) if part is None]
        _find_heights([dag for dag in new if "heights" not in vars(dag)])
        for dag in new:
            vars(dag)["_part"] = _part(dag)
        parts = [vars(dag)["_part"] for dag in dags]
    return parts  # type: ignore[return-value]  # none is None any more


def join(parts: Sequence[Part]) -> dict[str, Tensor]:
    """The tensors of a batch, by the names of `DagBatch`."""
    counts = np.frombuffer(b"".join([part.counts for part in parts]), np.int64)
    nodes_of, edges_of, inputs_of, outputs_of = np.ascontiguousarray(counts.reshape(-1, 4).T)
    numbers = np.frombuffer(b"".join([part.numbers for part in parts]), np.int64)
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
        "graph_of_node": np.arange(len(parts)).repeat(nodes_of),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def join_attributes(of: str, dags: Sequence[Dag], parts: Sequence[Part], rows: int) -> dict[str, Attribute]:
    """The attributes of the nodes or edges of all Dags, ``rows`` in all, one Dag after the other; all of one kind."""
    joined = dict[str, Attribute]()
    place = {what: i for i, what in enumerate(sorted(parts[0].kinds))} if parts else {}
    for name in _attributes(of, dags[0]) if dags else ():
        i = place[of, name]
        first = parts[0].arrays[i]
        if first is not None:
            # torch.cat takes ten times as long over hundreds of small tensors, np.concatenate twice as long.
            buffers: list[Any] = [part.arrays[i] for part in parts]
            values = np.frombuffer(bytearray().join(buffers), first.dtype)
            joined[name] = torch.from_numpy(values.reshape(rows, *first.shape[1:]))
            continue
        carried = [_attributes(of, dag)[name] for dag in dags]
        if parts[0].kinds[of, name] is tuple:
            joined[name] = tuple(chain.from_iterable(carried))
        else:
            joined[name] = torch.cat(carried)  # type: ignore[arg-type]
    return joined


def _attributes(of: str, dag: Dag) -> Mapping[str, Attribute]:
    return dag.node_attributes if of == "node" else dag.edge_attributes


def check_alike(dags: Sequence[Dag], parts: Sequence[Part]) -> None:
    """GraphError unless all Dags have the same attributes, and all have names or none."""
    first = parts[0].kinds if parts else {}
    for i, part in enumerate(parts):
        if part.kinds is not first and part.kinds != first:
            of, name = what = next(key for key in (*first, *part.kinds) if first.get(key) != part.kinds.get(key))
            raise GraphError(
                f"dags[{i}] and dags[0] differ in {of}_attributes[{name!r}]: {_shown(part.kinds.get(what))} and "
                f"{_shown(first.get(what))}. All graphs of a batch must carry the same."
            )
    named = [part.named for part in parts]
    if any(named) and not all(named):
        with_nodes = [i for i, dag in enumerate(dags) if dag.num_nodes]
        other = next((i for i in with_nodes if named[i] != named[with_nodes[0]]), None)
        if other is not None:
            raise GraphError(
                f"one of dags[{with_nodes[0]}] and dags[{other}] has names and the other has none: in a batch, all "
                "must have names, or none."
            )


def _part(dag: Dag) -> Part:
    kinds: dict[tuple[str, str], Kind] = {}
    for of in ("node", "edge"):
        for name, values in _attributes(of, dag).items():
            kinds[of, name] = (values.dtype, values.shape[1:]) if isinstance(values, Tensor) else tuple
    kinds = _shared(kinds)
    tensors = (dag.levels, dag.heights, dag.inputs, dag.outputs, dag.edges)
    numbers = np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors])
    counts = np.array((dag.num_nodes, dag.num_edges, len(dag.inputs), len(dag.outputs)), np.int64)
    arrays = tuple([_array(_attributes(of, dag)[name]) for of, name in sorted(kinds)])
    return Part(numbers.tobytes(), counts.tobytes(), kinds, dag.names is not None, arrays)


def _array(values: Attribute) -> NDArray[Any] | None:
    if isinstance(values, Tensor) and values.dtype in _NUMPY_DTYPES:
        return np.ascontiguousarray(values.numpy())
    return None


# Seldom more than one or two in a program; kept for ever up to this many.
_known_kinds: list[dict[tuple[str, str], Kind]] = []
_MAX_KNOWN = 16


def _shared(kinds: dict[tuple[str, str], Kind]) -> dict[tuple[str, str], Kind]:
    """The first dict that was equal to this one."""
    known = next((each for each in _known_kinds if each == kinds), None)
    if known is None and len(_known_kinds) < _MAX_KNOWN:
        _known_kinds.append(kinds)
    return kinds if known is None else known


def _find_heights(dags: Sequence[Dag]) -> None:
    """Heights of all these Dags in one pass over their union: one by one, 512 small Dags take ten times as long."""
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
