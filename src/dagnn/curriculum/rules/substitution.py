"""(subst E x v): the value v for the symbol x, pushed down to the leaves."""

from dagnn.curriculum.rules.numbers import is_number
from dagnn.curriculum.rules.registry import rule
from dagnn.graph.rewriting.window import Replacement, Window

# What is left of these has found no rule, and still needs its symbol: the integral of f over x has no value at x = 1
# that f at 1 would tell.
_BINDING = ("subst", "derive", "integrate", "times_constant", "coefficients")


@rule("subst", depth=1)
def subst(expression: Window, symbol: Window, value: Window) -> Replacement | None:
    if expression is symbol:
        return value
    if is_number(expression) or not expression.children:
        return expression
    if expression.kind in _BINDING:
        return None
    return (expression.kind, *(("subst", child, symbol, value) for child in expression.children))
