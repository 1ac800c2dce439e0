"""Natural numbers: long division by trial subtraction, Euclid's greatest common divisor, pairs."""

from dagnn.curriculum.rules.numbers import chain, digit_constant, digit_of
from dagnn.curriculum.rules.registry import constructor, rule
from dagnn.graph.rewriting.window import Replacement, Window

constructor("pair", arity=2)
constructor("triple", arity=3)


@rule("first", depth=1)
def first(pair: Window) -> Replacement | None:
    return pair[0] if pair.kind == "pair" else None


@rule("second", depth=1)
def second(pair: Window) -> Replacement | None:
    return pair[1] if pair.kind == "pair" else None


@rule("divide", depth=1)
def divide(a: Window, b: Window) -> Replacement:
    """The pair (quotient, remainder) of a and b, b > 0: the digits above the lowest are divided first."""
    if a.kind == "end":
        return ("pair", "end", "end")
    return ("bring_down", digit_constant(digit_of(a)), ("divide", a[0], b), b)


@rule("bring_down", depth=1)
def bring_down(digit: Window, so_far: Window, b: Window) -> Replacement | None:
    if so_far.kind != "pair":
        return None
    quotient, remainder = so_far.children
    return ("try_digit", "0", ("triple", quotient, (f"d{digit.kind}", remainder), b))


@rule("try_digit", depth=1)
def try_digit(digit: Window, state: Window) -> Replacement | None:
    if state.kind != "triple":
        return None
    return ("try_compared", ("compare", state[1], state[2]), digit, state)


@rule("try_compared", depth=1)
def try_compared(order: Window, digit: Window, state: Window) -> Replacement | None:
    if state.kind != "triple":
        return None
    quotient, remainder, b = state.children
    if order.kind == "less":
        return ("pair", (f"d{digit.kind}", quotient), remainder)
    return (
        "try_digit",
        digit_constant(min(9, int(digit.kind) + 1)),
        ("triple", quotient, ("subtract", remainder, b), b),
    )


@rule("gcd", depth=1)
def gcd(a: Window, b: Window) -> Replacement:
    return a if b.kind == "end" else ("gcd", b, ("second", ("divide", a, b)))


@rule("is_one", depth=2)
def is_one(number: Window) -> Replacement:
    return "yes" if number.kind == "d1" and number[0].kind == "end" else "no"


@rule("square_root", depth=1)
def square_root(number: Window) -> Replacement | None:
    """The root of a rational square; the label `irrational` where there is none."""
    if number.kind == "positive":
        return ("count_odds", "end", number[0])
    if number.kind == "negative":
        return "irrational"
    if number.kind == "fraction":
        return ("root_over", ("square_root", number[0]), ("square_root", ("positive", number[1])))
    return None


constructor("irrational")


@rule("root_over", depth=1)
def root_over(a: Window, b: Window) -> Replacement:
    """a / b for the roots of a numerator and a denominator in lowest terms: both are needed."""
    return "irrational" if "irrational" in (a.kind, b.kind) else ("/", a, b)


@rule("count_odds", depth=1)
def count_odds(count: Window, rest: Window) -> Replacement:
    """1 + 3 + 5 + ... : n odd numbers sum to n squared, so the root is how many can be taken away."""
    if rest.kind == "end":
        return ("positive", count)
    return ("count_odds_compared", ("compare", rest, ("add_carry", ("add", count, count), "end")), count, rest)


@rule("count_odds_compared", depth=1)
def count_odds_compared(order: Window, count: Window, rest: Window) -> Replacement:
    if order.kind == "less":
        return "irrational"
    odd = ("add_carry", ("add", count, count), "end")
    return ("count_odds", ("add", count, chain(1)), ("subtract", rest, odd))
