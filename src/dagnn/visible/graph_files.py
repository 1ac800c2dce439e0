"""The reader of graph files, GraphML, GML and DOT, to a `Reading`."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dagnn.errors import ConfigError, DataError, DtypeError, GraphError, MissingPackageError, library
from dagnn.graph.names import canonical
from dagnn.visible.edge_files import PathLike, ending_of, lines_of, number_of, open_text, path_of
from dagnn.visible.reading import EdgeList, Reading, checked_list, listed

_GRAPH_FORMATS = {".graphml": "graphml", ".gml": "gml", ".dot": "dot", ".gv": "dot"}


def read_graph(
    path: PathLike,
    *,
    format: str | None = None,
    names: str | None = None,
    attributes: Collection[str] = (),
    weight: str | None = None,
    root: Hashable | None = None,
    reverse: bool = False,
) -> Reading:
    """A Dag from a GraphML, GML or DOT file. Values flow as the arrows point.

    Args:
        path: with the suffix ``.graphml``, ``.gml``, ``.dot`` or ``.gv``, also with ``.gz`` after it, or with
            ``format`` given. It holds one graph, and none inside another. Ports of DOT are left out.
        format: ``"graphml"``, ``"gml"`` or ``"dot"``.
        names: the node data that names the nodes, such as ``"label"``; each value once. By default their ids, which in
            GML are numbers.
        attributes: node data to keep as node attributes, None for nodes without it. All other data are reported.
        weight: edge data that becomes ``Reading.weights``.
        root: a node that everything without an outgoing edge shall feed; it is made if it is not there.
        reverse: turn every edge round.

    Raises:
        DataError: a file that cannot be read, or with several graphs; nodes without the data ``names``, or two with the
            same.
        GraphError: an undirected graph, or data that no node has.
        CycleError: the edges form a cycle; the message names its nodes in order.
        ConfigError: an unknown format.
        MissingPackageError: DOT needs ``pip install "dagnn[visible]"``.

    >>> import networkx, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.graphml"
    >>> networkx.write_graphml(networkx.DiGraph([("a", "c"), ("b", "c")]), path)
    >>> read_graph(path).dag.names
    ('a', 'c', 'b')
    """
    path = path_of("path", path)
    attributes = checked_list("attributes", attributes)
    for argument, value in (("names", names), ("weight", weight)):
        if not isinstance(value, str | None):
            raise ConfigError(f"{argument} must be the name of data in the file, got {value!r}.")
    kind = _GRAPH_FORMATS.get(ending_of(path), "") if format is None else format
    if kind not in _GRAPH_FORMATS.values():
        raise ConfigError(f"{path.name}: format must be 'graphml', 'gml' or 'dot', got {format or ending_of(path)!r}.")
    graph = _parsed(path, kind)
    if not graph.is_directed():
        raise GraphError(f"{path.name}: the graph is undirected: give its edges a direction.")
    # Defaults of GraphML, which NetworkX reads and leaves at the graph.
    of_nodes, of_edges = graph.graph.get("node_default", {}), graph.graph.get("edge_default", {})
    data = {node: {**of_nodes, **row} for node, row in graph.nodes(data=True)}
    name_of = {node: node if names is None else _name(path, names, node, row) for node, row in data.items()}
    if not name_of:
        raise DataError(f"{path.name}: the graph has no nodes.")
    if nameless := [node for node, name in name_of.items() if name is None]:
        raise DataError(f"{path.name}: {len(nameless)} nodes have no {names!r}, such as {listed(nameless)}.")
    if len(set(name_of.values())) < len(name_of):
        twice = next(name for name, count in Counter(name_of.values()).items() if count > 1)
        raise DataError(f"{path.name}: two nodes have the {names} {twice!r}: rename one, or leave names out.")

    found = EdgeList(path.name)
    found.nodes.update(dict.fromkeys(name_of.values()))
    for u, v, row in graph.edges(data=True):
        where = f"{path.name}, {u} -> {v}, {weight}"
        number = None if weight is None else number_of({**of_edges, **row}.get(weight), where)
        found.add(name_of[u], name_of[v], number)
    known = dict.fromkeys(key for row in data.values() for key in row)
    for key in attributes:
        if key not in known:
            raise GraphError(f"{path.name}: no node has the data {key!r}; there is {listed(list(known), shown=8)}.")
    unread = [key for key in known if key not in (*attributes, names)]
    if unread:
        found.notes.append(f"node data not read: {listed(unread, shown=8)}")
    chosen = {key: {name_of[node]: row[key] for node, row in data.items() if key in row} for key in attributes}
    labels = {name_of[node]: str(row["label"]) for node, row in data.items() if "label" in row}
    return found.reading(root=root, reverse=reverse, labels=labels, attributes=chosen)


def _name(path: Path, names: str, node: Hashable, row: dict[str, Any]) -> Hashable:
    try:
        return canonical(row.get(names))
    except DtypeError as error:
        raise DataError(f"{path.name}: the {names} of the node {node!r} is {error}") from None


def _parsed(path: Path, kind: str) -> Any:
    """The file as a NetworkX graph."""
    import networkx  # here: it takes 0.1 s

    try:
        if kind == "gml":
            return networkx.parse_gml(lines_of(path), label=None)
        text = open_text(path).read()
        if kind == "graphml":
            root = ElementTree.fromstring(text)
            _check_one_graph(path, len(root.findall(".//{*}graph")))
            graph = networkx.parse_graphml(text)
            for place in ("node_default", "edge_default"):
                graph.graph[place] = _defaults_of_all(root) | graph.graph.get(place, {})
            return graph
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pydot 4.0 calls pyparsing 3.3 by its old names
            parsed = library("pydot", "a DOT file", "dagnn[visible]").graph_from_dot_data(text)
        if not parsed:
            raise ValueError("no graph in it")
        _check_one_graph(path, len(parsed))
        return _from_pydot(parsed[0])
    except (MissingPackageError, DataError):
        raise
    except Exception as error:  # parsers raise whatever they meet
        raise DataError(f"{path.name} is no {kind} file: {error}") from error


def _defaults_of_all(root: ElementTree.Element) -> dict[str, Any]:
    """Defaults of GraphML for nodes and edges alike, which NetworkX leaves out."""
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "long": int, "float": float, "double": float}
    kinds["boolean"] = lambda text: text.strip().lower() in ("true", "1")
    found = {}
    for key in root.findall(".//{*}key"):
        default = key.find("{*}default")
        if key.get("for", "all") == "all" and default is not None:
            found[key.get("attr.name", "")] = kinds.get(key.get("attr.type", ""), str)(default.text or "")
    return found


def _check_one_graph(path: Path, count: int) -> None:
    if count > 1:
        raise DataError(
            f"{path.name}: holds {count} graphs, one after the other or one in a node of another, expected one: write "
            "all nodes and edges into one graph, or a file for each."
        )


def _from_pydot(parsed: Any) -> Any:
    """NetworkX's own conversion keeps the quotes of names, and the defaults ``node [...]`` as a node."""
    import networkx

    graph = networkx.MultiDiGraph() if parsed.get_type() == "digraph" else networkx.MultiGraph()
    waiting = [parsed]
    while waiting:
        part = waiting.pop(0)
        for node in part.get_nodes():
            if node.get_name() not in ("node", "edge", "graph", '"\\n"'):
                attributes = {key: _unquoted(value) for key, value in node.get_attributes().items()}
                graph.add_node(_node_of(node.get_name()), **attributes)
        for edge in part.get_edges():
            ends = (edge.get_source(), edge.get_destination())
            if not all(isinstance(end, str) for end in ends):
                raise ValueError("an edge from or to a subgraph: write one edge for each node")
            attributes = {key: _unquoted(value) for key, value in edge.get_attributes().items()}
            graph.add_edge(*map(_node_of, ends), **attributes)
        waiting += part.get_subgraphs()
    return graph


# A name in quotes, as HTML, or plain; a colon after it begins a port, which says where on the node an edge ends.
_DOT_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|<.*>|[^:]*', re.DOTALL)


def _node_of(end: str) -> str:
    found = _DOT_NAME.match(end)
    return _unquoted(found.group() if found else end)


def _unquoted(text: Any) -> str:
    plain = str(text)
    return plain[1:-1].replace('\\"', '"') if len(plain) > 1 and plain[0] == plain[-1] == '"' else plain
