"""Draws of one level: whole shuffles, fair weights, and a stream that no NumPy release may change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagnn.data.batches import interleaved, shuffled_draws, weighted_draws


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 100), st.integers(0, 2**70))
def test_draws_from_anywhere_are_a_slice_of_the_series(size, start, count, seed):
    whole = shuffled_draws(size, 0, start + count, seed=seed, level=3)

    assert shuffled_draws(size, start, count, seed=seed, level=3).tolist() == whole[start:].tolist()


@given(st.integers(1, 30), st.integers(0, 5))
def test_every_shuffle_holds_each_item_once(size, epoch):
    draws = shuffled_draws(size, epoch * size, size, seed=0, level=1)

    assert sorted(draws.tolist()) == list(range(size))


def test_epochs_levels_and_seeds_differ():
    def draws(epoch=0, seed=0, level=1):
        return tuple(shuffled_draws(50, 50 * epoch, 50, seed=seed, level=level).tolist())

    assert len({draws(), draws(epoch=1), draws(seed=1), draws(level=2), draws(seed=(0, 1)), draws(seed=(1, 0))}) == 6


def test_weighted_draws_follow_the_weights():
    weights = np.array([0.0, 1.0, 3.0, 0.0, 6.0, 0.0])

    draws = weighted_draws(np.cumsum(weights), 100_000, seed=0, epoch=0, level=1)

    share = np.bincount(draws, minlength=6) / 100_000
    # Four standard deviations of a share near a half are 0.0063.
    assert np.abs(share - weights / weights.sum()).max() < 0.0063
    assert share[[0, 3, 5]].tolist() == [0, 0, 0]


def test_order_is_the_one_that_older_runs_were_trained_with():
    # Taken from the first version. A change here means that no saved run can be resumed exactly.
    assert shuffled_draws(8, 4, 8, seed=7, level=2).tolist() == [3, 7, 2, 0, 6, 3, 7, 4]
    cumulative = np.cumsum([1.0, 2.0, 3.0, 4.0])
    assert weighted_draws(cumulative, 10, seed=7, epoch=3, level=2).tolist() == [2, 2, 0, 3, 2, 2, 3, 3, 0, 2]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any), st.data())
def test_every_stretch_holds_its_share_of_every_group(counts, data):
    groups = interleaved(counts)
    total = sum(counts)
    assert np.bincount(groups, minlength=len(counts)).tolist() == counts

    first = data.draw(st.integers(0, total))
    stretch = groups[first : data.draw(st.integers(first, total))]

    for group, count in enumerate(counts):
        expected = count / total * len(stretch)
        assert abs((stretch == group).sum() - expected) <= 1 + len(counts) * count / total
