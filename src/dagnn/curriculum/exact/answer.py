"""The exact answer to any legal input, or a refusal in words; and whether two expressions are the same function.

Sameness is decided exactly for rational functions, else by values at points. At real points interval arithmetic proves
that a difference is not 0; what it cannot tell from 0 with 512 bits (4,096 at the first two) counts as 0. Complex
points, where log and sqrt of negative numbers have values too, are compared in doubles.
"""

import cmath
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from dagnn.curriculum.exact.calculus import antiderivative, definite_integral, derivative
from dagnn.curriculum.exact.evaluate import bind_inside, check_growth, complex_value, evaluate, place, substitute
from dagnn.curriculum.exact.polynomial import rational_function_of, solve
from dagnn.curriculum.exact.precise import Undecided, approximate, enclosure, refuse_undefined
from dagnn.curriculum.exact.simplify import as_number, collect_terms, simplify
from dagnn.curriculum.expression import (
    CONSTANTS,
    FUNCTIONS,
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
        return simplified(resolved)
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
            # Where the function has no value it has no derivative either, whatever the formula says.
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
                for side in (left, right):  # refused where the function to be differentiated has no value
                    resolve(("subst", side, expr[2], root))
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
        refuse_undefined(value)  # which does not appear in the result
    return substitute(body, symbol, value)


def _function(expr: Expr, whole: Expr) -> Expr:
    return simplified(_one_value(resolve(expr), whole))


def simplified(expr: Expr) -> Expr:
    """Canonical. Refused if a part has no value, before it can cancel and after."""
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


# Both signs, away from small integers.
_REAL_POINTS = tuple(Fraction(n, 100) for n in (37, -61, 131, -157, 83, 177, -413, 243, 529, 1171))
# Off the axis log and sqrt of negative numbers have values too.
_COMPLEX_POINTS = (
    0.47 + 0.23j, 1.21 - 0.31j, 0.91 + 0.17j, 1.63 + 0.27j, -0.73 + 0.29j, 2.11 - 0.19j, -1.33 - 0.37j, 0.29 - 0.11j,
)  # fmt: skip
_ENOUGH = 4
_TOLERANCE = 1e-9  # relative: what doubles keep of a function of 60 nodes
_ROUNDING = 1e-12  # relative to the largest term of a sum: what cancellation leaves of it
_BITS = (64, 512, 4096)
_SMALL = 1 << 23  # bits times nodes
_UNDEFINED = (ZeroDivisionError, OverflowError, ValueError)


def equivalent(a: Expr, b: Expr, *, up_to_constant: bool = False) -> bool:
    """Do both have the same value wherever both have one?

    Equal canonical forms are equal, and where the difference is a number or a rational function of one symbol, it is
    decided exactly. Otherwise both are compared at up to 18 points, real and complex: at least 4 must agree and no
    point where both are real may differ. Off the real axis a third may differ, because forms such as ``log(a b)`` and
    ``log a + log b`` sit on different branches there.

    Real values are compared to 1,200 digits, complex ones to 9.

    Args:
        a, b: expressions of operators and functions.
        up_to_constant: may they differ by a number, as antiderivatives do? Then every derivative of the difference
            is compared with 0.

    Raises:
        ExpressionError: an operator without a numeric value, such as ``solve``.

    >>> equivalent(("*", 2, "x"), ("+", "x", "x")), equivalent("x", ("+", "x", 1))
    (True, False)
    """
    a, b = to_binary(a), to_binary(b)
    difference = _difference(a, b)
    if up_to_constant:
        return _is_constant(difference)
    exact = _is_zero_function(difference)
    if exact is not None:
        return exact
    symbols = sorted(free_symbols(a) | free_symbols(b))
    return _agree_at_points(a, b, difference, symbols) if symbols else _same_number(a, b, difference)


def _difference(a: Expr, b: Expr) -> Expr:
    """Canonical; as written where a part has no value."""
    try:
        return collect_terms(("-", simplify(a), simplify(b)))
    except ExpressionError:
        return ("-", a, b)


def _is_constant(difference: Expr) -> bool:
    try:
        canonical = simplify(difference)
    except ExpressionError:
        return False  # a part without a value
    return all(equivalent(derivative(canonical, symbol), 0) for symbol in sorted(free_symbols(canonical)))


def _is_zero_function(difference: Expr) -> bool | None:
    """Exact, or None for what is no rational function of one symbol."""
    number = as_number(difference)
    if number is not None:
        return number == 0
    symbols = free_symbols(difference)
    if len(symbols) != 1 or any(item[0] in FUNCTIONS for item in walk(difference) if isinstance(item, tuple)):
        return None
    try:
        numerator, _ = rational_function_of(difference, *symbols)
    except ExpressionError:
        return None
    return not numerator


def _same_number(a: Expr, b: Expr, difference: Expr) -> bool:
    zero = _is_zero(difference, {})
    if zero is not None:
        return zero
    pair = _values(a, b, {})  # no real value: (log -1)
    return pair is not None and _close(a, b, {}, *pair)


def _agree_at_points(a: Expr, b: Expr, difference: Expr, symbols: Sequence[str]) -> bool:
    agree = 0
    for point in _REAL_POINTS:
        place = {name: point * (1000 + 137 * i) / 1000 + Fraction(59 * i, 1000) for i, name in enumerate(symbols)}
        same = _is_zero(difference, place, _BITS if agree < 2 else _BITS[:2])
        if same is None:
            values = {name: complex(float(value)) for name, value in place.items()}
            pair = _values(a, b, values)
            if pair is None or not all(map(_is_real, pair)):
                continue  # a complex value on the axis lies on the edge of a branch: the points off the axis decide
            same = _close(a, b, values, *pair)
        if not same:
            return False
        agree += 1
    if agree >= _ENOUGH:
        return True
    differ = 0
    for z in _COMPLEX_POINTS:
        # Shifted, so that no two symbols are ever equal.
        values = {name: z * (1 + 0.137 * i) + 0.059 * i for i, name in enumerate(symbols)}
        pair = _values(a, b, values)
        if pair is not None:
            same = _close(a, b, values, *pair)
            agree, differ = agree + same, differ + (not same)
    return agree >= _ENOUGH and agree >= 2 * differ


def _values(a: Expr, b: Expr, values: Mapping[str, complex]) -> tuple[complex, complex] | None:
    """Both in doubles, or None unless both are finite."""
    try:
        x, y = complex_value(a, values), complex_value(b, values)
    except ExpressionError:  # a ValueError too, but no point helps
        raise
    except _UNDEFINED:
        return None
    return (x, y) if cmath.isfinite(x) and cmath.isfinite(y) else None


def _close(a: Expr, b: Expr, values: Mapping[str, complex], x: complex, y: complex) -> bool:
    """Equal as far as doubles can decide: relative to the values, or to the largest term where terms cancel."""
    gap = abs(x - y)
    if gap <= _TOLERANCE * max(abs(x), abs(y)):
        return True
    terms = [
        term for part in (*walk(a), *walk(b)) if isinstance(part, tuple) and part[0] in ("+", "-") for term in part[1:]
    ]
    largest = 0.0
    for term in terms:
        try:
            largest = max(largest, abs(complex_value(term, values)))
        except ExpressionError:
            continue  # inside a subst, where another symbol is bound
    return gap <= _ROUNDING * largest


def _is_real(value: complex) -> bool:
    return abs(value.imag) <= _TOLERANCE * abs(value)


def _is_zero(difference: Expr, place: Mapping[str, Fraction], steps: Sequence[int] = _BITS) -> bool | None:
    """Is it 0 at a real point, as far as these bits can decide? None where it has no real value."""
    size = sum(1 for _ in walk(difference))
    same = None
    for bits in steps:
        if bits > steps[0] and bits * size > _SMALL:
            break
        try:
            ball = enclosure(difference, bits, place)
        except Undecided:
            continue
        except ExpressionError:
            return None
        if 0 not in ball:
            return False
        same = True
    return same
