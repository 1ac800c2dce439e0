"""DagBatch: the union of many Dags, and those Dags back."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags, expression_dags

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag, DagBatch, concatenation, levels

MANY = st.lists(dags(attributes=True, positions=True), max_size=5) | st.lists(expression_dags(), max_size=5)


@given(MANY)
def test_the_graphs_come_back(graphs):
    batch = DagBatch.from_dags(graphs)
    assert len(batch) == batch.num_graphs == len(graphs)
    assert list(batch) == graphs
    for i, dag in enumerate(graphs):
        assert batch[i] == batch[i - len(graphs)] == dag
        assert hash(batch[i]) == hash(dag)
        assert torch.equal(batch[i].heights, dag.heights)
        assert torch.equal(batch[i].csr_by_source.edge_ids, dag.csr_by_source.edge_ids)


@given(MANY)
def test_the_batch_is_the_dag_of_all_nodes(graphs):
    batch = DagBatch.from_dags(graphs)
    union = Dag(
        batch.edges, batch.num_nodes, node_attributes=batch.node_attributes, edge_attributes=batch.edge_attributes
    )
    assert torch.equal(union.edges, batch.edges)
    for name in ("levels", "heights", "in_degree", "out_degree", "order", "edge_index"):
        assert torch.equal(getattr(union, name), getattr(batch, name)), name
    for name in ("csr_by_source", "csr_by_target"):
        for ours, expected in zip(getattr(batch, name), getattr(union, name), strict=True):
            assert torch.equal(ours, expected), name


@given(MANY)
def test_offsets_bound_the_graphs(graphs):
    batch = DagBatch.from_dags(graphs)
    assert batch.num_nodes == sum(dag.num_nodes for dag in graphs)
    assert batch.num_edges == sum(dag.num_edges for dag in graphs)
    for i, dag in enumerate(graphs):
        start, end = batch.node_offsets[i : i + 2].tolist()
        assert (batch.graph_of_node == i).nonzero().flatten().tolist() == list(range(start, end))
        edges = batch.edges[batch.edge_offsets[i] : batch.edge_offsets[i + 1]]
        assert torch.equal(edges - start, dag.edges)
        inputs = batch.inputs[batch.input_offsets[i] : batch.input_offsets[i + 1]]
        outputs = batch.outputs[batch.output_offsets[i] : batch.output_offsets[i + 1]]
        assert torch.equal(inputs - start, dag.inputs)
        assert torch.equal(outputs - start, dag.outputs)


@given(MANY, st.integers(1, 6))
def test_split_gives_consecutive_batches(graphs, size):
    parts = DagBatch.from_dags(graphs).split(size)
    assert [dag for part in parts for dag in part] == graphs
    assert [len(part) for part in parts] == [len(graphs[i : i + size]) for i in range(0, len(graphs), size)]
    for part, start in zip(parts, range(0, len(graphs), size), strict=True):
        fresh = DagBatch.from_dags(graphs[start : start + size])
        for name in (
            "edges",
            "levels",
            "heights",
            "graph_of_node",
            "node_offsets",
            "edge_offsets",
            "inputs",
            "outputs",
        ):
            assert torch.equal(getattr(part, name), getattr(fresh, name)), name


def test_split_takes_the_size_of_each_part():
    batch = DagBatch.from_dags([Dag([], n) for n in (1, 2, 3)])
    assert [part.num_nodes for part in batch.split([2, 0, 1])] == [3, 0, 3]
    for sizes in ([2, 2], [4, -1]):
        with pytest.raises(GraphError, match=r"sizes must add up to 3, the graphs of the batch, got \["):
            batch.split(sizes)
    with pytest.raises(GraphError, match="sizes must be at least 1 graph per batch, got 0"):
        batch.split(0)
    assert [part.num_nodes for part in batch.split()] == [1, 2, 3]
    assert batch.to_dags() == [Dag([], n) for n in (1, 2, 3)]


@given(st.lists(dags(named=True, min_nodes=1, positions=True).filter(lambda dag: dag.num_edges), max_size=4))
def test_networkx_graphs_come_and_go(graphs):
    batch = DagBatch.from_dags(graphs)
    assert DagBatch.from_networkx(batch.to_networkx()).to_dags() == graphs


@given(MANY)
def test_heights_found_together_are_those_found_alone(graphs):
    again = [pickle.loads(pickle.dumps(dag)) for dag in graphs]  # without anything remembered
    batch = DagBatch.from_dags(graphs)
    assert batch.heights.tolist() == [height for dag in again for height in dag.heights.tolist()]


def test_the_second_batch_of_the_same_dags_asks_for_nothing_again(monkeypatch):
    """What a batch needs of a Dag is worked out once: the first epoch pays, the others join."""
    graphs = [Dag.from_polish(text) for text in ("(+ x y)", "z", "(f (g x))")]
    first = DagBatch.from_dags(graphs)
    monkeypatch.setattr(concatenation, "_pack", None)
    monkeypatch.setattr(concatenation, "_find_heights", None)
    assert DagBatch.from_dags(graphs[::-1]).to_dags() == first.to_dags()[::-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool, torch.int32, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_attributes_of_every_kind_are_joined(dtype, shape):
    def graph(num_nodes, value, order):
        attributes = {
            "x": torch.full((num_nodes, *shape), value).to(dtype),
            "y": (value,) * num_nodes,
            "z": torch.arange(2.0 * num_nodes).reshape(2, num_nodes).T + value,
        }
        return Dag([], num_nodes, node_attributes={name: attributes[name] for name in order})

    for sizes in ([2, 0, 3], [0, 2], [0]):
        graphs = [graph(n, i % 2, "zyx" if i else "xyz") for i, n in enumerate(sizes)]
        batch = DagBatch.from_dags(graphs)
        assert list(batch.node_attributes) == list("xyz")
        for name in "xz":
            expected = torch.cat([dag.node_attributes[name] for dag in graphs])
            assert batch.node_attributes[name].dtype == expected.dtype
            assert torch.equal(batch.node_attributes[name], expected)
            batch.node_attributes[name].zero_()  # memory of its own, which may be written to
        assert list(DagBatch.from_dags(graphs)) == graphs


def test_attributes_in_any_order_are_joined_by_name(monkeypatch):
    monkeypatch.setattr(concatenation, "_known_kinds", [])
    monkeypatch.setattr(concatenation, "_MAX_KNOWN", 0)  # as in a program with very many kinds of graphs
    a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
    graphs = [
        Dag([(0, 1)], node_attributes={"a": a, "b": b}),
        Dag([(0, 1)], node_attributes={"b": b, "a": a}),
    ]
    batch = DagBatch.from_dags(graphs)
    assert {name: values.tolist() for name, values in batch.node_attributes.items()} == {
        "a": [1, 2, 1, 2],
        "b": [3, 4, 3, 4],
    }


def test_names_may_repeat_across_graphs():
    graphs = [Dag([("a", "b")]), Dag([("b", "c"), ("a", "c")])]
    batch = DagBatch.from_dags(graphs)
    assert batch.names == ("a", "b", "b", "c", "a")
    assert list(batch) == graphs


def test_graphs_without_nodes_fit_named_and_unnamed_ones():
    graphs = [Dag([]), Dag([("a", "b")]), Dag([], names=[])]
    assert list(DagBatch.from_dags(graphs)) == graphs


@given(MANY)
def test_pickle_keeps_the_batch(graphs):
    batch = DagBatch.from_dags(graphs)
    again = pickle.loads(pickle.dumps(batch))
    assert list(again) == graphs
    assert torch.equal(again.csr_by_source.edge_ids, batch.csr_by_source.edge_ids)


def test_attributes_are_joined():
    make = lambda x: Dag([(0, 1)], node_attributes={"x": torch.full((2, 3), x), "label": ["a", "b"]})  # noqa: E731
    batch = DagBatch.from_dags([make(1.0), make(2.0)])
    assert batch.node_attributes["x"].tolist() == [[1.0] * 3, [1.0] * 3, [2.0] * 3, [2.0] * 3]
    assert batch.node_attributes["label"] == ("a", "b", "a", "b")


def test_no_graphs_and_empty_graphs_make_a_batch():
    nothing = DagBatch.from_dags([])
    assert (len(nothing), nothing.num_nodes, nothing.num_edges, list(nothing)) == (0, 0, 0, [])
    assert nothing.edges.shape == (0, 2)
    assert nothing.node_offsets.tolist() == [0]
    assert nothing.csr_by_source.offsets.tolist() == [0]
    assert nothing.split(3) == []
    empty = DagBatch.from_dags([Dag([]), Dag([(0, 1)]), Dag([])])
    assert empty.graph_of_node.tolist() == [1, 1]
    assert list(empty) == [Dag([]), Dag([(0, 1)]), Dag([])]


def test_levels_and_heights_are_taken_from_the_dags_not_computed_again(monkeypatch):
    graphs = [Dag([(0, 1), (1, 2)]), Dag([], 3)]
    heights = [dag.heights for dag in graphs]

    def refuse():
        raise AssertionError("levels are computed again")

    monkeypatch.setattr(levels, "_compiled_peel", refuse)
    batch = DagBatch.from_dags(graphs)
    assert batch.levels.tolist() == [0, 1, 2, 0, 0, 0]
    assert [batch[i].heights.tolist() for i in range(2)] == [h.tolist() for h in heights]


def test_writing_to_a_batch_does_not_reach_its_dags():
    dag = Dag([(0, 1)], node_attributes={"x": torch.zeros(2)})
    batch = DagBatch.from_dags([dag])
    for tensor in (batch.edges, batch.levels, batch.heights, batch.inputs, batch.node_attributes["x"]):
        tensor.fill_(7)
    assert dag == Dag([(0, 1)], node_attributes={"x": torch.zeros(2)})
    assert dag.levels.tolist() == [0, 1]


def test_to_moves_every_tensor_and_keeps_tuples():
    batch = DagBatch.from_dags([Dag.from_polish("(+ x x)")])
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.device.type == "meta"
    assert {tensor.device.type for tensor in vars(moved).values() if isinstance(tensor, torch.Tensor)} == {"meta"}
    assert moved.edge_attributes["position"].device.type == "meta"
    assert moved.node_attributes["label"] == ("x", "x", "+")
    assert (len(moved), moved.num_nodes, moved.num_edges) == (1, 3, 2)
    assert repr(moved) == "DagBatch(num_graphs=1, num_nodes=3, num_edges=2, device='meta')"


def test_pin_memory_pins_every_tensor(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor), tensor)[1])
    batch = DagBatch.from_dags([Dag.from_polish("(+ x x)")])
    again = batch.pin_memory()
    tensors = [tensor for tensor in vars(batch).values() if isinstance(tensor, torch.Tensor)]
    assert {id(tensor) for tensor in pinned} == {id(t) for t in (*tensors, batch.edge_attributes["position"])}
    assert again.to_dags() == batch.to_dags()


@pytest.mark.parametrize(
    ("graphs", "error", "message"),
    [
        ([Dag([]), (0, 1)], DtypeError, "dags[1] must be a Dag, got tuple."),
        (
            [Dag([], 1, node_attributes={"x": torch.zeros(1)}), Dag([], 1)],
            GraphError,
            "dags[1] and dags[0] differ in node_attributes['x']: none and float32 [*]. All graphs of a batch must "
            "carry the same.",
        ),
        (
            [Dag([]), Dag([], edge_attributes={"x": []})],
            GraphError,
            "dags[1] and dags[0] differ in edge_attributes['x']: a tuple and none. All graphs of a batch must carry "
            "the same.",
        ),
        (
            [Dag([], 1, node_attributes={"x": torch.zeros(1, n)}) for n in (2, 2, 3)],
            GraphError,
            "dags[2] and dags[0] differ in node_attributes['x']: float32 [*, 3] and float32 [*, 2]. All graphs of a "
            "batch must carry the same.",
        ),
        (
            [Dag([], names=["a"]), Dag([], 1)],
            GraphError,
            "one of dags[0] and dags[1] has names and the other has none: in a batch, all must have names, or none.",
        ),
    ],
)
def test_graphs_that_carry_different_things_are_refused(graphs, error, message):
    with pytest.raises(error) as caught:
        DagBatch.from_dags(graphs)
    assert str(caught.value) == message


def test_a_graph_out_of_range_is_an_index_error():
    batch = DagBatch.from_dags([Dag([])])
    for i in (1, -2):
        with pytest.raises(IndexError, match="is out of range: the batch has 1 graphs"):
            batch[i]


@pytest.mark.fault("graphs_and_networks", 24)
@given(MANY, st.data())
def test_a_slice_is_a_batch_of_those_graphs(graphs, data):
    part = data.draw(st.slices(len(graphs)))
    batch = DagBatch.from_dags(graphs)[part]
    assert isinstance(batch, DagBatch)
    assert batch.to_dags() == graphs[part]
    assert torch.equal(batch.graph_of_node, DagBatch.from_dags(graphs[part]).graph_of_node)


@pytest.mark.fault("graphs_and_networks", 24)
def test_a_batch_is_indexed_by_numbers_of_any_type():
    graphs = [Dag([(0, 1)]), Dag([(1, 0)])]
    batch = DagBatch.from_dags(graphs)
    for one in (1, -1, np.int64(1), torch.tensor(1), True):
        assert batch[one] == graphs[1]
    for other in ("a", None, 1.0, [0, 1], torch.tensor([0, 1]), (0, 1)):
        with pytest.raises(DtypeError, match="a batch is indexed by a number or a slice, got"):
            batch[other]
    for far in (2, -3, 2**70):
        with pytest.raises(IndexError, match=f"graph {far} is out of range: the batch has 2 graphs"):
            batch[far]


def test_sizes_of_a_split_are_whole_numbers():
    batch = DagBatch.from_dags([Dag([(0, 1)])] * 4)
    assert [len(part) for part in batch.split(np.int64(3))] == [3, 1]
    assert [len(part) for part in batch.split(torch.tensor([1, 3]))] == [1, 3]
    for sizes in (2.5, "ab", None, [1.5, 2.5]):
        with pytest.raises(DtypeError, match="sizes must be a whole number"):
            batch.split(sizes)
