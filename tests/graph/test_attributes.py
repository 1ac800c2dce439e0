"""Attributes: what is kept of what a user gives."""

import numpy as np
import pytest
import torch

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
