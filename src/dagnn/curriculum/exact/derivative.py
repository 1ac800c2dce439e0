"""Derivatives, one rule per operator and function, and substitution of an expression for a symbol."""

from collections.abc import Callable
from typing import Any

from dagnn.curriculum.exact.evaluate import place
from dagnn.curriculum.exact.simplify import add, apply_function, divide, multiply, raise_to, subtract
from dagnn.curriculum.expression import (
    FUNCTIONS,
    MAX_SIZE,
    Expr,
    free_symbols,
    fresh_symbol,
    left_spine,
    symbols_of,
    walk,
)
from dagnn.errors import ExpressionError


def substitute(expr: Expr, symbol: str, value: Expr) -> Expr:
    """The expression with ``value`` for every ``symbol``; nothing is simplified.

    Args:
        expr: operators and functions only; a symbol that an operator binds is replaced like any other.

    Raises:
        ExpressionError: the result would have more than 100,000 nodes.

    >>> substitute(("+", "x", 3), "x", 2)
    ('+', 2, 3)
    """
    result = _replace(expr, symbol, value)
    check_growth(result)
    return result


def bind_inside(expr: Expr, symbol: str, value: Expr) -> Expr:
    """``value`` for every free ``symbol``, before anything is worked out: ``(solve (= x y) x)`` needs y before.

    A ``derive`` or an antiderivative by the symbol, or by one in the value, is worked out first: a ``subst`` stays
    around it. A bound symbol that the value holds is renamed.

    >>> bind_inside(("approx", "x"), "x", 2)
    ('approx', 2)
    >>> bind_inside(("derive", ("^", "x", 2), "x"), "x", 3)
    ('subst', ('derive', ('^', 'x', 2), 'x'), 'x', 3)
    """
    if not isinstance(expr, tuple):
        return value if expr == symbol else expr
    first, chain = left_spine(expr, ("+", "-", "*", "/"))
    if chain:
        result = bind_inside(first, symbol, value)
        for item in chain:
            result = (item[0], result, *[bind_inside(operand, symbol, value) for operand in item[2:]])
        return result
    head = expr[0]
    if head not in ("subst", "solve", "derive", "integrate"):
        return (head, *[bind_inside(operand, symbol, value) for operand in expr[1:]])
    body, bound, rest = expr[1], expr[2], expr[3:]
    if head == "derive" or (len(expr) == 3 and head == "integrate"):
        if symbol not in free_symbols(expr):
            return expr
        if bound == symbol or bound in free_symbols(value):
            return ("subst", expr, symbol, value)
    elif bound != symbol and bound in free_symbols(value):
        new = fresh_symbol(bound, symbols_of(expr) | symbols_of(value) | {symbol})
        body, bound = bind_inside(body, bound, new), new
    inside = body if bound == symbol else bind_inside(body, symbol, value)
    return (head, inside, bound, *[bind_inside(operand, symbol, value) for operand in rest])


def check_growth(expr: Expr) -> None:
    """Refuse an expression that has grown beyond 100,000 nodes, before it takes all memory."""
    for count, _ in enumerate(walk(expr)):
        if count >= MAX_SIZE:
            raise ExpressionError(f"the expression grows beyond {MAX_SIZE:,} nodes: solve it in parts.")


def _replace(expr: Expr, symbol: str, value: Expr) -> Expr:
    first, chain = left_spine(expr, ("+", "-", "*", "/"))
    if isinstance(first, tuple):
        first = (first[0], *[_replace(operand, symbol, value) for operand in first[1:]])
    elif first == symbol:
        first = value
    for item in chain:
        first = (item[0], first, *[_replace(operand, symbol, value) for operand in item[2:]])
    return first


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
