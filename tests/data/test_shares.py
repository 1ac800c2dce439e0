"""Shares of a batch: what is fixed, what is divided, and whole numbers of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.data.batches import counts_of_shares, level_shares_of
from dagnn.errors import ConfigError

LEVELS = np.array([1, 1, 1, 2, 2, 2, 3, 3])


def test_levels_share_by_number_of_items():
    assert level_shares_of(LEVELS, None, None) == {1: 3 / 8, 2: 3 / 8, 3: 2 / 8}


def test_levels_share_by_weight():
    weights = np.array([1.0, 0, 0, 1, 1, 1, 0, 0])

    assert level_shares_of(LEVELS, weights, None) == {1: 0.25, 2: 0.75}


def test_named_level_gets_its_share_and_the_others_divide_the_rest():
    assert level_shares_of(LEVELS, None, {3: 0.5}) == pytest.approx({1: 0.25, 2: 0.25, 3: 0.5})


def test_level_with_no_share_is_left_out():
    assert level_shares_of(LEVELS, None, {1: 0, 2: 1}) == {2: 1}
    assert level_shares_of(LEVELS, None, {1: 0.4, 2: 0.6}) == {1: 0.4, 2: 0.6}


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({1: -0.1}, r"level_shares\[1\] must be between 0 and 1, got -0.1"),
        ({1: float("nan")}, r"level_shares\[1\] must be between 0 and 1, got nan"),
        ({1: 0.7, 2: 0.7}, "level_shares must sum to at most 1, got 1.4"),
        ({1: 0.2, 2: 0.2, 3: 0.2}, "level_shares name all levels and must sum to 1, got 0.6"),
        ({9: 0.5}, r"gives 0.5 of a batch to level 9, which has no items to draw: the levels are \[1, 2, 3\]"),
    ],
)
def test_impossible_shares_are_refused(shares, text):
    with pytest.raises(ConfigError, match=text):
        level_shares_of(LEVELS, None, shares)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ConfigError, match="all item_weights are 0"):
        level_shares_of(LEVELS, np.zeros(8), None)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(1, 100_000))
def test_counts_sum_to_the_total_and_are_within_one(parts, total):
    shares = {level: part / sum(parts) for level, part in enumerate(parts)}

    counts = counts_of_shares(shares, total)

    assert sum(counts.values()) == total
    assert all(abs(counts[level] - share * total) < 1 + 1e-6 for level, share in shares.items())


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=9))
def test_counts_of_an_epoch_without_shares_are_the_sizes(sizes):
    total = sum(sizes)

    assert list(counts_of_shares({i: size / total for i, size in enumerate(sizes)}, total).values()) == sizes
