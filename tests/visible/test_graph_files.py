"""GraphML, GML and DOT as Dags: names, ragged data, and bad files."""

import gzip
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
    with pytest.raises(DataError, match=r"e\.gml: the graph has no nodes"):
        read_graph(written(tmp_path / "e.gml", "graph [ directed 1 ]"))
    with pytest.raises(DataError, match="is no gml file"):
        read_graph(written(tmp_path / "x.gml", "nothing ["))
    with pytest.raises(ConfigError, match=r"format must be 'graphml', 'gml' or 'dot', got '\.txt'"):
        read_graph(written(tmp_path / "x.txt", "a"))
    twins = networkx.DiGraph([("1", "2")])
    networkx.set_node_attributes(twins, "p", "label")
    networkx.write_graphml(twins, tmp_path / "t.graphml")
    with pytest.raises(DataError, match="two nodes have the label 'p'"):
        read_graph(tmp_path / "t.graphml", names="label")


GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{}<graph edgedefault="directed">{}</graph></graphml>'


def test_defaults_of_graphml_are_the_data_of_those_without(tmp_path):
    keys = [
        f'<key id="{place}" for="{kind}" attr.name="{name}" attr.type="double"><default>7</default></key>'
        for place, (kind, name) in enumerate([("node", "size"), ("edge", "w")])
    ]
    nodes = '<node id="a"><data key="0">1</data></node><node id="b"/><edge source="a" target="b"/>'
    path = written(tmp_path / "x.graphml", GRAPHML.format("".join(keys), nodes))
    reading = read_graph(path, attributes=["size"], weight="w")
    assert reading.dag.node_attributes["size"] == (1.0, 7.0) and reading.weights == {("a", "b"): 7.0}

    both = keys[0].replace('for="node"', 'for="all"')
    reading = read_graph(written(path, GRAPHML.format(both, nodes)), attributes=["size"], weight="size")
    assert reading.dag.node_attributes["size"] == (1.0, 7.0) and reading.weights == {("a", "b"): 7.0}


def test_a_file_of_several_graphs_is_refused(tmp_path):
    inner = '<node id="a"><graph edgedefault="directed"><node id="c"/></graph></node>'
    path = written(tmp_path / "n.graphml", GRAPHML.format("", inner))
    with pytest.raises(DataError, match=r"n\.graphml: holds 2 graphs, one after the other or one in a node of another"):
        read_graph(path)
    with pytest.raises(DataError, match=r"x\.gml is no gml file: input contains more than one graph"):
        read_graph(written(tmp_path / "x.gml", "graph [ node [ id 1 ] ]\ngraph [ node [ id 2 ] ]"))
    pytest.importorskip("pydot")
    with pytest.raises(DataError, match=r"x\.dot: holds 2 graphs"):
        read_graph(written(tmp_path / "x.dot", "digraph A { a -> b }\ndigraph B { c -> d }"))


def test_packed_files_have_the_format_of_their_inner_suffix(tmp_path):
    networkx.write_graphml(networkx.DiGraph([("a", "b")]), plain := tmp_path / "x.GraphML")
    (packed := tmp_path / "x.graphml.GZ").write_bytes(gzip.compress(plain.read_bytes()))
    assert edges_of(read_graph(plain).dag) == edges_of(read_graph(packed).dag) == {("a", "b")}


def test_data_that_cannot_name_a_node_is_refused(tmp_path):
    path = written(tmp_path / "g.gml", "graph [ directed 1 node [ id 1 graphics [ x 1 ] ] ]")
    with pytest.raises(DataError, match=r"the graphics of the node 1 is {'x': 1}, which cannot name a node"):
        read_graph(path, names="graphics")
    with pytest.raises(ConfigError, match=r"names must be the name of data in the file, got \['label'\]"):
        read_graph(path, names=["label"])
    with pytest.raises(ConfigError, match="attributes must be a list, got the text 'size'"):
        read_graph(path, attributes="size")


def test_ports_of_dot_are_no_part_of_a_name(tmp_path):
    pytest.importorskip("pydot")
    text = 'digraph { a:p -> "b:c":p:n; <h:i>:q -> "a"; c -> a:s; "x\\"y:z" -> a }'
    reading = read_graph(written(tmp_path / "x.dot", text))
    assert edges_of(reading.dag) == {("a", "b:c"), ("<h:i>", "a"), ("c", "a"), ('x"y:z', "a")}


def test_dot_with_quotes_defaults_and_subgraphs(tmp_path):
    pytest.importorskip("pydot")
    text = 'digraph { node [shape=box]; "gene A" -> c; subgraph cluster { b -> c } c -> d; "gene A" -> d; b -> c; e }'
    reading = read_graph(written(tmp_path / "x.dot", text))
    assert edges_of(reading.dag) == {("gene A", "c"), ("b", "c"), ("c", "d"), ("gene A", "d")}
    assert {*reading.dag.names} == {"gene A", "b", "c", "d", "e"}
    assert reading.report.names("edges", "repeated") == (("b", "c"),)
