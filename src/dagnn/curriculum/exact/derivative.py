"""Derivatives: one rule per operator and function, simplified as they are built."""

from collections.abc import Callable
from typing import Any

from dagnn.curriculum.exact.evaluate import place
from dagnn.curriculum.exact.simplify import add, apply_function, divide, multiply, raise_to, subtract
from dagnn.curriculum.expression import FUNCTIONS, Expr, left_spine
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
