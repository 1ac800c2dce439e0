"""(subst E x v): the value v for the symbol x, pushed down to the leaves."""

from dagnn.curriculum.rules.numbers import is_number
from dagnn.curriculum.rules.registry import rule
from dagnn.graph.rewriting.window import Replacement, Window


@rule("subst", depth=1)
def subst(expression: Window, symbol: Window, value: Window) -> Replacement:
    if expression is symbol:
        return value
    if is_number(expression) or not expression.children:
        return expression
    return (expression.kind, *(("subst", child, symbol, value) for child in expression.children))
