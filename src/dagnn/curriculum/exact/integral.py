"""Integrals of the supported forms: polynomials, powers and functions of a linear term, by parts, by substitution.

Each rule is a function from the integrand to an antiderivative or None; ``antiderivative`` takes the first that knows
the form. To add a form, write such a function and put it into ``_RULES``.
"""

import cmath
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dagnn.curriculum.exact.derivative import derivative
from dagnn.curriculum.exact.evaluate import place
from dagnn.curriculum.exact.numeric import complex_value
from dagnn.curriculum.exact.polynomial import (
    has_root_between,
    polynomial_expression,
    polynomial_of,
    raised,
    value_at,
)
from dagnn.curriculum.exact.simplify import (
    add,
    apply_function,
    as_number,
    collect_terms,
    divide,
    multiply,
    raise_to,
    simplify,
    subtract,
)
from dagnn.curriculum.exact.substitute import substitute
from dagnn.curriculum.expression import FUNCTIONS, Expr, free_symbols, from_fraction, walk
from dagnn.errors import ExpressionError

_MAX_STEPS = 40  # by parts and by substitution nest; a polynomial factor of degree n takes n steps
_CHECKED_POINTS = 257  # samples of the interval in the search for poles


def antiderivative(expr: Expr, symbol: str) -> Expr:
    """A function whose derivative by ``symbol`` is the expression; the constant of integration is left out.

    Args:
        expr: canonical (the result of ``simplify``).
        symbol: every other symbol counts as a constant.

    Raises:
        ExpressionError: none of the supported forms.

    >>> antiderivative(("^", "x", 2), "x")
    ('*', ('/', 1, 3), ('^', 'x', 3))
    """
    result = _search(expr, symbol, _MAX_STEPS)
    if result is None:
        raise ExpressionError(
            f"no supported antiderivative of {place(expr)}: the forms are polynomials, powers and functions of "
            "a x + b, x^n times exp, sin, cos or log, and c g(u) u'."
        )
    return collect_terms(result)


def definite_integral(expr: Expr, symbol: str, lower: Expr, upper: Expr) -> Expr:
    """The integral from ``lower`` to ``upper``, exact: the antiderivative's difference, canonical.

    Raises:
        ExpressionError: none of the supported forms, or the integrand has a pole in the interval.

    >>> definite_integral(("/", 1, "x"), "x", 1, "e")
    1
    """
    polynomial, start, end = polynomial_of(expr, symbol), as_number(lower), as_number(upper)
    if polynomial is not None and start is not None and end is not None:
        primitive = raised(polynomial)
        return from_fraction(value_at(primitive, Fraction(end)) - value_at(primitive, Fraction(start)))
    _refuse_poles(expr, symbol, lower, upper)
    whole = _with_real_logs(antiderivative(expr, symbol), symbol, lower)
    return subtract(simplify(substitute(whole, symbol, upper)), simplify(substitute(whole, symbol, lower)))


def _with_real_logs(whole: Expr, symbol: str, lower: Expr) -> Expr:
    """``log(-u)`` for a ``log(u)`` of negative numbers: the same derivative. No u is 0 in the interval."""
    if not isinstance(whole, tuple):
        return whole
    if whole[0] == "log":
        try:
            at_lower = complex_value(substitute(whole[1], symbol, lower), {})
        except (ExpressionError, ArithmeticError, ValueError):
            return whole  # a symbolic bound
        return apply_function("log", multiply(-1, whole[1])) if at_lower.real < 0 else whole
    return (whole[0], *[_with_real_logs(operand, symbol, lower) for operand in whole[1:]])


def _search(expr: Expr, symbol: str, steps: int) -> Expr | None:
    if steps == 0:
        return None
    if symbol not in free_symbols(expr):
        return multiply(expr, symbol)
    for rule in _RULES:
        result = rule(expr, symbol, steps)
        if result is not None:
            return result
    return None


def _of_sum(expr: Expr, symbol: str, steps: int) -> Expr | None:
    if not (isinstance(expr, tuple) and expr[0] in ("+", "-")):
        return None
    left, right = _search(expr[1], symbol, steps), _search(expr[2], symbol, steps)
    if left is None or right is None:
        return None
    return add(left, right) if expr[0] == "+" else subtract(left, right)


def _constant_factor(expr: Expr, symbol: str, steps: int) -> Expr | None:
    """``c f`` and ``f / c``."""
    if not (isinstance(expr, tuple) and expr[0] in ("*", "/")):
        return None
    head, a, b = expr
    if symbol not in free_symbols(b):
        inner = _search(a, symbol, steps)
        return None if inner is None else (multiply(b, inner) if head == "*" else divide(inner, b))
    if symbol not in free_symbols(a) and a != 1:
        inner = _search(b if head == "*" else divide(1, b), symbol, steps)
        return None if inner is None else multiply(a, inner)
    return None


def _of_polynomial(expr: Expr, symbol: str, steps: int) -> Expr | None:
    """A product or a power, multiplied out."""
    polynomial = polynomial_of(expr, symbol)
    if polynomial is None:
        return None
    return polynomial_expression(raised(polynomial), symbol)


