"""Dag: its order, degrees, ends, content and immutability."""

import copy
import pickle
import random

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags, edge_lists

from dagnn.errors import GraphError
from dagnn.graph import Dag


def test_named_edges_number_the_nodes_in_order_of_appearance():
    dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])
    assert dag.names == ("a", "c", "b", "d")
    assert dag.edges.tolist() == [[0, 1], [2, 1], [1, 3]]
    assert dag.levels.tolist() == [0, 1, 0, 2]
    assert dag.heights.tolist() == [2, 1, 2, 0]
    assert dag.order.tolist() == [0, 2, 1, 3]
    assert dag.inputs.tolist() == [0, 2]
    assert dag.outputs.tolist() == [3]
    assert (dag.num_nodes, dag.num_edges) == (4, 3)
    assert repr(dag) == "Dag(num_nodes=4, num_edges=3, inputs=2, outputs=1)"


@given(edge_lists())
def test_every_way_to_give_the_edges_gives_the_same_dag(edges_and_count):
    edges, num_nodes = edges_and_count
    tensor = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    ways = [
        Dag(edges, num_nodes),
        Dag((list(edge) for edge in edges), num_nodes),
        Dag(tensor, num_nodes),
        Dag(tensor.numpy(), num_nodes),
        Dag(tensor.numpy()[::-1], num_nodes),
    ]
    assert len(set(ways)) == 1
    for dag in ways:
        assert dag == ways[0]
        assert dag.edges.tolist() == sorted(map(list, edges), key=lambda edge: (edge[1], edge[0]))
        assert dag.edges.is_contiguous()
        assert torch.equal(dag.edge_index, dag.edges.T)


@given(dags(named=None, attributes=True, positions=True), st.randoms(use_true_random=False))
def test_order_of_declaration_does_not_matter(dag, rng):
    shuffled = list(range(dag.num_edges))
    rng.shuffle(shuffled)
    again = Dag(
        dag.edges[shuffled],
        dag.num_nodes,
        names=dag.names,
        inputs=dag.inputs,
        outputs=dag.outputs,
        node_attributes=dag.node_attributes,
        edge_attributes={name: values[shuffled] for name, values in dag.edge_attributes.items()},
    )
    assert again == dag
    assert hash(again) == hash(dag)
    assert torch.equal(again.edges, dag.edges)


@given(dags(positions=True))
def test_order_is_topological_by_level_and_node(dag):
    order = dag.order.tolist()
    assert order == sorted(range(dag.num_nodes), key=lambda node: (int(dag.levels[node]), node))
    place = {node: i for i, node in enumerate(order)}
    assert all(place[u] < place[v] for u, v in dag.edges.tolist())


@given(dags(positions=True))
def test_heights_are_the_levels_of_the_reversed_graph(dag):
    reverse = Dag(list(dict.fromkeys((v, u) for u, v in dag.edges.tolist())), dag.num_nodes)
    assert torch.equal(dag.heights, reverse.levels)


@given(dags(positions=True))
def test_degrees_and_default_ends_are_those_of_networkx(dag):
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(dag.num_nodes))
    graph.add_edges_from(dag.edges.tolist())
    assert dag.in_degree.tolist() == [degree for _, degree in graph.in_degree]
    assert dag.out_degree.tolist() == [degree for _, degree in graph.out_degree]
    assert dag.inputs.tolist() == [node for node, degree in graph.in_degree if degree == 0]
    assert dag.outputs.tolist() == [node for node, degree in graph.out_degree if degree == 0]


@given(dags(named=None, attributes=True))
def test_all_topology_is_int64_on_the_cpu(dag):
    for name in ("edges", "levels", "heights", "order", "in_degree", "out_degree", "inputs", "outputs"):
        assert getattr(dag, name).dtype == torch.int64, name
        assert getattr(dag, name) is getattr(dag, name), name
    for csr in (dag.csr_by_source, dag.csr_by_target):
        assert csr.offsets.dtype == csr.edge_ids.dtype == torch.int64
    assert dag.edges.shape == (dag.num_edges, 2)


def test_inputs_and_outputs_keep_the_order_given():
    edges = [("a", "c"), ("b", "c"), ("c", "d")]
    dag = Dag(edges, inputs=["b", "a"], outputs=["d", "c"])
    assert (dag.inputs.tolist(), dag.outputs.tolist()) == ([2, 0], [3, 1])
    assert dag == Dag(edges, inputs=torch.tensor([2, 0]), outputs=np.array([3, 1]))
    assert dag == Dag(edges, inputs=[2, 0], outputs=[3, 1])
    assert dag != Dag(edges, inputs=["a", "b"], outputs=["d", "c"])


