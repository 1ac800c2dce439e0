"""Derivatives and integrals: a rule for every operator and function, and the supported forms of integrands.

A rule of integration is a function from the integrand to an antiderivative or None; ``antiderivative`` takes the first
that succeeds. To add a form, write such a function and put it into ``_RULES``.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dagnn.curriculum.exact.continuity import refuse_discontinuous
from dagnn.curriculum.exact.evaluate import place, substitute
from dagnn.curriculum.exact.polynomial import polynomial_expression, polynomial_of, raised, value_at
from dagnn.curriculum.exact.precise import Undecided, enclosure, refuse_undefined
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
from dagnn.curriculum.expression import FUNCTIONS, Expr, free_symbols, from_fraction, left_spine
from dagnn.errors import ExpressionError


def derivative(expr: Expr, symbol: str) -> Expr:
    """The derivative by ``symbol``, canonical.

    Args:
        expr: canonical (the result of ``simplify``).
        symbol: every other symbol counts as a constant.

    Raises:
        ExpressionError: an operator without a derivative, such as ``=``.

    >>> derivative(("^", "x", "x"), "x")
    ('*', ('+', ('log', 'x'), 1), ('^', 'x', 'x'))
    """
    if not isinstance(expr, tuple):
        return 1 if expr == symbol else 0
    first, chain = left_spine(expr, ("+", "-", "*", "/"))
    result = _of_function(first, symbol) if isinstance(first, tuple) else derivative(first, symbol)
    for item in chain:
        result = _of_operator(item, result, derivative(item[2], symbol))
    return result


def _of_function(expr: tuple[Any, ...], symbol: str) -> Expr:
    head, a = expr[:2]
    if head in FUNCTIONS:
        inner = derivative(a, symbol)
        return 0 if inner == 0 else multiply(_OUTER[head](a), inner)
    if head != "^":
        raise ExpressionError(f"{head} has no derivative, at {place(expr)}.")
    return _of_power(a, expr[2], symbol)


def _of_operator(expr: tuple[Any, ...], da: Expr, db: Expr) -> Expr:
    head, a, b = expr
    if head == "+":
        return add(da, db)
    if head == "-":
        return subtract(da, db)
    if head == "*":
        return add(multiply(da, b), multiply(a, db))
    if db == 0:
        return divide(da, b)
    return divide(subtract(multiply(da, b), multiply(a, db)), raise_to(b, 2))


def _of_power(a: Expr, b: Expr, symbol: str) -> Expr:
    """``(a^b)' = b a^(b-1) a'`` for constant b, ``a^b log(a) b'`` for constant a, else ``a^b (b' log(a) + b a'/a)``."""
    da, db = derivative(a, symbol), derivative(b, symbol)
    if db == 0:
        return 0 if da == 0 else multiply(multiply(b, raise_to(a, subtract(b, 1))), da)
    whole = raise_to(a, b)
    if da == 0:
        return multiply(multiply(apply_function("log", a), whole), db)
    return multiply(add(multiply(apply_function("log", a), db), multiply(divide(da, a), b)), whole)


# f -> f'(a), without the inner derivative.
_OUTER: dict[str, Callable[[Expr], Expr]] = {
    "sin": lambda a: apply_function("cos", a),
    "cos": lambda a: multiply(-1, apply_function("sin", a)),
    "tan": lambda a: add(raise_to(apply_function("tan", a), 2), 1),
    "log": lambda a: divide(1, a),
    "exp": lambda a: apply_function("exp", a),
    "sqrt": lambda a: divide(1, multiply(2, apply_function("sqrt", a))),
}


_MAX_STEPS = 40  # by parts and by substitution nest; a polynomial factor of degree n takes n steps


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

    Args:
        expr: operators and functions, as written: ``(/ x x)`` has no value at 0.
        symbol: every other symbol counts as a constant.
        lower, upper: canonical.

    Raises:
        ExpressionError: none of the supported forms, or an integrand that is not proved continuous between the bounds,
            both included (so improper integrals are refused, those that converge too).

    >>> definite_integral(("/", 1, "x"), "x", 1, "e")
    1
    """
    polynomial, start, end = polynomial_of(expr, symbol), as_number(lower), as_number(upper)
    refuse_discontinuous(expr, symbol, lower, upper)
    if polynomial is not None and start is not None and end is not None:
        primitive = raised(polynomial)
        return from_fraction(value_at(primitive, Fraction(end)) - value_at(primitive, Fraction(start)))
    refuse_undefined(expr)
    whole = _with_real_logs(antiderivative(simplify(expr), symbol), symbol, lower)
    # The integrand is continuous; where the antiderivative is not, its values at the bounds do not give the area.
    refuse_discontinuous(whole, symbol, lower, upper, whole=expr)
    return subtract(simplify(substitute(whole, symbol, upper)), simplify(substitute(whole, symbol, lower)))


def _with_real_logs(whole: Expr, symbol: str, lower: Expr) -> Expr:
    """``log(-u)`` for a ``log(u)`` of negative numbers: the same derivative. No u is 0 in the interval."""
    if not isinstance(whole, tuple) or symbol not in free_symbols(whole):
        return whole
    if whole[0] == "log":
        try:
            at_lower = enclosure(substitute(whole[1], symbol, lower), 256)
        except (ExpressionError, Undecided):
            return whole  # a symbolic bound
        return apply_function("log", multiply(-1, whole[1])) if at_lower < 0 else whole
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
    first, chain = left_spine(expr, ("+", "-"))
    if not chain:
        return None
    result = _search(first, symbol, steps)
    for item in chain:
        term = None if result is None else _search(item[2], symbol, steps)
        if result is None or term is None:
            return None
        result = add(result, term) if item[0] == "+" else subtract(result, term)
    return result


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
        if isinstance(base, tuple) and base[0] == "cos" and exponent == -2:
            return lambda u: apply_function("tan", u), base[1]
        return lambda u: _power_rule(u, exponent), base
    if head == "^":
        number = as_number(expr[2])
        if number == 2 and isinstance(expr[1], tuple) and expr[1][0] == "tan":
            return lambda u: subtract(apply_function("tan", u), u), expr[1][1]
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
