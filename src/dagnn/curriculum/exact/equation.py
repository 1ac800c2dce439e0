"""Equations in one unknown: linear, and quadratic with rational roots."""

from fractions import Fraction

from dagnn.curriculum.exact.evaluate import exact_root, place
from dagnn.curriculum.exact.polynomial import Polynomial, plus, rational_function_of, times, value_at
from dagnn.curriculum.expression import Expr, from_fraction
from dagnn.errors import ExpressionError


def solve(left: Expr, right: Expr, symbol: str) -> Expr:
    """The value of ``symbol`` that makes both sides equal; two values as ``(roots r1 r2)`` in rising order.

    Raises:
        ExpressionError: no solution, every number a solution, irrational or complex roots, or no linear or
            quadratic equation.

    >>> solve(("+", ("*", 2, "x"), 5), 13, "x")
    4
    >>> solve(("^", "x", 2), 9, "x")
    ('roots', -3, 3)
    """
    roots = rational_roots(left, right, symbol)
    if len(roots) == 1:
        return from_fraction(roots[0])
    return ("roots", *map(from_fraction, roots))


def rational_roots(left: Expr, right: Expr, symbol: str) -> list[Fraction]:
    """The one or two solutions, rising. Errors as ``solve``."""
    equation = ("=", left, right)
    (top_left, bottom_left), (top_right, bottom_right) = (rational_function_of(side, symbol) for side in (left, right))
    difference = plus(times(top_left, bottom_right), times(top_right, bottom_left), -1)
    if not difference:
        raise ExpressionError(f"every number solves {place(equation)}.")
    if len(difference) == 1:
        raise ExpressionError(f"no number solves {place(equation)}.")
    if len(difference) > 3:
        raise ExpressionError(
            f"{place(equation)} has degree {len(difference) - 1}: only linear and quadratic equations are solved."
        )
    candidates = _roots(difference, equation)
    # (/ (* x x) x) = 0 becomes x * x = 0, but at 0 the left side has no value.
    roots = [r for r in candidates if value_at(bottom_left, r) and value_at(bottom_right, r)]
    if not roots:
        raise ExpressionError(f"no number solves {place(equation)}: a denominator is zero there.")
    return roots


def _roots(polynomial: Polynomial, equation: Expr) -> list[Fraction]:
    """The rational roots of a linear or quadratic polynomial."""
    if len(polynomial) == 2:
        return [-polynomial[0] / polynomial[1]]
    c0, c1, c2 = polynomial
    discriminant = c1 * c1 - 4 * c2 * c0
    if discriminant < 0:
        raise ExpressionError(f"no real roots: the discriminant of {place(equation)} is {discriminant}.")
    root = exact_root(discriminant, 2)
    if root is None:
        raise ExpressionError(f"no rational roots: the discriminant {discriminant} of {place(equation)} is no square.")
    return sorted({(-c1 - root) / (2 * c2), (-c1 + root) / (2 * c2)})