def test_names_can_list_nodes_without_edges_and_set_their_order():
    dag = Dag([("b", "a")], names=["a", "alone", "b"])
    assert dag.edges.tolist() == [[2, 0]]
    assert dag.inputs.tolist() == [1, 2]
    assert [dag.index_of(name) for name in ("a", "alone", "b")] == [0, 1, 2]
    assert dag.name_of(1) == "alone"


def test_ints_are_names_only_when_names_are_ints():
    assert Dag([(2, 0)], names=["a", "b", "c"]).edges.tolist() == [[2, 0]]
    numbered = Dag([(20, 10)], names=[10, 20], inputs=[20])
    assert numbered.edges.tolist() == [[1, 0]]
    assert numbered.inputs.tolist() == [1]
    assert numbered.index_of(20) == 1


def test_dags_without_nodes_or_edges_are_fine():
    assert Dag([], names=[]) == Dag([])
    nothing = Dag([])
    assert (nothing.num_nodes, nothing.num_edges, nothing.order.tolist()) == (0, 0, [])
    assert nothing == Dag(torch.empty(0, 2, dtype=torch.int64))
    assert nothing.heights.tolist() == nothing.in_degree.tolist() == nothing.csr_by_source.edge_ids.tolist() == []
    assert nothing.csr_by_source.offsets.tolist() == nothing.csr_by_target.offsets.tolist() == [0]
    single = Dag([], 1)
    assert single.inputs.tolist() == single.outputs.tolist() == [0]


def test_edge_attributes_follow_their_edges():
    dag = Dag([("b", "c"), ("a", "c")], names=["a", "b", "c"], edge_attributes={"weight": torch.tensor([2.0, 1.0])})
    assert dag.edges.tolist() == [[0, 2], [1, 2]]
    assert dag.edge_attributes["weight"].tolist() == [1.0, 2.0]


def test_positions_order_the_edges_into_a_node_and_allow_a_source_twice():
    dag = Dag([("x", "-"), ("y", "-"), ("x", "-")], edge_attributes={"position": [2, 1, 0]})
    assert [dag.name_of(u) for u in dag.edges[:, 0].tolist()] == ["x", "y", "x"]
    assert dag.edge_attributes["position"].tolist() == [0, 1, 2]
    assert dag.in_degree.tolist() == [0, 3, 0]
    assert dag.levels.tolist() == [0, 1, 0]


CHANGES = {
    "num_nodes": lambda: Dag([(0, 1)], 3),
    "edge": lambda: Dag([(1, 0)], 2),
    "names": lambda: Dag([("a", "b")]),
    "outputs": lambda: Dag([(0, 1)], 2, outputs=[0]),
    "node attribute": lambda: Dag([(0, 1)], 2, node_attributes={"x": [1, 2]}),
    "attribute dtype": lambda: Dag([(0, 1)], 2, node_attributes={"x": torch.tensor([1, 2])}),
    "attribute value": lambda: Dag([(0, 1)], 2, node_attributes={"x": torch.tensor([1, 3])}),
    "attribute shape": lambda: Dag([(0, 1)], 2, node_attributes={"x": torch.tensor([[1], [3]])}),
    "edge attribute": lambda: Dag([(0, 1)], 2, edge_attributes={"x": [1]}),
}


def test_any_difference_of_content_makes_dags_unequal():
    dags = [Dag([(0, 1)]), *(make() for make in CHANGES.values())]
    assert len(set(dags)) == len(dags)
    assert dags == [Dag([(0, 1)]), *(make() for make in CHANGES.values())]
    assert Dag([]) != "a Dag"


def test_nan_attributes_equal_themselves():
    make = lambda: Dag([], 1, node_attributes={"x": torch.tensor([float("nan")])})  # noqa: E731
    assert make() == make()
    assert hash(make()) == hash(make())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.complex64])
def test_attributes_of_any_dtype_compare(dtype):
    make = lambda value: Dag([], 2, node_attributes={"x": torch.tensor([[value], [1]]).to(dtype)})  # noqa: E731
    assert make(1) == make(1)
    assert make(1) != make(0)


def test_values_that_cannot_be_hashed_still_compare():
    make = lambda value: Dag([], 1, node_attributes={"x": [[value]]})  # noqa: E731
    assert hash(make(1)) == hash(make(1))
    assert make(1) == make(1)
    assert make(1) != make(2)


