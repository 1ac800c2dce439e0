"""What a Dag holds: the one order of its edges, how it is filled in, compared, printed, and never changes."""

from collections.abc import Hashable
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph.attributes import NO_ATTRIBUTES, Attributes, attributes_key, same_attributes
from dagnn.graph.edges import NameOf, first_true, stable_order
from dagnn.graph.names import NodeNames, canonical_names


def canonical_order(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    num_nodes: int,
    edge_attributes: Attributes,
    name_of: NameOf,
) -> NDArray[np.int64] | None:
    """Indices that sort the edges by (target, source), or (target, position); None if they are sorted already.

    Raises:
        GraphError: an edge is repeated, two edges into a node have the same position, or a position is negative.
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
        edge = first_true(places < 0)
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
        at = first_true(alike)
        first, second = sorted(order[at : at + 2].tolist())
        return order, (first, second)
    return order, None


class Content:
    """The content of a `Dag`, its only subclass."""

    edges: Tensor
    num_nodes: int
    levels: Tensor
    inputs: Tensor
    outputs: Tensor
    names: tuple[Hashable, ...] | None
    node_attributes: Attributes
    edge_attributes: Attributes
    _nodes: NodeNames

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
        """Equal for the same content; it differs between processes, as that of str does."""
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
        # As arrays: tensors of a DataLoader worker travel in shared memory, one open file each. What is not content is
        # quickly made again, and the hash must be: hashes of str differ between processes.
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
        """A Dag from parts that are right already: edges in canonical order, attributes along with them."""
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
        if inputs is None:
            inputs = np.flatnonzero(levels == 0)
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
