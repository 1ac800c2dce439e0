"""Long division, greatest common divisors, and exact arithmetic of rationals."""

from dagnn.curriculum.rules.numbers import (
    NUMBERS,
    ONE,
    ZERO,
    chain,
    constructor,
    digit_constant,
    digit_of,
    integer,
    rule,
)
from dagnn.rewriting.system import Neighbourhood, Replacement

constructor("pair", arity=2)
constructor("triple", arity=3)


@rule("first", depth=1)
def first(pair: Neighbourhood) -> Replacement | None:
    return pair[0] if pair.kind == "pair" else None


@rule("second", depth=1)
def second(pair: Neighbourhood) -> Replacement | None:
    return pair[1] if pair.kind == "pair" else None


@rule("divide", depth=1)
def divide(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    """The pair (quotient, remainder) of a and b, b > 0: the digits above the lowest are divided first."""
    if a.kind == "end":
        return ("pair", "end", "end")
    return ("bring_down", digit_constant(digit_of(a)), ("divide", a[0], b), b)


@rule("bring_down", depth=1)
def bring_down(digit: Neighbourhood, so_far: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if so_far.kind != "pair":
        return None
    quotient, remainder = so_far.children
    return ("try_digit", "0", ("triple", quotient, (f"d{digit.kind}", remainder), b))


@rule("try_digit", depth=1)
def try_digit(digit: Neighbourhood, state: Neighbourhood) -> Replacement | None:
    if state.kind != "triple":
        return None
    return ("try_compared", ("compare", state[1], state[2]), digit, state)


@rule("try_compared", depth=1)
def try_compared(order: Neighbourhood, digit: Neighbourhood, state: Neighbourhood) -> Replacement | None:
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
def gcd(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    return a if b.kind == "end" else ("gcd", b, ("second", ("divide", a, b)))


@rule("is_one", depth=2)
def is_one(number: Neighbourhood) -> Replacement:
    return "yes" if number.kind == "d1" and number[0].kind == "end" else "no"


@rule("square_root", depth=1)
def square_root(number: Neighbourhood) -> Replacement | None:
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
def root_over(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    """a / b for the roots of a numerator and a denominator in lowest terms: both are needed."""
    return "irrational" if "irrational" in (a.kind, b.kind) else ("/", a, b)


@rule("count_odds", depth=1)
def count_odds(count: Neighbourhood, rest: Neighbourhood) -> Replacement:
    """1 + 3 + 5 + ... : n odd numbers sum to n squared, so the root is how many can be taken away."""
    if rest.kind == "end":
        return ("positive", count)
    return ("count_odds_compared", ("compare", rest, ("add_carry", ("add", count, count), "end")), count, rest)


@rule("count_odds_compared", depth=1)
def count_odds_compared(order: Neighbourhood, count: Neighbourhood, rest: Neighbourhood) -> Replacement:
    if order.kind == "less":
        return "irrational"
    odd = ("add_carry", ("add", count, count), "end")
    return ("count_odds", ("add", count, chain(1)), ("subtract", rest, odd))


@rule("negate", depth=1)
def negate(a: Neighbourhood) -> Replacement | None:
    if a.kind == "positive":
        return ("negative", a[0])
    if a.kind == "negative":
        return ("positive", a[0])
    if a.kind == "fraction":
        return ("fraction", ("negate", a[0]), a[1])
    return None


@rule("signed", depth=1)
def signed(order: Neighbourhood, pair: Neighbourhood) -> Replacement | None:
    """The difference of a pair of naturals whose order is known."""
    if pair.kind != "pair":
        return None
    a, b = pair.children
    if order.kind == "equal":
        return integer(0)
    return ("positive", ("subtract", a, b)) if order.kind == "greater" else ("negative", ("subtract", b, a))


@rule("reduce", depth=1)
def reduce(numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement | None:
    """numerator / denominator in lowest terms; the denominator is a chain."""
    if numerator.kind not in ("positive", "negative"):
        return None
    return (f"reduce_{numerator.kind}", ("gcd", numerator[0], denominator), numerator[0], denominator)


@rule("reduce_positive", depth=0)
def reduce_positive(divisor: Neighbourhood, numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return _divided("positive", divisor, numerator, denominator)


@rule("reduce_negative", depth=0)
def reduce_negative(divisor: Neighbourhood, numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return _divided("negative", divisor, numerator, denominator)


def _divided(sign: str, divisor: Neighbourhood, numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return (
        "lowest_terms",
        (sign, ("first", ("divide", numerator, divisor))),
        ("first", ("divide", denominator, divisor)),
    )


@rule("lowest_terms", depth=0)
def lowest_terms(numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return ("unless_one", ("is_one", denominator), numerator, denominator)


@rule("unless_one", depth=1)
def unless_one(is_one: Neighbourhood, numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return numerator if is_one.kind == "yes" else ("fraction", numerator, denominator)


def arithmetic(operator: str, a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    """One operator on two numbers, as a step towards the digits; None where there is no value."""
    assert a.kind in NUMBERS
    assert b.kind in NUMBERS
    return _OPERATORS[operator](a, b)


def _add(a: Neighbourhood, b: Neighbourhood) -> Replacement:
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


def _subtract(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    return ("+", a, ("negate", b))


def _multiply(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    if a.kind == "fraction" and b.kind == "fraction":
        return ("reduce", ("*", a[0], b[0]), ("multiply", a[1], b[1]))
    if a.kind == "fraction":
        return ("reduce", ("*", a[0], b), a[1])
    if b.kind == "fraction":
        return ("reduce", ("*", a, b[0]), b[1])
    return ("positive" if a.kind == b.kind else "negative", ("multiply", a[0], b[0]))


def _divide(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if b.label == ZERO:
        return None
    if b.kind == "fraction":
        return ("/", ("*", a, ("positive", b[1])), b[0])
    positive = b.kind == "positive"
    if a.kind == "fraction":
        return ("reduce", a[0] if positive else ("negate", a[0]), ("multiply", a[1], b[0]))
    return ("reduce", a if positive else ("negate", a), b[0])


def _power(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
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
