"""The exact value of an expression of numbers: rationals, never floats."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dagnn.curriculum.expression import CONSTANTS, MAX_BITS, MAX_DIGITS, Expr, is_decimal, shortened, to_text
from dagnn.errors import ExpressionError


class DomainError(ExpressionError):
    """An operand certainly lies outside the domain of its operator: division by zero, log of a negative number ..."""


class LimitError(ExpressionError):
    """An intermediate value is larger than the level allows."""


def evaluate(expr: Expr, values: Mapping[str, Fraction] | None = None, *, limit: int | None = None) -> Fraction:
    """The rational value of an expression of ``+ - * / ^`` and ``subst``.

    ``(^ 0 0)`` is 1, as in Python and SymPy, so that ``(^ x 0)`` is 1 for every x.

    Args:
        expr: a checked expression.
        values: the value of each free symbol.
        limit: refuse every intermediate value whose numerator or denominator exceeds it.

    Raises:
        ExpressionError: division by zero, a power that is not rational, a symbol without a value,
            a number of more than 4,000 digits, or one above ``limit``.

    >>> evaluate(("-", "0.1", "0.1", "0.1"))
    Fraction(-1, 10)
    """
    if isinstance(expr, int):
        return Fraction(expr)
    if isinstance(expr, str):
        if values is not None and expr in values:
            return values[expr]
        if is_decimal(expr):
            return Fraction(expr)
        raise ExpressionError(no_rational_value(expr))
    head = expr[0]
    if head == "subst":
        bound = evaluate(expr[3], values, limit=limit)
        return evaluate(expr[1], {**(values or {}), expr[2]: bound}, limit=limit)
    result = evaluate(expr[1], values, limit=limit)
    if head == "^":
        result = power(result, evaluate(expr[2], values, limit=limit), expr)
    elif head not in ("+", "-", "*", "/"):
        raise ExpressionError(f"{head} has no rational value in general, at {place(expr)}.")
    elif len(expr) == 2:
        result = -result
    for operand in expr[2:] if head != "^" else ():
        value = evaluate(operand, values, limit=limit)
        if head == "+":
            result += value
        elif head == "-":
            result -= value
        elif head == "*":
            result *= value
        elif value:
            result /= value
        else:
            raise DomainError(f"division by zero at {place(expr)}.")
    if limit is not None and (result.denominator > limit or not -limit <= result.numerator <= limit):
        raise LimitError(f"an intermediate value exceeds {limit}.")
    return checked_size(result, expr)


def power(base: Fraction, exponent: Fraction, expr: Expr) -> Fraction:
    """``base ** exponent`` where that is rational; ``expr`` is named in the error.

    Raises:
        ExpressionError: zero to a negative power, an irrational root, or more than 4,000 digits.
    """
    if base == 0 and exponent < 0:
        raise DomainError(f"zero to a negative power at {place(expr)}: that is a division by zero.")
    if exponent.denominator != 1:
        root = exact_root(base, exponent.denominator)
        if root is None:
            raise ExpressionError(f"no rational value at {place(expr)}: write (approx ...) for 3 digits.")
        base = root
    count = exponent.numerator
    # Refused before it is computed: (^ 9 (^ 9 9)) would take gigabytes.
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if bits * abs(count) > MAX_BITS and abs(base) != 1:
        raise ExpressionError(f"the power at {place(expr)} has more than {MAX_DIGITS:,} digits.")
    if abs(base) == 1:
        count %= 2
    return base**count if count >= 0 else 1 / base**-count


def exact_root(value: Fraction | int, degree: int) -> Fraction | None:
    """The rational ``degree``-th root of a number, or None. A negative number's principal root is not real: None."""
    if value < 0:
        return None
    numerator, denominator = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    return None if numerator is None or denominator is None else Fraction(numerator, denominator)


def checked_size(value: Fraction, expr: Expr) -> Fraction:
    """The value, unless it has more than 4,000 digits."""
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise ExpressionError(f"the value at {place(expr)} has more than {MAX_DIGITS:,} digits.")
    return value


def no_rational_value(symbol: str) -> str:
    """What to do about a symbol where a rational is needed; no ``subst`` binds a constant."""
    if symbol in CONSTANTS:
        return f"{symbol} has no rational value: write (approx ...) around the whole for 3 digits."
    return f"{symbol} has no value: bind it with (subst E {symbol} value)."


def place(expr: Any) -> str:
    """The expression as text for an error message, its middle cut out when long."""
    return shortened(to_text(expr))[1:-1]


def _integer_root(value: int, degree: int) -> int | None:
    """The integer ``degree``-th root of ``value >= 0``, or None. Bisection: no float is exact enough above 2**53."""
    if value < 2:
        return value
    if degree >= value.bit_length():
        return None
    low, high = 1, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= value:
            low = middle
        else:
            high = middle - 1
    return low if low**degree == value else None
