"""Values of expressions: exact rationals and fast floats; and substitution of values for symbols."""

import cmath
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dagnn.curriculum.expression import (
    CONSTANTS,
    MAX_BITS,
    MAX_DIGITS,
    MAX_SIZE,
    Expr,
    free_symbols,
    fresh_symbol,
    is_decimal,
    left_spine,
    shortened,
    symbols_of,
    to_text,
    walk,
)
from dagnn.errors import ExpressionError


class DomainError(ExpressionError):
    """An operand certainly lies outside the domain of its operator: division by zero, log of a negative number ..."""


class LimitError(ExpressionError):
    """An intermediate value is larger than the level allows."""


def evaluate(expr: Expr, values: Mapping[str, Fraction] | None = None, *, limit: int | None = None) -> Fraction:
    """The rational value of an expression of ``+ - * / ^`` and ``subst``.

    ``(^ 0 0)`` is 1, as in Python and SymPy, so that ``(^ x 0)`` is 1 for every x.

    Args:
        expr: a checked expression.
        values: the value of each free symbol.
        limit: refuse every intermediate value whose numerator or denominator exceeds it.

    Raises:
        ExpressionError: division by zero, a power that is not rational, a symbol without a value,
            a number of more than 4,000 digits, or one above ``limit``.

    >>> evaluate(("-", "0.1", "0.1", "0.1"))
    Fraction(-1, 10)
    """
    if isinstance(expr, int):
        return Fraction(expr)
    if isinstance(expr, str):
        if values is not None and expr in values:
            return values[expr]
        if is_decimal(expr):
            return Fraction(expr)
        raise ExpressionError(no_rational_value(expr))
    head = expr[0]
    if head == "subst":
        bound = evaluate(expr[3], values, limit=limit)
        return evaluate(expr[1], {**(values or {}), expr[2]: bound}, limit=limit)
    result = evaluate(expr[1], values, limit=limit)
    if head == "^":
        result = power(result, evaluate(expr[2], values, limit=limit), expr)
    elif head not in ("+", "-", "*", "/"):
        raise ExpressionError(f"{head} has no rational value in general, at {place(expr)}.")
    elif len(expr) == 2:
        result = -result
    for operand in expr[2:] if head != "^" else ():
        value = evaluate(operand, values, limit=limit)
        if head == "+":
            result += value
        elif head == "-":
            result -= value
        elif head == "*":
            result *= value
        elif value:
            result /= value
        else:
            raise DomainError(f"division by zero at {place(expr)}.")
    if limit is not None and (result.denominator > limit or not -limit <= result.numerator <= limit):
        raise LimitError(f"an intermediate value exceeds {limit}.")
    return checked_size(result, expr)


def power(base: Fraction, exponent: Fraction, expr: Expr) -> Fraction:
    """``base ** exponent`` where it is rational, of at most 4,000 digits; an ExpressionError names ``expr``."""
    if base == 0 and exponent < 0:
        raise DomainError(f"zero to a negative power at {place(expr)}: that is a division by zero.")
    if exponent.denominator != 1:
        root = exact_root(base, exponent.denominator)
        if root is None:
            raise ExpressionError(f"no rational value at {place(expr)}: write (approx ...) for 3 digits.")
        base = root
    count = exponent.numerator
    # Refused before it is computed: (^ 9 (^ 9 9)) would take gigabytes.
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if bits * abs(count) > MAX_BITS and abs(base) != 1:
        raise ExpressionError(f"the power at {place(expr)} has more than {MAX_DIGITS:,} digits.")
    if abs(base) == 1:
        count %= 2
    return base**count if count >= 0 else 1 / base**-count


def exact_root(value: Fraction | int, degree: int) -> Fraction | None:
    """The rational ``degree``-th root of a number, or None. A negative number's principal root is not real: None."""
    if value < 0:
        return None
    numerator, denominator = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    return None if numerator is None or denominator is None else Fraction(numerator, denominator)


def checked_size(value: Fraction, expr: Expr) -> Fraction:
    """The value, unless it has more than 4,000 digits."""
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise ExpressionError(f"the value at {place(expr)} has more than {MAX_DIGITS:,} digits.")
    return value


def no_rational_value(symbol: str) -> str:
    """The message about a symbol where a rational is needed; no ``subst`` can bind a constant."""
    if symbol in CONSTANTS:
        return f"{symbol} has no rational value: write (approx ...) around the whole for 3 digits."
    return f"{symbol} has no value: bind it with (subst E {symbol} value)."


def place(expr: Any) -> str:
    """The expression as text for an error message, its middle cut out when long."""
    return shortened(to_text(expr))[1:-1]


def _integer_root(value: int, degree: int) -> int | None:
    """The integer ``degree``-th root of ``value >= 0``, or None. Bisection: no float is exact enough above 2**53."""
    if value < 2:
        return value
    if degree >= value.bit_length():
        return None
    low, high = 1, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= value:
            low = middle
        else:
            high = middle - 1
    return low if low**degree == value else None


_CONSTANTS = {"e": math.e, "pi": math.pi}
_COMPLEX_FUNCTIONS = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "log": cmath.log,
    "exp": cmath.exp,
    "sqrt": cmath.sqrt,
}
_OPERATORS = ("+", "-", "*", "/", "^")

# Level 4: outside these bounds three digits are not well defined in floating point.
SMALLEST_COSINE = 0.02  # under tan
EXP_RANGE = (-25.0, 9.2)
SMALLEST_ARGUMENT = 1e-3  # of log and sqrt, and of a divisor
LARGEST_VALUE = 9999.0
LARGEST_EXPONENT = 6
ANSWER_RANGE = (0.01, 9999.0)
TIE_MARGIN = 1e-3  # distance from a rounding tie, in units of the third digit


