"""The answer to any legal input, exact, or a refusal in words."""

from fractions import Fraction

from dagnn.curriculum.decimals import decimal_leaf
from dagnn.curriculum.exact.derivative import derivative
from dagnn.curriculum.exact.equation import solve
from dagnn.curriculum.exact.evaluate import evaluate, place
from dagnn.curriculum.exact.integral import antiderivative, definite_integral
from dagnn.curriculum.exact.precise import approximate, refuse_complex
from dagnn.curriculum.exact.simplify import as_number, simplify
from dagnn.curriculum.exact.substitute import check_growth, substitute
from dagnn.curriculum.expression import Expr, check, free_symbols, from_fraction, to_binary, walk
from dagnn.errors import ExpressionError

_ARITHMETIC_LEVELS = (1, 2, 3)
_NUMERIC_LEVEL = 4


def answer(expr: Expr, level: int | None = None) -> Expr:
    """The exact answer: a number, an expression, or ``(roots r1 r2)``.

    Args:
        expr: any expression, as ``parse`` returns it.
        level: 4 reads the expression as ``(approx expr)``, so ``(sin 3)`` is 0.141; on every other level it stays
            ``(sin 3)``. Levels 1 to 3 refuse what has no rational value.

    Raises:
        ExpressionError: no expression, or one without an answer: division by zero, log of 0, no rational roots ...
            Numbers are real: ``(log -1)`` is refused too. Where a symbol is free it stays, as the constant that it
            is: the derivative of ``(* x (log -1))``.

    >>> answer(("solve", ("=", ("+", ("*", 2, "x"), 5), 13), "x"))
    4
    """
    check(expr)
    try:
        if level in _ARITHMETIC_LEVELS or (level is None and _is_arithmetic(expr)):
            return from_fraction(evaluate(expr))
        resolved = resolve(to_binary(expr))
        if isinstance(expr, tuple) and expr[0] == "approx":
            return resolved  # a decimal stays a decimal
        if level == _NUMERIC_LEVEL:
            return _approximate(resolved)
        result = simplify(resolved)
        if not free_symbols(expr):
            refuse_complex(result)
        return result
    except RecursionError:
        raise ExpressionError(f"{place(expr)} grows too deep while it is worked out: solve it in parts.") from None


def resolve(expr: Expr) -> Expr:
    """A binary expression with every ``subst``, ``derive``, ``integrate``, ``solve`` and ``approx`` worked out.

    Plain operators are left as written, so that ``(subst (/ x x) x 0)`` divides by zero instead of being 1.
    """
    if not isinstance(expr, tuple):
        return expr
    head = expr[0]
    if head == "subst":
        return substitute(resolve(expr[1]), expr[2], resolve(expr[3]))
    if head == "derive":
        result = derivative(simplify(resolve(expr[1])), expr[2])
    elif head == "integrate" and len(expr) == 3:
        result = antiderivative(simplify(resolve(expr[1])), expr[2])
    elif head == "integrate":
        bounds = [simplify(resolve(bound)) for bound in expr[3:]]
        result = definite_integral(simplify(resolve(expr[1])), expr[2], *bounds)
    elif head == "solve":
        _, left, right = expr[1]
        return solve(resolve(left), resolve(right), expr[2])
    elif head == "approx":
        return _approximate(resolve(expr[1]))
    elif head == "=":
        raise ExpressionError(f"{place(expr)} is an equation, which has no value: write (solve (= L R) x).")
    else:
        result = (head, *[resolve(operand) for operand in expr[1:]])
    check_growth(result)
    return result


def _approximate(expr: Expr) -> int | str:
    """Three digits. The canonical form first: what is rational needs no series, and (sin pi) is 0, not 1e-26."""
    try:
        exact = as_number(simplify(expr))
    except ExpressionError:
        exact = None  # a power of too many digits may still have three; anything else fails again, in words
    return approximate(expr) if exact is None else decimal_leaf(Fraction(exact))


def _is_arithmetic(expr: Expr) -> bool:
    return not free_symbols(expr) and all(
        item[0] in ("+", "-", "*", "/", "subst") for item in walk(expr) if isinstance(item, tuple)
    )
