"""Attributes: what is kept of what a user gives."""

import numpy as np
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