def well_conditioned_value(expr: Expr) -> float:
    """The value of a level-4 expression, if every step stays far from the edges of its domain, within the bounds above.

    ``expr`` has ``+ - * / ^`` with two operands, functions, numbers, ``e`` and ``pi``. The ExpressionError names the
    bound.
    """
    if isinstance(expr, int):
        return float(expr)
    if isinstance(expr, str):
        if is_decimal(expr):
            return float(expr)
        if expr not in _CONSTANTS:
            raise ExpressionError(f"{expr} has no value here: level 4 has numbers only.")
        return _CONSTANTS[expr]
    head = expr[0]
    a = well_conditioned_value(expr[1])
    if len(expr) == 2:
        result = _well_conditioned_function(head, a)
    else:
        b = well_conditioned_value(expr[2])
        if head == "+":
            result = a + b
        elif head == "-":
            result = a - b
        elif head == "*":
            result = a * b
        elif head == "/":
            if -SMALLEST_ARGUMENT < b < SMALLEST_ARGUMENT:
                raise ExpressionError("a divisor near zero.")
            result = a / b
        elif head == "^":
            if a == 0 or abs(b) > LARGEST_EXPONENT or b != int(b):
                raise ExpressionError("a power of zero, or with a large or fractional exponent.")
            result = a**b
        else:
            raise ExpressionError(f"{head} is no operator of level 4, at {place(expr)}.")
    if not -LARGEST_VALUE <= result <= LARGEST_VALUE:
        raise ExpressionError("a value above 9999.")
    return result


def _well_conditioned_function(name: str, a: float) -> float:
    if name == "sin":
        return math.sin(a)
    if name == "cos":
        return math.cos(a)
    if name == "exp":
        if not EXP_RANGE[0] <= a <= EXP_RANGE[1]:
            raise ExpressionError("exp of a large number.")
        return math.exp(a)
    if name == "log":
        if a <= SMALLEST_ARGUMENT:
            raise ExpressionError("log of a number that is not above 0.001.")
        return math.log(a)
    if name == "sqrt":
        if a < 0 or 0 < a < SMALLEST_ARGUMENT:
            raise ExpressionError("sqrt of a negative or tiny number.")
        return math.sqrt(a)
    if name == "tan":
        if abs(math.cos(a)) < SMALLEST_COSINE:
            raise ExpressionError("tan near a pole.")
        return math.tan(a)
    if name == "-":
        return -a
    raise ExpressionError(f"{name} is no function of level 4.")


def is_well_rounded(value: float) -> bool:
    """Are the three digits safe from a small error? For 0, and for values in range that are not near a rounding tie."""
    if value == 0:
        return True
    size = abs(value)
    if not ANSWER_RANGE[0] <= size <= ANSWER_RANGE[1]:
        return False
    thousandths = size / 10.0 ** (math.floor(math.log10(size)) - 2)
    return abs(thousandths - math.floor(thousandths) - 0.5) >= TIE_MARGIN


def complex_value(expr: Expr, values: Mapping[str, complex]) -> complex:
    """The value at a complex point, on the principal branches. Binary and n-ary operators, functions, ``subst``.

    Raises:
        ZeroDivisionError, OverflowError, ValueError: the point is outside the domain.
        ExpressionError: a symbol without a value, or an operator without one.
    """
    # Written out, not by left_spine: generation spends a quarter of level 5 here.
    chain = None
    while type(expr) is tuple and len(expr) > 2 and expr[0] in _OPERATORS:
        if chain is None:
            chain = [expr]
        else:
            chain.append(expr)
        expr = expr[1]
    a = _complex_leaf_or_function(expr, values)
    if chain is None:
        return a
    for item in reversed(chain):
        head = item[0]
        for operand in item[2:]:
            b = operand if type(operand) is int else complex_value(operand, values)
            if head == "*":
                a *= b
            elif head == "+":
                a += b
            elif head == "^":
                # A whole exponent stays an int: repeated multiplication, exact on the real axis.
                a = (a if type(b) is int or a.imag else complex(a.real)) ** b
            elif head == "-":
                a -= b
            else:
                a /= b
    return a


def _complex_leaf_or_function(expr: Expr, values: Mapping[str, complex]) -> complex:
    if isinstance(expr, tuple):
        head = expr[0]
        if head == "subst":
            return complex_value(expr[1], {**values, expr[2]: complex_value(expr[3], values)})
        function = _COMPLEX_FUNCTIONS.get(head)
        if len(expr) == 2 and (function is not None or head == "-"):
            a = complex_value(expr[1], values)
            # Drop the sign of a zero, so that log(1 / -1) and log(-1) are on the same side of the cut.
            return -a if function is None else function(a if a.imag else complex(a.real))
        raise ExpressionError(f"{head} has no numeric value, at {place(expr)}.")
    if isinstance(expr, int):
        return complex(expr)
    if expr in values:
        return values[expr]
    if expr in _CONSTANTS:
        return complex(_CONSTANTS[expr])
    if is_decimal(expr):
        return complex(float(expr))
    raise ExpressionError(f"{expr} has no value: bind it with (subst E {expr} value).")


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
    """``value`` for every free ``symbol``, before anything is worked out: ``(solve (= x y) x)`` needs y first.

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
    """Refuse an expression of more than 100,000 nodes, before it fills the memory."""
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
