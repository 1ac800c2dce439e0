"""What a Dag holds: the order of its edges, how it is filled in, compared and printed, and its parts."""

from collections.abc import Hashable
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph.attributes import NO_ATTRIBUTES, Attributes, attributes_key, same_attributes, take
from dagnn.graph.cached import cached_tensor_property
from dagnn.graph.edges import Csr, grouped, offsets_of, stable_order
from dagnn.graph.levels import peel
from dagnn.graph.names import NodeNames, canonical_names


class Content:
    """The base of `Dag`, its only subclass: all that other modules of this package use of one."""

    edges: Tensor
    """int64 ``[num_edges, 2]``, rows (source, target), sorted by (target, position or source)."""
    num_nodes: int
    levels: Tensor
    """int64 ``[num_nodes]``: the number of edges on the longest path that ends at the node; sources have 0."""
    inputs: Tensor
    """int64 ``[num_inputs]``: the nodes where values enter."""
    outputs: Tensor
    """int64 ``[num_outputs]``: the nodes where values leave."""
    names: tuple[Hashable, ...] | None
    """One name per node, or None."""
    node_attributes: Attributes
    """Name -> tensor ``[num_nodes, ...]`` or tuple."""
    edge_attributes: Attributes
    """Name -> tensor ``[num_edges, ...]`` or tuple, in the order of `edges`."""
    _nodes: NodeNames

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.edges.shape[0]

    @property
    def edge_index(self) -> Tensor:
        """int64 ``[2, num_edges]``: `edges` in the layout of PyTorch Geometric."""
        return self.edges.T

    @cached_tensor_property
    def heights(self) -> Tensor:
        """int64 ``[num_nodes]``: the number of edges on the longest path that starts at the node; sinks have 0."""
        source = np.ascontiguousarray(self.edges.numpy()[:, 0])
        return torch.from_numpy(peel(self.csr_by_target.offsets.numpy(), source, self.out_degree.numpy()))

    @cached_tensor_property
    def order(self) -> Tensor:
        """int64 ``[num_nodes]``: the nodes in topological order, by (level, node)."""
        return torch.from_numpy(stable_order(self.levels.numpy(), self.num_nodes))

    @cached_tensor_property
    def in_degree(self) -> Tensor:
        """int64 ``[num_nodes]``: edges into each node."""
        return self.csr_by_target.offsets.diff()

    @cached_tensor_property
    def out_degree(self) -> Tensor:
        """int64 ``[num_nodes]``: edges out of each node."""
        return self.csr_by_source.offsets.diff()

    @cached_tensor_property
    def csr_by_target(self) -> Csr:
        """The edges into each node; ``edge_ids`` is 0, 1, 2, ..., since `edges` are in this order."""
        counts = np.bincount(self.edges.numpy()[:, 1], minlength=self.num_nodes)
        return Csr(torch.from_numpy(offsets_of(counts)), torch.arange(self.num_edges))

    @cached_tensor_property
    def csr_by_source(self) -> Csr:
        """The edges out of each node, by (source, target)."""
        return grouped(np.ascontiguousarray(self.edges.numpy()[:, 0]), self.num_nodes)

    def index_of(self, name: Hashable) -> int:
        """The index of a node.

        Raises:
            GraphError: no node has this name.
        """
        return self._nodes.index_of(name)

    def name_of(self, node: int) -> Hashable:
        """The name of a node; where nodes have no names, its index."""
        return self._nodes.name_of(node)

    # ---- equality, and that it never changes ----

    def __eq__(self, other: object) -> bool:
        """Same nodes, edges, names, inputs, outputs and attributes, in the same order."""
        if not isinstance(other, Content):
            return NotImplemented
        return self is other or (
            hash(self) == hash(other)
            and self.num_nodes == other.num_nodes
            and torch.equal(self.edges, other.edges)
            and torch.equal(self.inputs, other.inputs)
            and torch.equal(self.outputs, other.outputs)
            and self.names == other.names
            and same_attributes(self.node_attributes, other.node_attributes)
            and same_attributes(self.edge_attributes, other.edge_attributes)
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Equal for the same content; it differs between processes, as the hash of a str does."""
        arrays = (self.edges.numpy().tobytes(), self.inputs.numpy().tobytes(), self.outputs.numpy().tobytes())
        attributes = (attributes_key(self.node_attributes), attributes_key(self.edge_attributes))
        return hash((self.num_nodes, arrays, self.names, attributes))

    def __repr__(self) -> str:
        """Counts only, and the names of attributes."""
        counts = f"num_nodes={self.num_nodes}, num_edges={len(self.edges)}"
        counts += f", inputs={len(self.inputs)}, outputs={len(self.outputs)}"
        for of, attributes in (("node", self.node_attributes), ("edge", self.edge_attributes)):
            if attributes:
                counts += f", {of}_attributes={sorted(attributes)}"
        return f"Dag({counts})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Dag cannot be changed: build a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Dag cannot be changed: build a new one instead of deleting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        # As arrays: PyTorch sends tensors of a DataLoader worker through shared memory, one open file each. The rest is
        # quickly computed again. The hash must be: hashes of str differ between processes.
        ends = (self.inputs.numpy(), self.outputs.numpy())
        attributes = (dict(self.node_attributes), dict(self.edge_attributes))
        return type(self)._trusted, (self.edges.numpy(), self.levels.numpy(), self.names, *ends, *attributes)

    # ---- filling it in ----

    @classmethod
    def _trusted(
        cls,
        edges: NDArray[np.int64],
        levels: NDArray[np.int64],
        names: tuple[Hashable, ...] | None = None,
        inputs: NDArray[np.int64] | None = None,
        outputs: NDArray[np.int64] | None = None,
        node_attributes: Attributes = NO_ATTRIBUTES,
        edge_attributes: Attributes = NO_ATTRIBUTES,
    ) -> Self:
        """A Dag from arrays that nobody checks: edges in canonical order, attributes in the same order."""
        dag = cls.__new__(cls)
        nodes = NodeNames(len(levels), None if names is None else canonical_names(names))
        dag._set(edges, levels, nodes, inputs, outputs, node_attributes, edge_attributes)
        return dag

    def _set(
        self,
        edges: NDArray[np.int64],
        levels: NDArray[np.int64],
        nodes: NodeNames,
        inputs: NDArray[np.int64] | None,
        outputs: NDArray[np.int64] | None,
        node_attributes: Attributes,
        edge_attributes: Attributes,
    ) -> None:
        inputs = np.flatnonzero(levels == 0) if inputs is None else inputs
        if outputs is None:
            outputs = np.flatnonzero(np.bincount(edges[:, 0], minlength=len(levels)) == 0)
        vars(self).update(  # not by assignment, which a Dag refuses
            edges=torch.from_numpy(edges),
            num_nodes=len(levels),
            levels=torch.from_numpy(levels),
            inputs=torch.from_numpy(inputs),
            outputs=torch.from_numpy(outputs),
            names=nodes.names or None,  # no nodes have no names, whatever was given
            node_attributes=MappingProxyType(dict(node_attributes)),
            edge_attributes=MappingProxyType(dict(edge_attributes)),
            _nodes=nodes,
        )


def has_own_ends(dag: Content) -> bool:
    """Are the inputs or outputs others than the sources and sinks, or in another order?"""
    sources, sinks = (dag.levels == 0).nonzero().flatten(), (dag.out_degree == 0).nonzero().flatten()
    return not (torch.equal(dag.inputs, sources) and torch.equal(dag.outputs, sinks))


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
    return _reached(dag, dag.inputs.numpy(), forwards=True), _reached(dag, dag.outputs.numpy(), forwards=False)


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
    return np.asarray(number[nodes.numpy()[stays[nodes.numpy()]]], np.int64)


def _names(dag: Content, chosen: NDArray[np.bool_]) -> tuple[Hashable, ...]:
    return tuple(map(dag.name_of, np.flatnonzero(chosen).tolist()))
