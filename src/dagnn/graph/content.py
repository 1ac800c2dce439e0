"""What a Dag holds: how it is filled in, when two are equal, how one prints, and that it never changes."""

from collections.abc import Hashable
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.attributes import NO_ATTRIBUTES, Attributes, attributes_key, same_attributes
from dagnn.graph.name_forms import canonical_names
from dagnn.graph.names import NodeNames


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
