"""A mean over examples that does not depend on who counted which of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Tally:
    """The sum of values over examples, and how many there were: an evaluation returns it for a share of the examples.

    Sums are exact (fractions), so that one process and seven give the same mean to the last bit. A value that is
    not finite makes the mean what a plain sum would: nan or an infinity.

    Attributes:
        total: sum of weight * value.
        count: sum of the weights.

    >>> Tally.of([0.1, 0.2]).merged(Tally.of([0.3])).mean == Tally.of([0.3, 0.2, 0.1]).mean
    True
    """

    total: Fraction | float
    count: Fraction

    @classmethod
    def of(cls, values: Iterable[float], weights: Iterable[float] | None = None) -> "Tally":
        """The tally of these values, each of weight 1 or of its own finite weight."""
        total: Fraction | float = Fraction(0)
        count = Fraction(0)
        pairs = ((value, 1.0) for value in values) if weights is None else zip(values, weights, strict=True)
        for value, weight in pairs:
            value = value if isinstance(value, int | float | Fraction) else float(value)  # NumPy's and torch's numbers
            count += Fraction(weight)
            exact = math.isfinite(value) and not isinstance(total, float)
            total = total + Fraction(value) * Fraction(weight) if exact else float(total) + float(value) * weight
        return cls(total, count)

    def merged(self, other: "Tally") -> "Tally":
        """The tally of both shares."""
        return Tally(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """nan when nothing was counted."""
        return float(self.total / self.count) if self.count else math.nan


def joined_metrics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One evaluation out of those of all processes: tallies are merged, other values are those of the first."""
    joined: dict[str, Any] = {}
    for name, value in parts[0].items():
        if isinstance(value, Tally):
            for part in parts[1:]:
                value = value.merged(part[name])
            value = value.mean
        joined[name] = value
    return joined
