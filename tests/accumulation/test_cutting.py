"""Cutting streams into windows: tails, carried batches, windows by weight."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagnn.accumulation.partition import PartitionRule, partition_windows
from dagnn.errors import AccumulationError, ConfigError


def cut(loader, carried=None, **options):
    defaults = {"micro_batches": None, "micro_batch_size": None, "max_weight": None, "weight": None, "tail": "flush"}
    rule = PartitionRule(**(defaults | options))
    rule.check()
    return [
        [micro.data for micro in window]
        for window in partition_windows(loader, rule, [] if carried is None else carried)
    ]


@given(n=st.integers(0, 30), k=st.integers(1, 9))
def test_flush_runs_every_batch_once_in_windows_of_k_and_one_short_one(n, k):
    windows = cut(range(n), micro_batches=k)
    assert [batch for window in windows for batch in window] == list(range(n))
    assert [len(window) for window in windows] == [k] * (n // k) + ([n % k] if n % k else [])


@given(n=st.integers(0, 30), k=st.integers(1, 9))
def test_drop_leaves_out_what_does_not_fill_a_window(n, k):
    assert [len(window) for window in cut(range(n), micro_batches=k, tail="drop")] == [k] * (n // k)


@given(epochs=st.lists(st.integers(0, 7), max_size=6), k=st.integers(1, 5))
def test_carry_is_one_stream_over_all_epochs(epochs, k):
    carried, seen, start = [], [], 0
    for n in epochs:
        seen += cut(range(start, start + n), carried, micro_batches=k, tail="carry")
        start += n
    stream = list(range(start))
    assert seen == [stream[i : i + k] for i in range(0, start - start % k, k)]
    assert carried == stream[start - start % k :]


@given(weights=st.lists(st.integers(0, 9), max_size=20), limit=st.integers(1, 20))
def test_windows_by_weight_never_exceed_it_unless_one_batch_does(weights, limit):
    windows = cut(weights, max_weight=limit, weight=lambda batch: batch)
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
    windows = cut([torch.arange(5), torch.arange(2)], micro_batch_size=2)
    assert [[piece.tolist() for piece in window] for window in windows] == [[[0, 1], [2, 3], [4]], [[0, 1]]]


def test_items_that_cannot_be_counted_matter_only_for_windows_by_weight():
    assert cut(["text"], micro_batches=1) == [["text"]]
    with pytest.raises(AccumulationError, match="cannot be counted: pass weight="):
        cut(["text"], max_weight=10)


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
        cut([1], **options)


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
        cut([1], micro_batches=1, weight=lambda batch: returned)
