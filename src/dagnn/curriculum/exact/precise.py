"""Values to any number of digits, in decimal arithmetic: three correct digits even where floats cancel.

Shares no code with ``numeric``: the standard library's ``decimal`` for exp, log and roots, Taylor series for the
circular functions. So it is also the second opinion on every level-4 answer.
"""

from decimal import Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from functools import lru_cache

from dagnn.curriculum.decimals import decimal_leaf
from dagnn.curriculum.exact.evaluate import place
from dagnn.curriculum.expression import Expr, is_decimal, number_of, walk
from dagnn.errors import ExpressionError

# 25 digits settle every generated sample; more only after cancellation. 800 is where we give up and say so.
_DIGITS = (25, 60, 200, 800)
_LARGEST_EXPONENT = 10**6  # decimal's exponent: 1e1000000


def approximate(expr: Expr) -> int | str:
    """The value rounded to 3 significant digits, as a leaf of ``decimals``; every digit is right.

    Computed twice with growing precision until both agree, so cancellation and large angles cost time, not digits.

    Raises:
        ExpressionError: outside a domain (log of 0, sqrt of a negative number, division by zero, a negative base
            under a fractional exponent), too large, or a symbol without a value.

    >>> approximate(("*", ("log", 9), ("/", 12, ("cos", 19))))
    '26.7'
    """
    before: int | str | None = None
    for digits in _DIGITS:
        value = precise_value(expr, digits)
        # What cancels to nothing at 800 digits is zero as far as we can tell.
        tiny = value == 0 or value.adjusted() < -0.7 * digits
        leaf = 0 if tiny else _leaf(value, expr)
        if leaf == before or (value == 0 and before == 0):
            return leaf
        before = leaf
    raise ExpressionError(f"the digits of {place(expr)} did not settle within {_DIGITS[-1]} digits.")


def approximate_once(expr: Expr) -> int | str:
    """As ``approximate``, at the first precision only: right unless more than 15 digits cancel. Half the time."""
    value = precise_value(expr, _DIGITS[0])
    return 0 if value == 0 or value.adjusted() < -0.7 * _DIGITS[0] else _leaf(value, expr)


def precise_value(expr: Expr, digits: int = 25) -> Decimal:
    """The value in decimal arithmetic of ``digits`` digits; relative error about ``10 ** (2 - digits)`` per step.

    Raises:
        ExpressionError: as ``approximate``.
    """
    context = _context(digits)
    try:
        return _value(expr, context)
    except DivisionByZero:
        raise ExpressionError(f"division by zero at {place(expr)}.") from None
    except Overflow:
        raise ExpressionError(f"the value at {place(expr)} is too large.") from None
    except InvalidOperation:
        raise ExpressionError(f"no real value at {place(expr)}.") from None


