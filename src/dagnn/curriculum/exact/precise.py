"""Values with a proof (intervals by Arb, through python-flint), and their answers of 3 significant digits."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from threading import RLock

from flint import arb, ctx, fmpq

from dagnn.curriculum.exact.evaluate import DomainError, place
from dagnn.curriculum.exact.simplify import as_number, simplify
from dagnn.curriculum.expression import CONSTANTS, FUNCTIONS, Expr, is_decimal, left_spine, number_of, walk
from dagnn.errors import ExpressionError

SIGNIFICANT_DIGITS = 3


def decimal_leaf(value: float | Fraction | Decimal) -> int | str:
    """The 3-digit leaf nearest to a finite number; ties go to the even digit.

    Raises:
        ExpressionError: infinity or nan.

    >>> decimal_leaf(26.6969), decimal_leaf(0.04118), decimal_leaf(2.0), decimal_leaf(1234.5)
    ('26.7', '0.0412', 2, 1230)
    """
    if isinstance(value, float):
        # Twice as fast as Decimal; both round the exact binary value.
        try:
            digits, exponent = f"{value:.2e}".split("e")
        except ValueError:
            raise ExpressionError(f"{value} has no digits: give a finite number.") from None
        return decimal_of_digits(int(digits.replace(".", "")), int(exponent) - 2)
    return _leaf_of_fraction(Fraction(value))


def _leaf_of_fraction(value: Fraction) -> int | str:
    """In integers: a quotient with finitely many digits cannot detect every tie."""
    if value == 0:
        return 0
    numerator, denominator = abs(value.numerator), value.denominator
    # The number of digits before the point, off by one at most.
    exponent = int((numerator.bit_length() - denominator.bit_length()) * 0.30103) - SIGNIFICANT_DIGITS
    while True:
        above, below = (
            (numerator, denominator * 10**exponent) if exponent >= 0 else (numerator * 10**-exponent, denominator)
        )
        mantissa, rest = divmod(above, below)
        if mantissa >= 1_000:
            exponent += 1
        elif mantissa < 100:
            exponent -= 1
        else:
            break
    if 2 * rest > below or (2 * rest == below and mantissa % 2):
        mantissa += 1
    return decimal_of_digits(mantissa if value > 0 else -mantissa, exponent)


def decimal_of_digits(mantissa: int, exponent: int) -> int | str:
    """The leaf for ``mantissa * 10 ** exponent``.

    >>> decimal_of_digits(267, -1), decimal_of_digits(-412, -4), decimal_of_digits(500, -2), decimal_of_digits(123, 1)
    ('26.7', '-0.0412', 5, 1230)
    """
    if mantissa == 0:
        return 0
    while exponent < 0 and mantissa % 10 == 0:
        mantissa //= 10
        exponent += 1
    if exponent >= 0:
        return mantissa * int(10**exponent)
    sign, digits = ("-", str(-mantissa)) if mantissa < 0 else ("", str(mantissa))
    digits = digits.rjust(1 - exponent, "0")
    return f"{sign}{digits[:exponent]}.{digits[exponent:]}"


def same_decimal(given: Expr, expected: Expr) -> bool:
    """Are both numbers, and equal? ``"2.50"`` equals ``"2.5"``; a fraction or a symbol equals nothing.

    >>> same_decimal("2.50", "2.5"), same_decimal(2, "2.0"), same_decimal(("/", 5, 2), "2.5")
    (True, True, False)
    """
    return (
        _is_plain_number(given)
        and _is_plain_number(expected)
        and (given == expected or Fraction(str(given)) == Fraction(str(expected)))
    )


def _is_plain_number(expr: Expr) -> bool:
    return isinstance(expr, int) or (isinstance(expr, str) and is_decimal(expr))


# 64 bits settle every generated sample; only cancellation needs more. At 16,384 we give up and say so.
_BITS = (64, 256, 1024, 4096, 16384)
# Bits times nodes: a second or two.
_LARGEST_WORK = 1 << 25
_SPINE = ("+", "-", "*", "/", "^")
_TOO_LARGE = arb(2) ** 256  # under exp: the exponent of the value then has 77 digits
_LARGEST_EXPONENT = 3322  # the largest exponent of 2 of a value that is written out: 10 to the 1,000

# The precision is one setting of the library for all threads. Another thread could only make a ball wider, never wrong,
# but then the same expression would not always get an answer.
_PRECISION = RLock()


class Undecided(Exception):
    """The ball of an operand touches the edge of a domain: more bits, or a smaller interval, may decide."""


class _Unbounded(Undecided):
    """The value is too large for a ball, or nearly so."""


def approximate(expr: Expr) -> int | str:
    """The value rounded to 3 significant digits, as a leaf; every digit is proved.

    Computed with growing precision until the whole ball rounds alike, so cancellation and large angles cost time, not
    digits.

    Raises:
        ExpressionError: outside a domain (log of 0, sqrt of a negative number, division by zero, a negative base
            under a fractional exponent); too large or too small to write out; a symbol without a value; or not
            settled at 16,384 bits, as of a sum that is 0 and whose canonical form does not show it.

    >>> approximate(("*", ("log", 9), ("/", 12, ("cos", 19))))
    '26.7'
    """
    size = sum(1 for _ in walk(expr))
    reason, looked = "", False
    for bits in _BITS:
        if bits > _BITS[0] and bits * size > _LARGEST_WORK:
            break
        try:
            ball = enclosure(expr, bits)
        except Undecided as undecided:
            reason = str(undecided)
            continue
        leaf = _leaf(ball)
        if leaf is not None:
            return leaf
        if not looked:  # 0 and ties, which no ball can ever prove, and rationals of up to 4,000 digits
            looked = True
            exact = exact_value(expr)
            if exact is not None:
                return decimal_leaf(exact)
        if 0 in ball:
            reason = f"the value of {place(expr)} is 0 or too near to 0 to tell"
        elif is_far(ball):
            raise ExpressionError(f"the value of {place(expr)} is {_magnitude(ball)}: too far from 1 to write out.")
        else:
            reason = f"the value of {place(expr)} is too near to the middle between two roundings to tell"
    raise ExpressionError(f"{reason}, with {bits:,} bits: no digits of it can be proved.")


def approximate_once(expr: Expr) -> int | str | None:
    """Like ``approximate``, at the first precision only; None where that proves no digits."""
    try:
        return _leaf(enclosure(expr))
    except Undecided:
        return None


def enclosure(expr: Expr, bits: int = _BITS[0], values: Mapping[str, arb | Fraction] | None = None) -> arb:
    """A ball that holds the value.

    Args:
        expr: operators and functions.
        bits: of the centre.
        values: of the symbols, exact; a wide ball gives a ball around all values on that interval.

    Raises:
        Undecided: an operand may or may not lie in the domain of its operator.
        DomainError: it certainly lies outside.
        ExpressionError: a symbol without a value, an operator without one, or a value too large for any ball.
    """
    with _PRECISION, ctx.workprec(bits):
        balls = {name: _of_fraction(v) if isinstance(v, Fraction) else v for name, v in (values or {}).items()}
        return _ball(expr, balls)


def refuse_undefined(expr: Expr) -> None:
    """Refuse an expression if a part without symbols has no real value, as far as 4,096 bits can decide.

    Raises:
        DomainError: log or sqrt of a negative number, a negative number to a fractional power, division by zero ...
        ExpressionError: it cannot be decided whether a part has a value: it divides by what may be 0 ...

    >>> refuse_undefined(("*", "x", ("log", -2)))
    Traceback (most recent call last):
    dagnn.curriculum.exact.evaluate.DomainError: log of a negative number at (log -2): it has no real value.
    """
    applications = [item for item in walk(expr) if isinstance(item, tuple)]
    constant: set[int] = set()
    for application in reversed(applications):  # operands before their operator
        if all(_is_number(operand) or id(operand) in constant for operand in application[1:]):
            constant.add(id(application))
    waiting: list[Expr] = [expr]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, tuple) or (id(item) in constant and _has_value(item)):
            continue
        if item[0] == "/":
            for divisor in item[2:]:
                if id(divisor) in constant:
                    _has_value(("/", 1, divisor))
        first, chain = left_spine(item, ("+", "-", "*"))
        for part in chain:
            waiting += part[2:]
        waiting += [first] if chain else item[1:]


def _has_value(expr: Expr) -> bool:
    """False where the value is too large to decide. Raises where there is none, or may be none."""
    unsure: Undecided | None = None
    for bits in _BITS[:4]:
        try:
            enclosure(expr, bits)
        except _Unbounded:
            return False
        except Undecided as undecided:
            unsure = undecided
        except DomainError:
            raise
        except ExpressionError:
            return False
        else:
            return True
    raise ExpressionError(f"{unsure}, with {bits:,} bits.")


def _is_number(expr: Expr) -> bool:
    return isinstance(expr, int) or (isinstance(expr, str) and (expr in CONSTANTS or is_decimal(expr)))


def _ball(expr: Expr, values: Mapping[str, arb]) -> arb:
    # A sum of 10,000 terms is 10,000 deep on its left side only.
    spine = []
    while isinstance(expr, tuple) and len(expr) > 2 and expr[0] in _SPINE:
        spine.append(expr)
        expr = expr[1]
    result = _leaf_or_function(expr, values)
    for item in reversed(spine):
        head = item[0]
        for operand in item[2:]:
            if head == "^":
                result = _power(result, item, values)
                continue
            value = _ball(operand, values)
            if head == "+":
                result = result + value
            elif head == "-":
                result = result - value
            elif head == "*":
                result = result * value
            else:
                value = _apart_from_zero(value, operand, values, f"whether {{}} is 0, at {place(item)}")
                if value.is_zero():
                    raise DomainError(f"division by zero at {place(item)}.")
                result = result / value
        if not result.is_finite():
            raise _Unbounded(f"it cannot be decided how large {place(item)} is")
    return result


def _leaf_or_function(expr: Expr, values: Mapping[str, arb]) -> arb:
    if isinstance(expr, int):
        return arb(expr)
    if isinstance(expr, str):
        if expr in values:
            return values[expr]
        if is_decimal(expr):
            return _of_fraction(Fraction(expr))
        if expr in CONSTANTS:
            return arb.const_e() if expr == "e" else arb.pi()
        raise ExpressionError(f"{expr} has no value: bind it with (subst E {expr} value).")
    head = expr[0]
    if len(expr) != 2 or (head != "-" and head not in FUNCTIONS):
        raise ExpressionError(f"{head} has no numeric value, at {place(expr)}.")
    a = _ball(expr[1], values)
    if head == "-":
        return -a
    if head == "sin":
        return a.sin()
    if head == "cos":
        return a.cos()
    if head == "exp":
        if a > _TOO_LARGE:
            raise ExpressionError(f"the value at {place(expr)} is too large.")
        result = a.exp()
    elif head == "tan":
        result = a.tan()
        if not result.is_finite() and not values:
            simplify(expr)  # raises at a pole that it knows
    else:
        a = _apart_from_zero(a, expr[1], values, f"the sign of {{}}, at {place(expr)}")
        if a < 0 or (head == "log" and a.is_zero()):
            what = "0" if a.is_zero() else "a negative number"
            raise DomainError(f"{head} of {what} at {place(expr)}: it has no real value.")
        result = a.log() if head == "log" else a.sqrt()
    if not result.is_finite():
        raise Undecided(f"it cannot be decided whether {place(expr)} has a value")
    return result


def _power(base: arb, expr: tuple[str, Expr, Expr], values: Mapping[str, arb]) -> arb:
    number = number_of(expr[2])
    exponent = _of_fraction(number) if number is not None else _ball(expr[2], values)
    if number is None and not values and isinstance(expr[2], tuple):
        number = exact_value(expr[2])
    if number is not None and number.denominator == 1:
        if number < 0:
            base = _apart_from_zero(base, expr[1], values, f"whether {{}} is 0, at {place(expr)}")
            if base.is_zero():
                raise DomainError(f"zero to a negative power at {place(expr)}: that is a division by zero.")
        return base**number.numerator
    if expr[1] == "e":
        return exponent.exp()
    base = _apart_from_zero(base, expr[1], values, f"the sign of {{}}, at {place(expr)}")
    if base < 0:
        if exponent.contains_integer():
            raise Undecided(f"it cannot be decided whether {place(expr[2])} is a whole number, at {place(expr)}")
        raise DomainError(f"a negative number to a fractional power at {place(expr)}: it has no real value.")
    if base.is_zero():
        if exponent < 0:
            raise DomainError(f"zero to a negative power at {place(expr)}: that is a division by zero.")
        if not exponent > 0:
            raise Undecided(f"it cannot be decided whether {place(expr[2])} is 0, at {place(expr)}")
        return base
    return base**exponent


def _apart_from_zero(ball: arb, expr: Expr, values: Mapping[str, arb], what: str) -> arb:
    """The ball, if 0 is not in it, or it is 0 itself; else the rational that the canonical form shows."""
    if 0 not in ball or ball.is_zero():
        return ball
    exact = None if values else exact_value(expr)
    if exact is None:
        raise Undecided(f"it cannot be decided {what.format(place(expr))}")
    return _of_fraction(exact)


def exact_value(expr: Expr) -> Fraction | None:
    """The rational value of a number that has a value, where its canonical form shows it."""
    try:
        number = as_number(simplify(expr))
    except ExpressionError:
        return None
    return None if number is None else Fraction(number)


def _of_fraction(value: Fraction) -> arb:
    return arb(fmpq(value.numerator, value.denominator))


def _leaf(ball: arb) -> int | str | None:
    """The 3 digits that the whole ball shares; None where there are none, or the value is too long to write out."""
    if 0 in ball:
        return 0 if ball.is_zero() else None
    if is_far(ball):
        return None
    middle = float(ball)
    if ball.rel_accuracy_bits() > 45 and 1e-290 < abs(middle) < 1e290:
        # Takes half the time of the exact ends, which lie between these two.
        leaf = decimal_leaf(middle * (1 - 1e-12))
        if leaf == decimal_leaf(middle * (1 + 1e-12)):
            return leaf
    low, high = map(decimal_leaf, ends_of(ball))
    return low if low == high else None


def is_far(ball: arb) -> bool:
    """Is its centre beyond 10 to the 1,000, or below 10 to the -1,000? Its digits could fill the memory."""
    mantissa, exponent = ball.mid().man_exp()
    return not -_LARGEST_EXPONENT < int(exponent) + int(mantissa).bit_length() < _LARGEST_EXPONENT


def _magnitude(ball: arb) -> str:
    """The decimal exponent."""
    exponent = (abs(ball).log() / arb(10).log()).floor().unique_fmpz()
    return "huge or tiny" if exponent is None else f"10 to the {exponent}"


def ends_of(ball: arb) -> tuple[Fraction, Fraction]:
    """The least and the largest number in a ball; exact, while ``lower()`` rounds to the precision of the moment."""
    middle, radius = _fraction(ball.mid()), _fraction(ball.rad())
    return middle - radius, middle + radius


def _fraction(point: arb) -> Fraction:
    mantissa, exponent = point.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
