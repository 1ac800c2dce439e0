"""Counting items and cutting batches of every kind of container."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from dagnn.accumulation.items import count_items
from dagnn.accumulation.splitting import join_batches, split_batch
from dagnn.errors import AccumulationError, ConfigError


class Pair(NamedTuple):
    x: torch.Tensor
    name: list


@dataclass
class Record:
    x: torch.Tensor
    scale: float
    derived: int = field(init=False, default=7)


class Graphs:
    """A batch of graphs by its shape: ``from_dags``, a length, an index."""

    def __init__(self, dags):
        self.dags = dags

    @classmethod
    def from_dags(cls, dags):
        return cls(list(dags))

    def __len__(self):
        return len(self.dags)

    def __getitem__(self, index):
        return self.dags[index]


@given(items=st.integers(1, 20), size=st.integers(1, 25))
def test_pieces_joined_are_the_batch(items, size):
    batch = {"x": torch.randn(items, 2), "y": (torch.arange(items),)}
    pieces = split_batch(batch, size)
    joined = join_batches(pieces)
    assert torch.equal(joined["x"], batch["x"]) and torch.equal(joined["y"][0], batch["y"][0])
    assert [len(piece["x"]) for piece in pieces] == [size] * (items // size) + ([items % size] if items % size else [])


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_mappings_keep_their_type(kind):
    (piece, _) = split_batch(kind(x=torch.arange(4)), 2)
    assert type(piece) is kind
    assert piece["x"].tolist() == [0, 1]


def test_named_tuples_lists_dataclasses_arrays_and_plain_values():
    batch = [Pair(torch.arange(3), ["a", "b", "c"]), Record(torch.arange(3), 0.5), np.arange(3), None, "text", 4]
    first, second = split_batch(batch, 2)
    assert isinstance(first[0], Pair) and first[0].name == ["a", "b"] and second[0].name == ["c"]
    assert isinstance(second[1], Record) and second[1].x.tolist() == [2]
    assert (second[1].scale, second[1].derived) == (0.5, 7)
    assert second[2].tolist() == [2]
    assert second[3:] == [None, "text", 4]


def test_tensors_are_views_not_copies():
    x = torch.arange(4)
    assert split_batch(x, 2)[1].data_ptr() == x[2:].data_ptr()


def test_graph_batches_are_rebuilt_from_their_graphs():
    batch = (Graphs(["g0", "g1", "g2"]), torch.arange(3))
    assert count_items(batch) == 3
    first, second = split_batch(batch, 2)
    assert first[0].dags == ["g0", "g1"] and second[0].dags == ["g2"]


def test_a_list_of_graphs_is_cut_between_them():
    assert split_batch(["g0", "g1", "g2"], 2) == [["g0", "g1"], ["g2"]]


def test_packed_sequences_are_packed_again():
    packed = pack_sequence([torch.tensor([1, 2]), torch.tensor([3, 4, 5]), torch.tensor([6])], enforce_sorted=False)
    assert count_items(packed) == 3
    first, second = split_batch(packed, 2)
    assert pad_packed_sequence(first, batch_first=True)[0].tolist() == [[1, 2, 0], [3, 4, 5]]
    assert pad_packed_sequence(second, batch_first=True)[0].tolist() == [[6]]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(4), torch.zeros(3)), "first dimensions 3, 4"),
        ({"x": torch.zeros(())}, "no tensor with a first dimension"),
        ("text", "no tensor with a first dimension"),
    ],
)
def test_batches_that_cannot_be_counted(batch, message):
    with pytest.raises(AccumulationError, match=message):
        count_items(batch)


@pytest.mark.parametrize("size", [0, -1, 1.0, True])
def test_bad_size(size):
    with pytest.raises(ConfigError, match="micro_batch_size must be a positive whole number"):
        split_batch(torch.zeros(3), size)
