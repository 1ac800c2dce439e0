"""Substitution: an expression in the place of a symbol."""

from dagnn.curriculum.expression import MAX_SIZE, Expr, free_symbols, fresh_symbol, left_spine, symbols_of, walk
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
