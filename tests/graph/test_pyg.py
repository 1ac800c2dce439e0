"""PyTorch Geometric: there and back, for one graph and for batches."""

import sys
import warnings

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags, expression_dags

from dagnn.errors import CycleError, DtypeError, GraphError, MissingPackageError
from dagnn.graph import Dag, DagBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing it warns of what it uses of PyTorch
    geometric = pytest.importorskip("torch_geometric.data")

NODE = {"x": torch.arange(6.0).view(3, 2), "label": ["a", "b", "c"]}
EDGE = {"type": torch.tensor([1, 0]), "position": torch.tensor([0, 1]), "word": ["p", "q"]}
MANY = st.lists(dags(attributes=True, positions=True), min_size=1, max_size=5) | st.lists(
    expression_dags(share=True), min_size=1, max_size=5
)


@settings(max_examples=25)
@given(dags(named=None, attributes=True, positions=True) | dags(named=None))
def test_there_and_back_is_the_same_dag(dag):
    assert Dag.from_pyg(dag.to_pyg()) == dag


@settings(max_examples=20)
@given(MANY)
def test_a_batch_goes_there_and_back(graphs):
    batch = DagBatch.from_dags(graphs)
    there = batch.to_pyg()
    assert there.num_graphs == len(graphs)
    assert torch.equal(there.batch, batch.graph_of_node)
    assert torch.equal(there.ptr, batch.node_offsets)
    assert torch.equal(there.edge_index, batch.edge_index)
    again = DagBatch.from_pyg(there)
    assert again.to_dags() == graphs
    for name in ("heights", "levels", "edge_offsets", "input_offsets", "output_offsets", "outputs"):
        assert torch.equal(getattr(again, name), getattr(batch, name)), name


def test_names_of_a_batch_go_there_and_back():
    graphs = [Dag([("a", "b")]), Dag([("b", "c"), ("a", "c")])]
    assert DagBatch.from_pyg(DagBatch.from_dags(graphs).to_pyg()).to_dags() == graphs


def test_attributes_have_the_names_of_pyg():
    data = Dag([(0, 2), (1, 2)], node_attributes=NODE, edge_attributes=EDGE).to_pyg()
    assert sorted(data.to_dict()) == sorted(
        ["edge_index", "num_nodes", "x", "label", "edge_type", "edge_position", "edge_word"]
    )
    assert data.validate()
    assert (data.num_nodes, data.num_node_features) == (3, 2)
    assert data.edge_type.tolist() == [1, 0]
    assert data.label == ["a", "b", "c"]


def test_what_pyg_made_is_read_in_any_order_of_edges():
    data = geometric.Data(
        x=torch.eye(3),
        edge_index=torch.tensor([[1, 0], [2, 2]]),
        edge_attr=torch.tensor([[5.0], [6.0]]),
        edge_type=torch.tensor([1, 0]),
        y=torch.tensor([7]),
        train_mask=torch.tensor([True, False, True]),
    )
    dag = Dag.from_pyg(data)
    assert dag.edges.tolist() == [[0, 2], [1, 2]]
    assert dag.edge_attributes["attr"].tolist() == [[6.0], [5.0]]
    assert dag.edge_attributes["type"].tolist() == [0, 1]
    assert sorted(dag.node_attributes) == ["train_mask", "x"]
    batch = DagBatch.from_pyg(geometric.Batch.from_data_list([data, data]))
    assert batch.to_dags() == [dag, dag]


class Shifted(geometric.Data):
    """Shifts and joins some entries in its own way, as PyG lets users say."""

    def __inc__(self, key, value, *args, **kwargs):
        return 100 if key == "ids" else super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key, value, *args, **kwargs):
        return None if key == "whole" else super().__cat_dim__(key, value, *args, **kwargs)


def molecule(nodes):
    """A chain of ``nodes`` nodes with entries of every kind."""
    return Shifted(
        edge_index=torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]),
        x=torch.rand(nodes, 2),
        z=numpy.arange(nodes),
        ids=torch.arange(nodes),
        image_index=torch.arange(5, 5 + nodes),
        pair_index=torch.arange(2 * nodes).view(2, nodes),
        my_batch=torch.arange(nodes),
        symbols=["C"] * nodes,
        smiles="C" * nodes,
        y=torch.rand(1),
        targets=torch.rand(3),
        whole=torch.rand(4),
        mask=torch.ones(nodes, dtype=torch.bool),
        edge_attr=torch.rand(nodes - 1, 3),
        edge_type_index=torch.arange(nodes - 1),
        note=[1, "a"],
    )


