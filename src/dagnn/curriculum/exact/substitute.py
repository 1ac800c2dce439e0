"""Substitution: an expression in the place of a symbol."""

from dagnn.curriculum.expression import MAX_SIZE, Expr, walk
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


def check_growth(expr: Expr) -> None:
    """Refuse an expression that has grown beyond 100,000 nodes, before it takes all memory."""
    for count, _ in enumerate(walk(expr)):
        if count >= MAX_SIZE:
            raise ExpressionError(f"the expression grows beyond {MAX_SIZE:,} nodes: solve it in parts.")


def _replace(expr: Expr, symbol: str, value: Expr) -> Expr:
    if isinstance(expr, tuple):
        return (expr[0], *[_replace(operand, symbol, value) for operand in expr[1:]])
    return value if expr == symbol else expr
