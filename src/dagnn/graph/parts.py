"""Parts of a Dag: the ancestors and descendants of a node, dangling nodes, and subgraphs.

Subgraphs come back as the arguments of ``Dag(...)``, so that this module need not import it.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph.attributes import take
from dagnn.graph.content import Content
from dagnn.graph.levels import peel


class Dangling(NamedTuple):
    """Nodes that no value passes through, by name (by index where nodes have none), in the order of the nodes.

    Attributes:
        unfed: no input reaches them: in a network they are constants.
        unread: no output is reached from them: in a network they change nothing.

    >>> from dagnn.graph import Dag
    >>> Dag([("a", "b"), ("c", "b")], inputs=["a"]).dangling()
    Dangling(unfed=('c',), unread=())
    """

    unfed: tuple[Hashable, ...]
    unread: tuple[Hashable, ...]


def dangling(dag: Content) -> Dangling:
    """See `Dag.dangling`."""
    fed, read = _fed_and_read(dag)
    return Dangling(_names(dag, ~fed), _names(dag, ~read))


def without_dangling(dag: Content) -> dict[str, Any]:
    """See `Dag.without_dangling`."""
    fed, read = _fed_and_read(dag)
    return without(dag, torch.from_numpy(~(fed & read)), ())


def relatives(dag: Content, node: int, *, forwards: bool) -> tuple[Hashable, ...]:
    """The descendants of a node, or its ancestors."""
    found = _reached(dag, np.array([node]), forwards=forwards)
    found[node] = False
    return _names(dag, found)


def without(dag: Content, nodes: Any, edges: Any) -> dict[str, Any]:
    """See `Dag.remove`."""
    stays = np.ones(dag.num_nodes, dtype=bool)
    stays[dag._nodes.indices_of(nodes, "nodes")] = False
    ends = dag.edges.numpy()
    chosen = np.flatnonzero(stays[ends].all(1) & ~_among(dag, edges))
    number = np.cumsum(stays) - 1
    return {
        "edges": number[ends[chosen]],
        "num_nodes": int(stays.sum()),
        "inputs": _renumbered(dag.inputs, stays, number),
        "outputs": _renumbered(dag.outputs, stays, number),
        "names": None if dag.names is None else _names(dag, stays),
        "node_attributes": take(dag.node_attributes, np.flatnonzero(stays)),
        "edge_attributes": take(dag.edge_attributes, chosen),
    }


def induced(dag: Content, nodes: Any) -> dict[str, Any]:
    """See `Dag.subgraph`."""
    chosen = dag._nodes.indices_of(nodes, "nodes")
    number = np.full(dag.num_nodes, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    renumbered = number[dag.edges.numpy()]
    kept = np.flatnonzero((renumbered >= 0).all(1))
    return {
        "edges": renumbered[kept],
        "num_nodes": len(chosen),
        "names": None if dag.names is None else [dag.names[node] for node in chosen.tolist()],
        "node_attributes": take(dag.node_attributes, chosen),
        "edge_attributes": take(dag.edge_attributes, kept),
    }


def _fed_and_read(dag: Content) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which nodes some input reaches, and from which some output is reached: bool ``[num_nodes]`` each."""
    return (
        _reached(dag, dag.inputs.numpy(), forwards=True),
        _reached(dag, dag.outputs.numpy(), forwards=False),
    )


def _reached(dag: Content, starts: NDArray[np.int64], *, forwards: bool) -> NDArray[np.bool_]:
    """Which nodes a path leads to from one of ``starts``, themselves too: bool ``[num_nodes]``."""
    ends = dag.edges.numpy()
    if forwards:
        first, leads_to = dag.csr_by_source.offsets, ends[:, 1][dag.csr_by_source.edge_ids.numpy()]
    else:
        first, leads_to = dag.csr_by_target.offsets, np.ascontiguousarray(ends[:, 0])
    # A node leaves the graph when it has lost all its parents. Every node is given one, so it leaves with the first.
    missing = np.ones(dag.num_nodes, dtype=np.int64)
    missing[starts] = 0
    return peel(first.numpy(), leads_to, missing) >= 0


def _among(dag: Content, edges: Any) -> NDArray[np.bool_]:
    """Which edges of the Dag are listed: bool ``[num_edges]``. GraphError for one that is not there."""
    listed = dag._nodes.ends_of(edges, "edges")
    source, target = np.array([1, dag.num_nodes]), np.array([dag.num_nodes, 1])
    keys, there = listed @ source, dag.edges.numpy() @ source
    absent = np.flatnonzero(~np.isin(keys, there))
    if absent.size:
        u, v = map(dag.name_of, listed[absent[0]].tolist())
        hint = f"; there is {v!r} -> {u!r}" if (there == listed[absent[0]] @ target).any() else ""
        raise GraphError(f"edges: there is no edge {u!r} -> {v!r}{hint}: give the source first, then the target.")
    return np.isin(there, keys)


def _renumbered(nodes: Tensor, stays: NDArray[np.bool_], number: NDArray[np.int64]) -> NDArray[np.int64]:
    left: NDArray[np.int64] = number[nodes.numpy()[stays[nodes.numpy()]]]
    return left


def _names(dag: Content, chosen: NDArray[np.bool_]) -> tuple[Hashable, ...]:
    return tuple(map(dag.name_of, np.flatnonzero(chosen).tolist()))
