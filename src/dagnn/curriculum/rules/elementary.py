"""Real numbers with ten decimals, exp, sin, cos, tan, log and sqrt of them, and rounding to three digits."""

import math

from dagnn.curriculum.rules.numbers import ONE, ZERO, Rule, chain, constructor, digit_of, family, integer, rule
from dagnn.rewriting.system import Neighbourhood, Replacement

DECIMALS = 10

constructor("fixed", arity=1)

FUNCTIONS = ("sin", "cos", "tan", "log", "exp", "sqrt")


def fixed(value: float) -> Replacement:
    """The nearest fixed-point number."""
    return ("fixed", integer(round(value * 10**DECIMALS)))


def scaled_up(digits: Replacement) -> Replacement:
    """A digit chain multiplied by 10^10."""
    for _ in range(DECIMALS):
        digits = ("d0", digits)
    return digits


@rule("numeric", depth=1)
def numeric(f: Neighbourhood) -> Replacement | None:
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
def fixed_plus(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    return ("fixed", ("+", a[0], b[0])) if a.kind == b.kind == "fixed" else None


@rule("fixed-", depth=1)
def fixed_minus(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    return ("fixed", ("-", a[0], b[0])) if a.kind == b.kind == "fixed" else None


@rule("fixed*", depth=1)
def fixed_times(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    return ("fixed", ("scale_down", ("*", a[0], b[0]))) if a.kind == b.kind == "fixed" else None


@rule("scale_down", depth=1)
def scale_down(number: Neighbourhood) -> Replacement | None:
    """An integer divided by 10^10, towards 0."""
    if number.kind not in ("positive", "negative"):
        return None
    return (number.kind, (f"drop{DECIMALS}", number[0]))


@rule("fixed/", depth=2)
def fixed_over(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if not a.kind == b.kind == "fixed" or b[0].label == ZERO:
        return None
    if a[0].kind not in ("positive", "negative") or b[0].kind not in ("positive", "negative"):
        return None
    sign = "positive" if a[0].kind == b[0].kind else "negative"
    return ("fixed", (sign, ("first", ("divide", scaled_up(a[0][0]), b[0][0]))))


@rule("fixed^", depth=1)
def fixed_power(a: Neighbourhood, exponent: Neighbourhood) -> Replacement | None:
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
def fixed_negate(a: Neighbourhood) -> Replacement | None:
    return ("fixed", ("negate", a[0])) if a.kind == "fixed" else None


ONE_DIGITS = chain(10**DECIMALS)
_ANGLE_DIGITS = DECIMALS + 4  # angles below 10,000
_EXPONENT_DIGITS = DECIMALS + 2
_LARGEST_EXPONENT = 25.0  # beyond this, fewer than three digits of exp(x) or 1 / exp(x) are left
_LOG_STEPS = 7


@rule("fixed_exp", depth=2)
def fixed_exp(a: Neighbourhood) -> Replacement | None:
    if a.kind != "fixed":
        return None
    if a[0].kind == "positive":
        return ("exp0", a[0][0])
    return ("fixed/", fixed(1), ("exp0", a[0][0])) if a[0].kind == "negative" else None


def _exp_digit(position: int) -> Rule:
    def exp_digit(digits: Neighbourhood) -> Replacement | None:
        if digits.kind == "end":
            return fixed(1)
        if position == _EXPONENT_DIGITS:
            return None
        value = digit_of(digits) * 10.0 ** (position - DECIMALS)
        following = (f"exp{position + 1}", digits[0])
        if value == 0:
            return following
        return ("fixed*", fixed(math.exp(value)), following) if value < _LARGEST_EXPONENT else None

    return exp_digit


family([f"exp{i}" for i in range(_EXPONENT_DIGITS + 1)], _exp_digit, depth=1)


@rule("fixed_sin", depth=2)
def fixed_sin(a: Neighbourhood) -> Replacement | None:
    if a.kind != "fixed":
        return None
    if a[0].kind == "positive":
        return ("second", ("circle0", a[0][0]))
    return ("fixed_negate", ("second", ("circle0", a[0][0]))) if a[0].kind == "negative" else None


@rule("fixed_cos", depth=2)
def fixed_cos(a: Neighbourhood) -> Replacement | None:
    if a.kind != "fixed" or a[0].kind not in ("positive", "negative"):
        return None
    return ("first", ("circle0", a[0][0]))


@rule("fixed_tan", depth=1)
def fixed_tan(a: Neighbourhood) -> Replacement | None:
    return ("fixed/", ("fixed_sin", a), ("fixed_cos", a)) if a.kind == "fixed" else None


def _circle_digit(position: int) -> Rule:
    def circle_digit(digits: Neighbourhood) -> Replacement | None:
        """The pair (cos, sin) of an angle: the point of its lowest digit, rotated by all the others."""
        if digits.kind == "end":
            return ("pair", fixed(1), fixed(0))
        if position == _ANGLE_DIGITS:
            return None
        angle = digit_of(digits) * 10.0 ** (position - DECIMALS)
        following = (f"circle{position + 1}", digits[0])
        return following if angle == 0 else ("turn", following, fixed(math.cos(angle)), fixed(math.sin(angle)))

    return circle_digit


family([f"circle{i}" for i in range(_ANGLE_DIGITS + 1)], _circle_digit, depth=1)


@rule("turn", depth=1)
def turn(point: Neighbourhood, cosine: Neighbourhood, sine: Neighbourhood) -> Replacement | None:
    """Angle addition: the point (c, s) rotated by the angle of (cosine, sine)."""
    if point.kind != "pair":
        return None
    c, s = point.children
    return (
        "pair",
        ("fixed-", ("fixed*", c, cosine), ("fixed*", s, sine)),
        ("fixed+", ("fixed*", s, cosine), ("fixed*", c, sine)),
    )


@rule("fixed_log", depth=2)
def fixed_log(a: Neighbourhood) -> Replacement | None:
    if a.kind != "fixed" or a[0].kind != "positive" or a[0].label == ZERO:
        return None
    return ("below_one", a[0][0], fixed(0))


@rule("below_one", depth=0)
def below_one(digits: Neighbourhood, log: Neighbourhood) -> Replacement:
    """Divides by 10 until the argument is at most 1; `log` collects the logarithm taken out."""
    return ("below_one_compared", ("compare", digits, ONE_DIGITS), ("pair", digits, log))


@rule("below_one_compared", depth=1)
def below_one_compared(order: Neighbourhood, state: Neighbourhood) -> Replacement | None:
    if state.kind != "pair":
        return None
    if order.kind != "greater":
        return ("log0", state)
    return ("below_one", ("drop1", state[0]), ("fixed+", state[1], fixed(math.log(10))))


def _log_step(step: int) -> Rule:
    def log_step(state: Neighbourhood) -> Replacement | None:
        """Multiplies by 1 + 10^-step as long as the argument stays at most 1."""
        if state.kind != "pair":
            return None
        digits, log = state.children
        if step == _LOG_STEPS - 1:
            # log a = -(1 - a) to 12 digits once a is within 10^-6 of 1.
            return ("fixed+", log, ("fixed", ("negative", ("subtract", ONE_DIGITS, digits))))
        more = ("add", digits, digits if step == 0 else (f"drop{step}", digits))
        return (f"log_compared{step}", ("compare", more, ONE_DIGITS), ("pair", more, state))

    return log_step


def _log_compared(step: int) -> Rule:
    def log_compared(order: Neighbourhood, states: Neighbourhood) -> Replacement | None:
        if states.kind != "pair":
            return None
        more, state = states.children
        return (f"log{step + 1}", state) if order.kind == "greater" else (f"log_taken{step}", more, state)

    return log_compared


def _log_taken(step: int) -> Rule:
    def log_taken(digits: Neighbourhood, state: Neighbourhood) -> Replacement | None:
        if state.kind != "pair":
            return None
        return (f"log{step}", ("pair", digits, ("fixed+", state[1], fixed(-math.log1p(10.0**-step)))))

    return log_taken


family([f"log{i}" for i in range(_LOG_STEPS)], _log_step, depth=1)
family([f"log_compared{i}" for i in range(_LOG_STEPS - 1)], _log_compared, depth=1)
family([f"log_taken{i}" for i in range(_LOG_STEPS - 1)], _log_taken, depth=1)


@rule("fixed_sqrt", depth=2)
def fixed_sqrt(a: Neighbourhood) -> Replacement | None:
    if a.kind != "fixed" or a[0].kind != "positive":
        return None
    return fixed(0) if a[0].label == ZERO else ("fixed_exp", ("fixed*", fixed(0.5), ("fixed_log", a)))


def constant_terms() -> list[Replacement]:
    """One term for every (digit position, digit) whose constant the rules hold.

    Drawn expressions hardly ever have angles in the thousands, and a network learns a constant only by seeing it.
    """
    terms: list[Replacement] = []
    for position in range(_ANGLE_DIGITS):
        for digit in range(1, 10):
            argument = ("fixed", ("positive", chain(digit * 10**position)))
            terms.append(("fixed_sin", argument))
            if digit * 10.0 ** (position - DECIMALS) < _LARGEST_EXPONENT:
                terms.append(("fixed_exp", argument))
    return terms


constructor("decimal", arity=1)


@rule("approx", depth=0)
def approx(f: Neighbourhood) -> Replacement:
    return ("rounded", ("numeric", f))


@rule("rounded", depth=2)
def rounded(a: Neighbourhood) -> Replacement | None:
    if a.kind != "fixed" or a[0].kind not in ("positive", "negative"):
        return None
    return ("decimal", (a[0].kind, ("round_down", a[0][0])))


def _rounding(name: str, *, up: bool) -> None:
    """`round_up` remembers that the last digit dropped was 5 or more."""

    @rule(name, depth=0)
    def round_digits(digits: Neighbourhood) -> Replacement:
        return (f"{name}_if", ("longer_than3", digits), digits)

    @rule(f"{name}_if", depth=1)
    def round_digits_if(longer: Neighbourhood, digits: Neighbourhood) -> Replacement:
        if longer.kind == "no":
            return ("add_carry", digits, "end") if up else digits
        return ("d0", ("round_up" if digit_of(digits) >= 5 else "round_down", digits[0]))


_rounding("round_down", up=False)
_rounding("round_up", up=True)
