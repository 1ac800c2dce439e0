"""Are two expressions the same function? First by their canonical form, then by their values at points."""

import cmath
from collections.abc import Iterator

from dagnn.curriculum.exact.numeric import complex_value
from dagnn.curriculum.exact.simplify import simplify, subtract
from dagnn.curriculum.expression import Expr, free_symbols
from dagnn.errors import ExpressionError

# Real points first, both signs and away from small integers; then off the axis, where log and sqrt of negative
# numbers have values too. Several symbols take shifted points, so that no two are ever equal.
_POINTS: tuple[complex, ...] = (
    0.37 + 0j, 1.31 + 0j, 0.83 + 0j, 1.77 + 0j, -0.61 + 0j, 2.43 + 0j, -1.57 + 0j, 5.29 + 0j, -4.13 + 0j, 11.71 + 0j,
    0.47 + 0.23j, 1.21 - 0.31j, 0.91 + 0.17j, 1.63 + 0.27j, -0.73 + 0.29j, 2.11 - 0.19j, -1.33 - 0.37j, 0.29 - 0.11j,
)  # fmt: skip
_ENOUGH = 4
_TOLERANCE = 1e-6
_FLOOR = 1e-10  # what cancellation leaves of sums that are exactly 0
_LARGEST = 1e9  # above it a double has too few digits left to compare sums
_UNDEFINED = (ZeroDivisionError, OverflowError, ValueError)


def equivalent(a: Expr, b: Expr, *, up_to_constant: bool = False) -> bool:
    """Do both have the same value wherever both have one?

    Equal canonical forms are equal. Otherwise both are compared at up to 18 points, real and complex: at least 4
    must agree and no point where both are real may differ. Off the real axis a third may differ, because forms such
    as ``log(a b)`` and ``log a + log b`` sit on different branches there.

    Args:
        a, b: expressions of operators and functions.
        up_to_constant: compare ``a - b`` with its value at the first point, as for antiderivatives.

    Raises:
        ExpressionError: an operator without a numeric value, such as ``solve``.
    """
    difference = _canonical_difference(a, b)
    if difference is not None and (difference == 0 or (up_to_constant and not free_symbols(difference))):
        return True
    agree = differ = 0
    shift: complex | None = None
    for on_axis, x, y in _values(a, b):
        gap = x - y
        if up_to_constant:
            shift = gap if shift is None else shift
            gap -= shift
        if abs(gap) <= _TOLERANCE * min(abs(x), abs(y)) + _FLOOR:
            agree += 1
            if agree >= 10 and not differ:
                break
        elif not on_axis:
            differ += 1
        elif _is_real(x) and _is_real(y):
            return False
        # On the axis a complex value lies on the edge of a branch: the points off the axis decide.
    return agree >= _ENOUGH and agree >= 2 * differ


def _canonical_difference(a: Expr, b: Expr) -> Expr | None:
    if a == b:
        return 0
    try:
        return subtract(simplify(a), simplify(b))
    except ExpressionError:
        return None


def _values(a: Expr, b: Expr) -> Iterator[tuple[bool, complex, complex]]:
    """Is the point real, and both values: at every point where both are finite and not huge."""
    symbols = sorted(free_symbols(a) | free_symbols(b))
    for point in _POINTS:
        values = {name: point * (1 + 0.137 * i) + 0.059 * i for i, name in enumerate(symbols)}
        try:
            x, y = complex_value(a, values), complex_value(b, values)
        except ExpressionError:  # a ValueError too, but no point helps
            raise
        except _UNDEFINED:
            continue
        if cmath.isfinite(x) and cmath.isfinite(y) and abs(x) <= _LARGEST and abs(y) <= _LARGEST:
            yield point.imag == 0, x, y


def _is_real(value: complex) -> bool:
    return abs(value.imag) <= 1e-9 * (1 + abs(value.real))
