"""Graphs of several libraries in one plain form: numbered nodes, edges, labels."""

import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag, DagBatch

Graph: TypeAlias = Any
"""A `Dag`, a NetworkX graph (directed or not, multigraphs too), or PyTorch Geometric's ``Data``."""

# The label that graphs may lack, and the one that means the names of the nodes.
OPTIONAL, NAMES = "label", "names"

# The search keeps tables of all pairs of nodes, and sums of costs over so many pairs stay exact in 64 bits.
MAX_NODES = 2_000


@dataclass(frozen=True)
class LabelledGraph:
    """A graph to compare.

    Attributes:
        names: the user's names of the nodes; node i here is ``names[i]`` there.
        edges: pairs of node numbers; parallel edges and self-loops allowed. If not ``directed``, each edge is
            listed once, in either direction.
        node_labels, edge_labels: one label per node or edge, or None for a graph without labels.
    """

    names: tuple[Hashable, ...]
    edges: tuple[tuple[int, int], ...]
    directed: bool
    node_labels: tuple[Any, ...] | None
    edge_labels: tuple[Any, ...] | None

    @property
    def num_nodes(self) -> int:
        return len(self.names)


def read_pair(
    a: Graph, b: Graph, *, directed: bool | None, node_label: str | None, edge_label: str | None
) -> tuple[LabelledGraph, LabelledGraph]:
    """Two graphs that can be compared. Arguments and errors as in `graph_edit_distance`."""
    left, right = read_graphs([a, b], ["a", "b"], directed=directed, node_label=node_label, edge_label=edge_label)
    return left, right


def read_graphs(
    graphs: Sequence[Graph],
    names: Sequence[str],
    *,
    directed: bool | None,
    node_label: str | None,
    edge_label: str | None,
) -> list[LabelledGraph]:
    """Graphs that can be compared with each other, in the plain form; error messages call them by ``names``."""
    if directed is not None:
        check_flag("directed", directed, "True, False or None")
    for option, given in (("node_label", node_label), ("edge_label", edge_label)):
        if not isinstance(given, Hashable):
            raise DtypeError(f"{option} must be the name of one attribute, got {given!r}.")
    read = [
        _read_graph(graph, name, directed, node_label, edge_label) for graph, name in zip(graphs, names, strict=True)
    ]
    for kind, attribute in (("node", node_label), ("edge", edge_label)):
        if kind == "node" and attribute == NAMES and not any(graph.node_labels for graph in read):
            read = [replace(graph, node_labels=graph.names) for graph in read]
        _check_there(kind, attribute, read, graphs, names)
    _check_comparable(read, names, node_label, edge_label)
    return read


