"""Answers of level 4: numbers of 3 significant digits, with one spelling each.

A whole number is an ``int``, anything else a decimal leaf without trailing zeros: ``2``, ``1230``, ``"26.7"``,
``"-0.0412"``, ``"0.5"``. So two answers are the same number exactly when they are the same leaf, and text reads back
to it.
"""

from decimal import Decimal
from fractions import Fraction

from dagnn.curriculum.expression import Expr, is_decimal
from dagnn.errors import ExpressionError

SIGNIFICANT_DIGITS = 3


def decimal_leaf(value: float | Fraction | Decimal) -> int | str:
    """The 3-digit leaf nearest to a finite number; ties go to the even digit.

    Raises:
        ExpressionError: infinity or nan.

    >>> decimal_leaf(26.6969), decimal_leaf(0.04118), decimal_leaf(2.0), decimal_leaf(1234.5)
    ('26.7', '0.0412', 2, 1230)
    """
    if isinstance(value, float):
        # Twice as fast as Decimal; both round the exact binary value.
        try:
            digits, exponent = f"{value:.2e}".split("e")
        except ValueError:
            raise ExpressionError(f"{value} has no digits: give a finite number.") from None
        return decimal_of_digits(int(digits.replace(".", "")), int(exponent) - 2)
    return _leaf_of_fraction(Fraction(value))


def _leaf_of_fraction(value: Fraction) -> int | str:
    """In integers: no quotient of finitely many digits tells every tie."""
    if value == 0:
        return 0
    numerator, denominator = abs(value.numerator), value.denominator
    # The digits before the point, one too many or too few at most.
    exponent = int((numerator.bit_length() - denominator.bit_length()) * 0.30103) - SIGNIFICANT_DIGITS
    while True:
        above, below = (
            (numerator, denominator * 10**exponent) if exponent >= 0 else (numerator * 10**-exponent, denominator)
        )
        mantissa, rest = divmod(above, below)
        if mantissa >= 1_000:
            exponent += 1
        elif mantissa < 100:
            exponent -= 1
        else:
            break
    if 2 * rest > below or (2 * rest == below and mantissa % 2):
        mantissa += 1
    return decimal_of_digits(mantissa if value > 0 else -mantissa, exponent)


def decimal_of_digits(mantissa: int, exponent: int) -> int | str:
    """The leaf for ``mantissa * 10 ** exponent``.

    >>> decimal_of_digits(267, -1), decimal_of_digits(-412, -4), decimal_of_digits(500, -2), decimal_of_digits(123, 1)
    ('26.7', '-0.0412', 5, 1230)
    """
    if mantissa == 0:
        return 0
    while exponent < 0 and mantissa % 10 == 0:
        mantissa //= 10
        exponent += 1
    if exponent >= 0:
        return mantissa * int(10**exponent)
    sign, digits = ("-", str(-mantissa)) if mantissa < 0 else ("", str(mantissa))
    digits = digits.rjust(1 - exponent, "0")
    return f"{sign}{digits[:exponent]}.{digits[exponent:]}"


def same_decimal(given: Expr, expected: Expr) -> bool:
    """Are both numbers, and equal? ``"2.50"`` equals ``"2.5"``; a fraction or a symbol equals nothing."""
    return (
        _is_plain_number(given)
        and _is_plain_number(expected)
        and (given == expected or Fraction(str(given)) == Fraction(str(expected)))
    )


def _is_plain_number(expr: Expr) -> bool:
    return isinstance(expr, int) or (isinstance(expr, str) and is_decimal(expr))
