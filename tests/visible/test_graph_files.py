"""GraphML, GML and DOT as Dags: names, ragged data, and bad files."""

import tempfile
from pathlib import Path

import networkx
import pytest
from hypothesis import given
from read_graphs import edges_of
from strategies import dags

from dagnn import Dag
from dagnn.errors import ConfigError, CycleError, DataError, GraphError
from dagnn.visible import read_graph


def written(path, text):
    path.write_text(text)
    return path


@given(dags(named=True, min_nodes=1))
def test_a_graph_survives_graphml_and_gml(dag):
    folder = Path(tempfile.mkdtemp())
    names = [f"n{i}" for i in range(dag.num_nodes)]
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from((names[u], names[v]) for u, v in dag.edges.tolist())
    expected = Dag(dag.edges, names=names)
    networkx.write_graphml(graph, folder / "x.graphml")
    networkx.write_gml(graph, folder / "x.gml")
    assert read_graph(folder / "x.graphml").dag == expected
    assert read_graph(folder / "x.gml", names="label").dag == expected


def test_ragged_node_data_is_chosen_or_dropped(tmp_path):
    graph = networkx.DiGraph([("1", "2")])
    graph.nodes["1"].update(label="TP53", kind="gene")
    graph.nodes["2"]["label"] = "p53 pathway"
    graph.edges["1", "2"]["w"] = 0.25
    networkx.write_graphml(graph, path := tmp_path / "x.graphml")
    plain = read_graph(path)
    assert plain.labels == {"1": "TP53", "2": "p53 pathway"} and not plain.dag.node_attributes
    assert plain.report.notes == ("node data not read: 'label', 'kind'",)
    chosen = read_graph(path, names="label", attributes=["kind"], weight="w")
    assert chosen.dag.node_attributes["kind"] == ("gene", None)
    assert chosen.weights == {("TP53", "p53 pathway"): 0.25} and chosen.report.notes == ()
    with pytest.raises(DataError, match="1 nodes have no 'kind', such as '2'"):
        read_graph(path, names="kind")
    with pytest.raises(GraphError, match="no node has the data 'size'; there is 'label', 'kind'"):
        read_graph(path, attributes=["size"])


def test_bad_graph_files_are_refused(tmp_path):
    networkx.write_graphml(networkx.Graph([("a", "b")]), tmp_path / "u.graphml")
    with pytest.raises(GraphError, match=r"u\.graphml: the graph is undirected"):
        read_graph(tmp_path / "u.graphml")
    networkx.write_graphml(networkx.DiGraph([("a", "b"), ("b", "a")]), tmp_path / "c.graphml")
    with pytest.raises(CycleError, match=r"c\.graphml: .* a -> b -> a"):
        read_graph(tmp_path / "c.graphml")
    with pytest.raises(DataError, match="is no gml file"):
        read_graph(written(tmp_path / "x.gml", "nothing ["))
    with pytest.raises(ConfigError, match=r"format must be 'graphml', 'gml' or 'dot', got '\.txt'"):
        read_graph(written(tmp_path / "x.txt", "a"))
    twins = networkx.DiGraph([("1", "2")])
    networkx.set_node_attributes(twins, "p", "label")
    networkx.write_graphml(twins, tmp_path / "t.graphml")
    with pytest.raises(DataError, match="two nodes have the label 'p'"):
        read_graph(tmp_path / "t.graphml", names="label")


def test_dot_with_quotes_defaults_and_subgraphs(tmp_path):
    pytest.importorskip("pydot")
    text = 'digraph { node [shape=box]; "gene A" -> c; subgraph cluster { b -> c } c -> d; "gene A" -> d; b -> c; e }'
    reading = read_graph(written(tmp_path / "x.dot", text))
    assert edges_of(reading.dag) == {("gene A", "c"), ("b", "c"), ("c", "d"), ("gene A", "d")}
    assert {*reading.dag.names} == {"gene A", "b", "c", "d", "e"}
    assert reading.report.names("edges", "repeated") == (("b", "c"),)
