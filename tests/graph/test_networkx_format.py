"""NetworkX: there and back."""

import networkx
import pytest
import torch
from hypothesis import given
from strategies import dags

from dagnn.errors import CycleError, DtypeError, GraphError
from dagnn.graph import Dag


@given(dags(named=None, positions=True).filter(lambda dag: dag.num_edges) | dags(named=None))
def test_there_and_back_is_the_same_dag(dag):
    assert Dag.from_networkx(dag.to_networkx()) == dag


@given(dags(min_nodes=1, named=None, attributes=True))
def test_attributes_come_back_in_the_default_dtype(dag):
    again = Dag.from_networkx(dag.to_networkx())
    assert again.names == dag.names
    assert torch.equal(again.edges, dag.edges)
    assert again.node_attributes["label"] == dag.node_attributes["label"]
    assert torch.equal(again.node_attributes["x"], dag.node_attributes["x"])
    assert torch.equal(again.inputs, dag.inputs)
    assert torch.equal(again.outputs, dag.outputs)
    if dag.num_edges:
        assert torch.equal(again.edge_attributes["weight"], dag.edge_attributes["weight"].float())


def test_nodes_edges_and_data_are_kept():
    graph = networkx.DiGraph()
    graph.add_node("b", size=1, label="p")
    graph.add_node("a", size=2, label="q")
    graph.add_edge("a", "b", weight=0.5, kind=[1, 2])
    dag = Dag.from_networkx(graph)
    assert dag.names == ("b", "a")
    assert dag.edges.tolist() == [[1, 0]]
    assert dag.node_attributes["size"].tolist() == [1, 2]
    assert dag.node_attributes["label"] == ("p", "q")
    assert dag.edge_attributes["weight"].dtype == torch.get_default_dtype()
    assert dag.edge_attributes["kind"].tolist() == [[1, 2]]
    back = dag.to_networkx()
    assert type(back) is networkx.DiGraph
    assert dict(back.nodes(data=True)) == dict(graph.nodes(data=True))
    assert list(back.edges(data=True)) == list(graph.edges(data=True))


def test_an_edge_that_repeats_needs_a_multigraph_and_positions():
    dag = Dag.from_polish("(+ x x)", share=True)
    graph = dag.to_networkx()
    assert type(graph) is networkx.MultiDiGraph
    assert list(graph.edges(data=True)) == [(0, 1, {"position": 0}), (0, 1, {"position": 1})]
    assert Dag.from_networkx(graph) == dag
    with pytest.raises(GraphError, match=r"edges 0 and 1 are both a -> b \(duplicate edge\)"):
        Dag.from_networkx(networkx.MultiDiGraph([("a", "b"), ("a", "b")]))


def test_nodes_called_by_their_place_stay_unnamed():
    assert Dag.from_networkx(networkx.path_graph(3, networkx.DiGraph)).names is None
    assert Dag.from_networkx(networkx.DiGraph([(2, 0)])).names == (2, 0)


def test_values_that_make_no_tensor_stay_a_tuple():
    graph = networkx.DiGraph()
    graph.add_node("a", ragged=[1, 2], big=2**80, mixed=1, nothing=None)
    graph.add_node("b", ragged=[1], big=1, mixed="1", nothing=None)
    attributes = Dag.from_networkx(graph).node_attributes
    assert attributes == {"ragged": ([1, 2], [1]), "big": (2**80, 1), "mixed": (1, "1"), "nothing": (None, None)}


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (networkx.Graph([(0, 1)]), GraphError, "the NetworkX graph is undirected"),
        ([(0, 1)], DtypeError, "from_networkx needs a networkx.DiGraph, got list."),
        (networkx.DiGraph([("a", "b"), ("b", "a")]), CycleError, "the edges form a cycle: a -> b -> a."),
    ],
)
def test_other_graphs_are_refused(graph, error, message):
    with pytest.raises(error) as caught:
        Dag.from_networkx(graph)
    assert str(caught.value).startswith(message)


def test_data_that_only_some_have_is_refused():
    graph = networkx.DiGraph([("a", "b"), ("b", "c")])
    graph.nodes["b"]["x"] = 1
    with pytest.raises(GraphError) as error:
        Dag.from_networkx(graph)
    assert str(error.value) == "node b has the data 'x' but node a has not: give it to all, or to none."
    del graph.nodes["b"]["x"]
    graph.edges["a", "b"]["w"] = 1
    with pytest.raises(GraphError) as error:
        Dag.from_networkx(graph)
    assert str(error.value) == "edge a -> b has the data 'w' but edge b -> c has not: give it to all, or to none."
