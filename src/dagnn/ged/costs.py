"""The cost of every edit, and costs as integers, whose sums compare exactly."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError

ElementCost: TypeAlias = "float | np.ndarray[Any, Any] | Callable[[Any], float]"
PairCost: TypeAlias = "float | np.ndarray[Any, Any] | Callable[[Any, Any], float]"


@dataclass(frozen=True, eq=False, kw_only=True)
class EditCosts:
    """Costs of turning a graph ``a`` into a graph ``b``, all at least 0.

    *Deletions* are charged for what only ``a`` has, *insertions* for what only ``b`` has. In a loss, ``a`` is
    the prediction and ``b`` the target.

    Each insertion or deletion is one of
        - a number, the same for every label;
        - an array ``[num_labels]``, indexed by labels that are integers from 0;
        - a callable ``label -> float``.

    Each substitution is one of
        - a number, charged when the labels differ (equal labels cost 0);
        - an array ``[num_labels, num_labels]``, indexed ``[label in a, label in b]``, its diagonal included;
        - a callable ``(label in a, label in b) -> float``, called for equal labels too.

    A cost is exactly the float that it is given as, and sums of costs compare exactly, whatever they span: 1e-9 counts
    beside 1e12. Costs need not be a metric: a substitution dearer than a deletion and an insertion is replaced by
    these. The distance is a metric only if the costs are one.

    Raises:
        ConfigError: a cost is no number, negative, NaN or infinite, or an array has the wrong shape.

    >>> EditCosts(node_substitution=0.5).node_substitution
    0.5
    """

    node_insertion: ElementCost = 1.0
    node_deletion: ElementCost = 1.0
    node_substitution: PairCost = 1.0
    edge_insertion: ElementCost = 1.0
    edge_deletion: ElementCost = 1.0
    edge_substitution: PairCost = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if callable(value):
                continue
            dimensions = 2 if field.name.endswith("substitution") else 1
            object.__setattr__(self, field.name, _checked(field.name, value, dimensions))

    def constant(self, name: str) -> float:
        """The cost ``name`` as one number.

        Raises:
            ConfigError: it depends on the label.
        """
        value = getattr(self, name)
        if not isinstance(value, float):
            raise ConfigError(
                f"{name} depends on the label (it is a {type(value).__name__}), but the loss takes one number per kind "
                f"of edit: give {name} a float."
            )
        return value


def _checked(name: str, value: Any, dimensions: int) -> "float | np.ndarray[Any, Any]":
    """``value`` as a float or a float64 array of ``dimensions`` dimensions, finite and at least 0."""
    try:
        # A copy, so that later writes into the user's array do not change checked costs.
        plain = value.detach().cpu() if isinstance(value, Tensor) else value
        if isinstance(plain, Tensor) and not plain.is_complex():
            plain = plain.double().numpy()
        array = None if is_no_number(plain) else np.array(plain, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        array = None
    except OverflowError:
        raise ConfigError(f"{name} is {value!r}, larger than any float: a cost must be at most 1.8e308.") from None
    if array is None or value is None:
        raise ConfigError(f"{name} must be a number, an array or a callable, got {value!r}.")
    if array.ndim not in (0, dimensions):
        raise ConfigError(
            f"{name} must be a number or an array with {dimensions} dimension(s), got the shape {list(array.shape)}."
        )
    if dimensions == 2 and array.ndim == 2 and array.shape[0] != array.shape[1]:
        raise ConfigError(f"{name} must be a square matrix [num_labels, num_labels], got {list(array.shape)}.")
    check_cost(name, array)
    return float(array) if array.ndim == 0 else array


def is_no_number(value: Any) -> bool:
    """Whether it is text, a time or a complex number, which NumPy or `float` would convert to a number."""
    if isinstance(value, Tensor):
        return value.is_complex()
    return isinstance(value, str | bytes | bytearray) or np.asarray(value).dtype.kind in "USMmc"


def check_cost(name: str, values: "np.ndarray[Any, Any]") -> None:
    """Raise ConfigError unless every value is finite and at least 0."""
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise ConfigError(f"{where} is {values[index]}: a cost must be finite and at least 0.")


def returned_cost(name: str, value: Any, *labels: Any) -> float:
    """``value``, which the callable ``name`` returned for ``labels``, as a float; ConfigError if it is no number."""
    try:
        if not isinstance(value, int | float) and is_no_number(value):
            raise TypeError
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        given = ", ".join(repr(label) for label in labels)
        raise ConfigError(f"{name}({given}) returned {value!r}: it must return a finite number, at least 0.") from None


def checked_costs(costs: "EditCosts | None") -> "EditCosts":
    """``costs``, or unit costs for None; ConfigError for anything else."""
    if costs is None:
        return UNIT_COSTS
    if not isinstance(costs, EditCosts):
        example = "EditCosts(**costs)" if isinstance(costs, dict) else "EditCosts(node_insertion=2)"
        raise ConfigError(f"costs must be an EditCosts, got {type(costs).__name__}: write {example}.")
    return costs


UNIT_COSTS = EditCosts()
"""The default costs; made once, since checking six costs takes a tenth of the time of a small search."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Objects = NDArray[Any]

# Costs of at most so many units fit any graphs: sums over all pairs of 2,000 nodes, doubled, stay below 2^62.
LARGEST = 2**32

# Deleting and inserting everything may cost at most so many units: bounds are in halves of a unit, and prices of an
# assignment may be twice the largest bound.
ROOM = 2**59


class Integers(NamedTuple):
    """Costs in units: ``integer * unit <= cost <= integer * unit * (1 + error)``; not for costs that cannot matter."""

    parts: list[Ints]
    unit: Fraction
    error: Fraction


def exact_integers(parts: Sequence[Floats]) -> tuple[list[Objects], int]:
    """The numbers as Python's integers, in arrays of objects, and how many of these units make 1: a power of two."""
    distinct, index = _distinct(parts)
    integers, ones = _digits(distinct)
    return _spread(parts, integers, index, object), ones


def small_integers(parts: Sequence[Floats]) -> Integers | None:
    """The costs in units, none above `LARGEST`; None if there is no such unit."""
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
    """The largest common unit of the numbers as people write them: 0.1 is a tenth, although its bits are not.

    None if one of them has too many digits.
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
    """The largest relative excess of a cost over its units; 1 if a cost above 0 has none."""
    errors = [
        cost / (number * unit) - 1 if number else Fraction(cost > 0) for cost, number in zip(costs, units, strict=True)
    ]
    return max(errors, default=Fraction(0))


def _distinct(parts: Sequence[Floats]) -> tuple[list[float], Ints]:
    """The distinct numbers in ascending order, and the index of every number among them."""
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
