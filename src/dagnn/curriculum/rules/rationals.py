"""Exact arithmetic of rationals: signs, fractions in lowest terms, and the four operators with powers."""

from dagnn.curriculum.rules.numbers import NUMBERS, ONE, ZERO, integer
from dagnn.curriculum.rules.registry import rule
from dagnn.graph.rewriting.window import Replacement, Window


@rule("negate", depth=1)
def negate(a: Window) -> Replacement | None:
    if a.kind == "positive":
        return ("negative", a[0])
    if a.kind == "negative":
        return ("positive", a[0])
    if a.kind == "fraction":
        return ("fraction", ("negate", a[0]), a[1])
    return None


@rule("signed", depth=1)
def signed(order: Window, pair: Window) -> Replacement | None:
    """The difference of a pair of naturals whose order is known."""
    if pair.kind != "pair":
        return None
    a, b = pair.children
    if order.kind == "equal":
        return integer(0)
    return ("positive", ("subtract", a, b)) if order.kind == "greater" else ("negative", ("subtract", b, a))


@rule("reduce", depth=1)
def reduce(numerator: Window, denominator: Window) -> Replacement | None:
    """numerator / denominator in lowest terms; the denominator is a chain."""
    if numerator.kind not in ("positive", "negative"):
        return None
    return (f"reduce_{numerator.kind}", ("gcd", numerator[0], denominator), numerator[0], denominator)


@rule("reduce_positive", depth=0)
def reduce_positive(divisor: Window, numerator: Window, denominator: Window) -> Replacement:
    return _divided("positive", divisor, numerator, denominator)


@rule("reduce_negative", depth=0)
def reduce_negative(divisor: Window, numerator: Window, denominator: Window) -> Replacement:
    return _divided("negative", divisor, numerator, denominator)


def _divided(sign: str, divisor: Window, numerator: Window, denominator: Window) -> Replacement:
    return (
        "lowest_terms",
        (sign, ("first", ("divide", numerator, divisor))),
        ("first", ("divide", denominator, divisor)),
    )


@rule("lowest_terms", depth=0)
def lowest_terms(numerator: Window, denominator: Window) -> Replacement:
    return ("unless_one", ("is_one", denominator), numerator, denominator)


@rule("unless_one", depth=1)
def unless_one(is_one: Window, numerator: Window, denominator: Window) -> Replacement:
    return numerator if is_one.kind == "yes" else ("fraction", numerator, denominator)


def arithmetic(operator: str, a: Window, b: Window) -> Replacement | None:
    """One operator on two numbers, as a step towards the digits; None where there is no value."""
    assert a.kind in NUMBERS
    assert b.kind in NUMBERS
    return _OPERATORS[operator](a, b)


def _add(a: Window, b: Window) -> Replacement:
    if a.kind == "fraction" and b.kind == "fraction":
        crossed = ("+", ("*", a[0], ("positive", b[1])), ("*", b[0], ("positive", a[1])))
        return ("reduce", crossed, ("multiply", a[1], b[1]))
    if a.kind == "fraction":
        return ("reduce", ("+", a[0], ("*", b, ("positive", a[1]))), a[1])
    if b.kind == "fraction":
        return ("reduce", ("+", ("*", a, ("positive", b[1])), b[0]), b[1])
    if a.kind == b.kind:
        return (a.kind, ("add", a[0], b[0]))
    plus, minus = (a, b) if a.kind == "positive" else (b, a)
    return ("signed", ("compare", plus[0], minus[0]), ("pair", plus[0], minus[0]))


def _subtract(a: Window, b: Window) -> Replacement:
    return ("+", a, ("negate", b))


def _multiply(a: Window, b: Window) -> Replacement:
    if a.kind == "fraction" and b.kind == "fraction":
        return ("reduce", ("*", a[0], b[0]), ("multiply", a[1], b[1]))
    if a.kind == "fraction":
        return ("reduce", ("*", a[0], b), a[1])
    if b.kind == "fraction":
        return ("reduce", ("*", a, b[0]), b[1])
    return ("positive" if a.kind == b.kind else "negative", ("multiply", a[0], b[0]))


def _divide(a: Window, b: Window) -> Replacement | None:
    if b.label == ZERO:
        return None
    if b.kind == "fraction":
        return ("/", ("*", a, ("positive", b[1])), b[0])
    positive = b.kind == "positive"
    if a.kind == "fraction":
        return ("reduce", a[0] if positive else ("negate", a[0]), ("multiply", a[1], b[0]))
    return ("reduce", a if positive else ("negate", a), b[0])


def _power(a: Window, b: Window) -> Replacement | None:
    if b.kind == "fraction" or (a.label == ZERO and b.kind == "negative"):
        return None
    if b.label == ZERO:
        return integer(1)
    if b.label == ONE:
        return a
    if b.kind == "positive":
        return ("*", a, ("^", a, ("-", b, integer(1))))
    return ("/", integer(1), ("^", a, ("negate", b)))


_OPERATORS = {"+": _add, "-": _subtract, "*": _multiply, "/": _divide, "^": _power}
