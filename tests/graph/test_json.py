"""JSON: the whole content there and back, and documents that are refused."""

import json

import pytest
import torch
from hypothesis import given
from strategies import dags, expression_dags

from dagnn.errors import DagnnError, GraphError
from dagnn.graph import Dag


@given(dags(named=None, attributes=True, positions=True) | expression_dags())
def test_json_loses_nothing(dag):
    again = Dag.from_json(dag.to_json())
    assert again == dag
    assert again.to_json() == dag.to_json()
    assert torch.equal(again.levels, dag.levels)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ],
)
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 0, 2)])
def test_tensors_of_every_dtype_and_shape_come_back_bit_for_bit(dtype, shape):
    values = (torch.rand(shape, dtype=torch.float64) * 100 - 50).to(dtype)
    dag = Dag([], 3, node_attributes={"x": values})
    assert Dag.from_json(dag.to_json()) == dag


def test_values_without_a_json_form_come_back():
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    labels = (("a", (1, None)), [1, ["b"]], float("inf"), True)
    dag = Dag([], names=[("a", 1), 2, "é\ud800", None], node_attributes={"x": special, "label": labels})
    assert Dag.from_json(dag.to_json()) == dag
    assert Dag.from_json(dag.to_json().encode()) == dag
    assert torch.equal(Dag.from_json(dag.to_json()).node_attributes["x"].signbit(), special.signbit())


def test_the_document_reads_plainly():
    dag = Dag([("a", "b")], node_attributes={"label": ["p", "q"]}, edge_attributes={"w": torch.tensor([0.5])})
    assert json.loads(dag.to_json()) == {
        "format": "dagnn.Dag",
        "version": 1,
        "num_nodes": 2,
        "edges": [[0, 1]],
        "names": ["a", "b"],
        "inputs": [0],
        "outputs": [1],
        "node_attributes": {"label": {"items": ["p", "q"]}},
        "edge_attributes": {"w": {"dtype": "float32", "shape": [1], "data": [0.5]}},
    }


@pytest.mark.parametrize("value", [{"a": 1}, object(), 1j, {1, 2}])
def test_values_that_json_cannot_keep_are_refused(value):
    with pytest.raises(GraphError, match=r"node_attributes\['x'\] holds .*, which JSON cannot keep"):
        Dag([], 1, node_attributes={"x": [value]}).to_json()


def changed(**parts):
    return json.dumps(json.loads(Dag([(0, 1), (1, 2)], node_attributes={"x": torch.zeros(3)}).to_json()) | parts)


def without(key):
    return json.dumps({k: v for k, v in json.loads(changed()).items() if k != key})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not a JSON document"),
        ('{"format": ', "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        (b"\xff\xfe\xfa", "not a JSON document"),
        (changed(num_nodes=float("nan")), "not a JSON document: NaN is no JSON"),
        ("[]", 'not a Dag: the document must be an object with "format": "dagnn.Dag".'),
        (changed(format="graph"), "not a Dag"),
        (changed(version=2), "the document has version 2, this dagnn reads 1: update dagnn."),
        (without("edges"), "the document misses the keys ['edges'] and has the unknown keys []."),
        (changed(more=1), "the document misses the keys [] and has the unknown keys ['more']."),
        (changed(edges=[[0, 1], [1]]), "the document is damaged: ValueError: expected sequence of length 2"),
        (changed(edges=[[0.5, 1]]), "the document is damaged: ValueError: expected integers, got [[0.5, 1]]"),
        (changed(edges="01"), "the document is damaged"),
        (changed(edges=[0, 1]), "the document is damaged: ValueError: expected integers, got [0, 1]"),
        (changed(edges=[[0, 2**70]]), "the document is damaged"),
        (changed(edges=[[0, 7]]), "edge 0 is 0 -> 7, but num_nodes=3 allows nodes 0 .. 2"),
        (changed(edges=[[0, 1], [1, 0]]), "the edges form a cycle: 0 -> 1 -> 0."),
        (changed(num_nodes="3"), "num_nodes must be an int, got '3'."),
        (changed(num_nodes=10**30), "num_nodes must be at least 0 and fit in memory"),
        (changed(inputs=[3]), "inputs: unknown node 3"),
        (changed(inputs=None), "the document is damaged: "),
        (changed(names=3), "the document is damaged"),
        (changed(names=["a", "b"]), "there are 2 names, but num_nodes=3"),
        (changed(names=["a", "b", {"bag": [1]}]), "the document is damaged: ValueError: unknown kind of value 'bag'"),
        (changed(node_attributes=[]), "the document is damaged"),
        (changed(node_attributes={"x": {"items": [1]}}), "node_attributes['x'] has 1 values, expected 3"),
        (changed(node_attributes={"x": {"dtype": "object", "shape": [1], "data": [1]}}), "the document is damaged"),
        (changed(node_attributes={"x": {"dtype": "int64", "shape": [3], "data": [1, 2]}}), "the document is damaged"),
        (changed(node_attributes={"x": {"dtype": "int64", "shape": [1], "data": ["1"]}}), "the document is damaged"),
        (changed(node_attributes={"x": {"dtype": "int8", "shape": [1], "data": [300]}}), "the document is damaged"),
        (changed(node_attributes={"x": {"dtype": "float32", "shape": [1], "data": ["a"]}}), "the document is damaged"),
        (changed(node_attributes={"x": {"shape": [1], "data": [1]}}), "the document is damaged"),
    ],
)
def test_damaged_and_foreign_documents_are_refused(document, message):
    with pytest.raises(DagnnError) as error:
        Dag.from_json(document)
    assert str(error.value).startswith(message)
