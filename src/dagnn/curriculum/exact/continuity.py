"""Is a function continuous on an interval? Proved, or not: by the roots of polynomials, exact, and interval arithmetic.

``+ - *``, ``sin``, ``cos`` and ``exp`` of continuous functions are continuous. Every other operator requires something
of an operand on the whole interval: a divisor is not 0, the argument of ``log`` is above 0 ...
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from flint import arb, ctx

from dagnn.curriculum.exact.evaluate import place, substitute
from dagnn.curriculum.exact.polynomial import Polynomial, has_root_between, polynomial_of, value_at, without_root
from dagnn.curriculum.exact.precise import Undecided, enclosure, ends_of, exact_value, is_far
from dagnn.curriculum.expression import Expr, free_symbols, walk
from dagnn.errors import ExpressionError

_BITS = 128
_LARGEST_SEARCH = 600  # pieces of the interval; 2 + sin(x) on 100 half turns takes 400


class _Need(Enum):
    """What an operator requires of an operand, and the words for an operand that fails it."""

    NONZERO = "is 0"
    POSITIVE = "is not above 0"
    NOT_NEGATIVE = "is below 0"


_EVERYWHERE = {
    _Need.NONZERO: "is nowhere 0",
    _Need.POSITIVE: "is above 0 everywhere",
    _Need.NOT_NEGATIVE: "is nowhere below 0",
}


class _Interval(NamedTuple):
    """Rationals on both sides of the bounds, which may be irrational; the same from within; the bounds themselves."""

    lower: Fraction
    upper: Fraction
    inner: tuple[Fraction, Fraction] | None
    bounds: tuple[Expr, Expr]


def refuse_discontinuous(expr: Expr, symbol: str, lower: Expr, upper: Expr, *, whole: Expr | None = None) -> None:
    """Raise an ExpressionError unless a function is proved to be continuous between two bounds, included, in any order.

    Args:
        expr: operators and functions, as written: ``(/ x x)`` has no value at 0. Another symbol counts as a constant
            for which a part without ``symbol`` has a value.
        symbol: what runs from ``lower`` to ``upper``.
        whole: the error names it instead of ``expr``.
    """
    interval: _Interval | None = None
    for need, operand, item in _needs(expr):
        if symbol not in free_symbols(operand):
            sign = "+" if free_symbols(operand) else _sign_of_number(operand)
            if not _holds(need, sign):
                if sign is None:
                    what = "is above 0" if need is _Need.POSITIVE else need.value
                    raise ExpressionError(f"it cannot be decided whether {place(operand)} {what}, in {place(item)}.")
                raise ExpressionError(f"{place(item)} has no real value: {place(operand)} {need.value}.")
            continue
        if interval is None:
            interval = _interval(whole or expr, lower, upper)
        sign = _sign_between(operand, symbol, interval)
        if sign is None and need is not _Need.NOT_NEGATIVE and _is_zero_at_a_bound(operand, symbol, interval):
            sign = "0"
        if _holds(need, sign):
            continue
        named, ends = place(expr if whole is None else whole), f"{place(lower)} and {place(upper)}"
        if sign is None:
            raise ExpressionError(
                f"the integrand {named} is not proved continuous between {ends}: no proof was found that "
                f"{place(operand)} {_EVERYWHERE[need]} there."
            )
        if need is _Need.NONZERO:
            raise ExpressionError(f"the integrand {named} has a pole between {ends}: {place(operand)} is 0 there.")
        why = "would have to stay above 0" if need is _Need.POSITIVE else "is 0 inside, where its sign may change"
        raise ExpressionError(
            f"{place(item)} does not have a real value everywhere between {ends}: {place(operand)} {why}."
        )


def _holds(need: _Need, sign: str | None) -> bool:
    if need is _Need.NONZERO:
        return sign in ("+", "-")
    return sign == "+" or (need is _Need.NOT_NEGATIVE and sign == "+0")


def _needs(expr: Expr) -> Iterator[tuple[_Need, Expr, Expr]]:
    """What is required, of which operand, by which part."""
    for item in walk(expr):
        if not isinstance(item, tuple):
            continue
        head = item[0]
        if head == "/":
            yield from ((_Need.NONZERO, factor, item) for operand in item[2:] for factor in _factors(operand))
        elif head == "tan":
            yield _Need.NONZERO, ("cos", item[1]), item
        elif head == "log":
            yield _Need.POSITIVE, item[1], item
        elif head == "sqrt":
            yield _Need.NOT_NEGATIVE, item[1], item
        elif head == "^" and not (isinstance(item[2], int) and item[2] >= 0):
            exponent = None if free_symbols(item[2]) else exact_value(item[2])
            if exponent is None:
                if item[1] != "e":
                    yield _Need.POSITIVE, item[1], item
            elif exponent.denominator != 1:
                yield _Need.NOT_NEGATIVE if exponent > 0 else _Need.POSITIVE, item[1], item
            elif exponent < 0:
                yield from ((_Need.NONZERO, factor, item) for factor in _factors(item[1]))


def _factors(divisor: Expr) -> list[Expr]:
    """The factors, one of which is 0 wherever this is; whatever else they need is checked separately."""
    factors, waiting = [], [divisor]
    while waiting:
        factor = waiting.pop()
        if isinstance(factor, tuple) and factor[0] == "*":
            waiting += factor[1:]
        elif isinstance(factor, tuple) and (
            factor[0] in ("/", "sqrt") or (factor[0] == "^" and exact_value(factor[2]))
        ):
            waiting.append(factor[1])
        elif not (isinstance(factor, tuple) and factor[0] == "exp"):
            factors.append(factor)
    return factors


def _interval(expr: Expr, lower: Expr, upper: Expr) -> _Interval:
    strangers = free_symbols(lower) | free_symbols(upper)
    if strangers:
        raise ExpressionError(
            f"whether {place(expr)} is continuous between {place(lower)} and {place(upper)} depends on "
            f"{', '.join(sorted(strangers))}: give every symbol of the bounds a value."
        )
    (first, start), (second, end) = sorted(
        ((_ends(bound), bound) for bound in (lower, upper)), key=lambda pair: pair[0]
    )
    inner = (first[1], second[0]) if first[1] <= second[0] else None
    return _Interval(first[0], max(first[1], second[1]), inner, (start, end))


def _ends(bound: Expr) -> tuple[Fraction, Fraction]:
    """Two rationals around the bound; both are the bound if it is rational."""
    exact = exact_value(bound)
    if exact is not None:
        return exact, exact
    try:
        ball = enclosure(bound, _BITS)
    except Undecided as undecided:
        raise ExpressionError(f"{undecided}: the bound {place(bound)} has no certain value.") from None
    if is_far(ball):
        raise ExpressionError(f"the bound {place(bound)} is too large, or too near to 0.")
    return ends_of(ball)


def _sign_of_number(expr: Expr) -> str | None:
    exact = exact_value(expr)
    if exact is not None:
        return "+" if exact > 0 else "-" if exact < 0 else "+0"
    try:
        ball = enclosure(expr, 1024)
    except (Undecided, ExpressionError):
        return None
    return None if 0 in ball else "+" if ball > 0 else "-"


def _sign_between(expr: Expr, symbol: str, interval: _Interval) -> str | None:
    """``+`` or ``-`` for a function that has this sign everywhere in the interval, ``+0`` for one that is 0 at ends
    and nowhere below, ``0`` for one that is certainly 0 somewhere, or changes its sign; None for no proof."""
    if free_symbols(expr) != {symbol}:
        return None
    polynomial = polynomial_of(expr, symbol)
    return _sign_by_pieces(expr, symbol, interval) if polynomial is None else _sign_of_polynomial(polynomial, interval)


def _is_zero_at_a_bound(expr: Expr, symbol: str, interval: _Interval) -> bool:
    return any(exact_value(substitute(expr, symbol, bound)) == 0 for bound in interval.bounds)


def _sign_of_polynomial(polynomial: Polynomial, interval: _Interval) -> str | None:
    lower, upper, inner, bounds = interval
    if not has_root_between(polynomial, lower, upper):
        return "+" if value_at(polynomial, lower) > 0 else "-"
    rest = polynomial
    for end in map(exact_value, bounds):
        while end is not None and rest and not value_at(rest, end):
            rest = without_root(rest, end)
    if not rest or lower == upper:
        return "+0"
    if not has_root_between(rest, lower, upper):
        return "+0" if value_at(polynomial, (lower + upper) / 2) > 0 else "0"
    return "0" if inner is not None and has_root_between(rest, *inner) else None


def _sign_by_pieces(expr: Expr, symbol: str, interval: _Interval) -> str | None:
    """By balls around the values on ever shorter pieces, the widest first: a change of sign is soon found."""
    with ctx.workprec(_BITS):
        waiting = deque([(_arb(interval.lower), _arb(interval.upper))])
        signs: set[str] = set()
        for _ in range(_LARGEST_SEARCH):
            if not waiting:
                return signs.pop()
            start, end = waiting.popleft()
            middle = ((start + end) / 2).mid()
            # The whole piece; where that decides nothing, one point of it.
            for part in (start.union(end), middle):
                try:
                    ball = enclosure(expr, _BITS, {symbol: part})
                except (Undecided, ExpressionError):
                    ball = arb(0)
                if 0 not in ball:
                    signs.add("+" if ball > 0 else "-")
                    if len(signs) > 1:
                        return "0"
                    if part is not middle:
                        break
            else:
                waiting += [(start, middle), (middle, end)]
    return None


def _arb(value: Fraction) -> arb:
    return arb(value.numerator) / value.denominator
