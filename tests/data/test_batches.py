"""Batches: each item once an epoch, fair mixtures, disjoint ranks, any position again; draws and shares of levels."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.data import BatchIterator
from dagnn.data.batches import counts_of_shares, interleaved, level_shares_of, shuffled_draws, weighted_draws
from dagnn.errors import CheckpointError, ConfigError

levels_of_items = st.lists(st.integers(1, 4), min_size=1, max_size=60)


def epochs(batches, count):
    return [[batch.tolist() for batch in batches] for _ in range(count)]


@given(levels_of_items, st.integers(1, 20), st.integers(0, 99))
def test_epoch_without_weights_holds_every_item_once(levels, batch_size, seed):
    batches = BatchIterator(levels, batch_size=batch_size, seed=seed)

    for epoch in epochs(batches, 3):
        assert len(epoch) == len(batches)
        assert sorted(item for batch in epoch for item in batch) == list(range(len(levels)))
        assert all(len(batch) == batch_size for batch in epoch[:-1])
    assert batches.epoch == 3
    assert batches.position == 3 * len(batches)


@given(levels_of_items, st.integers(1, 20), st.booleans(), st.data())
def test_saved_position_continues_with_the_same_batches(levels, batch_size, weighted, data):
    weights = np.arange(1, len(levels) + 1) if weighted else None

    def new():
        return BatchIterator(levels, batch_size=batch_size, seed=3, item_weights=weights)

    whole = new()
    stream = [whole.next_batch().tolist() for _ in range(3 * len(whole))]
    stop = data.draw(st.integers(0, len(stream)))
    interrupted = new()
    for _ in range(stop):
        interrupted.next_batch()

    resumed = new()
    resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))

    assert [resumed.next_batch().tolist() for _ in range(len(stream) - stop)] == stream[stop:]


def test_iterating_after_a_resume_yields_the_rest_of_the_epoch():
    batches = BatchIterator([1] * 10, batch_size=3, seed=0)
    whole = epochs(batches, 2)

    batches.seek(6)

    assert epochs(batches, 1) == [whole[1][2:]]


def test_position_counts_the_batch_that_the_loop_body_holds():
    batches = BatchIterator([1] * 10, batch_size=5, seed=0)

    assert [batches.position for _ in batches] == [1, 2]


@given(levels_of_items, st.integers(1, 20), st.integers(1, 5))
def test_ranks_divide_every_batch(levels, batch_size, world_size):
    alone = BatchIterator(levels, batch_size=batch_size, seed=1)
    ranks = [
        BatchIterator(levels, batch_size=batch_size, seed=1, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]

    for position in range(2 * len(alone)):
        parts = [rank.batch(position) for rank in ranks]
        assert np.concatenate(parts).tolist() == alone.batch(position).tolist()
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_number_of_ranks_may_change_on_resume():
    saved = BatchIterator([1] * 40, batch_size=8, seed=1, rank=1, world_size=2)
    for _ in range(7):
        saved.next_batch()

    resumed = BatchIterator([1] * 40, batch_size=8, seed=1, rank=0, world_size=1)
    resumed.load_state_dict(saved.state_dict())

    assert resumed.next_batch().tolist()[4:] == saved.next_batch().tolist()


def test_newest_level_gets_its_share_of_every_batch():
    levels = np.array([1] * 3000 + [2] * 500 + [3] * 40)
    weights = np.random.default_rng(0).random(len(levels))
    batches = BatchIterator(levels, batch_size=64, seed=0, item_weights=weights, level_shares={3: 0.5})

    for batch in batches:
        share = (levels[batch] == 3).sum() / len(batch)
        assert abs(share - 0.5) <= 1.5 / len(batch)
    assert sum(batches.counts.values()) == 3540
    assert batches.counts[3] == 1770


def test_small_level_is_used_up_evenly_without_weights():
    levels = np.array([1] * 100 + [2] * 7)
    batches = BatchIterator(levels, batch_size=10, seed=0, level_shares={2: 0.5})

    drawn = np.concatenate([batches.next_batch() for _ in range(5 * len(batches))])

    times = np.bincount(drawn, minlength=107)[100:]
    assert times.max() - times.min() <= 1


def test_weighted_items_are_drawn_in_proportion():
    weights = np.sqrt(np.arange(50))
    batches = BatchIterator(np.ones(50, int), batch_size=500, seed=0, item_weights=weights, epoch_size=100_000)

    drawn = np.concatenate(list(batches))

    assert len(drawn) == 100_000
    share = np.bincount(drawn, minlength=50) / 100_000
    assert np.abs(share - weights / weights.sum()).max() < 0.0025  # four standard deviations of a share of 0.03
    assert share[0] == 0


def test_stages_of_a_run_draw_differently():
    first = BatchIterator([1] * 50, batch_size=50, seed=(0, 1))
    second = BatchIterator([1] * 50, batch_size=50, seed=(0, 2))

    assert first.batch(0).tolist() != second.batch(0).tolist()


def test_last_short_batch_can_be_dropped():
    batches = BatchIterator([1] * 10, batch_size=4, seed=0, drop_last=True)

    assert [len(batch) for batch in batches] == [4, 4]
    with pytest.raises(ConfigError, match="an epoch of 3 items holds no batch of 4"):
        BatchIterator([1] * 3, batch_size=4, seed=0, drop_last=True)


def test_another_process_draws_the_same():
    code = (
        "from dagnn.data import BatchIterator; import hashlib\n"
        "b = BatchIterator([1, 2, 3] * 99, batch_size=16, seed=5, item_weights=range(297), level_shares={3: 0.5})\n"
        "print(hashlib.sha256(b''.join(b.batch(k).tobytes() for k in (0, 1, 70))).hexdigest())"
    )

    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in "12"
    }

    assert len(outputs) == 1


def test_text_datasets_do_not_load_torch():
    code = (
        "import sys; from dagnn.data import BatchIterator, Dataset\n"
        "dataset = Dataset.from_pairs([('a', 'b')])\n"
        "BatchIterator(dataset.level_of_item, batch_size=1, seed=0).next_batch()\n"
        "print('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"batch_size": 3},
        {"level_of_item": [1] * 11},
        {"level_of_item": [2] * 10},
        {"item_weights": [1.0] * 10},
        {"epoch_size": 12},
    ],
)
def test_position_of_another_order_is_refused(changed):
    given = {"level_of_item": [1] * 10, "batch_size": 2, "seed": 0}
    state = BatchIterator(**given).state_dict()

    with pytest.raises(CheckpointError, match="another dataset, seed, batch size or mixture"):
        BatchIterator(**(given | changed)).load_state_dict(state)


@pytest.mark.parametrize("position", [-1, 1.5, None, True, "3"])
def test_impossible_position_is_refused(position):
    batches = BatchIterator([1], batch_size=1, seed=0)

    with pytest.raises(CheckpointError, match="position of the data order must be an integer from 0"):
        batches.load_state_dict(batches.state_dict() | {"position": position})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size must be an integer from 1, got 0"),
        ({"batch_size": -2}, "batch_size must be an integer from 1, got -2"),
        ({"batch_size": 2.0}, "batch_size must be an integer from 1, got 2.0"),
        ({"seed": -1}, "seed must be an integer from 0, got -1"),
        ({"seed": (1, "a")}, "seed must be an integer from 0, got 'a'"),
        ({"world_size": 0}, "world_size must be an integer from 1, got 0"),
        ({"rank": 2, "world_size": 2}, "rank must be below world_size=2, got 2"),
        ({"epoch_size": 0}, "epoch_size must be an integer from 1, got 0"),
        ({"level_of_item": []}, "level_of_item must be a non-empty list of integers"),
        ({"level_of_item": [[1]]}, r"level_of_item must be .* of shape \[1, 1\]"),
        ({"level_of_item": [1.5]}, "level_of_item must be a non-empty list of integers, got float64"),
        ({"item_weights": [1.0]}, r"item_weights must have the shape \[3\], got \[1\]"),
        ({"item_weights": [1, 2, -3]}, r"item_weights\[2\] is -3.0: every weight must be finite and at least 0"),
        ({"item_weights": [1, float("nan"), 3]}, r"item_weights\[1\] is nan"),
    ],
)
def test_argument_out_of_range_is_named(arguments, text):
    with pytest.raises(ConfigError, match=text):
        BatchIterator(**({"level_of_item": [1, 1, 2], "batch_size": 2, "seed": 0} | arguments))


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
