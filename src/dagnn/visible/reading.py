"""What every reader gives back: a `Dag` with names, and a report of what was read, dropped and added."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from dagnn.errors import ConfigError, CycleError, DataError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.names import canonical

_SHOWN = 3
Edge = tuple[Hashable, Hashable]


class Dropped(NamedTuple):
    """Nodes or edges that a reader left out, all for one reason.

    Attributes:
        kind: ``"nodes"`` or ``"edges"``.
        why: the reason, as the report prints it.
        names: the nodes, or the edges as pairs (source, target), in the order in which they were met.

    >>> print(Dropped("nodes", "no gene feeds them", ("empty pathway",)))
    1 node dropped, no gene feeds them: 'empty pathway'
    """

    kind: str
    why: str
    names: tuple[Any, ...]

    def __str__(self) -> str:
        """One line: how many, why, and the first few by name."""
        shown = listed(self.names, edges=self.kind == "edges")
        return f"{_counted(len(self.names), self.kind)} dropped, {self.why}: {shown}"


@dataclass(frozen=True)
class ReadReport:
    """How many nodes and edges came in, how many are left, and why the others went. ``print`` it.

    What came in and what was added is what is left and what was dropped: ``nodes_read + nodes_added == nodes +
    count("nodes")``, and the same for edges.

    Attributes:
        source: the file, or what else was read.
        nodes_read, edges_read: in the source, each mention of an edge counted.
        nodes, edges: in the Dag.
        nodes_added, edges_added: a root that was asked for and the edges into it; edges that merging made.
        dropped: what went, one entry for each reason.
        notes: what else there is to know, such as data that was not read.

    >>> from dagnn.visible import read_edges
    >>> report = read_edges([("a", "c"), ("b", "c"), ("a", "c")]).report
    >>> print(report)
    a list of edges: 3 nodes, 3 edges read; the Dag has 3 nodes, 2 edges
      1 edge dropped, repeated: 'a' -> 'c'
    >>> report.count("edges"), report.names("edges", "repeated")
    (1, (('a', 'c'),))
    """

    source: str
    nodes_read: int
    edges_read: int
    nodes: int
    edges: int
    nodes_added: int = 0
    edges_added: int = 0
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = ()

    def count(self, kind: str) -> int:
        """How many ``"nodes"`` or ``"edges"`` were dropped, for any reason."""
        return sum(len(group.names) for group in self.dropped if group.kind == kind)

    def names(self, kind: str, why: str) -> tuple[Any, ...]:
        """The ``"nodes"`` or ``"edges"`` dropped for this reason; empty if none was."""
        return next((group.names for group in self.dropped if (group.kind, group.why) == (kind, why)), ())

    def __str__(self) -> str:
        """The counts, then a line for each reason and note."""
        head = f"{self.source}: {_counted(self.nodes_read, 'nodes')}, {_counted(self.edges_read, 'edges')} read"
        if self.nodes_added or self.edges_added:
            head += f", {_counted(self.nodes_added, 'nodes')}, {_counted(self.edges_added, 'edges')} added"
        head += f"; the Dag has {_counted(self.nodes, 'nodes')}, {_counted(self.edges, 'edges')}"
        return "\n  ".join([head, *map(str, self.dropped), *self.notes])


@dataclass(frozen=True)
class Reading:
    """A Dag that was read, and how.

    Attributes:
        dag: its nodes have names; values flow along its edges, from what is measured to what is predicted.
        report: what was read, dropped and added.
        labels: node -> a text for people, where the source has one: what a pathway is called whose node is an id.
        weights: edge -> number, where a reader was asked for them; ``net.set_weights(reading.weights)`` takes them.

    >>> from dagnn.visible import read_edges
    >>> reading = read_edges([("a", "c"), ("b", "c")])
    >>> reading.dag.names, reading.labels
    (('a', 'c', 'b'), {})
    """

    dag: Dag
    report: ReadReport
    labels: Mapping[Hashable, str] = field(default_factory=dict)
    weights: Mapping[Edge, float] = field(default_factory=dict)


class EdgeList:
    """Nodes and edges on their way from ``source`` to a `Reading`, in its order; not public."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.edges: dict[Edge, float | None] = {}
        self.nodes: dict[Hashable, None] = {}
        self.notes: list[str] = []
        self._seen: dict[Hashable, None] = {}  # ends of edges that were skipped
        self._edges_read = 0
        self._dropped: dict[tuple[str, str], list[Any]] = {}

    def add(self, u: Hashable, v: Hashable, weight: float | None = None) -> None:
        """An edge; one that is there already counts as dropped."""
        self._edges_read += 1
        if (u, v) in self.edges:
            if weight is not None and weight != self.edges[u, v]:
                raise DataError(
                    f"{self.source}: the edge {u!r} -> {v!r} has two weights, {self.edges[u, v]} and {weight}: "
                    "keep one of them."
                )
            self.drop("edges", "repeated", (u, v))
            return
        self.edges[u, v] = weight
        self.nodes[u] = self.nodes[v] = None

    def skip(self, u: Hashable, v: Hashable, why: str) -> None:
        """An edge that was read and is left out."""
        self._edges_read += 1
        self._seen[u] = self._seen[v] = None
        self.drop("edges", why, (u, v))

    def drop(self, kind: str, why: str, name: Any) -> None:
        """Note that a node or edge is left out."""
        self._dropped.setdefault((kind, why), []).append(name)

    def reading(
        self,
        *,
        reverse: bool = False,
        genes: Collection[Hashable] | None = None,
        root: Hashable | None = None,
        labels: Mapping[Hashable, str] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Reading:
        """The Dag of all that was added.

        Args:
            reverse: turn every edge round, in the end.
            genes: the inputs; nodes that none of them feeds are dropped. None: the sources.
            root: a node that every sink shall feed, made if it is not there.
            attributes: name -> {node -> value}; None for the nodes without one.
        """
        edges_read = self._edges_read
        gone = {name for (kind, _), names in self._dropped.items() if kind == "nodes" for name in names}
        for name in self._seen:
            if name not in self.nodes and name not in gone:
                self.drop("nodes", "none of their edges was kept", name)
                gone.add(name)
        nodes_read = len(self.nodes) + len(gone)
        dag = self.dag(genes)
        if genes is not None and (unfed := dag.dangling().unfed):
            gone = set(unfed)
            for name in unfed:
                self.drop("nodes", "no gene feeds them", name)
                del self.nodes[name]
            for edge in [edge for edge in self.edges if not gone.isdisjoint(edge)]:
                self.drop("edges", "from or to a node that no gene feeds", edge)
                del self.edges[edge]
            dag = self.dag(genes)
        nodes_added, edges_added = self._add_root(dag, root) if root is not None else (0, 0)
        if not self.nodes:
            raise DataError(f"{self.source}: no nodes are left. {self._report(dag, nodes_read, edges_read, 0, 0)}")
        dag = self.dag(genes, reverse=reverse, attributes=attributes)
        report = self._report(dag, nodes_read, edges_read, nodes_added, edges_added)
        weights = {(v, u) if reverse else (u, v): w for (u, v), w in self.edges.items() if w is not None}
        kept = {name: text for name, text in (labels or {}).items() if name in self.nodes}
        return Reading(dag, report, kept, weights)

    def _add_root(self, dag: Dag, root: Hashable) -> tuple[int, int]:
        """Let every sink feed ``root``; how many nodes and edges that takes."""
        try:
            root = canonical(root)
        except DtypeError as error:
            raise DtypeError(f"root is {error}") from None
        sinks = [dag.name_of(node) for node in (dag.out_degree == 0).nonzero().flatten().tolist()]
        if root in self.nodes and root not in sinks:
            raise GraphError(f"{self.source}: root={root!r} is a node that feeds others: give the root a new name.")
        new = root not in self.nodes
        edges = [(sink, root) for sink in sinks if sink != root]
        self.nodes[root] = None
        self.edges.update(dict.fromkeys(edges))
        return int(new), len(edges)

    def dag(
        self,
        genes: Collection[Hashable] | None = None,
        *,
        reverse: bool = False,
        attributes: Mapping[str, Any] | None = None,
    ) -> Dag:
        """The Dag of what there is now; arguments as of `reading`."""
        names = list(self.nodes)
        index_of = {name: i for i, name in enumerate(names)}
        ends = np.array([(index_of[u], index_of[v]) for u, v in self.edges], dtype=np.int64).reshape(-1, 2)
        inputs = None if genes is None else np.array([i for i, name in enumerate(names) if name in genes], np.int64)
        columns = {key: tuple(map(values.get, names)) for key, values in (attributes or {}).items()}
        try:
            if not reverse:
                return Dag(ends, names=names, inputs=inputs, node_attributes=columns)
            return Dag(np.ascontiguousarray(ends[:, ::-1]), names=names, outputs=inputs, node_attributes=columns)
        except CycleError as error:
            raise CycleError(f"{self.source}: {error}") from None

    def _report(self, dag: Dag, nodes_read: int, edges_read: int, nodes_added: int, edges_added: int) -> ReadReport:
        dropped = tuple(Dropped(kind, why, tuple(names)) for (kind, why), names in self._dropped.items())
        return ReadReport(
            self.source,
            nodes_read,
            edges_read,
            dag.num_nodes,
            dag.num_edges,
            nodes_added,
            edges_added,
            dropped,
            tuple(self.notes),
        )


def _counted(count: int, kind: str) -> str:
    return f"{count:,} {kind if count != 1 else kind[:-1]}"


def listed(names: Sequence[Any], *, edges: bool = False, shown: int = _SHOWN) -> str:
    """The first few of ``names``, and how many more there are."""
    texts = [f"{name[0]!r} -> {name[1]!r}" if edges else repr(name) for name in names[:shown]]
    return ", ".join(texts) + (f" and {len(names) - shown:,} more" if len(names) > shown else "")


def checked_choice(argument: str, value: Any, choices: Iterable[str]) -> Any:
    """``value``, if it is one of ``choices``."""
    allowed = tuple(choices)
    if value not in allowed:
        raise ConfigError(f"{argument} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def checked_list(argument: str, value: Any) -> list[Any]:
    """``value`` as a list; a ConfigError for a text, which would be taken letter by letter, and for what is no list."""
    if isinstance(value, str | bytes):
        raise ConfigError(f"{argument} must be a list, got the text {value!r}: give [{value!r}].")
    if not isinstance(value, Iterable):
        raise ConfigError(f"{argument} must be a list, got {value!r}.")
    return list(value)


def checked_whole(argument: str, value: Any) -> int:
    """``value``, if it is a whole number."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError(f"{argument} must be a whole number, got {value!r}.")
    return int(value)


def check_rows(argument: str, values: Any, X: Any) -> None:
    """Refuse ``values`` whose row labels are some of those of ``X`` in other places; not public.

    Both are taken by position, as scikit-learn takes them. Labels that have nothing in common say nothing. A GraphError
    names the first row that differs.
    """
    ours, theirs = (getattr(one, "index", None) for one in (X, values))
    if ours is None or theirs is None or callable(ours) or callable(theirs) or len(ours) != len(theirs):
        return
    pairs = list(zip(ours.tolist(), theirs.tolist(), strict=True))
    row = next((row for row, (a, b) in enumerate(pairs) if a != b), None)
    if row is not None and not {a for a, _ in pairs}.isdisjoint(b for _, b in pairs):
        raise GraphError(
            f"row {row} is {pairs[row][0]!r} in X and {pairs[row][1]!r} in {argument}, and rows are taken by position: "
            f"bring {argument} into the order of X, with {argument}.loc[X.index], or drop its labels with .to_numpy()."
        )
