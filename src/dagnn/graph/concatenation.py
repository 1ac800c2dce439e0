"""For `DagBatch`: the arrays of many Dags and what they carry, concatenated; and one union, partitioned into graphs."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain, pairwise
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
from dagnn.graph.names import checked_names

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


def check_offsets(offsets: Tensor, num_nodes: int) -> None:
    """Raise GraphError unless ``ptr`` goes from 0 to ``num_nodes`` and never back."""
    is_sound = offsets.dtype == torch.int64 and offsets.dim() == 1 and len(offsets) > 0
    if not is_sound or offsets[0] != 0 or offsets[-1] != num_nodes or bool((offsets.diff() < 0).any()):
        raise GraphError(
            f"ptr must be int64 and go from 0 to the {num_nodes} nodes, one entry more than there are graphs, got "
            f"{offsets.tolist()}."
        )


def partitioned(union: Dag, offsets: Tensor, names: Sequence[Hashable] | None) -> dict[str, Any]:
    """The arguments of a `DagBatch` whose nodes ``offsets[i] .. offsets[i + 1] - 1`` are graph i.

    Args:
        union: all graphs as one; its nodes have no names.
        offsets: int64 ``[num_graphs + 1]``.
        names: of all nodes, or None.
    """
    known = None if names is None else _checked_names(names, offsets)
    owner = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    crossing = (owner[union.edges[:, 0]] != owner[union.edges[:, 1]]).nonzero().flatten()
    if len(crossing):
        source, target = union.edges[crossing[0]].tolist()
        raise GraphError(
            f"the edge {source} -> {target} goes from graph {int(owner[source])} to graph {int(owner[target])}: the "
            "graphs of a batch have no edges between them."
        )
    arguments: dict[str, Any] = {}
    for name, nodes in (("input", union.inputs), ("output", union.outputs)):
        arguments[f"{name}s"] = nodes[owner[nodes].argsort(stable=True)]
        arguments[f"{name}_offsets"] = offsets_of_counts(torch.bincount(owner[nodes], minlength=len(offsets) - 1))
    return arguments | {
        "edges": union.edges,
        "levels": union.levels,
        "heights": union.heights,
        "node_offsets": offsets,
        "edge_offsets": torch.searchsorted(union.edges[:, 1].contiguous(), offsets),
        "graph_of_node": owner,
        "names": known,
        "node_attributes": union.node_attributes,
        "edge_attributes": union.edge_attributes,
    }


def _checked_names(names: Sequence[Hashable], offsets: Tensor) -> tuple[Hashable, ...]:
    """The names of all nodes, each in its one form, those of a graph all different."""
    bounds = offsets.tolist()
    if len(names) != bounds[-1]:
        raise GraphError(f"there are {len(names)} names, but the batch has {bounds[-1]} nodes: name all, or none.")
    return tuple(chain.from_iterable(checked_names(names[first:end]) for first, end in pairwise(bounds)))


def offsets_of_counts(counts: Tensor) -> Tensor:
    """Where each group starts, and the end of the last: int64 ``[len(counts) + 1]``."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


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
