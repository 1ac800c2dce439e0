"""How a batch is divided over the levels: shares as fractions, and as whole numbers of draws in an epoch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import ConfigError

_ROUNDING = 1e-9


def level_shares_of(
    level_of_item: NDArray[Any], weights: NDArray[np.float64] | None, given: Mapping[int, float] | None
) -> dict[int, float]:
    """The share of every level that gets one, ascending by level; they sum to 1.

    Args:
        level_of_item: integers ``[num_items]``.
        weights: float64 ``[num_items]``, or None: every item weighs 1.
        given: shares that the user fixed; the other levels divide the rest in proportion to their total weight.

    Raises:
        ConfigError: a share is out of range, they exceed 1, none is left to be divided, or a level with a share has no
            items (or only items of weight 0).
    """
    levels, group_of_item = np.unique(level_of_item, return_inverse=True)
    totals = np.bincount(group_of_item, weights, minlength=len(levels))
    weight_of_level = {int(level): float(total) for level, total in zip(levels, totals, strict=True)}
    fixed = dict(given or {})
    for level, share in fixed.items():
        if not 0 <= share <= 1:  # also refuses NaN
            raise ConfigError(f"level_shares[{level}] must be between 0 and 1, got {share}.")
        if share > 0 and not weight_of_level.get(level):
            raise ConfigError(
                f"level_shares gives {share} of a batch to level {level}, which has no items to draw: "
                f"the levels are {sorted(level for level, weight in weight_of_level.items() if weight)}."
            )

    left = 1.0 - sum(fixed.values())
    others = {level: weight for level, weight in weight_of_level.items() if level not in fixed and weight > 0}
    if left < -_ROUNDING:
        raise ConfigError(f"level_shares must sum to at most 1, got {sum(fixed.values())}.")
    if left > _ROUNDING and not others:
        if fixed:
            raise ConfigError(f"level_shares name all levels and must sum to 1, got {sum(fixed.values())}.")
        raise ConfigError("all item_weights are 0: nothing can be drawn.")

    shares = {level: share for level, share in fixed.items() if share > 0}
    if left > _ROUNDING:
        shares |= {level: left * weight / sum(others.values()) for level, weight in others.items()}
    return dict(sorted(shares.items()))


def counts_of_shares(shares: Mapping[int, float], total: int) -> dict[int, int]:
    """Whole numbers that sum to ``total``, each within 1 of ``share * total`` (largest remainders).

    >>> counts_of_shares({1: 0.5, 2: 0.25, 3: 0.25}, 10)
    {1: 5, 2: 3, 3: 2}
    """
    # Rounding first: 3 items of 7 give 0.42857... * 7 = 2.9999999999999996, which is 3.
    exact = {level: round(share * total, 6) for level, share in shares.items()}
    counts = {level: int(value) for level, value in exact.items()}
    by_remainder = sorted(exact, key=lambda level: (counts[level] - exact[level], level))
    for level in by_remainder[: total - sum(counts.values())]:
        counts[level] += 1
    return counts
