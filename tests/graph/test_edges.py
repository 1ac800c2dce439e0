"""Edges: what a user reads when a graph cannot be built, and their grouping and sorting."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import CycleError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.edges import offsets_of, stable_order

NAN = float("nan")
EDGE = torch.tensor([[0, 1]])
TWICE = [("a", "c"), ("b", "c"), ("a", "c")]

BAD = {
    "out of range": (
        lambda: Dag([(0, 1), (1, 2), (3, 4), (2, 7)], 5),
        GraphError,
        "edge 3 is 2 -> 7, but num_nodes=5 allows nodes 0 .. 4: raise num_nodes to 8, or drop the edge.",
    ),
    "edges without nodes": (
        lambda: Dag(EDGE, 0),
        GraphError,
        "edge 0 is 0 -> 1, but num_nodes=0 allows none: raise num_nodes to 2, or drop the edge.",
    ),
    "negative end": (
        lambda: Dag(np.array([[0, 1], [2, -1]])),
        GraphError,
        "edge 1 is 2 -> -1, but nodes are numbered from 0: number them 0, 1, 2, ... or give the edges as pairs of "
        "names.",
    ),
    "transposed": (
        lambda: Dag(torch.zeros(2, 40, dtype=torch.int64)),
        GraphError,
        "edges must have the shape [num_edges, 2], got [2, 40]: transpose it with edges.T.",
    ),
    "flat": (
        lambda: Dag(torch.arange(4), 4),
        GraphError,
        "edges must have the shape [num_edges, 2], got [4]: one row (source, target) for each edge.",
    ),
    "triples": (
        lambda: Dag([(0, 1), (0, 1, 2)]),
        GraphError,
        "edges must be pairs (source, target), got (0, 1, 2) at edge 1.",
    ),
    "no pairs": (lambda: Dag([3]), GraphError, "edges must be pairs (source, target), got 3 at edge 0."),
    "two letters are no pair": (
        lambda: Dag(["ab"]),
        GraphError,
        "edges must be pairs (source, target), got 'ab' at edge 0.",
    ),
    "beyond int64": (lambda: Dag([(0, 2**70)]), GraphError, f"edge 0 has the end {2**70}, which no int64 holds."),
    "float tensor": (
        lambda: Dag(torch.tensor([[0.0, 1.0]])),
        DtypeError,
        "edges must be int64, got float32: number the nodes and convert with edges.long().",
    ),
    "float tensor with NaN": (
        lambda: Dag(torch.tensor([[0.0, 1.0], [NAN, 2.0]], dtype=torch.bfloat16)),
        DtypeError,
        "edges must be int64, got bfloat16, with a NaN in row 1: number the nodes and convert with edges.long().",
    ),
    "float array with NaN": (
        lambda: Dag(np.array([[NAN, 1.0]])),
        DtypeError,
        "edges must be int64, got float64, with a NaN in row 0: number the nodes and convert with "
        "edges.astype(numpy.int64).",
    ),
    "int32": (
        lambda: Dag(EDGE.int()),
        DtypeError,
        "edges must be int64, got int32: number the nodes and convert with edges.long().",
    ),
    "bool": (
        lambda: Dag(np.array([[True, False]])),
        DtypeError,
        "edges must be int64, got bool: number the nodes and convert with edges.astype(numpy.int64).",
    ),
    "float in a list": (
        lambda: Dag([(0, 1), (1, 2.5)]),
        DtypeError,
        "edges must hold integers or names, got 2.5 in edge 1: convert it to an int, or list the names of all nodes in "
        "names=[...].",
    ),
    "NaN in a list": (
        lambda: Dag([(0, NAN)]),
        DtypeError,
        "edges must hold integers or names, got nan in edge 0: convert it to an int, or list the names of all nodes in "
        "names=[...].",
    ),
    "list of tensors": (
        lambda: Dag([torch.tensor([0, 1])]),
        DtypeError,
        "edges must be a tensor or a list of pairs, got a list of tensors: join it with torch.stack.",
    ),
    "not edges": (lambda: Dag(7), DtypeError, "edges must be a tensor, an array or a list of pairs, got 7."),
    "text": (
        lambda: Dag("a -> b"),
        DtypeError,
        "edges must be a tensor, an array or a list of pairs, got 'a -> b'.",
    ),
    "num_nodes of another type": (lambda: Dag(EDGE, True), DtypeError, "num_nodes must be an int, got True."),
    "negative num_nodes": (
        lambda: Dag([], -3),
        GraphError,
        "num_nodes must be at least 0 and fit in memory, got -3.",
    ),
    "huge num_nodes": (
        lambda: Dag([], 10**30),
        GraphError,
        f"num_nodes must be at least 0 and fit in memory, got {10**30}.",
    ),
    "huge ends": (
        lambda: Dag([(2**53, 1)]),
        GraphError,
        "9,007,199,254,740,993 nodes do not fit in memory: ends of edges are indices of nodes 0, 1, ..., "
        "9007199254740992. Number the nodes from 0, or write names in a list of pairs, as str.",
    ),
    "num_nodes beside names": (
        lambda: Dag([("a", "b")], 3),
        GraphError,
        "there are 2 names, but num_nodes=3: list every node in names, in its order, or drop num_nodes.",
    ),
    "duplicate edge": (
        lambda: Dag(TWICE),
        GraphError,
        "edges 0 and 2 are both a -> c (duplicate edge): drop one, or tell them apart by the edge attribute "
        "'position'.",
    ),
    "duplicate edge with one position": (
        lambda: Dag(TWICE, edge_attributes={"position": [0, 1, 0]}),
        GraphError,
        "the duplicate edges 0 (a -> c) and 2 (a -> c) have the same position 0: give every edge into a node its own.",
    ),
    "one position twice": (
        lambda: Dag(TWICE, edge_attributes={"position": torch.tensor([0, 1, 1])}),
        GraphError,
        "the edges 1 (b -> c) and 2 (a -> c) have the same position 1: give every edge into a node its own.",
    ),
    "negative position": (
        lambda: Dag(TWICE, edge_attributes={"position": [0, 1, -1]}),
        GraphError,
        "edge 2 has the position -1: the first operand has position 0.",
    ),
    "positions of another dtype": (
        lambda: Dag(TWICE, edge_attributes={"position": torch.tensor([0.0, 1.0, 2.0])}),
        DtypeError,
        "edge_attributes['position'] must be int64 [num_edges], got torch.float32 [3].",
    ),
    "positions that are no ints": (
        lambda: Dag(TWICE, edge_attributes={"position": ["0", "1", "2"]}),
        DtypeError,
        "edge_attributes['position'] must be int64 [num_edges], got ('0', '1', '2').",
    ),
    "cycle": (
        lambda: Dag([("a", "b"), ("b", "d"), ("d", "b"), ("b", "c")]),
        CycleError,
        "the edges form a cycle: b -> d -> b. A DAG has none: remove one of these edges.",
    ),
    "self-loop": (
        lambda: Dag([("a", "b"), ("b", "b")]),
        CycleError,
        "the edges form a cycle: b -> b (edge 1). A DAG has none: remove this edge.",
    ),
    "self-loop of a number": (
        lambda: Dag([(0, 1), (1, 1)]),
        CycleError,
        "the edges form a cycle: 1 -> 1 (edge 1). A DAG has none: remove this edge.",
    ),
    "unknown name": (
        lambda: Dag([("a", "b"), ("a", "q")], names=["a", "b"]),
        GraphError,
        "edge 1 is a -> q, but 'q' is not among the names 'a', 'b': add it to names, or drop the edge.",
    ),
    "unknown name of no names": (
        lambda: Dag([("a", "b")], names=[]),
        GraphError,
        "edge 0 is a -> b, but 'a' is not among the names (none): add it to names, or drop the edge.",
    ),
    "repeated name": (
        lambda: Dag([], names=["a", "b", "a"]),
        GraphError,
        "names holds 'a' twice, at 0 and 2: every node needs its own.",
    ),
    "unhashable name": (
        lambda: Dag([], names=["a", ["b"]]),
        DtypeError,
        "names[1] is ['b'], which cannot name a node: only str, int, float, bytes, None, and tuples and frozensets of "
        "those sort alike in every process. Give the node a str or a number of its own (for dates and the like, str of "
        "it).",
    ),
    "unhashable name in an edge": (
        lambda: Dag([("a", ["b"])]),
        DtypeError,
        "edge 0 has the end ['b'], which cannot name a node: only str, int, float, bytes, None, and tuples and "
        "frozensets of those sort alike in every process. Give the node a str or a number of its own (for dates and "
        "the like, str of it).",
    ),
    "names that are no list": (
        lambda: Dag([], names="ab"),
        DtypeError,
        "names must be a list of names, one per node, got 'ab'.",
    ),
    "unknown input": (
        lambda: Dag([("a", "b")], inputs=["q"]),
        GraphError,
        "inputs: unknown node 'q': the names are 'a', 'b'.",
    ),
    "unknown output among many names": (
        lambda: Dag([(f"n{i}", f"n{i + 1}") for i in range(20)], outputs=["q"]),
        GraphError,
        "outputs: unknown node 'q': the names are 'n0', 'n1', 'n2', 'n3', 'n4', 'n5', 'n6', 'n7', ... (21 in all).",
    ),
    "input out of range": (
        lambda: Dag(EDGE, inputs=[2]),
        GraphError,
        "inputs: unknown node 2: num_nodes=2 allows 0 .. 1.",
    ),
    "input by name without names": (
        lambda: Dag(EDGE, inputs=["a"]),
        GraphError,
        "inputs: unknown node 'a': the nodes have no names, only numbers.",
    ),
    "repeated output": (
        lambda: Dag([("a", "b")], outputs=["b", "b"]),
        GraphError,
        "outputs lists the node b twice: list every node once.",
    ),
    "float inputs": (
        lambda: Dag(EDGE, inputs=torch.tensor([0.0])),
        DtypeError,
        "inputs must be int64, got float32: number the nodes and convert with inputs.long().",
    ),
    "attribute of wrong length": (
        lambda: Dag(EDGE, node_attributes={"x": torch.zeros(3)}),
        GraphError,
        "node_attributes['x'] has 3 values, expected 2: one for each node.",
    ),
    "edge attribute of wrong length": (
        lambda: Dag(EDGE, edge_attributes={"kind": ["a", "b"]}),
        GraphError,
        "edge_attributes['kind'] has 2 values, expected 1: one for each edge.",
    ),
    "attribute of one value": (
        lambda: Dag(EDGE, node_attributes={"x": torch.tensor(1.0)}),
        GraphError,
        "node_attributes['x'] has a single value, expected 2: one for each node.",
    ),
    "attribute that is no list": (
        lambda: Dag(EDGE, node_attributes={"x": "ab"}),
        DtypeError,
        "node_attributes['x'] must be a tensor or a list, got 'ab'.",
    ),
    "attribute without a name": (
        lambda: Dag(EDGE, node_attributes={3: [1, 2]}),
        DtypeError,
        "node_attributes: an attribute is named by a str, got 3.",
    ),
    "attributes that are no mapping": (
        lambda: Dag(EDGE, node_attributes=[1, 2]),
        DtypeError,
        "node_attributes must map a name to its values, got list.",
    ),
}


@pytest.mark.parametrize(("build", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_and_explained(build, error, message):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value) == message


def test_errors_are_what_a_python_user_expects_too():
    with pytest.raises(ValueError, match="cycle"):
        Dag([(0, 0)])
    with pytest.raises(TypeError, match="int64"):
        Dag(torch.zeros(1, 2))


@pytest.mark.parametrize("name", ["b", "zz", None, ("a",)])
def test_index_of_refuses_unknown_names(name):
    with pytest.raises(GraphError, match="unknown node"):
        Dag([("a", "c")]).index_of(name)


@given(st.lists(st.integers(0, 9)), st.sampled_from([10, 2**62]))
def test_stable_order_is_that_of_a_stable_sort_for_any_bound(keys, bound):
    array = np.array(keys, dtype=np.int64)
    assert stable_order(array, bound).tolist() == np.argsort(array, kind="stable").tolist()


def test_offsets_bound_the_groups():
    assert offsets_of(np.array([2, 0, 1])).tolist() == [0, 2, 2, 3]
    assert offsets_of(np.array([], dtype=np.int64)).tolist() == [0]


@given(dags(positions=True))
@pytest.mark.parametrize(("csr", "end"), [("csr_by_source", 0), ("csr_by_target", 1)])
def test_every_edge_is_in_the_group_of_its_end_and_groups_are_in_order(csr, end, dag):
    offsets, edge_ids = getattr(dag, csr)
    assert sorted(edge_ids.tolist()) == list(range(dag.num_edges))
    for node in range(dag.num_nodes):
        group = edge_ids[offsets[node] : offsets[node + 1]]
        assert (dag.edges[group, end] == node).all()
        assert group.tolist() == sorted(group.tolist())
