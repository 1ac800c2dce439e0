"""Costs as integers, so that sums of them compare exactly.

A cost is a float, and so a whole multiple of a power of two: as integers of any size all costs are exact. The search
wants 64 bits. Where the costs do not fit, it gets integers ``q`` of another unit, no larger than ``cost / q`` for any
of them: bounds in such integers, times that unit, are bounds of the true costs.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Objects = NDArray[Any]

# Costs of so many units fit whatever the graphs: sums over all pairs of 2,000 nodes, doubled, stay below 2^62.
LARGEST = 2**32

# Deleting and inserting everything may cost so many units. Bounds are in halves, and prices of an assignment may be
# twice the largest bound.
ROOM = 2**59


class Integers(NamedTuple):
    """Costs in units: ``integer * unit <= cost <= integer * unit * (1 + error)``; costs that cannot matter aside."""

    parts: list[Ints]
    unit: Fraction
    error: Fraction


def exact_integers(parts: Sequence[Floats]) -> tuple[list[Objects], int]:
    """The same numbers as Python's integers, in arrays of objects, and how many of them make 1: a power of two."""
    distinct, index = _distinct(parts)
    integers, ones = _digits(distinct)
    return _spread(parts, integers, index, object), ones


def small_integers(parts: Sequence[Floats]) -> Integers | None:
    """The costs in units, none of them above `LARGEST`; None if no unit divides them so."""
    distinct, index = _distinct(parts)
    if all(value.is_integer() for value in distinct) and (not distinct or distinct[-1] <= LARGEST):  # nearly always
        unit = math.gcd(*map(int, distinct)) or 1
        units = [int(value) // unit for value in distinct]
        return Integers(_spread(parts, units, index, np.int64), Fraction(unit), Fraction(0))
    read = _as_read(distinct)
    if read is None or distinct[-1] > read * LARGEST:
        return None
    units = [round(Fraction(value) / read) for value in distinct]
    integers, ones = _digits(distinct)
    largest = _largest_unit(integers, units, ones, read)
    return Integers(_spread(parts, units, index, np.int64), largest, _error(integers, units, largest * ones))


def wide_integers(
    parts: Sequence[Floats], cap: Fraction | None, everything: Callable[[Sequence[Objects]], int]
) -> Integers:
    """The costs in units that fit 64 bits, exactly or as finely as can be.

    Args:
        cap: costs above it become some larger number: no edit that dear will be made. None: what is never paid.
        everything: of costs in integers of any size, what it costs at most to delete and insert everything.
    """
    distinct, index = _distinct(parts)
    integers, ones = _digits(distinct)
    highest = everything(_spread(parts, integers, index, object)) if cap is None else int(cap * ones)
    below = [integer for integer in integers if integer <= highest]
    unit = math.gcd(*below) or highest + 1
    beyond = (highest // unit + 1) * unit
    integers = [min(integer, beyond) for integer in integers]
    total = everything(_spread(parts, integers, index, object))
    if total <= ROOM * unit:
        units = [integer // unit for integer in integers]
        return Integers(_spread(parts, units, index, np.int64), Fraction(unit, ones), Fraction(0))

    read = _as_read(distinct[: len(below)])
    if read is not None and total <= (ROOM - (ROOM >> 20)) * read * ones:
        units = [round(integer / (read * ones)) for integer in below]
    else:
        coarse = -(-total // ROOM)
        units = [integer // coarse for integer in below]
        read = Fraction(coarse, ones)
    largest_unit = _largest_unit(below, units, ones, read)
    error = _error(below, units, largest_unit * ones)
    units += [int(highest / (largest_unit * ones)) + 1] * (len(distinct) - len(below))
    return Integers(_spread(parts, units, index, np.int64), largest_unit, error)


def _as_read(values: Sequence[float]) -> Fraction | None:
    """The largest unit of the numbers as people write them: 0.1 is a tenth, although its bits are not.

    None if the digits of one of them go on and on.
    """
    found = []
    for value in values:
        simple = Fraction(value).limit_denominator(10_000)
        if float(simple) != value:
            simple = Fraction(repr(value))
            if len(str(simple.numerator)) > 10:
                return None
        found.append(simple)
    denominator = math.lcm(*(number.denominator for number in found))
    return Fraction(math.gcd(*(int(number * denominator) for number in found)) or 1, denominator)


def _largest_unit(costs: Sequence[int], units: Sequence[int], ones: int, about: Fraction) -> Fraction:
    """The largest unit of which no cost is less than its number of ``units``."""
    ratios = {Fraction(cost, number * ones) for cost, number in zip(costs, units, strict=True) if number}
    return min(ratios, default=about)


def _error(costs: Sequence[int], units: Sequence[int], unit: Fraction) -> Fraction:
    """By which part of what it is read as a cost is larger, at most; 1 where a cost is read as nothing."""
    errors = [
        cost / (number * unit) - 1 if number else Fraction(cost > 0) for cost, number in zip(costs, units, strict=True)
    ]
    return max(errors, default=Fraction(0))


def _distinct(parts: Sequence[Floats]) -> tuple[list[float], Ints]:
    """The different numbers in ascending order, and the place of every number among them."""
    distinct, index = np.unique(np.concatenate([part.ravel() for part in parts]), return_inverse=True)
    return distinct.tolist(), index.reshape(-1)


def _digits(values: Sequence[float]) -> tuple[list[int], int]:
    ratios = [value.as_integer_ratio() for value in values]
    ones = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (ones // denominator) for numerator, denominator in ratios], ones


def _spread(parts: Sequence[Floats], values: Sequence[int], index: Ints, dtype: Any) -> list[NDArray[Any]]:
    """``values[index]`` in the shapes of ``parts``."""
    ends = np.cumsum([part.size for part in parts])[:-1]
    table = np.empty(len(values), dtype=dtype)
    table[:] = values
    return [piece.reshape(part.shape) for piece, part in zip(np.split(table[index], ends), parts, strict=True)]