@pytest.mark.parametrize("sizes", [[2], [2, 5], [5, 6, 5], [1, 1], [7, 1, 2]])
def test_a_batch_is_read_as_its_graphs_are(sizes):
    torch.manual_seed(0)
    batch = geometric.Batch.from_data_list([molecule(nodes) for nodes in sizes], follow_batch=["x"])
    names = ["x", "z", "ids", "image_index", "my_batch", "symbols", "mask"]
    one_by_one = [Dag.from_pyg(graph, node_attributes=names) for graph in batch.to_data_list()]
    assert DagBatch.from_pyg(batch, node_attributes=names).to_dags() == one_by_one
    if min(sizes) > 1 and 3 not in sizes and 4 not in sizes and sizes != [2]:
        assert sorted(DagBatch.from_pyg(batch).node_attributes) == sorted(names)
    assert DagBatch.from_pyg(batch)[0].edge_attributes.keys() == {"attr", "type_index"}


def test_the_graphs_do_not_share_memory():
    dag = Dag([(0, 2), (1, 2)], node_attributes=NODE)
    data = dag.to_pyg()
    data.x.zero_()
    data.edge_index.zero_()
    assert dag == Dag([(0, 2), (1, 2)], node_attributes=NODE)


def test_a_batch_with_an_edge_between_graphs_is_refused():
    data = geometric.Batch.from_data_list([Dag([(0, 1)]).to_pyg(), Dag([(0, 1)]).to_pyg()])
    data.edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(GraphError, match="the edge 1 -> 2 goes from graph 0 to graph 1: the graphs of a batch have no"):
        DagBatch.from_pyg(data)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Dag.from_pyg(geometric.HeteroData()),
            DtypeError,
            "from_pyg needs a torch_geometric.data.Data or Batch with an edge_index, got HeteroData.",
        ),
        (
            lambda: DagBatch.from_pyg(Dag([(0, 1)]).to_pyg()),
            DtypeError,
            "DagBatch.from_pyg needs a Batch, got a single graph: use Dag.from_pyg for it.",
        ),
        (
            lambda: Dag.from_pyg(geometric.Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)),
            CycleError,
            "the edges form a cycle: 0 -> 1 -> 0. A DAG has none: remove one of these edges.",
        ),
        (
            lambda: Dag.from_pyg(
                geometric.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, edge_ids=torch.ones(5))
            ),
            GraphError,
            "edge_ids must have one entry for each of the 1 edges, got 5: rename what does not belong to edges, or "
            "list what does in edge_attributes=[...].",
        ),
        (
            lambda: Dag([], 1, node_attributes={"parent_index": torch.zeros(1)}).to_pyg(),
            GraphError,
            "node_attributes['parent_index'] would mean something else in PyTorch Geometric, which shifts or counts "
            "by the name: rename it.",
        ),
        (
            lambda: Dag([(0, 1)], edge_attributes={"index": [0]}).to_pyg(),
            GraphError,
            "edge_attributes['index'] would be edge_index in PyTorch Geometric: rename it.",
        ),
        (
            lambda: DagBatch.from_dags([]).to_pyg(),
            GraphError,
            "a Batch of PyTorch Geometric needs at least one graph, got none.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_without_pyg_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingPackageError, match=r"to_pyg needs torch_geometric \(.*\): pip install torch-geometric"):
        Dag([(0, 1)]).to_pyg()


@pytest.mark.parametrize(
    "ptr", [[0, 3], [0, 3, 9], [1, 3, 6], [0, 6, 3, 6], [0, -1, 6], [], [[0, 3, 6]], [0.0, 3.0, 6.0]]
)
def test_a_ptr_that_does_not_share_out_the_nodes(ptr):
    batch = DagBatch.from_dags([Dag([(0, 2), (1, 2)], 3)] * 2).to_pyg()
    batch.ptr = torch.tensor(ptr)
    with pytest.raises(GraphError, match="ptr must be int64 and go from 0 to the 6 nodes"):
        DagBatch.from_pyg(batch)


@pytest.mark.fault("graphs_and_networks", 10)
def test_texts_on_edges_come_back_from_a_batch():
    dags = [
        Dag([(0, 1), (1, 2)], edge_attributes={"label": ["p", "q"]}),
        Dag([(0, 2), (1, 2)], edge_attributes={"label": ["r", "s"]}),
        Dag([], 2, edge_attributes={"label": []}),
    ]
    assert list(DagBatch.from_pyg(DagBatch.from_dags(dags).to_pyg())) == dags


def test_names_may_be_a_tensor():
    data = geometric.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, names=torch.tensor([7, 5]))
    assert Dag.from_pyg(data).names == (7, 5)
    assert [dag.names for dag in DagBatch.from_pyg(geometric.Batch.from_data_list([data, data]))] == [(7, 5), (7, 5)]
