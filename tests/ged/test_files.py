"""Graphs from files: every format gives the graph that was written, and what is none is refused by its path."""

import json
import sys
from types import SimpleNamespace

import networkx as nx
import pytest

from dagnn.errors import GraphError, MissingPackageError
from dagnn.ged import graph_edit_distance, read_graph_files
from dagnn.graph import Dag


@pytest.fixture
def graph():
    made = nx.Graph([(0, 1, {"label": "s"}), (1, 2, {"label": "d"})])
    nx.set_node_attributes(made, {0: "C", 1: "C", 2: "O"}, "label")
    return made


def test_every_format_gives_the_graph_that_was_written(graph, tmp_path):
    (tmp_path / "deep").mkdir()
    nx.write_graphml(graph, tmp_path / "a.graphml")
    nx.write_gexf(graph, tmp_path / "deep" / "b.gexf")
    (tmp_path / "c.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    (tmp_path / "d.JSON").write_text(json.dumps([nx.node_link_data(graph, edges="links")] * 2))
    gml = "graph [\n" + "".join(f'node [ id {v} label "{label}" ]\n' for v, label in graph.nodes(data="label"))
    gml += "".join(f'edge [ source {u} target {v} label "{label}" ]\n' for u, v, label in graph.edges(data="label"))
    (tmp_path / "e.gml").write_text(gml + "]")
    (tmp_path / "notes.txt").write_text("no graph")

    found = read_graph_files(tmp_path)
    assert list(found) == ["a.graphml", "c.json", "d.JSON:0", "d.JSON:1", "deep/b.gexf", "e.gml"]
    for name, read in found.items():
        assert not read.is_directed(), name
        assert graph_edit_distance(graph, read).distance == 0, name


def test_labels_that_repeat_the_ids_are_none(tmp_path):
    nx.write_gml(nx.path_graph(3), tmp_path / "a.gml")
    nx.write_gexf(nx.path_graph(3), tmp_path / "b.gexf")
    for read in read_graph_files(tmp_path).values():
        assert graph_edit_distance(read, nx.path_graph(3)).distance == 0


def test_public_sets_are_undirected_with_their_labels(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"id": 4, "n": 3, "edges": [[0, 1], [2, 1]], "labels": ["C", "O", "C"]}\n\n'
        '{"n": 2, "graph": [], "labels": []}\n'
    )
    found = read_graph_files(tmp_path / "a.jsonl")
    first, second = found.values()
    assert [name[-9:] for name in found] == ["a.jsonl:0", "a.jsonl:1"]
    assert dict(first.nodes(data="label")) == {0: "C", 1: "O", 2: "C"} and sorted(first.edges) == [(0, 1), (1, 2)]
    assert len(second) == 2 and not any(data for _, data in second.nodes(data=True))