def _of_linear_term(expr: Expr, symbol: str, steps: int) -> Expr | None:
    """``f(a x + b)`` for a function or a power f: the antiderivative of f there, over a."""
    outer = _outer_and_inner(expr, symbol)
    if outer is None:
        return None
    build, inner = outer
    slope = _slope(inner, symbol)
    whole = build(inner) if slope is not None else None
    return None if slope is None or whole is None else divide(whole, slope)


def _by_parts(expr: Expr, symbol: str, steps: int) -> Expr | None:
    """``p g`` with a polynomial p: ``p G - integral of p' G``; ``p log(u)`` the other way round."""
    if not (isinstance(expr, tuple) and expr[0] == "*"):
        return None
    for p, g in (expr[1:], expr[:0:-1]):
        polynomial = polynomial_of(p, symbol)
        if polynomial is None or not isinstance(g, tuple):
            continue
        if g[0] == "log" and g[1] == symbol:
            # The antiderivative of p over x is a polynomial again: its constant is 0.
            primitive = raised(polynomial)
            subtracted = polynomial_expression(raised(primitive[1:]), symbol)
            return subtract(multiply(polynomial_expression(primitive, symbol), g), subtracted)
        if g[0] in ("exp", "sin", "cos") and _slope(g[1], symbol) is not None:
            whole = _of_linear_term(g, symbol, steps)
            assert whole is not None
            rest = _search(simplify(multiply(derivative(p, symbol), whole)), symbol, steps - 1)
            return None if rest is None else subtract(multiply(p, whole), rest)
    return None


def _by_substitution(expr: Expr, symbol: str, steps: int) -> Expr | None:
    """``c g(u) u'``: the other factor over ``u'`` must be free of the symbol."""
    if not isinstance(expr, tuple) or expr[0] not in ("*", "/"):
        return None
    head, a, b = expr
    pairs = ((a, b), (b, a)) if head == "*" else ((a, divide(1, b)), (divide(1, b), a))
    for factor, rest in pairs:
        # g(u), then the factor itself as u: sin(x) cos(x), log(x) / x.
        for outer in (_outer_and_inner(factor, symbol), (_square_rule, factor)):
            if outer is None:
                continue
            build, inner = outer
            ratio = _constant_ratio(rest, derivative(inner, symbol), symbol)
            whole = build(inner) if ratio is not None else None
            if ratio is not None and whole is not None:
                return multiply(ratio, whole)
    return None


def _expanded_product(expr: Expr, symbol: str, steps: int) -> Expr | None:
    """``(a + b) c`` and ``(a + b) / c`` term by term."""
    if not (isinstance(expr, tuple) and expr[0] in ("*", "/")):
        return None
    head, a, b = expr
    if isinstance(a, tuple) and a[0] in ("+", "-"):
        parts = (a[0], simplify((head, a[1], b)), simplify((head, a[2], b)))
    elif head == "*" and isinstance(b, tuple) and b[0] in ("+", "-"):
        parts = (b[0], simplify((head, a, b[1])), simplify((head, a, b[2])))
    else:
        return None
    return _of_sum(parts, symbol, steps - 1)


_RULES: tuple[Callable[[Expr, str, int], Expr | None], ...] = (
    _of_sum,
    _constant_factor,
    _of_linear_term,  # before the polynomials: (2 x + 1)^5 is not multiplied out
    _of_polynomial,
    _by_parts,
    _by_substitution,
    _expanded_product,
)


def _outer_and_inner(expr: Expr, symbol: str) -> tuple[Callable[[Expr], Expr | None], Expr] | None:
    """``(G, u)`` for an expression ``g(u)``, where ``G(u)`` is the antiderivative of g at u."""
    if not isinstance(expr, tuple):
        return None
    head = expr[0]
    if head in FUNCTIONS:
        return _OF_FUNCTION[head], expr[1]
    if head == "/" and expr[1] == 1:
        base, exponent = expr[2], Fraction(-1)
        if isinstance(base, tuple) and base[0] == "^" and isinstance(base[2], int):
            base, exponent = base[1], Fraction(-base[2])
        elif isinstance(base, tuple) and base[0] == "sqrt":
            base, exponent = base[1], Fraction(-1, 2)
        return lambda u: _power_rule(u, exponent), base
    if head == "^":
        number = as_number(expr[2])
        if number is not None:
            return lambda u: _power_rule(u, Fraction(number)), expr[1]
        if symbol not in free_symbols(expr[1]):
            return lambda u: divide(raise_to(expr[1], u), apply_function("log", expr[1])), expr[2]
    return None


def _square_rule(u: Expr) -> Expr:
    return _power_rule(u, Fraction(1))


def _power_rule(u: Expr, exponent: Fraction) -> Expr:
    if exponent == -1:
        return apply_function("log", u)
    if exponent == Fraction(-1, 2):
        return multiply(2, apply_function("sqrt", u))
    raised = from_fraction(exponent + 1)
    return divide(raise_to(u, raised), raised)


