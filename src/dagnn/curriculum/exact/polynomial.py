"""Polynomials and rational functions as exact coefficients, and equations between them with rational roots."""

from fractions import Fraction
from itertools import pairwise, zip_longest

from flint import fmpq, fmpq_poly

from dagnn.curriculum.exact.evaluate import DomainError, checked_size, evaluate, place, substitute
from dagnn.curriculum.exact.simplify import add, as_number, multiply, raise_to, simplify
from dagnn.curriculum.expression import CONSTANTS, Expr, free_symbols, from_fraction, left_spine, number_of
from dagnn.errors import ExpressionError

# Coefficients from the constant up, without trailing zeros: [5, 2] is 2 x + 5, [] is 0.
Polynomial = list[Fraction]

MAX_DEGREE = 64


def polynomial_of(expr: Expr, symbol: str) -> Polynomial | None:
    """The coefficients of a polynomial in ``symbol``, or None for anything else.

    >>> polynomial_of(("*", 2, ("+", "x", 3)), "x")
    [Fraction(6, 1), Fraction(2, 1)]
    """
    try:
        numerator, denominator = rational_function_of(expr, symbol)
    except ExpressionError:
        return None
    if len(denominator) != 1:
        return None
    return numerator if denominator[0] == 1 else [coefficient / denominator[0] for coefficient in numerator]


def rational_function_of(expr: Expr, symbol: str) -> tuple[Polynomial, Polynomial]:
    """Numerator and denominator; nothing is cancelled, so the denominator is zero wherever the expression is undefined.

    ExpressionError where it is no rational function of ``symbol`` with rational coefficients, or of a degree above 64.
    """
    first, chain = left_spine(expr, ("+", "-", "*", "/"))
    numerator, denominator = _of_leaf_or_function(first, symbol)
    for item in chain:
        head = item[0]
        for operand in item[2:]:
            top, bottom = rational_function_of(operand, symbol)
            if head == "*":
                numerator, denominator = times(numerator, top), times(denominator, bottom)
            elif head == "/":
                if not top:
                    raise DomainError(f"division by zero at {place(item)}.")
                numerator, denominator = times(numerator, bottom), times(denominator, top)
            elif denominator == bottom:
                numerator = plus(numerator, top, -1 if head == "-" else 1)
            else:
                numerator = plus(times(numerator, bottom), times(top, denominator), -1 if head == "-" else 1)
                denominator = times(denominator, bottom)
    return numerator, denominator


def _of_leaf_or_function(expr: Expr, symbol: str) -> tuple[Polynomial, Polynomial]:
    number = number_of(expr)
    if number is not None:
        return _trimmed([number]), [Fraction(1)]
    if isinstance(expr, str):
        if expr != symbol:
            if expr in CONSTANTS:
                raise ExpressionError(f"{expr} is no rational number: only equations of rational numbers are solved.")
            raise ExpressionError(f"{expr} has no rational value: bind it with (subst E {expr} value).")
        return [Fraction(0), Fraction(1)], [Fraction(1)]
    assert isinstance(expr, tuple)
    if expr[0] == "^":
        return _power(expr, symbol)
    if expr[0] == "-":
        numerator, denominator = rational_function_of(expr[1], symbol)
        return [-c for c in numerator], denominator
    constant = as_number(simplify(expr))  # (sqrt 4)
    if constant is None:
        raise ExpressionError(f"{place(expr)} is not a polynomial in {symbol}.")
    return _trimmed([Fraction(constant)]), [Fraction(1)]


