"""Equations in one unknown between rational functions, all of whose real roots are rational."""

from fractions import Fraction

from flint import fmpq, fmpq_poly

from dagnn.curriculum.exact.evaluate import DomainError, place
from dagnn.curriculum.exact.polynomial import Polynomial, plus, rational_function_of, times
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.exact.substitute import substitute
from dagnn.curriculum.expression import Expr, from_fraction
from dagnn.errors import ExpressionError


def solve(left: Expr, right: Expr, symbol: str) -> Expr:
    """The value of ``symbol`` that makes both sides equal; several values as ``(roots r1 r2)`` in rising order.

    Args:
        left, right: operators and functions, as written: a root has to give every part of them a value.

    Raises:
        ExpressionError: no solution, every number a solution, irrational or complex roots, or no equation between
            rational functions.

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
    """The solutions, rising. Errors as ``solve``."""
    equation = ("=", left, right)
    (top_left, bottom_left), (top_right, bottom_right) = (rational_function_of(side, symbol) for side in (left, right))
    difference = plus(times(top_left, bottom_right), times(top_right, bottom_left), -1)
    if not difference:
        raise ExpressionError(f"every number solves {place(equation)}, as far as both sides have a value.")
    candidates = _real_roots(difference, times(bottom_left, bottom_right), equation)
    roots = [root for root in candidates if _have_values((left, right), symbol, root)]
    if not roots:
        why = ": a denominator is zero there" if len(difference) > 1 else ""
        raise ExpressionError(f"no number solves {place(equation)}{why}.")
    return roots


def _have_values(sides: tuple[Expr, Expr], symbol: str, root: Fraction) -> bool:
    """Every part of both: at 0, ``(/ 1 (/ 1 x))`` has none, though its canonical form is x."""
    try:
        for side in sides:
            simplify(substitute(side, symbol, from_fraction(root)))
    except DomainError:
        return False
    return True


def _real_roots(difference: Polynomial, denominator: Polynomial, equation: Expr) -> list[Fraction]:
    """Rising. What the denominator has in common is divided out: no root of it is a solution."""
    polynomial, below = _as_flint(difference), _as_flint(denominator)
    while (common := polynomial.gcd(below)).degree() > 0:
        polynomial //= common
    _, factors = polynomial.numer().factor()
    roots = [Fraction(-int(factor[0]), int(factor[1])) for factor, _ in factors if factor.degree() == 1]
    higher = [factor for factor, _ in factors if factor.degree() > 1]
    irrational = [factor for factor in higher if any(root.imag == 0 for root, _ in factor.complex_roots())]  # type: ignore[misc, has-type]
    if len(difference) == 3 and higher:
        c0, c1, c2 = difference
        size = c1 * c1 - 4 * c2 * c0
        if irrational:
            raise ExpressionError(f"no rational roots: the discriminant {size} of {place(equation)} is no square.")
        raise ExpressionError(f"no real roots: the discriminant of {place(equation)} is {size}.")
    if irrational:
        raise ExpressionError(f"{place(equation)} has irrational roots: only rational ones are given, and all of them.")
    if higher and not roots:
        raise ExpressionError(f"no real roots: no real number solves {place(equation)}.")
    return sorted(roots)


def _as_flint(polynomial: Polynomial) -> fmpq_poly:
    return fmpq_poly([fmpq(c.numerator, c.denominator) for c in polynomial])
