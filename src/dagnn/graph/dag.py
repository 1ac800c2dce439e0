"""`Dag`: a directed acyclic graph that never changes, with its levels, order and neighbours at hand."""

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import json_format, networkx_format, polish, pyg_format, text
from dagnn.graph.attributes import NO_ATTRIBUTES, Attributes, checked_attributes, take
from dagnn.graph.checks import check_edges, check_no_self_loop, node_count
from dagnn.graph.content import content_hash, same_content, summary
from dagnn.graph.csr import Csr, grouped, offsets_of, stable_order
from dagnn.graph.edge_order import canonical_order
from dagnn.graph.kahn import peel
from dagnn.graph.lasting import lasting_property
from dagnn.graph.levels import levelled
from dagnn.graph.names import NodeNames, checked_names, read_pairs

if TYPE_CHECKING:
    import networkx


@final
class Dag:
    """A directed acyclic graph: nodes ``0 .. num_nodes - 1``, edges, and what they carry.

    Edges are kept in one order, by (target, source), or by (target, position) if they have the edge attribute
    "position": the edges into a node are neighbours, operands in their order. Edge attributes are sorted along. So the
    order in which edges were declared does not matter: it is no part of the content, by which Dags are equal and hash.
    The order of the nodes is, and so are names, inputs, outputs and attributes.

    A Dag cannot be changed. The tensors that it hands out are its own: read them, clone them to write.

    Args:
        edges: int64 tensor or array ``[num_edges, 2]``, row ``(u, v)`` is the edge u -> v; or a list of pairs. Pairs of
            ints are indices; others are names, and unless ``names`` lists the nodes, they appear in that order.
        num_nodes: at least 0; by default as many as ``names``, or as the edges need.
        inputs, outputs: nodes where values enter and leave, each once: a list of names (indices where nodes have no
            names), or an int64 tensor of indices, in the order wanted. By default the sources and the sinks, by node.
        names: a different, hashable name for every node. An int means an index unless names are ints themselves.
        node_attributes: name -> tensor or array ``[num_nodes, ...]`` (copied to the CPU), or a list (kept as a tuple).
        edge_attributes: the same for edges, in the order in which they were declared. "position", int64, is special:
            the place of an edge among the edges into its target, such as 0 for the first operand. With positions,
            the same source may occur twice.

    Raises:
        DtypeError: edges of another dtype than int64, names that cannot be hashed.
        GraphError: an end out of range, a repeated edge, an unknown name, an attribute of another length.
        CycleError: the edges form a cycle; the message names one.

    Cost: a million edges take 0.1 to 0.5 s, the most for a chain of shuffled nodes.

    >>> dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])
    >>> dag.names, dag.levels
    (('a', 'c', 'b', 'd'), tensor([0, 1, 0, 2]))
    """

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

    def __init__(
        self,
        edges: Tensor | NDArray[np.int64] | Iterable[Any],
        num_nodes: int | None = None,
        *,
        inputs: Iterable[Hashable] | Tensor | None = None,
        outputs: Iterable[Hashable] | Tensor | None = None,
        names: Iterable[Hashable] | None = None,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        known = None if names is None else checked_names(names)
        if isinstance(edges, Tensor | np.ndarray):
            rows: Tensor | NDArray[np.int64] = edges
        else:
            rows, known = read_pairs(edges, known)
        count = node_count(rows, num_nodes, known)
        check_edges(rows, count)
        # A copy: the user may write to theirs later. In C order: a transposed edge_index would keep its own layout.
        ends = np.array(rows.cpu().numpy() if isinstance(rows, Tensor) else rows, order="C")
        nodes = NodeNames(count, known)
        check_no_self_loop(ends[:, 0], ends[:, 1], nodes.name_of)

        carried = checked_attributes(edge_attributes, len(ends), "edge")
        order = canonical_order(ends[:, 0], ends[:, 1], count, carried, nodes.name_of)
        if order is not None:
            # np.take: ends[order] needs 54 ms for a million edges, this 6.
            ends, carried = np.take(ends, order, axis=0), take(carried, order)
        by_source, levels = levelled(ends, nodes)

        self._set(
            ends,
            levels,
            nodes,
            None if inputs is None else nodes.indices_of(inputs, "inputs"),
            None if outputs is None else nodes.indices_of(outputs, "outputs"),
            checked_attributes(node_attributes, count, "node"),
            carried,
        )
        vars(self)["csr_by_source"] = by_source  # the levels needed it

    # ---- making one ----

    @classmethod
    def from_edges(
        cls,
        edges: Tensor | NDArray[np.int64] | Iterable[Any],
        num_nodes: int | None = None,
        *,
        inputs: Iterable[Hashable] | Tensor | None = None,
        outputs: Iterable[Hashable] | Tensor | None = None,
        names: Iterable[Hashable] | None = None,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
    ) -> Self:
        """The same as ``Dag(edges, ...)``."""
        return cls(
            edges,
            num_nodes,
            inputs=inputs,
            outputs=outputs,
            names=names,
            node_attributes=node_attributes,
            edge_attributes=edge_attributes,
        )

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor | NDArray[np.int64],
        num_nodes: int | None = None,
        *,
        inputs: Iterable[Hashable] | Tensor | None = None,
        outputs: Iterable[Hashable] | Tensor | None = None,
        names: Iterable[Hashable] | None = None,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
    ) -> Self:
        """A Dag from edges in the layout of PyTorch Geometric: int64 ``[2, num_edges]``, sources above targets."""
        if not isinstance(edge_index, Tensor | np.ndarray):
            raise DtypeError(f"edge_index must be a tensor or an array, got {type(edge_index).__name__}.")
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise GraphError(f"edge_index must have the shape [2, num_edges], got {list(edge_index.shape)}.")
        return cls(
            edge_index.T,
            num_nodes,
            inputs=inputs,
            outputs=outputs,
            names=names,
            node_attributes=node_attributes,
            edge_attributes=edge_attributes,
        )

    @classmethod
    def from_networkx(cls, graph: "networkx.DiGraph[Any]") -> Self:
        """A Dag from a NetworkX ``DiGraph`` or ``MultiDiGraph``, nodes in its order.

        Nodes called 0, 1, 2, ... in that order stay unnamed; other nodes keep their name. Data that all nodes (or all
        edges) have becomes an attribute: a tensor, as ``torch.tensor`` makes it, where every value is a number or a
        list of numbers, else a tuple. ``graph.graph["inputs"]`` and ``["outputs"]``, lists of nodes, are read if there.

        Raises:
            GraphError: an undirected graph, or data that only some nodes (edges) have.
            CycleError: the edges form a cycle.
        """
        return cls(**networkx_format.arguments_from(graph))

    @classmethod
    def from_pyg(cls, data: Any) -> Self:
        """A Dag from a ``torch_geometric.data.Data``.

        ``edge_type`` becomes the edge attribute "type", and so for all names that begin with ``edge_``; other entries
        with one value per node become node attributes. What belongs to the whole graph, such as ``y``, is left out.
        ``names``, ``input_index`` and ``output_index`` are read if there.

        Raises:
            DtypeError: something without an ``edge_index`` of its own, such as ``HeteroData``.
            CycleError: the edges form a cycle.
        """
        return cls(**pyg_format.arguments_from(data))

    @classmethod
    def from_json(cls, document: str | bytes) -> Self:
        """The Dag that `to_json` wrote, equal to the one written.

        Raises:
            GraphError: no JSON, not this format, a newer version, or a graph that is not valid.
        """
        return cls(**json_format.arguments_from(document))

    @classmethod
    def from_polish(cls, expression: str, share: bool = False) -> Self:
        """The graph of an expression in Polish notation, such as ``(+ (* 2 x) 5)``.

        One node per leaf and per application, with the node attribute "label"; edges go operand -> operator, with the
        edge attribute "position". Operands come before their operator and the whole expression is the last node.

        Args:
            expression: an application is ``(operator operand operand ...)``; a leaf is any text without blanks and
                parentheses. Nested as deep as memory allows.
            share: equal sub-expressions become one node.

        Raises:
            ExpressionError: not an expression; says at which character.

        >>> Dag.from_polish("(* (+ x 1) (+ x 1))", share=True).node_attributes["label"]
        ('x', '1', '+', '*')
        """
        edges, positions, levels, labels = polish.parse(expression, share)
        position = torch.from_numpy(positions)
        return cls._trusted(edges, levels, node_attributes={"label": labels}, edge_attributes={"position": position})

    @classmethod
    def from_text(cls, string: str) -> Self:
        """A chain with one node per character as a reader sees it (Unicode grapheme cluster), first to last.

        The node attribute "label" holds the characters. An empty text gives a Dag without nodes.
        Source: Unicode Standard Annex #29, extended grapheme clusters.

        >>> Dag.from_text("e\\u0301x").num_nodes
        2
        """
        labels = text.grapheme_clusters(string)
        nodes = np.arange(len(labels), dtype=np.int64)
        edges = np.stack([nodes[:-1], nodes[1:]], axis=1)
        return cls._trusted(edges, nodes, node_attributes={"label": labels})

    def subgraph(self, nodes: Iterable[Hashable] | Tensor) -> "Dag":
        """The graph of these nodes and the edges between them, nodes renumbered in the order given.

        Names and attributes stay with their nodes and edges; inputs and outputs are the sources and sinks of the new
        graph.

        Args:
            nodes: names (indices where nodes have none), an int64 tensor of indices, or a bool mask ``[num_nodes]``.

        Raises:
            GraphError: an unknown node, or one listed twice.
        """
        chosen = self._nodes.indices_of(nodes, "nodes")
        number = np.full(self.num_nodes, -1, dtype=np.int64)
        number[chosen] = np.arange(len(chosen))
        renumbered = number[self.edges.numpy()]
        kept = np.flatnonzero((renumbered >= 0).all(1))
        return Dag(
            renumbered[kept],
            len(chosen),
            names=None if self.names is None else [self.names[node] for node in chosen.tolist()],
            node_attributes=take(self.node_attributes, chosen),
            edge_attributes=take(self.edge_attributes, kept),
        )

    # ---- what it is ----

    @property
    def num_edges(self) -> int:
        return self.edges.shape[0]

    @property
    def edge_index(self) -> Tensor:
        """int64 ``[2, num_edges]``: `edges` in the layout of PyTorch Geometric."""
        return self.edges.T

    @lasting_property
    def heights(self) -> Tensor:
        """int64 ``[num_nodes]``: the number of edges on the longest path that starts at the node; sinks have 0."""
        source = np.ascontiguousarray(self.edges.numpy()[:, 0])
        return torch.from_numpy(peel(self.csr_by_target.offsets.numpy(), source, self.out_degree.numpy()))

    @lasting_property
    def order(self) -> Tensor:
        """int64 ``[num_nodes]``: the nodes in topological order, by (level, node)."""
        return torch.from_numpy(stable_order(self.levels.numpy(), self.num_nodes))

    @lasting_property
    def in_degree(self) -> Tensor:
        """int64 ``[num_nodes]``: edges into each node."""
        return self.csr_by_target.offsets.diff()

    @lasting_property
    def out_degree(self) -> Tensor:
        """int64 ``[num_nodes]``: edges out of each node."""
        return self.csr_by_source.offsets.diff()

    @lasting_property
    def csr_by_target(self) -> Csr:
        """The edges into each node; ``edge_ids`` is 0, 1, 2, ..., since `edges` are in this order."""
        counts = np.bincount(self.edges.numpy()[:, 1], minlength=self.num_nodes)
        return Csr(torch.from_numpy(offsets_of(counts)), torch.arange(self.num_edges))

    @lasting_property
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

    # ---- writing it down ----

    def to_networkx(self) -> "networkx.DiGraph[Any]":
        """A NetworkX ``DiGraph`` with names, attributes, inputs and outputs; a ``MultiDiGraph`` if edges repeat.

        Tensors become numbers, or lists of numbers. ``Dag.from_networkx`` gives an equal Dag back if attribute tensors
        are int64, bool or of torch's default dtype, and there are nodes (edges) to carry the attributes.
        """
        return networkx_format.to_networkx(self)

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Data``; `from_pyg` gives an equal Dag back. Tuples become lists.

        Raises:
            DagnnError: PyTorch Geometric is not installed.
            GraphError: a node attribute with a name that PyTorch Geometric gives a meaning of its own.
        """
        return pyg_format.to_data(self)

    def to_json(self) -> str:
        """The whole content as JSON text, for `from_json`; loses nothing.

        Raises:
            GraphError: a name or value that is not None, a bool, an int, a float, a str, or a tuple or list of those.
        """
        return json_format.to_json(self)

    def to_polish(self, max_tokens: int = 1_000_000) -> str:
        """The expression in Polish notation; a shared node is written out as often as it is used.

        ``Dag.from_polish(text).to_polish()`` is the text again, up to blanks.

        Args:
            max_tokens: the most operators and leaves to write: sharing can stand for exponentially many.

        Raises:
            GraphError: no expression graph (one sink, "label" and "position"), or more than ``max_tokens``.
        """
        return polish.to_polish(self, max_tokens)

    # ---- content ----

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dag):
            return NotImplemented
        if self is other:
            return True
        return hash(self) == hash(other) and same_content(self, other)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return content_hash(self)

    def __repr__(self) -> str:
        return summary(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Dag cannot be changed: build a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Dag cannot be changed: build a new one instead of deleting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        # As arrays: tensors of a DataLoader worker travel in shared memory, one open file each. What is not content is
        # quickly made again, and the hash must be: hashes of str differ between processes.
        ends = (self.inputs.numpy(), self.outputs.numpy())
        attributes = (dict(self.node_attributes), dict(self.edge_attributes))
        return Dag._trusted, (self.edges.numpy(), self.levels.numpy(), self.names, *ends, *attributes)

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
        nodes = NodeNames(len(levels), names)
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
