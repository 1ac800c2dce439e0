"""Attributes: what is kept of what a user gives."""

import numpy as np
import pytest
import torch

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag


def kept(values):
    return Dag([], 2, node_attributes={"x": values}).node_attributes["x"]


def test_tensors_and_arrays_become_tensors_of_the_same_dtype():
    assert kept(torch.zeros(2, 3)).shape == (2, 3)
    assert kept(np.array([1.0, 2.0])).dtype == torch.float64
    assert kept(np.array([True, False])).dtype == torch.bool
    assert torch.equal(kept(torch.arange(8).reshape(2, 4)[:, ::2]), torch.tensor([[0, 2], [4, 6]]))


def test_lists_and_arrays_of_text_become_tuples():
    assert kept(["a", 1]) == ("a", 1)
    assert kept(iter("ab")) == ("a", "b")
    assert kept(np.array(["a", "bc"])) == ("a", "bc")
    assert kept([1, 2]) == (1, 2)


def test_no_attributes_are_an_empty_mapping():
    assert dict(Dag([]).node_attributes) == dict(Dag([]).edge_attributes) == {}


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_and_tensors_of_unlike_shapes_compare_by_content(kind):
    make = lambda *values: Dag([], 3, node_attributes={"x": [*map(kind, values), "a"]})  # noqa: E731
    assert make([1.0, 2.0], [3.0]) == make([1.0, 2.0], [3.0])
    assert hash(make([1.0, 2.0], [3.0])) == hash(make([1.0, 2.0], [3.0]))
    assert make([1.0, 2.0], [3.0]) != make([1.0, 2.5], [3.0])
    assert make([1.0, 2.0], [3.0]) != make([1.0], [3.0])


def test_numpy_scalars_become_numbers_and_dates_stay():
    assert list(map(type, kept([np.int64(1), np.float32(0.5)]))) == [int, float]
    dates = np.array(["2020-01-01", "2021-01-01"], dtype="M8[ns]")
    assert kept(dates) == tuple(dates)
    assert isinstance(kept(list(dates))[0], np.datetime64)


@pytest.mark.fault("graphs_and_networks", 16)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p", "q"}, "must be a tensor or a list"),  # in the order of the hash seed
        ({"a": 1, "b": 2}, "must be a tensor or a list"),  # its keys would be the values
        (np.ma.array([1, 2], mask=[0, 1]), "masked array: fill it"),
        (torch.eye(2).to_sparse(), "dense tensor with values, got a torch.sparse_coo"),
        (torch.ones(2, device="meta"), "dense tensor with values, .* on meta"),
    ],
)
def test_values_without_an_order_or_without_values_are_refused(values, message):
    with pytest.raises(DtypeError, match=message):
        Dag([("a", "b")], node_attributes={"v": values})


def test_arrays_of_another_byte_order_and_of_long_doubles_are_taken():
    attributes = {"x": np.array([1, 2], dtype=">i4"), "y": np.array([0.5, 2], dtype=np.longdouble)}
    dag = Dag([("a", "b")], node_attributes=attributes)
    assert dag.node_attributes["x"].tolist() == [1, 2]
    assert dag.node_attributes["x"].dtype == torch.int32
    assert list(dag.node_attributes["y"]) == [0.5, 2]


@pytest.mark.parametrize("names", [np.ma.array([1, 2], mask=[0, 1]), np.ma.array(["p", "q"], mask=[0, 1])])
def test_masked_names_are_refused(names):
    with pytest.raises(GraphError, match="names has masked entries"):
        Dag(np.array([[0, 1]]), names=names)
    with pytest.raises(GraphError, match="inputs has masked entries"):
        Dag([("p", "q"), ("q", 1), (1, 2)], inputs=names)


class Column(list):
    """A column of pandas, as far as labels go."""

    def __init__(self, values, index) -> None:
        super().__init__(values)
        self.index = index

    def to_numpy(self):
        return np.array(list(self))


def test_a_column_labelled_by_name_in_another_order_is_refused():
    for values in ([1, 2], Column([1, 2], ["a", "b"]), Column([1, 2], ["p", "q"]), Column([1, 2], range(2))):
        assert Dag([("a", "b")], node_attributes={"v": values}).node_attributes["v"] == (1, 2)
    with pytest.raises(GraphError, match=r"node_attributes\['v'\] is labelled with the names of the nodes, but"):
        Dag([("a", "b")], node_attributes={"v": Column([1, 2], ["b", "a"])})