def check_flag(name: str, value: object, allowed: str = "True or False") -> None:
    """Raise ConfigError unless ``value`` is a bool: any other may mean the opposite of what it says, such as "no"."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} is {value!r}: write {allowed}.")


def _read_graph(
    graph: Graph, name: str, directed: bool | None, node_label: str | None, edge_label: str | None
) -> LabelledGraph:
    """The graph called ``name`` in error messages, in the plain form."""
    _check_size(graph, name)
    if isinstance(graph, Dag):
        read = _from_dag(graph, name, node_label, edge_label)
    elif hasattr(graph, "to_data_list") or isinstance(graph, DagBatch):
        raise DtypeError(
            f"{name} is a {type(graph).__name__} of several graphs: compare them one by one, or give the list of "
            "them to ged_matrix."
        )
    elif hasattr(graph, "is_directed") and hasattr(graph, "adjacency") and hasattr(graph, "is_multigraph"):
        read = _from_networkx(graph, name, node_label, edge_label)
    elif hasattr(graph, "edge_index") and hasattr(graph, "num_nodes"):
        return _from_pyg(graph, name, directed, node_label, edge_label)
    else:
        raise DtypeError(f"{name} must be a Dag, a NetworkX graph or a PyG Data, got {type(graph).__name__}.")
    if directed is None or directed == read.directed:
        return read
    if directed:
        raise GraphError(f"{name} is undirected, but directed=True: give a directed graph, or leave directed out.")
    return replace(read, directed=False)


def _check_there(
    kind: str, attribute: str | None, read: Sequence[LabelledGraph], graphs: Sequence[Graph], names: Sequence[str]
) -> None:
    """Raise GraphError if no graph has the attribute, although there is something to label."""
    if attribute in (None, OPTIONAL) or any(_labels(graph, kind) is not None for graph in read):
        return
    labelled = [(graph, name) for graph, plain, name in zip(graphs, read, names, strict=True) if _count(plain, kind)]
    if not labelled or (kind == "edge" and any(_is_pyg(graph) for graph, _ in labelled)):
        return
    known = sorted({str(key) for graph, _ in labelled for key in _attributes(graph, kind)})
    close = difflib.get_close_matches(str(attribute), known, n=1)
    there = f"they have {', '.join(map(repr, known))}" if known else "they have none"
    which = f"{' or '.join(name for _, name in labelled[:2])}{' ...' * (len(labelled) > 2)}"
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise GraphError(
        f"no {kind} of {which} has the attribute {attribute!r}; {there}. {hint}"
        f"{kind}_label=None compares without labels."
    )


def _is_pyg(graph: Graph) -> bool:
    return not isinstance(graph, Dag) and hasattr(graph, "edge_index")


def _attributes(graph: Graph, kind: str) -> Iterable[Any]:
    """The names of its attributes."""
    if isinstance(graph, Dag):
        return graph.node_attributes if kind == "node" else graph.edge_attributes
    if _is_pyg(graph):
        return [*(graph.keys() if callable(getattr(graph, "keys", None)) else vars(graph))]
    rows = graph.nodes(data=True) if kind == "node" else graph.edges(data=True)
    return {key for *_, data in rows for key in data}


def _check_size(graph: Graph, name: str) -> None:
    """Raise GraphError for a graph too large to compare; passes what is no graph at all."""
    count = getattr(graph, "num_nodes", None) if not hasattr(graph, "number_of_nodes") else graph.number_of_nodes()
    if isinstance(count, int) and count > MAX_NODES:
        raise GraphError(
            f"{name} has {count:,} nodes: graphs of up to {MAX_NODES:,} can be compared. Compare parts of it "
            "(dag.subgraph)."
        )


def _check_comparable(
    graphs: Sequence[LabelledGraph], names: Sequence[str], node_label: str | None, edge_label: str | None
) -> None:
    """Raise GraphError unless all graphs are directed or all are not, and all are labelled or none is."""
    for graph, name in zip(graphs[1:], names[1:], strict=True):
        if graph.directed != graphs[0].directed:
            kinds = ["directed" if g.directed else "undirected" for g in (graphs[0], graph)]
            raise GraphError(
                f"{names[0]} is {kinds[0]} and {name} is {kinds[1]}: compare like with like, "
                "or pass directed=False to ignore all directions."
            )
    for kind, attribute in (("node", node_label), ("edge", edge_label)):
        have = {name: _labels(g, kind) is not None for g, name in zip(graphs, names, strict=True) if _count(g, kind)}
        if len(set(have.values())) > 1:
            with_labels = next(name for name, yes in have.items() if yes)
            without = next(name for name, yes in have.items() if not yes)
            raise GraphError(
                f"{with_labels} has the {kind} attribute {attribute!r} and {without} has not: label both, "
                f"or pass {kind}_label=None to compare without labels."
            )


def _count(graph: LabelledGraph, kind: str) -> int:
    return graph.num_nodes if kind == "node" else len(graph.edges)


def _labels(graph: LabelledGraph, kind: str) -> tuple[Any, ...] | None:
    return graph.node_labels if kind == "node" else graph.edge_labels


def _from_dag(dag: Dag, name: str, node_label: str | None, edge_label: str | None) -> LabelledGraph:
    # No attribute is called None.
    nodes: Mapping[Any, Any] = dag.node_attributes
    edges: Mapping[Any, Any] = dag.edge_attributes
    names = dag.names if dag.names is not None else tuple(range(dag.num_nodes))
    return LabelledGraph(
        names=names,
        edges=tuple(map(tuple, dag.edges.tolist())),
        directed=True,
        node_labels=_column(nodes.get(node_label), dag.num_nodes, name, node_label),
        edge_labels=_column(edges.get(edge_label), dag.num_edges, name, edge_label),
    )


def _from_networkx(graph: Any, name: str, node_label: str | None, edge_label: str | None) -> LabelledGraph:
    names = tuple(graph.nodes)
    number = {node: i for i, node in enumerate(names)}
    edges = _networkx_edges(graph, number)
    return LabelledGraph(
        names=names,
        edges=tuple((number[u], number[v]) for u, v, _ in edges),
        directed=graph.is_directed(),
        node_labels=_data([data for _, data in graph.nodes(data=True)], list(names), name, "node", node_label),
        edge_labels=_data([data for *_, data in edges], [(u, v) for u, v, _ in edges], name, "edge", edge_label),
    )


def _networkx_edges(graph: Any, number: dict[Any, int]) -> list[tuple[Any, Any, dict[Any, Any]]]:
    """``list(graph.edges(data=True))``, which takes three times as long: every graph of a collection is read here."""
    if graph.is_multigraph():
        return list(graph.edges(data=True))
    rows = graph.adjacency()
    if graph.is_directed():
        return [(u, v, data) for u, row in rows for v, data in row.items()]
    return [(u, v, data) for u, row in rows for v, data in row.items() if number[v] >= number[u]]


def _from_pyg(
    data: Any, name: str, directed: bool | None, node_label: str | None, edge_label: str | None
) -> LabelledGraph:
    """A PyG graph. It lists an undirected edge as two directed ones: ``directed=False`` makes them one again.

    It keeps node and edge data in one place, so one name for both means the labels of the nodes.
    """
    count = int(data.num_nodes)
    edges = [(int(u), int(v)) for u, v in data.edge_index.t().tolist()]
    for i, (u, v) in enumerate(edges):
        if not (0 <= u < count and 0 <= v < count):
            raise GraphError(f"edge {i} of {name} is {u} -> {v}, but it has the nodes 0 .. {count - 1}.")
    node_labels = _column(None if node_label is None else getattr(data, node_label, None), count, name, node_label)
    edge_values = None if edge_label in (None, node_label) else getattr(data, edge_label, None)
    edge_labels = _column(edge_values, len(edges), name, edge_label)
    if directed is not False:
        return LabelledGraph(tuple(range(count)), tuple(edges), True, node_labels, edge_labels)

    labels = edge_labels or (None,) * len(edges)
    kept = [i for i, (u, v) in enumerate(edges) if u <= v]
    there = sorted((u, v, repr(label_key(labels[i]))) for i, (u, v) in enumerate(edges) if u < v)
    back = sorted((v, u, repr(label_key(labels[i]))) for i, (u, v) in enumerate(edges) if u > v)
    if there != back:
        raise GraphError(f"{name} has edges in one direction only, but directed=False: PyG lists both directions.")
    return LabelledGraph(
        tuple(range(count)),
        tuple(edges[i] for i in kept),
        False,
        node_labels,
        None if edge_labels is None else tuple(edge_labels[i] for i in kept),
    )


def _column(values: Any, count: int, name: str, attribute: str | None) -> tuple[Any, ...] | None:
    """An attribute as one label per node or edge."""
    if values is None:
        return None
    if isinstance(values, tuple) or (isinstance(values, Tensor | np.ndarray) and values.ndim == 1):
        pass  # nearly always
    elif isinstance(values, str | bytes) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
        raise GraphError(f"{attribute!r} of {name} is {values!r}: it must hold one label for each of {count} things.")
    labels = tuple(values.tolist() if isinstance(values, Tensor | np.ndarray) and values.ndim == 1 else values)
    if len(labels) != count:
        raise GraphError(f"{name} has {len(labels)} labels in {attribute!r}, but {count} things to label.")
    return labels


def _data(
    rows: list[dict[Any, Any]], items: list[Any], name: str, kind: str, attribute: str | None
) -> tuple[Any, ...] | None:
    """`_column` from NetworkX's dictionaries: all must have the attribute, or none."""
    if attribute is None:
        return None
    missing = [item for item, data in zip(items, rows, strict=True) if attribute not in data]
    if len(missing) == len(rows):
        return None
    if missing:
        raise GraphError(
            f"{kind} {missing[0]!r} of {name} has no {attribute!r}, other {kind}s have: label all or none."
        )
    return tuple(data[attribute] for data in rows)


