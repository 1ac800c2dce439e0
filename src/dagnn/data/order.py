"""The order in which one level's items are drawn: a pure function of (seed, epoch, level).

Random numbers come from Philox's raw 64-bit output and nothing else: NumPy promises that stream for all time, while
`Generator.permutation` and its kin may change with any release, and with them the data order of a resumed run.
"""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Seed = int | Sequence[int]


def shuffled_draws(size: int, start: int, count: int, *, seed: Seed, level: int) -> NDArray[np.int64]:
    """Draws ``start .. start + count - 1`` of an endless series of shuffles of ``0 .. size - 1``.

    Every shuffle holds each item once, so any ``size`` draws that begin at a multiple of ``size`` are all items.

    Args:
        size: items of the level, at least 1.
        start: first draw, from 0.
        count: number of draws.
        seed, level: choose the series.

    Returns:
        int64 ``[count]``, values in ``0 .. size - 1``.

    Cost: O(size log size) per shuffle touched, whatever ``start`` is.
    """
    if count == 0:
        return np.empty(0, np.int64)
    first, last = start // size, (start + count + size - 1) // size
    shuffles = [np.argsort(_bits(size, seed, epoch, level), kind="stable") for epoch in range(first, last)]
    draws: NDArray[np.int64] = np.concatenate(shuffles)[start - first * size :][:count].astype(np.int64, copy=False)
    return draws


def weighted_draws(
    cumulative: NDArray[np.float64], count: int, *, seed: Seed, epoch: int, level: int
) -> NDArray[np.int64]:
    """``count`` independent draws with replacement, item i with probability ``weight_i / sum of the weights``.

    Args:
        cumulative: float64 ``[size]``, the running sum of the weights; the last is positive.
        count: number of draws.
        seed, epoch, level: choose the draws.

    Returns:
        int64 ``[count]``, values in ``0 .. size - 1``; an item of weight 0 never occurs.
    """
    unit = (_bits(count, seed, epoch, level) >> np.uint64(11)) * 2.0**-53  # uniform on [0, 1), all 53 bits
    # side="right": the interval of item i is [cumulative_{i-1}, cumulative_i), empty when its weight is 0.
    draws = np.searchsorted(cumulative, unit * cumulative[-1], side="right")
    # unit * total may round up to total itself, which is past the last item that has a weight.
    last = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    bounded: NDArray[np.int64] = np.minimum(draws, last).astype(np.int64, copy=False)
    return bounded


def interleaved(counts: Sequence[int]) -> NDArray[np.int64]:
    """Which group each of ``sum(counts)`` places belongs to, every group spread evenly over all places.

    Any stretch of n places holds its fair share of every group to within about one, so that every batch cut from
    it is mixed alike.

    >>> interleaved([4, 2]).tolist()
    [0, 1, 0, 0, 1, 0]
    """
    times = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts])
    groups = np.repeat(np.arange(len(counts)), counts)
    places: NDArray[np.int64] = groups[np.argsort(times, kind="stable")]
    return places


def _bits(count: int, seed: Seed, epoch: int, level: int) -> NDArray[np.uint64]:
    """Random 64-bit words: uint64 ``[count]``, another series for every (seed, epoch, level)."""
    parts = (seed,) if isinstance(seed, int | np.integer) else seed
    # A hash for the key, not NumPy's SeedSequence: that pads with zeros, so the seeds 1 and (1, 0) would be one.
    name = json.dumps([[int(part) for part in parts], epoch, level])
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    bits: NDArray[np.uint64] = np.random.Philox(key=key).random_raw(count)
    return bits
