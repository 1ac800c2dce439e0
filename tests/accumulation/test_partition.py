"""Counting items, splitting batches of every kind of container, and partitioning streams into windows."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from dagnn.accumulation.coupled import concatenate
from dagnn.accumulation.items import count_items, join_batches
from dagnn.accumulation.partition import PartitionRule, partition_windows
from dagnn.accumulation.partition import split_batch as split_with_sizes
from dagnn.errors import AccumulationError, ConfigError


def split_batch(batch, size):
    pieces = split_with_sizes(batch, size)
    total = sum(items for _, items in pieces)
    assert [items for _, items in pieces] == [size] * (total // size) + ([total % size] if total % size else [])
    return [piece for piece, _ in pieces]


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
    joined = concatenate(pieces)
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
        ({"x": torch.zeros(())}, "nothing with a first dimension"),
        ("text", "nothing with a first dimension"),
    ],
)
def test_batches_that_cannot_be_counted(batch, message):
    with pytest.raises(AccumulationError, match=message):
        count_items(batch)


@pytest.mark.parametrize("size", [0, -1, 1.0, True])
def test_bad_size(size):
    with pytest.raises(ConfigError, match="micro_batch_size must be a positive whole number"):
        split_batch(torch.zeros(3), size)


def image(*shape):
    return torch.zeros(3, *(shape or (8, 8)))


def boxes(n):
    return {"boxes": torch.zeros(n, 4), "labels": torch.zeros(n).long()}


@pytest.mark.fault("accumulation", 7)
@pytest.mark.fault("accumulation", 15)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("found", ["n", "varied", 3])
@pytest.mark.parametrize("container", [list, tuple])
def test_detection_batches_count_images_and_are_cut_between_them(n, found, container):
    counts = {"n": [n] * n, "varied": range(n), 3: [3] * n}[found]
    for images in (container(image() for _ in range(n)), torch.zeros(n, 3, 8, 8)):
        batch = (images, container({**boxes(c), "id": i} for i, c in enumerate(counts)))
        assert count_items(batch) == n
        pieces = split_batch(batch, 2)
        assert [len(piece[0]) for piece in pieces] == [len(piece[1]) for piece in pieces]
        assert [target["id"] for piece in pieces for target in piece[1]] == list(range(n))
        assert count_items({"images": batch[0], "targets": batch[1]}) == n


@pytest.mark.fault("accumulation", 7)
@pytest.mark.parametrize(
    ("batch", "items"),
    [
        ([torch.zeros(5, 2), torch.zeros(7, 2), torch.zeros(2, 2)], 3),
        ([image(), torch.zeros(1, 8, 8), image(9, 9), image()], 4),
        ([np.zeros(5), np.zeros(7)], 2),
        ([torch.tensor(1.0), torch.tensor(2.0)], 2),
        ([{"image": image(), "height": 480}] * 4, 4),
        ([{"a": torch.zeros(5)}, {"b": torch.zeros(5)}], 2),
        ([(image(), 1)] * 5, 5),
        ([(torch.zeros(3), torch.zeros(1))] * 4, 4),
        ([[1, 2], [3, 4], [5, 6]], 3),
        ((["a", "b"], [0, 1], torch.zeros(2, 3)), 2),
        (((torch.zeros(8, 2), torch.zeros(8, 2)), torch.zeros(8)), 8),
        ([torch.zeros(8, 4), torch.zeros(8).long()], 8),
        ([torch.zeros(8, 3, 4, 4), torch.zeros(8)], 8),
        ((torch.zeros(8, 4), torch.zeros(8, 3)), 8),
    ],
)
def test_lists_of_items_count_items_and_lists_of_parts_their_rows(batch, items):
    assert count_items(batch) == items
    assert len(split_batch(batch, 2)) == -(-items // 2)


@pytest.mark.fault("accumulation", 7)
@pytest.mark.parametrize("n", [1, 2, 4, 5, 16])
def test_a_list_of_equal_images_alone_is_unclear_whatever_its_length(n):
    images = [image() for _ in range(n)]
    for read in (count_items, lambda batch: split_batch(batch, 1)):
        with pytest.raises(AccumulationError, match=f"is one batch of 3 items, or {n} items, and nothing in it says"):
            read(images)
        with pytest.raises(AccumulationError, match=r"a list .* may hold items or parts .* weight="):
            read({"images": images})


@pytest.mark.fault("accumulation", 7)
@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("kind", ["matrices", "vectors", "arrays"])
def test_a_list_of_two_is_not_cut_and_what_to_type_instead_is_cut_as_it_says(n, kind):
    x, y = torch.arange(4.0 * n).view(n, 4), torch.arange(3.0 * n).view(n, 3)
    x, y = {"matrices": (x, y), "vectors": (x[:, 0], y[:, 0]), "arrays": (x.numpy(), y.numpy())}[kind]
    batch = [x, y]
    message = rf"is one batch of {n} items, or 2 items.* give tuple\(batch\) .*give \[\(item,\) for item in batch\]"
    with pytest.raises(AccumulationError, match=message):
        split_batch(batch, 1)
    assert [[len(part) for part in piece] for piece in split_batch(tuple(batch), 1)] == [[1, 1]] * n
    ((first,),), ((second,),) = split_batch([(item,) for item in batch], 1)
    assert first is x and second is y


@pytest.mark.fault("accumulation", 7)
@pytest.mark.parametrize("batch", [{"x": [image() for _ in range(3)]}, [[torch.zeros(2), torch.zeros(2)]] * 2])
def test_a_list_that_may_be_cut_in_two_ways_is_not_cut(batch):
    with pytest.raises(AccumulationError, match="may hold items or parts of items"):
        split_batch(batch, 1)


@pytest.mark.fault("accumulation", 14)
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_count_and_cut_their_rows(layout):
    nested = torch.nested.nested_tensor([torch.full((n, 2), float(n)) for n in (2, 4, 1)], layout=layout)
    for batch in (nested, (nested, torch.zeros(3)), {"x": nested, "y": torch.zeros(3)}, [nested, torch.zeros(3)]):
        assert count_items(batch) == 3
        assert [count_items(piece) for piece in split_batch(batch, 2)] == [2, 1]
    first, second = split_batch(nested, 2)
    assert [len(row) for row in first.unbind()] == [2, 4] and second.unbind()[0].tolist() == [[1.0, 1.0]]


def test_sparse_tensors_are_cut_too():
    batch = torch.eye(3).to_sparse()
    assert [piece.to_dense().tolist() for piece in split_batch(batch, 2)] == [[[1, 0, 0], [0, 1, 0]], [[0, 0, 1]]]


def windows_of(loader, carried=None, **options):
    defaults = {"micro_batches": None, "micro_batch_size": None, "max_weight": None, "weight": None, "tail": "flush"}
    rule = PartitionRule(**(defaults | options))
    rule.check()
    return [
        [micro.data for micro in window]
        for window in partition_windows(loader, rule, [] if carried is None else carried)
    ]


@given(n=st.integers(0, 30), k=st.integers(1, 9))
def test_flush_runs_every_batch_once_in_windows_of_k_and_one_short_one(n, k):
    windows = windows_of(range(n), micro_batches=k)
    assert [batch for window in windows for batch in window] == list(range(n))
    assert [len(window) for window in windows] == [k] * (n // k) + ([n % k] if n % k else [])


@given(n=st.integers(0, 30), k=st.integers(1, 9))
def test_drop_leaves_out_what_does_not_fill_a_window(n, k):
    assert [len(window) for window in windows_of(range(n), micro_batches=k, tail="drop")] == [k] * (n // k)


@given(epochs=st.lists(st.integers(0, 7), max_size=6), k=st.integers(1, 5))
def test_carry_is_one_stream_over_all_epochs(epochs, k):
    carried, seen, start = [], [], 0
    for n in epochs:
        seen += windows_of(range(start, start + n), carried, micro_batches=k, tail="carry")
        start += n
    stream = list(range(start))
    assert seen == [stream[i : i + k] for i in range(0, start - start % k, k)]
    assert carried == stream[start - start % k :]


@given(weights=st.lists(st.integers(0, 9), max_size=20), limit=st.integers(1, 20))
def test_windows_by_weight_never_exceed_it_unless_one_batch_does(weights, limit):
    windows = windows_of(weights, max_weight=limit, weight=lambda batch: batch)
    assert [batch for window in windows for batch in window] == weights
    assert all(sum(window) <= limit or len(window) == 1 for window in windows)
    assert all(sum(window) + following[0] > limit for window, following in pairwise(windows))


def test_windows_are_read_only_as_far_as_needed():
    seen = []

    def loader():
        for i in range(10):
            seen.append(i)
            yield i

    rule = PartitionRule(3, None, None, None, "flush")
    next(partition_windows(loader(), rule, []))
    assert seen == [0, 1, 2]


def test_each_batch_is_a_window_of_pieces():
    windows = windows_of([torch.arange(5), torch.arange(2)], micro_batch_size=2)
    assert [[piece.tolist() for piece in window] for window in windows] == [[[0, 1], [2, 3], [4]], [[0, 1]]]


def test_items_that_cannot_be_counted_matter_only_for_windows_by_weight():
    assert windows_of(["text"], micro_batches=1) == [["text"]]
    with pytest.raises(AccumulationError, match="cannot be counted: pass weight="):
        windows_of(["text"], max_weight=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs exactly one of micro_batches=K .* got none"),
        ({"micro_batches": 2, "max_weight": 3}, "got micro_batches and max_weight"),
        ({"micro_batches": 0}, "micro_batches must be a positive whole number, got 0"),
        ({"micro_batches": 1.5}, "micro_batches must be a positive whole number, got 1.5"),
        ({"micro_batches": True}, "micro_batches must be a positive whole number, got True"),
        ({"max_weight": -1}, "max_weight must be a positive number, got -1"),
        ({"micro_batches": 2, "tail": "keep"}, "tail must be 'flush'"),
        ({"micro_batches": 2, "weight": 3}, "weight must be a function"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ConfigError, match=message):
        windows_of([1], **options)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (-1, "must be finite and at least 0, got -1"),
        (float("nan"), "must be finite and at least 0, got nan"),
        ("three", "must be a number of items, got str"),
        ({}, "returned an empty mapping"),
        ({"aux": -2}, r"weight\(micro_batch\)\['aux'\] must be finite"),
    ],
)
def test_bad_weights(returned, message):
    with pytest.raises(ConfigError, match=message):
        windows_of([1], micro_batches=1, weight=lambda batch: returned)


def test_joined_batches_are_padded_where_a_mask_says_so():
    short = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2), "labels": torch.tensor([[5, 6]])}
    long = {
        "input_ids": torch.tensor([[7, 8, 9]]),
        "attention_mask": torch.ones(1, 3),
        "labels": torch.tensor([[7, 8, 9]]),
    }

    joined = join_batches([short | {"return_loss": True}, long | {"return_loss": True}], pad_token=3)

    assert joined["input_ids"].tolist() == [[5, 6, 3], [7, 8, 9]]
    assert joined["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert joined["labels"].tolist() == [[5, 6, -100], [7, 8, 9]] and joined["return_loss"] is True


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_joining_undoes_splitting(sizes):
    batch = (torch.randn(sum(sizes), 2), {"y": torch.arange(sum(sizes)), "none": None}, [torch.randn(sum(sizes))])
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    pieces = [(batch[0][a:b], {"y": batch[1]["y"][a:b], "none": None}, [batch[2][0][a:b]]) for a, b in pairwise(ends)]

    inputs, targets, (others,) = join_batches(pieces)

    assert torch.equal(inputs, batch[0]) and torch.equal(targets["y"], batch[1]["y"])
    assert torch.equal(others, batch[2][0]) and targets["none"] is None


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"a": 0}, {"b": 0}, r"they have other parts, \[\['a'\]\] and \[\['b'\]\]"),
        ([0], [0, 0], "they have other parts"),
        ({"name": "x"}, {"name": "y"}, r"\['name'\] is 'x' and 'y'"),
        ({"n": torch.tensor(1)}, {"n": torch.tensor(1)}, r"\['n'\] is a tensor \[\] and a tensor \[\]. Tensors with"),
        ({"x": torch.ones(1)}, {"x": torch.ones(1, 1)}, r"\['x'\] is a tensor \[1\] and a tensor \[1, 1\]"),
        (
            {"x": torch.ones(1, 2)},
            {"x": torch.ones(1, 3)},
            r"\['x'\] has the lengths 2, 3, and no mask of these lengths",
        ),
        (
            {"x": torch.ones(1, 2), "mask": torch.ones(1, 4)},
            {"x": torch.ones(1, 3), "mask": torch.ones(1, 4)},
            "add an attention mask, or pad all batches to one length",
        ),
    ],
)
def test_batches_that_cannot_be_joined_say_why(one, other, words):
    with pytest.raises(AccumulationError, match=f"the micro-batches cannot be joined: .*{words}"):
        join_batches([one, other])


def stream_of(loader, carried, **options):
    """The windows as a stream, with what is carried as it is at each of them."""
    defaults = {"micro_batches": None, "micro_batch_size": None, "max_weight": None, "weight": None}
    return partition_windows(loader, PartitionRule(**(defaults | options)), carried)


@pytest.mark.parametrize("full", [{"micro_batches": 3}, {"max_weight": 3.0}])
def test_carried_batches_outlive_a_loader_that_fails(full):
    def failing():
        raise OSError("the disk is gone")
        yield

    carried = [torch.ones(1), torch.ones(1)]
    with pytest.raises(OSError, match="disk"):
        list(stream_of(failing(), carried, tail="carry", **full))
    assert len(carried) == 2
    (window,) = stream_of([torch.ones(1)], carried, tail="flush", **full)
    assert (len(window), carried) == (3, [])


def test_carried_batches_outlive_a_break():
    carried = [torch.full((1,), float(i)) for i in range(5)]
    next(stream_of([], carried, micro_batches=2, tail="flush"))
    assert [batch.item() for batch in carried] == [2.0, 3.0, 4.0]
    assert [len(window) for window in stream_of([], carried, micro_batches=2, tail="flush")] == [2, 1]
    assert carried == []


def test_numbers_of_numpy_are_whole_numbers():
    assert len(next(stream_of([torch.ones(1)] * 2, [], micro_batches=np.int64(2), tail="flush"))) == 2
    assert len(split_batch(torch.ones(3), np.int32(2))) == 2
