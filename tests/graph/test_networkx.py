"""NetworkX: there and back."""

import io

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from names import disguised, named_graph, spelled
from strategies import dags

from dagnn.errors import CycleError, DtypeError, GraphError
from dagnn.graph import Dag, DagBatch


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
    assert str(error.value) == (
        "node b has the data 'x' but node a has not: give it to all, or choose what to read, as in node_attributes=[]."
    )
    del graph.nodes["b"]["x"]
    graph.edges["a", "b"]["w"] = 1
    with pytest.raises(GraphError) as error:
        Dag.from_networkx(graph)
    assert str(error.value) == (
        "edge a -> b has the data 'w' but edge b -> c has not: give it to all, or choose what to read, as in "
        "edge_attributes=[]."
    )


@pytest.mark.fault("graphs_and_networks", 1, 14)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_names_in_disguise_come_and_go(seed, rng):
    names, edges = named_graph(seed)
    graph = networkx.DiGraph()
    graph.add_nodes_from(disguised(name, rng) for name in names)
    graph.add_edges_from((disguised(names[u], rng), disguised(names[v], rng)) for u, v in edges)
    dag = Dag.from_networkx(graph)
    assert list(map(spelled, dag.names or range(dag.num_nodes))) == list(map(spelled, names))
    assert dag.edges.tolist() == sorted(map(list, edges), key=lambda edge: (edge[1], edge[0]))
    assert Dag.from_networkx(dag.to_networkx()) == dag
    assert Dag.from_json(dag.to_json()) == dag


def test_one_graph_is_no_list_of_graphs():
    with pytest.raises(DtypeError, match=r"needs a list of graphs, got one: use Dag\.from_networkx"):
        DagBatch.from_networkx(networkx.DiGraph([(0, 1)]))


@pytest.mark.fault("graphs_and_networks", 15)
def test_ragged_data_can_be_chosen_or_dropped():
    graph = networkx.MultiDiGraph(name="an ontology", typedefs=[])
    graph.add_node("GO:1", name="p", namespace="x", synonym=["a", "b"])
    graph.add_node("GO:2", name="q", namespace="x")
    graph.nodes["GO:2"].update({"def": "...", 3: 4})
    graph.add_edge("GO:1", "GO:2", key="is_a", since=1)
    graph.add_edge("GO:2", "GO:3", key="part_of")
    with pytest.raises(
        GraphError, match=r"node GO:1 has the data 'name' but node GO:3 has not: .* node_attributes=\[\]"
    ):
        Dag.from_networkx(graph)
    graph.add_node("GO:3", name="r", namespace="x")
    with pytest.raises(GraphError, match=r"'synonym'.* as in node_attributes=\['name', 'namespace'\]"):
        Dag.from_networkx(graph)
    dag = Dag.from_networkx(graph, node_attributes=["name"], edge_attributes=[])
    assert dag.node_attributes == {"name": ("p", "q", "r")}
    assert dag.edge_attributes == {}
    assert Dag.from_networkx(graph, node_attributes=(), edge_attributes=()).node_attributes == {}
    with pytest.raises(
        GraphError, match="node_attributes: no node has 'nam'; there are 'name', 'namespace', 'synonym'"
    ):
        Dag.from_networkx(graph, node_attributes=["nam"])
    with pytest.raises(DtypeError, match="edge_attributes must be a list of names, got 'since'"):
        Dag.from_networkx(graph, node_attributes=[], edge_attributes="since")
    batch = DagBatch.from_networkx([graph, graph], node_attributes=["name"], edge_attributes=[])
    assert batch.num_graphs == 2


