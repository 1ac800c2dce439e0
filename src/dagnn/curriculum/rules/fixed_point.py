"""Real numbers with ten decimals, on the same digit steps: ``(fixed n)`` stands for n / 10^10.

Steps magnify errors, as tan does near a pole, and the more the deeper they are nested: with eight decimals 7 of 600
expressions of depth 5 and 7 of 300 of depth 8 came out wrong in the last of their three digits, with ten none and 1 of
600. Ten cost half as many steps again. Twelve would not fit: `turn` writes two constants in one replacement.
"""

import math

from dagnn.curriculum.rules.numbers import ONE, ZERO, integer
from dagnn.curriculum.rules.registry import constructor, rule
from dagnn.graph.rewriting.window import Replacement, Window

DECIMALS = 10

constructor("fixed", arity=1)

FUNCTIONS = ("sin", "cos", "tan", "log", "exp", "sqrt")


def fixed(value: float) -> Replacement:
    """The nearest fixed-point number."""
    return ("fixed", integer(round(value * 10**DECIMALS)))


def scaled_up(digits: Replacement) -> Replacement:
    """A digit chain times 10^10."""
    for _ in range(DECIMALS):
        digits = ("d0", digits)
    return digits


@rule("numeric", depth=1)
def numeric(f: Window) -> Replacement | None:
    """The fixed-point value of an expression, from its operands' values."""
    if f.kind in ("positive", "negative"):
        return ("fixed", (f.kind, scaled_up(f[0])))
    if f.kind == "fraction":
        return ("fixed/", ("numeric", f[0]), ("numeric", ("positive", f[1])))
    if f.kind == "decimal":
        return ("fixed", f[0])
    if f.kind in ("e", "pi"):
        return fixed(math.e if f.kind == "e" else math.pi)
    if f.kind in ("+", "-", "*", "/"):
        return (f"fixed{f.kind}", ("numeric", f[0]), ("numeric", f[1]))
    if f.kind == "^":
        return ("fixed^", ("numeric", f[0]), f[1])
    if f.kind in FUNCTIONS:
        return (f"fixed_{f.kind}", ("numeric", f[0]))
    return None


@rule("fixed+", depth=1)
def fixed_plus(a: Window, b: Window) -> Replacement | None:
    return ("fixed", ("+", a[0], b[0])) if a.kind == b.kind == "fixed" else None


@rule("fixed-", depth=1)
def fixed_minus(a: Window, b: Window) -> Replacement | None:
    return ("fixed", ("-", a[0], b[0])) if a.kind == b.kind == "fixed" else None


@rule("fixed*", depth=1)
def fixed_times(a: Window, b: Window) -> Replacement | None:
    return ("fixed", ("scale_down", ("*", a[0], b[0]))) if a.kind == b.kind == "fixed" else None


@rule("scale_down", depth=1)
def scale_down(number: Window) -> Replacement | None:
    """An integer divided by 10^10, towards 0."""
    if number.kind not in ("positive", "negative"):
        return None
    return (number.kind, (f"drop{DECIMALS}", number[0]))


@rule("fixed/", depth=2)
def fixed_over(a: Window, b: Window) -> Replacement | None:
    if not a.kind == b.kind == "fixed" or b[0].label == ZERO:
        return None
    if a[0].kind not in ("positive", "negative") or b[0].kind not in ("positive", "negative"):
        return None
    sign = "positive" if a[0].kind == b[0].kind else "negative"
    return ("fixed", (sign, ("first", ("divide", scaled_up(a[0][0]), b[0][0]))))


@rule("fixed^", depth=1)
def fixed_power(a: Window, exponent: Window) -> Replacement | None:
    if a.kind != "fixed" or exponent.kind not in ("positive", "negative"):
        return None
    if exponent.label == ZERO:
        return fixed(1)
    if exponent.label == ONE:
        return a
    if exponent.kind == "positive":
        return ("fixed*", a, ("fixed^", a, ("-", exponent, integer(1))))
    return ("fixed/", fixed(1), ("fixed^", a, ("negate", exponent)))


@rule("fixed_negate", depth=1)
def fixed_negate(a: Window) -> Replacement | None:
    return ("fixed", ("negate", a[0])) if a.kind == "fixed" else None
