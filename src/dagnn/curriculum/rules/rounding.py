"""(approx E): the value rounded to three significant digits, as ``(decimal n)`` for n / 10^10.

A tie goes away from 0, where `dagnn.curriculum.exact` takes the even digit; and of a value below 10^-6 the ten
decimals leave fewer than three sure digits. The generator draws neither.
"""

from dagnn.curriculum.rules.numbers import digit_of
from dagnn.curriculum.rules.registry import constructor, rule
from dagnn.graph.rewriting.window import Replacement, Window

constructor("decimal", arity=1)


@rule("approx", depth=0)
def approx(f: Window) -> Replacement:
    return ("rounded", ("numeric", f))


@rule("rounded", depth=2)
def rounded(a: Window) -> Replacement | None:
    if a.kind != "fixed" or a[0].kind not in ("positive", "negative"):
        return None
    return ("decimal", (a[0].kind, ("round_down", a[0][0])))


def _rounding(name: str, *, up: bool) -> None:
    """`round_up` remembers that the last digit dropped was 5 or more."""

    @rule(name, depth=0)
    def round_digits(digits: Window) -> Replacement:
        return (f"{name}_if", ("longer_than3", digits), digits)

    @rule(f"{name}_if", depth=1)
    def round_digits_if(longer: Window, digits: Window) -> Replacement:
        if longer.kind == "no":
            return ("add_carry", digits, "end") if up else digits
        return ("d0", ("round_up" if digit_of(digits) >= 5 else "round_down", digits[0]))


_rounding("round_down", up=False)
_rounding("round_up", up=True)