@pytest.mark.fault("graphs_and_networks", 16)
def test_numpy_scalars_are_numbers():
    graph = networkx.DiGraph()
    for place, name in enumerate("ab"):
        graph.add_node(
            name,
            count=np.int32(place),
            size=np.float64(0.5),
            flag=np.bool_(True),
            pair=[np.int64(1), place],
            mixed=place if place else np.float32(0.5),
            text=np.str_("p"),
            vector=np.array([1.0, place]),
            tensor=torch.tensor([place], dtype=torch.int8),
            ragged=np.zeros(place),
        )
    graph.add_edge("a", "b", position=np.int64(0))
    dag = Dag.from_networkx(graph)
    expected = {
        "count": torch.tensor([0, 1]),
        "size": torch.tensor([0.5, 0.5]),
        "flag": torch.tensor([True, True]),
        "pair": torch.tensor([[1, 0], [1, 1]]),
        "mixed": torch.tensor([0.5, 1.0]),
        "text": ("p", "p"),
        "vector": torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        "tensor": torch.tensor([[0], [1]], dtype=torch.int8),
    }
    assert isinstance(dag.node_attributes["ragged"], tuple)
    assert dag == Dag(
        [("a", "b")],
        node_attributes=expected | {"ragged": dag.node_attributes["ragged"]},
        edge_attributes={"position": [np.int64(0)]},
    )


@pytest.mark.fault("graphs_and_networks", 14)
@given(dags(min_nodes=1, named=None), st.randoms(use_true_random=False))
def test_graphml_goes_there_and_back(dag, rng):
    nodes = list(range(dag.num_nodes))
    some = [rng.sample(nodes, rng.randint(0, len(nodes))) for _ in range(2)]
    dag = Dag(
        dag.edges,
        dag.num_nodes,
        names=dag.names,
        inputs=torch.tensor(some[0], dtype=torch.int64),
        outputs=torch.tensor(some[1], dtype=torch.int64),
        node_attributes={"label": list(map(str, nodes)), "input": torch.tensor(nodes)},
        edge_attributes={"weight": torch.ones(dag.num_edges)} if dag.num_edges else None,
    )
    file = io.BytesIO()
    networkx.write_graphml(dag.to_networkx(), file)
    file.seek(0)
    again = networkx.read_graphml(file, node_type=int if dag.names is None else str)
    assert Dag.from_networkx(again) == dag


@pytest.mark.fault("graphs_and_networks", 14)
def test_graphml_of_an_edge_that_repeats():
    dag = Dag.from_polish("(+ x (* x x))", share=True)
    file = io.BytesIO()
    networkx.write_graphml(dag.to_networkx(), file)
    file.seek(0)
    assert Dag.from_networkx(networkx.read_graphml(file, node_type=int)) == dag


def test_a_node_called_none_is_refused():
    with pytest.raises(GraphError, match="NetworkX has no node called None"):
        Dag([("a", None)]).to_networkx()


def test_inputs_and_outputs_are_read_from_lists_and_from_marks():
    graph = networkx.DiGraph([("a", "c"), ("b", "c")], inputs=["b", "a"], outputs=["c", "a"])
    dag = Dag.from_networkx(graph)
    assert dag == Dag([("a", "c"), ("b", "c")], names=["a", "c", "b"], inputs=["b", "a"], outputs=["c", "a"])
    there = dag.to_networkx()
    assert there.graph == {"inputs": "input", "outputs": "output"}
    assert dict(there.nodes(data="input")) == {"a": 1, "b": 0, "c": None}
    assert Dag.from_networkx(there) == dag
    there.graph["outputs"] = "float32"
    with pytest.raises(GraphError, match=r"graph\['outputs'\] is 'float32', but no node has such data"):
        Dag.from_networkx(there)
    there.nodes["c"]["input"] = "first"
    with pytest.raises(GraphError, match="node c has 'first': number them 0, 1, 2"):
        Dag.from_networkx(there)


def test_places_of_inputs_that_repeat_say_nothing():
    graph = networkx.DiGraph([("a", "c"), ("b", "c")], inputs="place")
    networkx.set_node_attributes(graph, {"a": 0, "b": 0}, "place")
    with pytest.raises(GraphError, match="hold the place of a node among the inputs"):
        Dag.from_networkx(graph)
