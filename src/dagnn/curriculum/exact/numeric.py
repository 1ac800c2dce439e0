"""Floating-point values: fast, for level 4 and for comparing two expressions at points."""

import cmath
import math
from collections.abc import Mapping

from dagnn.curriculum.exact.evaluate import place
from dagnn.curriculum.expression import Expr, is_decimal
from dagnn.errors import ExpressionError

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
    """The value of a level-4 expression, if every step keeps far from the edges of its domain.

    Args:
        expr: ``+ - * / ^`` with two operands, functions, numbers, ``e`` and ``pi``.

    Raises:
        ExpressionError: outside the bounds above; the message names the bound.
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
    """Has the value three digits that a small error cannot change? 0, or in range and not near a rounding tie."""
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
            # Without the sign of a zero: log(1 / -1) and log(-1) are on one side of the cut.
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
