"""`Dag`: a directed acyclic graph that never changes, made from edges or from other formats, and written to them."""

from collections.abc import Hashable, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph import content as parts
from dagnn.graph import library_formats, text_formats
from dagnn.graph.attributes import checked_attributes, take
from dagnn.graph.content import Content
from dagnn.graph.edges import canonical_order, check_no_self_loop, too_many_nodes
from dagnn.graph.levels import levelled
from dagnn.graph.names import checked_names, read_edges

if TYPE_CHECKING:
    import networkx


@final
class Dag(Content):
    """A directed acyclic graph: nodes ``0 .. num_nodes - 1``, edges, and what they carry.

    A Dag sorts its edges by (target, source), or by (target, position) if they have the edge attribute "position". So
    the edges into a node are adjacent, operands in their order. Edge attributes are sorted along. The order in which
    you list the edges does not count: Dags with the same content are equal and hash alike. The order of the nodes
    does count, and so do names, inputs, outputs and attributes.

    A Dag cannot be changed. Its tensors are its own: read them, clone them to write.

    Args:
        edges: int64 tensor or array ``[num_edges, 2]``, row ``(u, v)`` is the edge u -> v between nodes by index; or a
            list of pairs, an array of text or objects, or a frame of two columns. Pairs of ints are indices; others are
            names, and unless ``names`` lists the nodes, they get the order in which they appear (a set's: sorted).
        num_nodes: at least 0; by default as many as ``names``, or as the edges need.
        inputs, outputs: nodes where values enter and leave, each once, in the order wanted: a list or an array of names
            (indices where nodes have no names), an int64 tensor or array of indices, or a bool mask ``[num_nodes]``.
            By default the sources and the sinks. These, a mask and a set are in the order of the nodes.
        names: a different name for every node: a number, a str, bytes, None, or a tuple or frozenset of those. Names
            that are equal in Python are one name, kept in one form: ``numpy.int64(1)``, ``1.0`` and ``True`` are 1, and
            a str or tuple of a subclass is a plain one. Where no name is a number, an int means an index.
        node_attributes: name -> tensor or array ``[num_nodes, ...]`` (copied to the CPU), or a list (kept as a tuple).
        edge_attributes: the same for edges, in the order in which you list the edges. "position", int64, is special:
            the place of an edge among the edges into its target, 0 for the first operand. With positions, two edges
            may have the same source and target.

    Raises:
        DtypeError: edges of another dtype than int64, or something that cannot name a node, such as an object, whose
            order would differ from one process to the next.
        GraphError: an end out of range, a repeated edge, an unknown name, an attribute of another length.
        CycleError: the edges form a cycle; the message names one.

    Cost: a million edges take 0.1 to 0.5 s, the most for a chain of shuffled nodes.

    >>> dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])
    >>> dag.names, dag.levels
    (('a', 'c', 'b', 'd'), tensor([0, 1, 0, 2]))
    """

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
        ends, nodes = read_edges(edges, known, num_nodes)
        count = nodes.num_nodes
        check_no_self_loop(ends[:, 0], ends[:, 1], nodes.name_of)

        carried = checked_attributes(edge_attributes, len(ends), "edge")
        order = canonical_order(ends[:, 0], ends[:, 1], count, carried, nodes.name_of)
        if order is not None:
            # np.take: ends[order] needs 54 ms for a million edges, this 6.
            ends, carried = np.take(ends, order, axis=0), take(carried, order)
        try:
            by_source, levels = levelled(ends, nodes)
        except MemoryError:
            raise too_many_nodes(count) from None

        self._set(
            ends,
            levels,
            nodes,
            None if inputs is None else nodes.indices_of(inputs, "inputs"),
            None if outputs is None else nodes.indices_of(outputs, "outputs"),
            checked_attributes(node_attributes, count, "node", nodes.names),
            carried,
        )
        vars(self)["csr_by_source"] = by_source  # the levels needed it

    # ---- from and to other formats ----

    @classmethod
    def from_networkx(
        cls,
        graph: "networkx.DiGraph[Any]",
        *,
        node_attributes: Iterable[str] | None = None,
        edge_attributes: Iterable[str] | None = None,
    ) -> Self:
        """A Dag from a NetworkX ``DiGraph`` or ``MultiDiGraph``, nodes in its order.

        Nodes called 0, 1, 2, ... in that order stay unnamed; other nodes keep their name. Data become attributes: a
        tensor, as ``torch.tensor`` makes it, where every value is a number (NumPy's are Python's) or a list of numbers;
        a tensor of its own dtype where every value is an array or a tensor of one shape; else a tuple. Keys of a
        ``MultiDiGraph`` are not read; ``networkx.DiGraph(graph)`` merges its parallel edges.

        ``graph.graph["inputs"]`` and ``["outputs"]`` are read if they are there. Each is a list of nodes, or the name
        of node data: an input (output) has its place among the inputs (outputs) there, other nodes lack that data.

        Args:
            node_attributes, edge_attributes: the data to read, by name; by default all, and then all nodes (edges) must
                have them.

        Raises:
            GraphError: an undirected graph, data that only some nodes (edges) have, or that none has.
            CycleError: the edges form a cycle.
        """
        return cls(**library_formats.networkx_arguments(graph, node_attributes, edge_attributes))

    def to_networkx(self) -> "networkx.DiGraph[Any]":
        """A NetworkX ``DiGraph`` with names and attributes; a ``MultiDiGraph`` if edges repeat.

        Tensors become numbers, or lists of numbers. If the inputs and outputs are not the sources and sinks, the node
        data "input" and "output" hold their places, and ``graph.graph["inputs"]`` and ``["outputs"]`` name that data
        (or are "none" where there are none).

        `from_networkx` gives an equal Dag back if attribute tensors are int64, bool or of torch's default dtype, and
        there are nodes (edges) to carry the attributes. A GraphML file in between keeps that, if names are str (or
        read with ``node_type=int``) and attributes numbers or str: GraphML holds nothing else.
        """
        return library_formats.to_networkx(self)

    @classmethod
    def from_pyg(
        cls, data: Any, *, node_attributes: Iterable[str] | None = None, edge_attributes: Iterable[str] | None = None
    ) -> Self:
        """A Dag from a ``torch_geometric.data.Data``.

        ``edge_type`` becomes the edge attribute "type", and so on for all names that begin with ``edge_``. Other
        entries with one value per node become node attributes. What belongs to the whole graph is left out, and so is
        the ``y`` of a graph with a single node, which could be the graph's. ``names``, ``input_index`` and
        ``output_index`` are read if they are there.

        Args:
            node_attributes, edge_attributes: which of them to read, by their names in the Dag; by default all.

        Raises:
            DtypeError: something without an ``edge_index`` of its own, such as ``HeteroData``, or several graphs.
            GraphError: an attribute that is not there, or an ``edge_...`` without one value per edge.
            CycleError: the edges form a cycle.
        """
        library_formats.check_is_one_graph(data)
        return cls(**library_formats.pyg_arguments(data, node_attributes, edge_attributes))

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Data``; `from_pyg` gives an equal Dag back. Tuples become lists.

        Raises:
            DagnnError: PyTorch Geometric is not installed.
            GraphError: a node attribute with a name that PyTorch Geometric gives a meaning of its own.
        """
        return library_formats.to_data(self)

    @classmethod
    def from_json(cls, document: str | bytes) -> Self:
        """The Dag that `to_json` wrote, equal to the one written.

        Raises:
            GraphError: no JSON, not this format, a newer version, or a graph that is not valid.

        >>> dag = Dag([("a", "b")])
        >>> Dag.from_json(dag.to_json()) == dag
        True
        """
        return cls(**text_formats.json_arguments(document))

    def to_json(self) -> str:
        """The whole content as JSON text, for `from_json`; nothing is lost.

        Raises:
            GraphError: a value that is not None, a bool, a number, a str, bytes, or a tuple, list or frozenset of
                those.
        """
        return text_formats.to_json(self)

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
            ExpressionError: not an expression; the message gives the character.

        >>> Dag.from_polish("(* (+ x 1) (+ x 1))", share=True).node_attributes["label"]
        ('x', '1', '+', '*')
        """
        edges, positions, levels, labels = text_formats.parse_polish(expression, share)
        position = torch.from_numpy(positions)
        return cls._trusted(edges, levels, node_attributes={"label": labels}, edge_attributes={"position": position})

    def to_polish(self, max_tokens: int = 1_000_000) -> str:
        """The expression in Polish notation; a shared node is written out as often as it is used.

        ``Dag.from_polish(text).to_polish()`` is the text again, up to blanks.

        Args:
            max_tokens: the most operators and leaves to write: written out, shared nodes can grow exponentially.

        Raises:
            GraphError: no expression graph (one sink, "label" and "position"), or more than ``max_tokens``.

        >>> Dag.from_polish("(* (+ x 1) (+ x 1))", share=True).to_polish()
        '(* (+ x 1) (+ x 1))'
        """
        return text_formats.to_polish(self, max_tokens)

    @classmethod
    def from_text(cls, string: str) -> Self:
        """A chain with one node per character as a reader sees it (Unicode grapheme cluster), first to last.

        The node attribute "label" holds the characters. An empty text gives a Dag without nodes.
        Source: Unicode Standard Annex #29, extended grapheme clusters.

        >>> Dag.from_text("e\\u0301x").num_nodes
        2
        """
        labels = text_formats.grapheme_clusters(string)
        nodes = np.arange(len(labels), dtype=np.int64)
        edges = np.stack([nodes[:-1], nodes[1:]], axis=1)
        return cls._trusted(edges, nodes, node_attributes={"label": labels})

    # ---- seen ----

    def draw(
        self,
        path: str | PathLike[str] | None = None,
        *,
        nodes: Any = None,
        edges: Any = None,
        top: int | None = None,
        title: str | None = None,
        labels: Mapping[Any, str] | None = None,
    ) -> Any:
        """A picture as a ``matplotlib.figure.Figure``: levels from left to right, a box for every node.

        The order of the nodes on a level makes few edges cross. Colours are those that colour-blind readers can
        distinguish; negative edges are dashed too; outputs have a thick border. The same graph gives the same bytes.

        Args:
            path: also write the picture to this file, .svg, .png or .pdf, completely or not at all.
            nodes: a number for every node, as its colour: a mapping by name, which may leave nodes out, or
                ``[num_nodes]`` in the order of the nodes.
            edges: a number for every edge, as its colour and width: a mapping by (source, target), or ``[num_edges]``
                in the order of `edges`. Parallel edges are drawn as one, with their sum.
            top: draw only so many nodes: those with the largest absolute numbers, or without ``nodes`` those with the
                largest sum over their edges. Dotted lines are paths through nodes that are not shown, and the picture
                says how many those are.
            title: a line at the top.
            labels: node -> a text to print in place of its name, such as ``Reading.labels``; some may be left out.

        Raises:
            GraphError: an unknown node or edge, another number of values, more than 2,000 nodes to draw.
            DtypeError: values that are no real numbers.
            ConfigError: another ending of ``path``.
            OSError: the file cannot be written; what was there before stays.

        Source: Sugiyama, Tagawa and Toda, 1981, for the order of the nodes; Okabe and Ito for the colours.

        >>> dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])
        >>> figure = dag.draw(edges={("a", "c"): 1.0, ("b", "c"): -2.0})
        """
        from dagnn.graph import as_scene

        scene = as_scene.scene_of(self, as_scene.titled(nodes, "nodes"), as_scene.titled(edges, "edges"), None, labels)
        return as_scene.drawn(scene, path, top, title)

    def write_page(
        self,
        path: str | PathLike[str],
        *,
        nodes: Any = None,
        edges: Any = None,
        title: str | None = None,
        labels: Mapping[Any, str] | None = None,
    ) -> None:
        """Write an HTML page to explore the graph in a browser: one file, which works offline.

        It zooms, searches by name, and shows the edges and numbers of the node that you choose; everything can be done
        from the keyboard. A graph of more than 400 nodes is shown by neighbourhoods.

        Args:
            path: the file, replaced completely or not at all.
            nodes, edges, labels: as for `draw`.
            title: of the page; by default the name of the file.

        Raises:
            GraphError, DtypeError: as of `draw`.
            OSError: the file cannot be written; what was there before stays.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Dag([("a", "b")]).write_page(f"{folder}/graph.html", nodes={"a": 1.0, "b": 2.0})
        """
        from dagnn.graph import as_scene

        scene = as_scene.scene_of(self, as_scene.titled(nodes, "nodes"), as_scene.titled(edges, "edges"), None, labels)
        as_scene.write_page(scene, path, title)

    # ---- parts of it ----

    def ancestors(self, name: Hashable) -> tuple[Hashable, ...]:
        """The nodes from which a path leads to this one, by name, in the order of the nodes."""
        return parts.relatives(self, self.index_of(name), forwards=False)

    def descendants(self, name: Hashable) -> tuple[Hashable, ...]:
        """The nodes to which a path leads from this one, by name, in the order of the nodes.

        >>> Dag([("a", "c"), ("b", "c"), ("c", "d")]).descendants("a")
        ('c', 'd')
        """
        return parts.relatives(self, self.index_of(name), forwards=True)

    def subgraph(self, nodes: Iterable[Hashable] | Tensor) -> "Dag":
        """The graph of these nodes and the edges between them, nodes renumbered in the order given.

        Names and attributes stay with their nodes and edges; inputs and outputs are the sources and sinks of the new
        graph.

        Args:
            nodes: as for ``inputs``: names (indices where nodes have none), an int64 tensor of indices, or a mask.

        Raises:
            GraphError: an unknown node, or one listed twice.

        >>> Dag([("a", "c"), ("b", "c"), ("c", "d")]).subgraph(["c", "a"]).edges
        tensor([[1, 0]])
        """
        return Dag(**parts.induced(self, nodes))

    def remove(self, *, nodes: Iterable[Hashable] | Tensor = (), edges: Iterable[Any] | Tensor = ()) -> "Dag":
        """The graph without these nodes and their edges, and without these edges.

        All else stays: names, attributes, the order of the nodes, and of inputs and outputs those that are left. So a
        node that loses its last edge does not become an input or output; see `dangling`.

        Args:
            nodes: as for `subgraph`.
            edges: pairs of names (indices where nodes have none), or int64 indices ``[n, 2]``. Parallel edges, which
                differ only by position, all go.

        Raises:
            GraphError: an unknown node, or no such edge.

        >>> dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])
        >>> dag.remove(nodes=["b"]).names
        ('a', 'c', 'd')
        >>> dag.remove(edges=[("b", "c")]).dangling()
        Dangling(unfed=(), unread=('b',))
        """
        return Dag(**parts.without(self, nodes, edges))

    def dangling(self) -> parts.Dangling:
        """The nodes that no input reaches, and those that reach no output; none if ``any(dag.dangling())`` is false.

        In a network the first are constants that it learns, and the second change nothing.
        """
        return parts.dangling(self)

    def without_dangling(self) -> "Dag":
        """The graph of the nodes that lie on a path from an input to an output.

        Inputs that reach no output, and outputs that no input reaches, go too. The x and y of a network then have
        fewer columns: those that ``dag.inputs`` and ``dag.outputs`` list.
        """
        return Dag(**parts.without_dangling(self))