_OF_FUNCTION: dict[str, Callable[[Expr], Expr | None]] = {
    "sin": lambda u: multiply(-1, apply_function("cos", u)),
    "cos": lambda u: apply_function("sin", u),
    "tan": lambda u: multiply(-1, apply_function("log", apply_function("cos", u))),
    "exp": lambda u: apply_function("exp", u),
    "log": lambda u: subtract(multiply(u, apply_function("log", u)), u),
    "sqrt": lambda u: multiply(("/", 2, 3), multiply(u, apply_function("sqrt", u))),
}


def _slope(expr: Expr, symbol: str) -> Expr | None:
    """The constant derivative of a linear term, or None for anything else."""
    slope = derivative(expr, symbol)
    return slope if slope != 0 and symbol not in free_symbols(slope) else None


def _constant_ratio(a: Expr, b: Expr, symbol: str) -> Expr | None:
    """``a / b`` if it does not contain the symbol."""
    if b == 0:
        return None
    ratio = divide(a, b)
    if symbol not in free_symbols(ratio):
        return ratio
    over, under = polynomial_of(a, symbol), polynomial_of(b, symbol)
    if not over or not under or len(over) != len(under):
        return None
    factor = over[-1] / under[-1]
    return from_fraction(factor) if all(p == factor * q for p, q in zip(over, under, strict=True)) else None


def _refuse_poles(expr: Expr, symbol: str, lower: Expr, upper: Expr) -> None:
    """Refuse an integrand with a zero divisor, or a log or sqrt of a negative number, between numeric bounds.

    Every factor of a divisor is looked at alone, a power by its base. A zero of a polynomial with rational
    coefficients is always found. Of other factors, and of the arguments of log, sqrt and tan, only the signs at 257
    points are seen: a zero without a change of sign, as in ``(/ 1 (- 1 (sin x)))``, goes unseen unless a point meets
    it, and so do two zeros, or a negative stretch, between two neighbouring points.
    """
    try:
        start, end = complex_value(lower, {}).real, complex_value(upper, {}).real
    except (ExpressionError, ArithmeticError, ValueError):
        return  # a symbolic bound
    for item in walk(expr):
        if not isinstance(item, tuple):
            continue
        if item[0] in ("log", "sqrt") and any(v < 0 for v in _values_between(item[1], symbol, start, end)):
            raise ExpressionError(f"{place(item)} has no real value in all of {place(lower)} to {place(upper)}.")
        for divisor in _divisors(item):
            if _has_zero(divisor, symbol, lower, upper, start, end):
                raise ExpressionError(
                    f"the integrand {place(expr)} has a pole between {place(lower)} and {place(upper)}: "
                    f"{place(divisor)} is 0 there."
                )


def _divisors(expr: tuple[Any, ...]) -> list[Expr]:
    """What must not be 0 for this operator to have a value, in factors without powers and roots."""
    head = expr[0]
    if head == "tan":
        return [("cos", expr[1])]
    if head == "/":
        waiting = [expr[2]]
    elif head == "^" and (as_number(expr[2]) or 0) < 0:
        waiting = [expr[1]]
    else:
        return []
    factors = []
    while waiting:
        factor = waiting.pop()
        if isinstance(factor, tuple) and factor[0] == "*":
            waiting += factor[1:]
        elif isinstance(factor, tuple) and (factor[0] in ("/", "sqrt") or _is_number_power(factor)):
            waiting.append(factor[1])  # walk meets the divisor of a divisor by itself
        else:
            factors.append(factor)
    return factors


def _is_number_power(expr: tuple[Any, ...]) -> bool:
    return expr[0] == "^" and as_number(expr[2]) is not None


def _has_zero(expr: Expr, symbol: str, lower: Expr, upper: Expr, start: float, end: float) -> bool:
    """Between the bounds, both included; ``start`` and ``end`` are the bounds in doubles."""
    polynomial = polynomial_of(expr, symbol)
    if polynomial is not None:
        # An irrational bound may be a zero itself, as of x^2 - 2: its double lies a little to one side.
        beside = Fraction(1, 10**12) * Fraction(1 + abs(start) + abs(end))
        bounds = [
            (Fraction(number), Fraction(number))
            if number is not None
            else (Fraction(at) - beside, Fraction(at) + beside)
            for number, at in ((as_number(lower), start), (as_number(upper), end))
        ]
        return has_root_between(polynomial, min(low for low, _ in bounds), max(high for _, high in bounds))
    values = _values_between(expr, symbol, start, end)
    return any(v == 0 for v in values) or min(values, default=1) < 0 < max(values, default=-1)


def _values_between(expr: Expr, symbol: str, start: float, end: float) -> list[float]:
    """The real ones at 257 points; none if another symbol occurs."""
    if free_symbols(expr) != {symbol}:
        return []
    values = []
    for i in range(_CHECKED_POINTS):
        x = start + (end - start) * i / (_CHECKED_POINTS - 1)
        try:
            value = complex_value(expr, {symbol: complex(x)})
        except (ArithmeticError, ValueError):
            continue
        if cmath.isfinite(value) and abs(value.imag) < 1e-12:
            values.append(value.real)
    return values
