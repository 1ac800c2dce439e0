"""Graphs from files and folders, as `dagnn ged search` takes them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError, fromstring

import networkx

from dagnn.errors import GraphError, library
from dagnn.ged.labelled import Graph
from dagnn.graph import Dag


def read_graph_files(path: str | Path) -> dict[str, Graph]:
    """The graphs of a file, or of all files below a folder, each by its name, in the order of names.

    The ending of a file says what it holds:

    - ``.json``: a Dag (`Dag.to_json`), NetworkX's node-link data, a graph of the public sets of graph edit distance, or
      a list of these; ``.jsonl``: one of them on each line. The public sets write ``{"n": nodes, "edges": [[u, v],
      ...], "labels": [...]}``, or "graph" in place of "edges" as GEDGNN and FGWAlign do; such graphs are undirected;
    - ``.graphml``, ``.gexf``, ``.gml``: as NetworkX reads them, but nodes of GML are called by their ids, and their
      "label" is an attribute as in the other formats. (NetworkX writes the names of nodes there.) Labels that only
      repeat the ids are left out;
    - ``.smi``, ``.smiles``: a molecule on each line, as SMILES and, after a space, its name. RDKit reads them: nodes
      are atoms labelled with their element, without implicit hydrogens, edges are bonds labelled with their type.

    Args:
        path: a file with one of these endings, or a folder. Files of a folder with other endings are passed over.

    Returns:
        Graphs by name: the path of the file, below the folder, and where it holds several, ``:`` and a number from 0,
        or the name of the molecule.

    Raises:
        GraphError: a file that is not what its ending says, another ending, a folder without graphs, no RDKit.
        OSError: a file cannot be read.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "chain.json").write_text(Dag([("a", "b")]).to_json())
    >>> _ = (folder / "set.jsonl").write_text('{"n": 2, "edges": [[0, 1]]}\\n{"n": 1, "edges": []}\\n')
    >>> list(read_graph_files(folder))
    ['chain.json', 'set.jsonl:0', 'set.jsonl:1']
    """
    path = Path(path)
    if not path.is_dir():
        return dict(_of_file(path, str(path)))
    found: dict[str, Graph] = {}
    for file in sorted(file for file in path.rglob("*") if file.suffix.lower() in _READERS and file.is_file()):
        found.update(_of_file(file, file.relative_to(path).as_posix()))
    if not found:
        raise GraphError(f"{path} holds no graphs: the endings that can be read are {', '.join(_READERS)}.")
    return found


def _of_file(path: Path, name: str) -> Iterator[tuple[str, Graph]]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise GraphError(f"{path} does not say what it holds: its ending must be one of {', '.join(_READERS)}.")
    content = path.read_bytes()
    try:
        graphs = reader(content)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    except MemoryError:
        raise GraphError(f"{path}: the graph does not fit into memory.") from None
    except _BROKEN as error:
        raise GraphError(f"{path} is no {path.suffix[1:]} file of a graph: {type(error).__name__}: {error}.") from None
    names = [name] if len(graphs) == 1 else [f"{name}:{called}" for called, _ in graphs]
    if len(set(names)) < len(names):  # molecules of one name
        names = [f"{name}:{i}" for i in range(len(graphs))]
    return zip(names, (graph for _, graph in graphs), strict=True)


_BROKEN = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError,
    networkx.NetworkXException, ParseError,
)  # fmt: skip

Found = list[tuple[str, Any]]

LARGEST = 1_000_000  # nodes of a graph that a file only counts: a few bytes could ask for more memory than there is


def _from_json(content: bytes) -> Found:
    document = json.loads(content)
    documents = document if isinstance(document, list) else [document]
    return [(str(i), _graph_of(each)) for i, each in enumerate(documents)]


def _from_lines(content: bytes) -> Found:
    lines = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]  # JSON may hold U+2028
    found: Found = []
    for i, line in enumerate(lines):
        try:
            found.append((str(i), _graph_of(json.loads(line))))
        except (*_BROKEN, GraphError) as error:
            raise GraphError(f"graph {i}: {error}") from None
    return found


def _graph_of(document: Any) -> Graph:
    """A graph from a JSON object of one of three forms."""
    if not isinstance(document, dict):
        raise GraphError(f"a graph must be a JSON object, got {type(document).__name__}.")
    if "format" in document:
        return Dag.from_json(json.dumps(document))
    _only_one_of(document, "links", "edges")
    edges = next((key for key in ("links", "edges") if key in document), "links")
    if isinstance(document.get("nodes"), list):
        if not isinstance(document.get(edges), list):
            raise GraphError('node-link data needs the key "links" or "edges" with the list of edges.')
        return _of_node_link(document, edges)
    if "n" in document and ("edges" in document or "graph" in document):
        return _of_public_set(document)
    raise GraphError(
        'a graph must be a Dag ("format"), node-link data ("nodes") or a graph of a public set ("n" and "edges"), '
        f"got the keys {', '.join(map(repr, list(document)[:8]))}."
    )


def _only_one_of(document: dict[str, Any], *keys: str) -> None:
    given = [document[key] for key in keys if isinstance(document.get(key), list)]
    if len(given) == 2 and given[0] != given[1]:
        raise GraphError(f'"{keys[0]}" and "{keys[1]}" list different edges: which of them are meant? Remove one.')


def _of_node_link(document: dict[str, Any], edges: str) -> Graph:
    for key in ("directed", "multigraph"):
        if not isinstance(document.get(key, False), bool):
            raise GraphError(f"{key!r} is {document[key]!r}: it must be true or false.")
    for key in ("nodes", edges):
        other = next((each for each in document[key] if not isinstance(each, dict)), None)
        if other is not None:
            raise GraphError(f"{other!r} in {key!r} is no JSON object, as node-link data has them.")
    graph = networkx.node_link_graph(document, edges=edges)
    _check_kept(graph, len(document["nodes"]), len(document[edges]))
    return graph


def _check_kept(graph: Any, nodes: int, edges: int) -> None:
    """NetworkX makes nodes of unknown ends, and one node or edge of two that have one name: refuse both."""
    if len(graph) != nodes:
        raise GraphError(
            f"{nodes:,} nodes, but {len(graph):,} names of nodes: two nodes have one name, or an edge has an end "
            "that is no node."
        )
    if graph.number_of_edges() != edges:
        raise GraphError(
            f"{edges:,} edges have {graph.number_of_edges():,} different pairs of ends, but this is no multigraph: "
            'write parallel edges once, or with "multigraph": true.'
        )


def _of_public_set(document: dict[str, Any]) -> Graph:
    count, labels = document["n"], document.get("labels")
    _only_one_of(document, "edges", "graph")
    edges = document["edges"] if "edges" in document else document["graph"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise GraphError(f"n is {count!r}: it must be the number of nodes.")
    if count > LARGEST:
        raise GraphError(f"n is {count:,}: graphs of up to {LARGEST:,} nodes are read.")
    if not isinstance(edges, list) or not isinstance(labels, list | None):
        raise GraphError("edges and labels must be lists.")
    graph = networkx.Graph()
    graph.add_nodes_from(range(count))
    for edge in edges:
        ends = edge if isinstance(edge, list) and len(edge) == 2 else [None]
        if not all(type(end) is int and 0 <= end < count for end in ends):
            raise GraphError(f"{edge!r} is no edge: it must be two of the nodes 0 .. {count - 1}.")
        graph.add_edge(*ends)
    if labels:
        if len(labels) != count:
            raise GraphError(f"{len(labels)} labels for {count} nodes.")
        networkx.set_node_attributes(graph, dict(enumerate(labels)), "label")
    return graph


def _from_graphml(content: bytes) -> Found:
    graph = networkx.read_graphml(BytesIO(content))
    named = Counter(element.tag.rpartition("}")[2] for element in fromstring(content).iter())
    if named["graph"] > 1:
        raise GraphError(f"the file holds {named['graph']} graphs, within or after each other: write each to its own.")
    _check_kept(graph, named["node"], graph.number_of_edges())
    return [("0", graph)]


def _from_gexf(content: bytes) -> Found:
    graph = networkx.read_gexf(BytesIO(content))
    _check_kept(graph, sum(element.tag.endswith("}node") for element in fromstring(content).iter()), len(graph.edges))
    for _, data in graph.nodes(data=True):
        if data.get("label") is None:
            data.pop("label", None)
    return [("0", _without_names(graph))]


def _from_gml(content: bytes) -> Found:
    return [("0", _without_names(networkx.parse_gml(content.decode("utf-8-sig").splitlines(), label="id")))]


def _without_names(graph: Any) -> Any:
    """``graph`` without labels that only repeat the ids: NetworkX writes these where nodes have no labels."""
    if all(data.get("label") == str(node) for node, data in graph.nodes(data=True)):
        for _, data in graph.nodes(data=True):
            data.pop("label", None)
    return graph


def _from_smiles(content: bytes) -> Found:
    Chem = library("rdkit.Chem", "a file of SMILES", "rdkit")
    found: Found = []
    for i, line in enumerate(line for line in content.decode("utf-8-sig").splitlines() if line.strip()):
        smiles, _, name = line.strip().partition(" ")
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None:
            raise GraphError(f"molecule {i}: {smiles!r} is no SMILES that RDKit can read.")
        graph = networkx.Graph()
        for atom in molecule.GetAtoms():
            graph.add_node(atom.GetIdx(), label=atom.GetSymbol())
        for bond in molecule.GetBonds():
            graph.add_edge(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), label=str(bond.GetBondType()).lower())
        found.append((name.strip() or str(i), graph))
    return found


_READERS: dict[str, Callable[[bytes], Found]] = {
    ".json": _from_json,
    ".jsonl": _from_lines,
    ".graphml": _from_graphml,
    ".gexf": _from_gexf,
    ".gml": _from_gml,
    ".smi": _from_smiles,
    ".smiles": _from_smiles,
}
