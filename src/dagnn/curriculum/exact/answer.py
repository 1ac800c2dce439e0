"""The answer to any legal input, exact, or a refusal in words."""

from typing import Any

from dagnn.curriculum.exact.calculus import antiderivative, definite_integral, derivative
from dagnn.curriculum.exact.evaluate import bind_inside, check_growth, evaluate, place, substitute
from dagnn.curriculum.exact.polynomial import solve
from dagnn.curriculum.exact.precise import approximate, refuse_undefined
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.expression import (
    CONSTANTS,
    Expr,
    check,
    free_symbols,
    from_fraction,
    left_spine,
    to_binary,
    to_text,
    walk,
)
from dagnn.errors import ExpressionError

_ARITHMETIC_LEVELS = (1, 2, 3)
_NUMERIC_LEVEL = 4
_WORKED_OUT = ("subst", "derive", "integrate", "solve", "roots", "approx", "=")


def answer(expr: Expr, level: int | None = None) -> Expr:
    """The exact answer: a number, an expression, or ``(roots r1 r2)``.

    Args:
        expr: any expression, as ``parse`` returns it.
        level: 4 reads the expression as ``(approx expr)``, so ``(sin 3)`` is 0.141; on every other level it stays
            ``(sin 3)``. Levels 1 to 3 refuse what has no rational value.

    Raises:
        ConfigError: there is no such level.
        ExpressionError: no expression, or one without an answer: division by zero, log of 0, no rational roots ...
            Values are real, those of every part: ``(exp (log -2))`` and ``(* x (log -2))`` are refused.

    >>> answer(("solve", ("=", ("+", ("*", 2, "x"), 5), 13), "x"))
    4
    """
    check(expr)
    if level is not None:
        from dagnn.curriculum.levels import level_spec  # which draws expressions, and so imports this package

        level_spec(level)
    try:
        if level in _ARITHMETIC_LEVELS or (level is None and _is_arithmetic(expr)):
            return from_fraction(evaluate(expr))
        resolved = resolve(to_binary(expr))
        if _is_approximation(expr):
            return resolved  # a decimal stays a decimal
        if level == _NUMERIC_LEVEL:
            return approximate(resolved)
        return _simplified(resolved)
    except RecursionError:
        raise ExpressionError(f"{place(expr)} grows too deep while it is worked out: solve it in parts.") from None


def resolve(expr: Expr) -> Expr:
    """A binary expression with every ``subst``, ``derive``, ``integrate``, ``solve`` and ``approx`` worked out.

    Plain operators are left as written, so that ``(subst (/ x x) x 0)`` divides by zero instead of being 1.
    """
    first, chain = left_spine(expr, ("+", "-", "*", "/"))
    result = _resolved(first) if isinstance(first, tuple) else first
    for item in chain:
        result = (item[0], _one_value(result, item), _one_value(resolve(item[2]), item))
    if chain:
        check_growth(result)
    return result


def _resolved(expr: tuple[Any, ...]) -> Expr:
    head, body = expr[:2]
    result: Expr
    if head == "subst":
        symbol, value = expr[2], _one_value(resolve(expr[3]), expr)
        if not any(isinstance(item, tuple) and item[0] in _WORKED_OUT for item in walk(body)):
            return _substituted(body, symbol, value)
        inside = bind_inside(body, symbol, value)
        check_growth(inside)
        if inside != ("subst", body, symbol, value):
            return resolve(inside)
        if body[0] == "derive" and body[2] == symbol:
            # Where the function has no value it has no slope either, whatever the formula says.
            refuse_undefined(_one_value(resolve(("subst", body[1], symbol, value)), body))
        result = _substituted(resolve(body), symbol, value)
    elif head == "derive":
        result = derivative(_function(body, expr), expr[2])
    elif head == "integrate" and len(expr) == 3:
        result = antiderivative(_function(body, expr), expr[2])
    elif head == "integrate":
        lower, upper = (_function(bound, expr) for bound in expr[3:])
        result = definite_integral(_one_value(resolve(body), expr), expr[2], lower, upper)
    elif head == "solve":
        _, left, right = body
        result = solve(_one_value(resolve(left), expr), _one_value(resolve(right), expr), expr[2])
        if any(isinstance(item, tuple) and item[0] == "derive" for item in walk(body)):
            for root in result[1:] if isinstance(result, tuple) and result[0] == "roots" else (result,):
                for side in (left, right):
                    resolve(("subst", side, expr[2], root))  # refused where a function that is derived has no value
        return result
    elif head == "approx":
        return approximate(_one_value(resolve(body), expr))
    elif head == "=":
        raise ExpressionError(f"{place(expr)} is an equation, which has no value: write (solve (= L R) x).")
    else:
        result = (head, *[_one_value(resolve(operand), expr) for operand in expr[1:]])
    check_growth(result)
    return result


def _substituted(body: Expr, symbol: str, value: Expr) -> Expr:
    if symbol not in free_symbols(body):
        refuse_undefined(value)  # which is not seen again
    return substitute(body, symbol, value)


def _function(expr: Expr, whole: Expr) -> Expr:
    return _simplified(_one_value(resolve(expr), whole))


def _simplified(expr: Expr) -> Expr:
    """Canonical; refused before a part without a value is cancelled, and where cancelling leaves one."""
    refuse_undefined(expr)
    result = simplify(expr)
    refuse_undefined(result)
    return result


def _one_value(expr: Expr, whole: Expr) -> Expr:
    if isinstance(expr, tuple) and expr[0] == "roots":
        values = " and ".join(map(to_text, expr[1:]))
        raise ExpressionError(
            f"{place(whole)} takes one value, and here are the roots {values}: solve that equation alone."
        )
    return expr


def _is_approximation(expr: Expr) -> bool:
    while isinstance(expr, tuple) and expr[0] == "subst":
        expr = expr[1]
    return isinstance(expr, tuple) and expr[0] == "approx"


def _is_arithmetic(expr: Expr) -> bool:
    return not free_symbols(expr) and all(
        item[0] in ("+", "-", "*", "/", "subst") if isinstance(item, tuple) else item not in CONSTANTS
        for item in walk(expr)
    )