def test_a_dag_is_read_as_it_was_written(tmp_path):
    dag = Dag([("a", "b")], node_attributes={"label": ("x", "y")})
    (tmp_path / "a.json").write_text(dag.to_json())
    assert list(read_graph_files(tmp_path / "a.json").values()) == [dag]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.json", "no JSON", "a.json is no json file of a graph: JSONDecodeError"),
        ("a.json", "[3]", "a graph must be a JSON object, got int"),
        ("a.json", "{}", "got the keys"),
        ("a.json", '{"nodes": []}', 'needs the key "links" or "edges"'),
        ("a.json", '{"nodes": [3], "links": []}', "3 in .nodes. is no JSON object"),
        ("a.json", '{"n": -1, "edges": []}', "n is -1"),
        ("a.json", '{"n": 2, "edges": [[0, 2]]}', r"\[0, 2\] is no edge: it must be two of the nodes 0 .. 1"),
        ("a.json", '{"n": 2, "edges": [3]}', "3 is no edge"),
        ("a.json", '{"n": 2, "edges": [], "labels": ["C"]}', "1 labels for 2 nodes"),
        ("a.json", '{"format": "other"}', "not a Dag"),
        ("a.jsonl", '{"n": 1, "edges": []}\n{', "graph 1: "),
        ("a.graphml", "<graphml", "a.graphml is no graphml file of a graph"),
        ("a.gexf", "<gexf>", "a.gexf is no gexf file of a graph"),
        ("a.gml", "graph [", "a.gml is no gml file of a graph"),
        ("a.gml", "\x00", "a.gml is no gml file of a graph"),
        ("a.txt", "", "does not say what it holds: its ending must be one of .json"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_path(name, content, text, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(GraphError, match=text):
        read_graph_files(tmp_path / name)


def test_a_folder_without_graphs_is_refused(tmp_path):
    with pytest.raises(GraphError, match="holds no graphs: the endings that can be read are"):
        read_graph_files(tmp_path)


def test_smiles_need_rdkit(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    (tmp_path / "a.smi").write_text("CCO ethanol\n")
    with pytest.raises(MissingPackageError, match=r"a file of SMILES needs rdkit .*: pip install rdkit"):
        read_graph_files(tmp_path / "a.smi")


def test_molecules_have_elements_and_bonds_as_labels(tmp_path, monkeypatch):
    """With what RDKit gives for ethanol and nothing else; where it is installed, so does the real one."""
    if "rdkit" not in sys.modules and not _has_rdkit():
        monkeypatch.setitem(sys.modules, "rdkit", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "rdkit.Chem", SimpleNamespace(MolFromSmiles=_ethanol))
    (tmp_path / "a.smi").write_text("CCO ethanol\nCCO\nCCO pure alcohol\n")
    found = read_graph_files(tmp_path)
    assert list(found) == ["a.smi:ethanol", "a.smi:1", "a.smi:pure alcohol"]
    for molecule in found.values():
        assert [label for _, label in molecule.nodes(data="label")] == ["C", "C", "O"]
        assert list(molecule.edges(data="label")) == [(0, 1, "single"), (1, 2, "single")]
    (tmp_path / "a.smi").write_text("C(C\n")
    with pytest.raises(GraphError, match=r"molecule 0: 'C\(C' is no SMILES"):
        read_graph_files(tmp_path)


def _has_rdkit():
    import importlib.util

    return importlib.util.find_spec("rdkit") is not None


def _ethanol(smiles):
    if smiles != "CCO":
        return None
    atoms = [SimpleNamespace(GetIdx=lambda i=i: i, GetSymbol=lambda s=s: s) for i, s in enumerate("CCO")]
    bonds = [
        SimpleNamespace(GetBeginAtomIdx=lambda i=i: i, GetEndAtomIdx=lambda i=i: i + 1, GetBondType=lambda: "SINGLE")
        for i in range(2)
    ]
    return SimpleNamespace(GetAtoms=lambda: atoms, GetBonds=lambda: bonds)


NODE_LINK = '{"nodes": [{"id": 0}, {"id": 1}], "links": [%s], "multigraph": false}'
GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">%s</graphml>'
GEXF = '<gexf xmlns="http://www.gexf.net/1.2draft" version="1.2"><graph defaultedgetype="directed">%s</graph></gexf>'


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("labels.json", '{"n": 1, "edges": [], "labels": {"0": "C"}}', "must be lists"),
        ("labels.json", '{"n": 2, "edges": [], "labels": "CO"}', "must be lists"),
        ("edges.json", '{"n": 2, "edges": {}}', "must be lists"),
        ("both.json", '{"n": 2, "edges": [], "graph": [[0, 1]]}', "list different edges"),
        ("huge.json", '{"n": 100000000000, "edges": []}', "n is 100,000,000,000"),
        ("twice.json", '{"nodes": [{"id": 0}, {"id": 0}], "links": []}', "two nodes have one name"),
        ("end.json", NODE_LINK % '{"source": 0, "target": 7}', "an end that is no node"),
        ("parallel.json", NODE_LINK % ", ".join(['{"source": 0, "target": 1}'] * 2), "2 edges have 1 different"),
        ("plain.json", '{"nodes": [0, 1], "links": []}', "0 in 'nodes' is no JSON object"),
        ("flag.json", '{"nodes": [], "links": [], "directed": "false"}', "must be true or false"),
        ("two.graphml", GRAPHML % ('<graph edgedefault="directed"/>' * 2), "2 graphs"),
        ("nested.graphml", GRAPHML % '<graph><node id="a"><graph><node id="b"/></graph></node></graph>', "2 graphs"),
        ("end.graphml", GRAPHML % '<graph><node id="a"/><edge source="a" target="q"/></graph>', "that is no node"),
        ("twice.graphml", GRAPHML % '<graph><node id="a"/><node id="a"/></graph>', "two nodes have one name"),
        ("end.gexf", GEXF % '<nodes><node id="a"/></nodes><edges><edge source="a" target="q"/></edges>', "no node"),
    ],
)
def test_what_would_be_read_as_another_graph_is_refused(name, text, told, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(GraphError, match=told):
        read_graph_files(tmp_path / name)


def test_gexf_without_labels_has_none(tmp_path):
    (tmp_path / "a.gexf").write_text(GEXF % '<nodes><node id="a"/><node id="b" label="x"/></nodes>')
    (graph,) = read_graph_files(tmp_path / "a.gexf").values()
    assert dict(graph.nodes(data=True)) == {"a": {}, "b": {"label": "x"}}


def test_byte_order_marks_encodings_and_line_separators(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"n": 1, "edges": [], "labels": ["x\u2028y"]}\n{"n": 0, "edges": []}', encoding="utf-8-sig"
    )
    (tmp_path / "b.gml").write_text('graph [ node [ id 0 label "é" ] ]', encoding="utf-8-sig")
    (tmp_path / "c.graphml").write_text(
        '<?xml version="1.0" encoding="ISO-8859-1"?>' + GRAPHML % '<graph><node id="é"/></graph>', encoding="latin-1"
    )
    first, _, second, third = read_graph_files(tmp_path).values()
    assert first.nodes[0]["label"] == "x\u2028y" and second.nodes[0]["label"] == "é" and list(third) == ["é"]