def label_keys(labels: Sequence[Any]) -> Sequence[Hashable]:
    """`label_key` of each."""
    return labels if _PLAIN.issuperset(map(type, labels)) else [label_key(label) for label in labels]


def label_key(label: Any) -> Hashable:
    """A hashable value, equal for equal labels: arrays, lists and mappings by content, and NaN equals NaN."""
    if type(label) in _PLAIN:  # nearly all labels
        return label  # type: ignore[no-any-return]
    if isinstance(label, Tensor):
        return label_key((label.to_dense() if label.layout != torch.strided else label).detach().tolist())
    if isinstance(label, np.ndarray | np.generic):
        return label_key(label.tolist()) if label.dtype.kind != "V" else label_key(tuple(label.tolist()))
    if isinstance(label, list | tuple):
        return tuple(label_key(part) for part in label)
    if isinstance(label, Mapping):
        return (_MAPPING, frozenset((label_key(key), label_key(value)) for key, value in label.items()))
    if isinstance(label, Decimal):
        return _NAN if label.is_nan() else label
    if isinstance(label, float | complex):
        return label if label == label else _NAN
    try:
        hash(label)
    except TypeError:
        raise DtypeError(
            f"a label must be hashable, an array, a list or a mapping, got {type(label).__name__}: {label!r}."
        ) from None
    return label  # type: ignore[no-any-return]


_PLAIN = frozenset((str, int, type(None)))
_NAN, _MAPPING = ("dagnn.ged", "NaN"), ("dagnn.ged", "mapping")
