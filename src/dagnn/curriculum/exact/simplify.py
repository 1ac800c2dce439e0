"""The canonical form: numbers folded, like terms merged, the number first in products and last in sums.

``simplify`` walks an expression once, innermost first; the smart constructors (``add``, ``multiply``, ...) take
canonical operands and return a canonical result. Each looks at two levels only, so that a local rewriting system can
take the same steps. Two equal expressions may end up different: see ``answer.equivalent`` for that.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Any

from dagnn.curriculum.exact.evaluate import DomainError, checked_size, exact_root, place, power
from dagnn.curriculum.expression import MAX_BITS, Expr, from_fraction, is_decimal, left_spine


def simplify(expr: Expr) -> Expr:
    """The canonical form of an expression of operators and functions (no ``derive``, ``solve`` ... inside).

    Raises:
        ExpressionError: division by zero, log of zero, a number of more than 4,000 digits.

    >>> simplify(("+", "x", ("*", "x", 3)))
    ('*', 4, 'x')
    """
    if not isinstance(expr, tuple):
        return from_fraction(Fraction(expr)) if isinstance(expr, str) and is_decimal(expr) else expr
    first, chain = left_spine(expr, _BINARY)
    result = _simplified_function(first) if isinstance(first, tuple) else simplify(first)
    for item in chain:
        constructor = _BINARY[item[0]]
        for operand in item[2:]:
            result = constructor(result, simplify(operand))
    return result


def _simplified_function(expr: tuple[Any, ...]) -> Expr:
    head = expr[0]
    operands = [simplify(operand) for operand in expr[1:]]
    if len(operands) > 1 or head == "roots":
        return (head, *operands)
    return multiply(-1, operands[0]) if head == "-" else apply_function(head, operands[0])


def collect_terms(expr: Expr) -> Expr:
    """A canonical sum with like terms merged however deep they stand, in the order of their first occurrence.

    >>> collect_terms(("+", ("exp", "x"), ("-", "x", ("exp", "x"))))
    'x'
    """
    counts: dict[Expr, Fraction | int] = {}
    waiting: list[tuple[Fraction | int, Expr]] = [(1, expr)]
    while waiting:
        count, item = waiting.pop()
        if isinstance(item, tuple) and item[0] in ("+", "-"):
            waiting.append((count if item[0] == "+" else -count, item[2]))
            waiting.append((count, item[1]))
            continue
        number = as_number(item)
        factor, rest = (number, 1) if number is not None else _coefficient(item)
        if factor != 1 and isinstance(rest, tuple) and rest[0] in ("+", "-"):
            waiting.append((count * factor, rest))
        else:
            counts[rest] = counts.get(rest, 0) + count * factor
    result: Expr = 0
    for term, count in counts.items():
        result = add(result, multiply(_fold(count), term))
    return result


def add(a: Expr, b: Expr) -> Expr:
    """Canonical ``a + b``."""
    if isinstance(a, int) and isinstance(b, int):
        return _checked(a + b)
    if a == 0:
        return b
    if b == 0:
        return a
    first, second = as_number(a), as_number(b)
    if first is not None:
        return _fold(first + second) if second is not None else add(b, a)
    if isinstance(a, tuple) and a[0] == "+" and (last := as_number(a[2])) is not None:
        if second is not None:
            return add(a[1], _fold(last + second))
        return add(add(a[1], b), a[2])
    if second is None:
        if isinstance(b, tuple) and b[0] == "+" and as_number(b[2]) is not None:
            return add(add(a, b[1]), b[2])
        (count_a, rest_a), (count_b, rest_b) = _coefficient(a), _coefficient(b)
        if rest_a == rest_b:
            return multiply(_fold(count_a + count_b), rest_a)
    return ("+", a, b)


def subtract(a: Expr, b: Expr) -> Expr:
    """Canonical ``a - b``."""
    if isinstance(a, int) and isinstance(b, int):
        return _checked(a - b)
    if b == 0:
        return a
    if a == b:
        return 0
    if a == 0:
        return multiply(-1, b)
    second = as_number(b)
    if second is not None:
        return add(a, _fold(-second))
    if isinstance(b, tuple) and b[0] == "+" and (last := as_number(b[2])) is not None:
        return add(subtract(a, b[1]), _fold(-last))
    if as_number(a) is not None:
        return add(multiply(-1, b), a)
    if isinstance(a, tuple) and a[0] == "+" and as_number(a[2]) is not None:
        return add(subtract(a[1], b), a[2])
    (count_a, rest_a), (count_b, rest_b) = _coefficient(a), _coefficient(b)
    if rest_a == rest_b:
        return multiply(_fold(count_a - count_b), rest_a)
    if count_b < 0:
        return add(a, multiply(_fold(-count_b), rest_b))
    return ("-", a, b)


def multiply(a: Expr, b: Expr) -> Expr:
    """Canonical ``a * b``."""
    if isinstance(a, int) and isinstance(b, int):
        return _checked(a * b)
    if a == 0 or b == 0:
        return 0
    if a == 1:
        return b
    if b == 1:
        return a
    first, second = as_number(a), as_number(b)
    if first is not None:
        if second is not None:
            return _fold(first * second)
        if isinstance(b, tuple) and b[0] == "*" and (count := as_number(b[1])) is not None:
            return multiply(_fold(first * count), b[2])
        return ("*", a, b)
    if second is not None:
        return multiply(b, a)
    (count_a, rest_a), (count_b, rest_b) = _coefficient(a), _coefficient(b)
    if count_a != 1 or count_b != 1:
        return multiply(_fold(count_a * count_b), multiply(rest_a, rest_b))
    if isinstance(b, tuple) and b[0] == "/" and b[1] == 1:
        return divide(a, b[2])
    if isinstance(a, tuple) and a[0] == "/" and a[1] == 1:
        return divide(b, a[2])
    (base_a, exponent_a), (base_b, exponent_b) = _power_of(a), _power_of(b)
    if base_a == base_b:
        return raise_to(base_a, exponent_a + exponent_b)
    return ("*", a, b)


def divide(a: Expr, b: Expr) -> Expr:
    """Canonical ``a / b``; ExpressionError for a zero b."""
    second = as_number(b)
    if second is not None:
        if second == 0:
            raise DomainError(f"division by zero at {place(('/', a, b))}.")
        first = as_number(a)
        return _fold(Fraction(first) / second) if first is not None else multiply(_fold(Fraction(1) / second), a)
    if a == 0:
        return 0
    if a == b:
        return 1
    first = as_number(a)
    if first is not None and first != 1:
        return multiply(a, divide(1, b))
    (count_a, rest_a), (count_b, rest_b) = _coefficient(a), _coefficient(b)
    if count_a != 1 or count_b != 1:
        return multiply(_fold(Fraction(count_a) / count_b), divide(rest_a, rest_b))
    if isinstance(b, tuple) and b[0] == "/" and b[1] == 1:
        return multiply(a, b[2])
    (base_a, exponent_a), (base_b, exponent_b) = _power_of(a), _power_of(b)
    if base_a == base_b:
        left = exponent_a - exponent_b
        return raise_to(base_a, left) if left >= 0 else ("/", 1, raise_to(base_a, -left))
    return ("/", a, b)


def raise_to(a: Expr, b: Expr) -> Expr:
    """Canonical ``a ^ b``; ExpressionError for zero to a negative power, and for more than 4,000 digits."""
    if b == 0:
        return 1
    if b == 1 or a == 1:
        return a
    exponent = as_number(b)
    if exponent is not None:
        base = as_number(a)
        if base is not None:
            if exponent.denominator == 1 or base == 0 or exact_root(base, exponent.denominator) is not None:
                return _fold(power(Fraction(base), Fraction(exponent), ("^", a, b)))
        elif isinstance(a, tuple) and exponent.denominator == 1:
            # (u ^ m) ^ n = u ^ (m n) holds for whole n only: ((x ^ 2) ^ 1/2) is not x for negative x.
            if a[0] == "^" and (inner := as_number(a[2])) is not None:
                return raise_to(a[1], _fold(inner * exponent))
            if a[0] == "*" and (count := as_number(a[1])) is not None and -8 <= exponent <= 8:
                return multiply(_fold(power(Fraction(count), Fraction(exponent), ("^", a, b))), raise_to(a[2], b))
            if a[0] == "sqrt" and exponent.numerator % 2 == 0:
                return raise_to(a[1], exponent.numerator // 2)
    return ("^", a, b)


def apply_function(name: str, a: Expr) -> Expr:
    """Canonical ``name(a)``: a value only where it is exact, such as ``(cos 0)``, ``(sin (/ pi 6))``, not ``(sin 3)``.

    DomainError for log of zero and tan at a pole.
    """
    if isinstance(a, int):
        if a == 0:
            if name == "log":
                raise DomainError("log of 0 at (log 0): it has no value.")
            return 1 if name in ("cos", "exp") else 0
        if a == 1 and name == "log":
            return 0
    if name == "sqrt":
        number = as_number(a)
        root = exact_root(number, 2) if number is not None else None
        return ("sqrt", a) if root is None else from_fraction(root)
    if name == "log":
        if a == "e":
            return 1
        if isinstance(a, tuple) and a[0] == "exp":
            inner: Expr = a[1]
            return inner
    elif name == "exp" and isinstance(a, tuple) and a[0] == "log":
        inner = a[1]
        return inner
    elif name in ("sin", "cos", "tan"):
        half_turns = (
            1 if a == "pi" else as_number(a[1]) if isinstance(a, tuple) and a[0] == "*" and a[2] == "pi" else None
        )
        exact = None if half_turns is None else _at_multiple_of_pi(name, half_turns)
        if exact is not None:
            return exact
    return (name, a)


def _at_multiple_of_pi(name: str, half_turns: Fraction | int) -> Expr | None:
    """sin, cos or tan at multiples of pi / 4 and pi / 6; None elsewhere."""
    twelfths = half_turns * 12
    if twelfths.denominator != 1 or (twelfths % 2 and twelfths % 3):
        return None
    if name == "tan":
        n = int(twelfths % 12)
        if n == 6:
            raise DomainError(f"tan at a pole, at {place(('tan', multiply(_fold(half_turns), 'pi')))}.")
        return multiply(-1, _TANGENT[12 - n]) if n > 6 else _TANGENT[n]
    n = int((twelfths + (6 if name == "cos" else 0)) % 24)
    value = _SINE[min(n % 12, 12 - n % 12)]
    return multiply(-1, value) if n > 12 else value


# By twelfths of half a turn.
_SINE: dict[int, Expr] = {
    0: 0,
    2: ("/", 1, 2),
    3: ("*", ("/", 1, 2), ("sqrt", 2)),
    4: ("*", ("/", 1, 2), ("sqrt", 3)),
    6: 1,
}
_TANGENT: dict[int, Expr] = {0: 0, 2: ("*", ("/", 1, 3), ("sqrt", 3)), 3: 1, 4: ("sqrt", 3)}


def as_number(expr: Expr) -> Fraction | int | None:
    """The value of a canonical number, or None."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, tuple) and expr[0] == "/" and isinstance(expr[1], int) and isinstance(expr[2], int):
        return _fraction(expr[1], expr[2])
    return None


# Every operation needs the same few fractions: the cache takes a twentieth of the time.
_fraction = lru_cache(maxsize=4096)(Fraction)


def _fold(value: Fraction | int) -> Expr:
    if isinstance(value, int):
        return _checked(value)
    folded = from_fraction(value)
    checked_size(value, folded)
    return folded


def _checked(value: int) -> int:
    if value.bit_length() > MAX_BITS:
        checked_size(Fraction(value), "a product")
    return value


def _coefficient(expr: Expr) -> tuple[Fraction | int, Expr]:
    """``(c, u)`` with ``expr = c * u`` for a number c."""
    if isinstance(expr, tuple) and expr[0] == "*":
        count = as_number(expr[1])
        if count is not None:
            return count, expr[2]
    return 1, expr


def _power_of(expr: Expr) -> tuple[Expr, int]:
    """``(u, n)`` with ``expr = u ^ n`` for a whole n."""
    if isinstance(expr, tuple) and expr[0] == "^" and isinstance(expr[2], int):
        return expr[1], expr[2]
    return expr, 1


_BINARY = {"+": add, "-": subtract, "*": multiply, "/": divide, "^": raise_to}