@given(dags(named=None, attributes=True, positions=True))
def test_pickle_and_copy_keep_the_content(dag):
    for again in (pickle.loads(pickle.dumps(dag)), copy.deepcopy(dag), copy.copy(dag)):
        assert again == dag
        assert hash(again) == hash(dag)
        assert torch.equal(again.order, dag.order)


def test_a_dag_cannot_be_changed():
    dag = Dag([(0, 1)], node_attributes={"x": torch.zeros(2)})
    for change in (lambda: setattr(dag, "num_nodes", 3), lambda: delattr(dag, "edges")):
        with pytest.raises(AttributeError, match="a Dag cannot be changed: build a new one"):
            change()
    with pytest.raises(TypeError):
        dag.node_attributes["x"] = torch.ones(2)


def test_later_changes_to_what_was_given_do_not_reach_the_dag():
    edges, values = torch.tensor([[0, 1]]), torch.zeros(2, requires_grad=True)
    array = edges.clone().numpy()
    dags = [Dag(edges, node_attributes={"x": values}), Dag(array, node_attributes={"x": values})]
    edges[0, 0] = array[0, 0] = 1
    values.data[0] = 1
    for dag in dags:
        assert dag.edges.tolist() == [[0, 1]]
        assert dag.node_attributes["x"].tolist() == [0, 0]
        assert not dag.node_attributes["x"].requires_grad


@given(dags(named=None, attributes=True, positions=True), st.data())
def test_subgraph_is_the_induced_one_of_networkx(dag, data):
    names = list(dag.names or range(dag.num_nodes))
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    part = dag.subgraph(chosen)
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(names)
    for (u, v), *values in zip(dag.edges.tolist(), *map(list, dag.edge_attributes.values()), strict=True):
        graph.add_edge(names[u], names[v], values=tuple(map(float, values)))
    induced = graph.subgraph(chosen)
    found = [
        (chosen[u], chosen[v], tuple(map(float, values)))
        for (u, v), *values in zip(part.edges.tolist(), *map(list, part.edge_attributes.values()), strict=True)
    ]
    assert sorted(found, key=repr) == sorted(((u, v, d["values"]) for u, v, d in induced.edges(data=True)), key=repr)
    assert part.names == (tuple(chosen) if dag.names and chosen else None)
    indices = [dag.index_of(name) for name in chosen]
    assert part.node_attributes["label"] == tuple(dag.node_attributes["label"][i] for i in indices)
    assert torch.equal(part.node_attributes["x"], dag.node_attributes["x"][indices])
    assert part == dag.subgraph(torch.tensor(indices, dtype=torch.int64))


def test_subgraph_takes_a_mask_in_node_order():
    dag = Dag([("a", "b"), ("b", "c")])
    assert dag.subgraph(torch.tensor([False, True, True])) == Dag([("b", "c")])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (["a", "q"], "nodes: unknown node 'q': the names are 'a', 'b', 'c'."),
        (["a", "a"], "nodes lists the node a twice: list every node once."),
        (
            torch.tensor([3]),
            "nodes: unknown node 3: num_nodes=3 allows 0 .. 2. A tensor or array of ints holds indices: for names give "
            "nodes.tolist().",
        ),
        (torch.tensor([[1]]), "nodes must have the shape [count], got [1, 1]."),
        ("ab", "nodes must be a list of nodes, got 'ab'."),
        ([["a"]], "nodes: unknown node ['a']: the names are 'a', 'b', 'c'."),
    ],
)
def test_subgraph_refuses_unknown_and_repeated_nodes(nodes, message):
    with pytest.raises(GraphError) as error:
        Dag([("a", "b"), ("b", "c")]).subgraph(nodes)
    assert str(error.value) == message


def test_a_million_edges_have_the_right_levels():
    # 1,000 rows of 1,001 nodes: a chain in every row, rows in random order.
    rng = random.Random(0)
    rows = list(range(1000))
    rng.shuffle(rows)
    nodes = torch.tensor(rows)[:, None] * 1001 + torch.arange(1001)
    dag = Dag(torch.stack([nodes[:, :-1], nodes[:, 1:]], -1).reshape(-1, 2))
    assert dag.num_edges == 1_000_000
    assert torch.equal(dag.levels, torch.arange(1001).repeat(1000))
    assert torch.equal(dag.heights, 1000 - dag.levels)
    assert torch.equal(dag.order, nodes.sort(0).values.T.reshape(-1))