def plus(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    """``a + sign * b``."""
    return _trimmed([p + sign * q for p, q in zip_longest(a, b, fillvalue=Fraction(0))])


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """``a * b``."""
    if len(a) == 1 and a[0] == 1:
        return b
    if len(b) == 1 and b[0] == 1:
        return a
    if len(a) + len(b) > MAX_DEGREE + 2:
        raise ExpressionError(f"a polynomial of degree above {MAX_DEGREE}.")
    product = [Fraction(0)] * (len(a) + len(b) - 1 if a and b else 0)
    # Most factors are single terms: zero coefficients are skipped.
    terms = [(j, q) for j, q in enumerate(b) if q]
    for i, p in enumerate(a):
        for j, q in terms if p else ():
            product[i + j] += p * q
    for coefficient in product:
        checked_size(coefficient, "a coefficient")
    return product


def raised(polynomial: Polynomial) -> Polynomial:
    """The antiderivative that is 0 at 0."""
    return [Fraction(0), *(c / (degree + 1) for degree, c in enumerate(polynomial))]


def value_at(polynomial: Polynomial, point: Fraction) -> Fraction:
    """The value, by Horner's rule."""
    result = Fraction(0)
    for coefficient in reversed(polynomial):
        result = result * point + coefficient
    return result


def without_root(polynomial: Polynomial, root: Fraction) -> Polynomial:
    """Divided by ``x - root``, which must divide it."""
    quotient, carried = [], Fraction(0)
    for coefficient in reversed(polynomial):
        carried = carried * root + coefficient
        quotient.append(carried)
    return quotient[-2::-1]


def has_root_between(polynomial: Polynomial, lower: Fraction, upper: Fraction) -> bool:
    """Has it a root from ``lower`` to ``upper``, both included? Exact, for rational and irrational roots.

    Source: Sturm, "Mémoire sur la résolution des équations numériques", 1829: the signs of a chain of remainders
    change once less for every root passed.

    >>> has_root_between([Fraction(-2), Fraction(0), Fraction(1)], Fraction(1), Fraction(2))
    True
    """
    if not value_at(polynomial, lower) or not value_at(polynomial, upper):
        return True
    chain = [polynomial, [degree * c for degree, c in enumerate(polynomial)][1:]]
    while chain[-1]:
        # Only signs count: without the common size the coefficients of the chain stay short.
        rest = [-c for c in _remainder(chain[-2], chain[-1])]
        size = abs(rest[-1]) if rest else 1
        chain.append([c / size for c in rest])

    def changes(point: Fraction) -> int:
        signs = [value > 0 for value in (value_at(p, point) for p in chain[:-1]) if value]
        return sum(a != b for a, b in pairwise(signs))

    return changes(lower) > changes(upper)


def polynomial_expression(polynomial: Polynomial, symbol: str) -> Expr:
    """The canonical sum, highest power first.

    >>> polynomial_expression([Fraction(5), Fraction(2)], "x")
    ('+', ('*', 2, 'x'), 5)
    """
    result: Expr = 0
    for degree in range(len(polynomial) - 1, -1, -1):
        term = multiply(from_fraction(polynomial[degree]), raise_to(symbol, degree))
        result = add(result, term)
    return result


def _power(expr: tuple[object, Expr, Expr], symbol: str) -> tuple[Polynomial, Polynomial]:
    """A whole power; the exponent may be any expression without symbols."""
    exponent = evaluate(expr[2]) if not free_symbols(expr[2]) else None
    if exponent is None or exponent.denominator != 1:
        raise ExpressionError(f"{place(expr)} is not a polynomial in {symbol}: the exponent is no whole number.")
    numerator, denominator = rational_function_of(expr[1], symbol)
    if exponent < 0:
        if not numerator:
            raise DomainError(f"zero to a negative power at {place(expr)}: that is a division by zero.")
        numerator, denominator = denominator, numerator
    count = abs(exponent.numerator)
    if expr[1] == symbol and 0 <= exponent <= MAX_DEGREE:
        return [Fraction(0)] * count + [Fraction(1)], [Fraction(1)]
    if count > MAX_DEGREE:
        if len(numerator) <= 1 and len(denominator) <= 1:
            return _trimmed([evaluate(expr)]), [Fraction(1)]
        raise ExpressionError(f"a polynomial of degree above {MAX_DEGREE} at {place(expr)}.")
    top, bottom = [Fraction(1)], [Fraction(1)]
    for _ in range(count):
        top, bottom = times(top, numerator), times(bottom, denominator)
    return top, bottom


def _remainder(a: Polynomial, b: Polynomial) -> Polynomial:
    """What is left of ``a`` after division by ``b``."""
    rest = list(a)
    while len(rest) >= len(b):
        factor, shift = rest[-1] / b[-1], len(rest) - len(b)
        for i, c in enumerate(b):
            rest[shift + i] -= factor * c
        rest.pop()
        _trimmed(rest)
    return rest


def _trimmed(coefficients: Polynomial) -> Polynomial:
    while coefficients and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def solve(left: Expr, right: Expr, symbol: str) -> Expr:
    """The value of ``symbol`` that makes both sides equal; several values as ``(roots r1 r2)`` in rising order.

    Args:
        left, right: operators and functions, as written: every part of them must have a value at a root.

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
    """Do all parts of both sides have a value? At 0 ``(/ 1 (/ 1 x))`` has none, though its canonical form is x."""
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
