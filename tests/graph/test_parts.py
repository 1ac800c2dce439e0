"""What lies before and behind a node, what dangles, and graphs with less in them."""

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag

GRAPHS = dags(named=None, attributes=True, positions=True)


def names_of(dag, nodes):
    return [dag.name_of(node) for node in nodes.tolist()]


def as_networkx(dag):
    """Its nodes and edges, by name."""
    names = names_of(dag, torch.arange(dag.num_nodes))
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from((names[u], names[v]) for u, v in dag.edges.tolist())
    return names, graph


@given(dags(min_nodes=1, named=None, positions=True), st.data())
def test_ancestors_and_descendants_are_those_of_networkx(dag, data):
    names, graph = as_networkx(dag)
    name = data.draw(st.sampled_from(names))
    before, behind = networkx.ancestors(graph, name), networkx.descendants(graph, name)
    assert dag.ancestors(name) == tuple(other for other in names if other in before)
    assert dag.descendants(name) == tuple(other for other in names if other in behind)


@pytest.mark.fault("graphs_and_networks", 23)
@given(GRAPHS)
def test_dangling_nodes_are_those_that_no_path_brings_in(dag):
    names, graph = as_networkx(dag)
    inputs, outputs = names_of(dag, dag.inputs), names_of(dag, dag.outputs)
    fed = set(inputs).union(*(networkx.descendants(graph, name) for name in inputs))
    read = set(outputs).union(*(networkx.ancestors(graph, name) for name in outputs))
    unfed, unread = dag.dangling()
    assert unfed == tuple(name for name in names if name not in fed)
    assert unread == tuple(name for name in names if name not in read)
    left = dag.without_dangling()
    assert left == dag.remove(nodes={*unfed, *unread})
    assert names_of(left, torch.arange(left.num_nodes)) == (
        [name for name in names if name in fed & read] if dag.names else list(range(len(fed & read)))
    )
    assert not any(left.dangling())


@pytest.mark.fault("graphs_and_networks", 23)
def test_unmeasured_genes_and_empty_pathways_dangle():
    dag = Dag(
        [("gene", "pathway"), ("unmeasured", "empty"), ("empty", "root"), ("pathway", "root"), ("gene", "leaf")],
        inputs=["gene", "lonely"],
        outputs=["root"],
        names=["gene", "unmeasured", "lonely", "pathway", "empty", "leaf", "root"],
    )
    assert dag.dangling() == (("unmeasured", "empty"), ("lonely", "leaf"))
    left = dag.without_dangling()
    assert left == Dag([("gene", "pathway"), ("pathway", "root")])
    assert dag.remove(nodes=dag.dangling().unfed).inputs.tolist() == [0, 1]


@given(GRAPHS, st.data())
def test_remove_leaves_all_else_as_it_was(dag, data):
    names, _ = as_networkx(dag)
    pairs = list(dict.fromkeys((names[u], names[v]) for u, v in dag.edges.tolist()))
    nodes = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    edges = data.draw(st.lists(st.sampled_from(pairs))) if pairs else []
    left = dag.remove(nodes=nodes, edges=edges)
    stay = [name for name in names if name not in nodes]
    kept = [
        row
        for row, (u, v) in enumerate(dag.edges.tolist())
        if names[u] in stay and names[v] in stay and (names[u], names[v]) not in edges
    ]
    number = {name: place for place, name in enumerate(stay)}
    assert left == Dag(
        torch.tensor(
            [[number[names[u]], number[names[v]]] for u, v in dag.edges[kept].tolist()], dtype=torch.int64
        ).reshape(-1, 2),
        len(stay),
        names=None if dag.names is None else stay,
        inputs=torch.tensor([number[name] for name in names_of(dag, dag.inputs) if name in stay]).long(),
        outputs=torch.tensor([number[name] for name in names_of(dag, dag.outputs) if name in stay]).long(),
        node_attributes={
            "label": [dag.node_attributes["label"][names.index(name)] for name in stay],
            "x": dag.node_attributes["x"][[names.index(name) for name in stay]],
        },
        edge_attributes={name: values[kept] for name, values in dag.edge_attributes.items()},
    )
    indices = torch.tensor([names.index(name) for name in nodes]).long()
    rows = torch.tensor([[names.index(u), names.index(v)] for u, v in edges]).long().reshape(-1, 2)
    assert left == dag.remove(nodes=indices, edges=rows) == dag.remove(nodes=indices.numpy(), edges=rows.numpy())


def test_remove_nothing_is_the_same_graph():
    dag = Dag([("a", "b")], node_attributes={"x": [1, 2]})
    assert dag.remove() == dag.remove(nodes=[], edges=[]) == dag
    assert Dag([]).remove() == Dag([]).without_dangling() == Dag([])


def test_remove_takes_numpy_names():
    dag = Dag([(1, 2), (2, 3)], names=[1, 2, 3])
    assert dag.remove(edges=[(np.int64(1), 2.0)], nodes=[np.int64(3)]) == Dag([], names=[1, 2], inputs=[1], outputs=[])


@pytest.mark.parametrize(
    ("removed", "error", "message"),
    [
        ({"nodes": ["q"]}, GraphError, "nodes: unknown node 'q': the names are 'a', 'b', 'c'."),
        ({"nodes": "a"}, GraphError, "nodes must be a list of nodes, got 'a'."),
        ({"edges": [("a", "q")]}, GraphError, "edges: unknown node 'q': the names are 'a', 'b', 'c'."),
        (
            {"edges": [("a", "b"), ("c", "b")]},
            GraphError,
            "edges: there is no edge 'c' -> 'b'; there is 'b' -> 'c': give the source first, then the target.",
        ),
        (
            {"edges": [("a", "c")]},
            GraphError,
            "edges: there is no edge 'a' -> 'c': give the source first, then the target.",
        ),
        ({"edges": ("a", "b")}, GraphError, "edges must be pairs (source, target), got 'a' at edge 0."),
        ({"edges": "ab"}, DtypeError, "edges must be a tensor, an array or a list of pairs, got 'ab'."),
        (
            {"edges": torch.tensor([[0, 7]])},
            GraphError,
            "edges: unknown node 7: num_nodes=3 allows 0 .. 2. A tensor or array of ints holds indices: for names give "
            "edges.tolist().",
        ),
        (
            {"edges": torch.tensor([[0.0, 1.0]])},
            DtypeError,
            "edges must be int64, got float32: number the nodes and convert with edges.long().",
        ),
    ],
)
def test_remove_refuses_what_is_not_there(removed, error, message):
    with pytest.raises(error) as caught:
        Dag([("a", "b"), ("b", "c")]).remove(**removed)
    assert str(caught.value) == message


def test_a_long_chain_is_walked_at_once():
    dag = Dag(np.stack([np.arange(100_000), np.arange(1, 100_001)], 1))
    assert len(dag.ancestors(100_000)) == len(dag.descendants(0)) == 100_000
    assert not any(dag.dangling())
