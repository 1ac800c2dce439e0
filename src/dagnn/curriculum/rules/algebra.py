"""Simplification of + - * / ^ and of functions at special values: numbers left in products, right in sums."""

from dagnn.curriculum.rules.numbers import ONE, ZERO, integer, is_number
from dagnn.curriculum.rules.rationals import arithmetic
from dagnn.curriculum.rules.registry import constructor, rule
from dagnn.graph.rewriting.window import Replacement, Window

# Operators whose operands may be exchanged.
COMMUTATIVE = ("+", "*")

constructor("e", "pi", *"abcdfghijklmnopqrstuvwxyz")


@rule("+", depth=2)
def plus(a: Window, b: Window) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("+", a, b)
    if a.label == ZERO:
        return b
    if b.label == ZERO:
        return a
    if is_number(a):
        return ("+", b, a)
    if is_number(b) and a.kind == "+" and is_number(a[1]):
        return ("+", a[0], ("+", a[1], b))
    if a is b:
        return ("*", integer(2), a)
    return None


@rule("-", depth=2)
def minus(a: Window, b: Window) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("-", a, b)
    if b.label == ZERO:
        return a
    if a is b:
        return integer(0)
    if a.label == ZERO:
        return ("*", integer(-1), b)
    if is_number(b):
        return ("+", a, ("negate", b))
    return None


@rule("*", depth=2)
def times(a: Window, b: Window) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("*", a, b)
    if ZERO in (a.label, b.label):
        return integer(0)
    if a.label == ONE:
        return b
    if b.label == ONE:
        return a
    if is_number(b):
        return ("*", b, a)
    if b.kind == "*" and is_number(b[0]):
        return ("*", ("*", a, b[0]), b[1]) if is_number(a) else ("*", b[0], ("*", a, b[1]))
    if a.kind == "*" and is_number(a[0]):
        return ("*", a[0], ("*", a[1], b))
    if a is b:
        return ("^", a, integer(2))
    return None


@rule("/", depth=2)
def over(a: Window, b: Window) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("/", a, b)
    if b.label == ZERO:
        return None
    if a.label == ZERO:
        return integer(0)
    if is_number(b):
        return ("*", ("/", integer(1), b), a)
    if a is b:
        return integer(1)
    if a.kind == "*" and is_number(a[0]):
        return ("*", a[0], ("/", a[1], b))
    if b.kind == "*" and is_number(b[0]):
        return ("*", ("/", integer(1), b[0]), ("/", a, b[1]))
    if is_number(a) and a.label != ONE:
        return ("*", a, ("/", integer(1), b))
    return None


@rule("^", depth=2)
def power(a: Window, b: Window) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("^", a, b)
    if b.label == ZERO:
        return integer(1)
    if b.label == ONE:
        return a
    if b.kind in ("positive", "negative") and a.kind == "^" and is_number(a[1]):
        # Only for a whole b: (x^2)^(1/2) is not x where x is negative.
        return ("^", a[0], ("*", a[1], b))
    return None


def _function(name: str, values: dict[str, int]) -> None:
    """A function that is rewritten only where its value is an integer."""

    @rule(name, depth=1)
    def at_special_value(a: Window) -> Replacement | None:
        return integer(values[a.label]) if a.label in values else None


_function("sin", {ZERO: 0})
_function("cos", {ZERO: 1})
_function("tan", {ZERO: 0})
_function("log", {ONE: 0, "e": 1})
_function("exp", {ZERO: 1})
_function("sqrt", {ZERO: 0, ONE: 1})