def refuse_complex(expr: Expr) -> None:
    """Refuse an expression of numbers that has no real value.

    Nothing else is refused: what is too large or too close to 0 to tell passes.

    Raises:
        ExpressionError: log or sqrt of a negative number, or a negative number to a fractional power.

    >>> refuse_complex(("sqrt", ("+", ("sin", 1), -4)))
    Traceback (most recent call last):
    dagnn.errors.ExpressionError: sqrt of a negative number at (sqrt (+ (sin 1) -4)): it has no real value.
    """
    for item in walk(expr):
        if not (isinstance(item, tuple) and item[0] in ("log", "sqrt", "^")):
            continue
        exponent, exact = number_of(item[-1]), number_of(item[1])
        if item[0] == "^" and exponent is not None and exponent.denominator == 1:
            continue
        try:
            inner = precise_value(item[1])
        except ExpressionError:
            continue  # of an inner operator, whose turn comes, or for another reason
        # What cancels to nothing may be 0.
        if inner < 0 and (exact is not None or inner.adjusted() > -_DIGITS[0] // 2):
            precise_value(item)


def _value(expr: Expr, context: Context) -> Decimal:
    if isinstance(expr, int):
        return context.create_decimal(expr)
    if isinstance(expr, str):
        if is_decimal(expr):
            return context.create_decimal(expr)
        if expr == "e":
            return context.exp(Decimal(1))
        if expr == "pi":
            return _pi(context.prec)
        raise ExpressionError(f"{expr} has no value: bind it with (subst E {expr} value).")
    head = expr[0]
    result = _value(expr[1], context)
    if len(expr) == 2:
        return _function(head, result, expr, context)
    for operand in expr[2:]:
        value = _value(operand, context)
        if head == "+":
            result = context.add(result, value)
        elif head == "-":
            result = context.subtract(result, value)
        elif head == "*":
            result = context.multiply(result, value)
        elif head == "/":
            if value == 0:
                raise ExpressionError(f"division by zero at {place(expr)}.")
            result = context.divide(result, value)
        elif head == "^":
            result = _power(result, value, expr, context)
        else:
            raise ExpressionError(f"{head} has no numeric value, at {place(expr)}.")
    return result


def _function(name: str, a: Decimal, expr: Expr, context: Context) -> Decimal:
    if name == "-":
        return context.minus(a)
    if name == "exp":
        return context.exp(a)
    if name == "log":
        if a <= 0:
            raise ExpressionError(
                f"log of {'0' if a == 0 else 'a negative number'} at {place(expr)}: it has no real value."
            )
        return context.ln(a)
    if name == "sqrt":
        if a < 0:
            raise ExpressionError(f"sqrt of a negative number at {place(expr)}: it has no real value.")
        return context.sqrt(a)
    if name not in ("sin", "cos", "tan"):
        raise ExpressionError(f"{name} has no numeric value, at {place(expr)}.")
    if a.adjusted() > 1_000:
        raise ExpressionError(f"the angle at {place(expr)} is too large: its turns cannot be counted.")
    sine, cosine = _sine_and_cosine(a, context)
    if name == "tan":
        if cosine == 0 or cosine.adjusted() < -0.7 * context.prec:
            raise ExpressionError(f"tan at a pole at {place(expr)}.")
        return context.divide(sine, cosine)
    return sine if name == "sin" else cosine


def _power(base: Decimal, exponent: Decimal, expr: Expr, context: Context) -> Decimal:
    if base == 0:
        if exponent < 0:
            raise ExpressionError(f"zero to a negative power at {place(expr)}: that is a division by zero.")
        return Decimal(1 if exponent == 0 else 0)
    if base < 0 and exponent != exponent.to_integral_value():
        raise ExpressionError(f"a negative number to a fractional power at {place(expr)}: it has no real value.")
    return context.power(base, exponent)


def _sine_and_cosine(angle: Decimal, context: Context) -> tuple[Decimal, Decimal]:
    """Both, by Taylor series around 0 of a 32nd of the angle reduced by half turns, then doubled five times."""
    # Doubling loses about a digit per step, the reduction as many as the angle has before the point.
    wide = _context(context.prec + 8 + max(0, angle.adjusted()))
    half_turn = _pi(wide.prec)
    turns = wide.divide(angle, half_turn).to_integral_value(context=wide)
    x = wide.divide(wide.subtract(angle, wide.multiply(turns, half_turn)), Decimal(32))
    square = wide.multiply(x, x)
    minus_square = square.copy_negate()  # -square would round to the 28 digits of Python's default context
    # versine = 1 - cos keeps its digits near 0, where cos would lose them.
    term, versine, n = wide.divide(square, Decimal(2)), Decimal(0), 2
    smallest = term.adjusted() - wide.prec
    while term and term.adjusted() >= smallest:
        versine = wide.add(versine, term)
        n += 2
        term = wide.divide(wide.multiply(term, minus_square), Decimal((n - 1) * n))
    sine, term, n = Decimal(0), x, 1
    smallest = term.adjusted() - wide.prec
    while term and term.adjusted() >= smallest:
        sine = wide.add(sine, term)
        n += 2
        term = wide.divide(wide.multiply(term, minus_square), Decimal((n - 1) * n))
    for _ in range(5):
        sine, versine = (
            wide.multiply(wide.multiply(sine, 2), wide.subtract(Decimal(1), versine)),
            wide.multiply(wide.multiply(sine, sine), 2),
        )
    cosine = wide.subtract(Decimal(1), versine)
    if wide.remainder(turns, Decimal(2)):
        return sine.copy_negate(), cosine.copy_negate()
    return sine, cosine


@lru_cache(maxsize=64)
def _pi(digits: int) -> Decimal:
    """Machin 1706: pi = 16 arctan(1/5) - 4 arctan(1/239), in integers."""
    one = 10 ** (digits + 10)

    def arctan_of_inverse(n: int) -> int:
        term, total, k, sign = one // n, 0, 1, 1
        while term:
            total += sign * (term // k)
            term //= n * n
            k, sign = k + 2, -sign
        return total

    pi = 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
    return Decimal(pi).scaleb(-(digits + 10), Context(prec=digits + 12))


@lru_cache(maxsize=256)
def _context(digits: int) -> Context:
    return Context(
        prec=digits,
        Emax=_LARGEST_EXPONENT,
        Emin=-_LARGEST_EXPONENT,
        traps=[InvalidOperation, DivisionByZero, Overflow],
    )


def _leaf(value: Decimal, expr: Expr) -> int | str:
    if not -1_000 < value.adjusted() < 1_000:
        raise ExpressionError(
            f"the value of {place(expr)} is 10 to the {value.adjusted()}: too far from 1 to write out."
        )
    try:
        return decimal_leaf(value)
    except DecimalException:
        raise ExpressionError(f"the value of {place(expr)} cannot be rounded.") from None
