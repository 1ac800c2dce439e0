"""How a rule is declared; natural numbers as graphs, added, multiplied and divided digit by digit; rationals."""

import inspect
from collections.abc import Callable

from dagnn.rewriting.system import Label, Neighbourhood, Replacement

Rule = Callable[..., Replacement | None]

RULES: dict[str, Rule] = {}
LABELS: dict[str, Label] = {}


def constructor(*names: str, arity: int = 0) -> None:
    """Declares labels that build values and are never rewritten."""
    for name in names:
        _declare(Label(name, arity, None))


def rule(name: str, *, depth: int) -> Callable[[Rule], Rule]:
    """Declares the label `name` and the function that rewrites it.

    The function takes one `Neighbourhood` per child and returns the replacement, or None when the node is in
    normal form. It sees labels down to `depth` levels below the node (0: no child's label), and one more level
    only as ``?``, which can be copied but not read.

    >>> @rule("double", depth=0)
    ... def double(a: Neighbourhood) -> Replacement:
    ...     return ("+", a, a)
    """

    def register(function: Rule) -> Rule:
        _declare(Label(name, len(inspect.signature(function).parameters), depth))
        RULES[name] = function
        return function

    return register


def apply_rule(neighbourhood: Neighbourhood) -> Replacement | None:
    """The replacement that the rules give for a neighbourhood; None when it is in normal form."""
    return RULES[neighbourhood.kind](*neighbourhood.children)


def _declare(label: Label) -> None:
    if label.name in LABELS:
        raise AssertionError(f"the label {label.name!r} is declared twice")
    LABELS[label.name] = label


NUMBERS = ("positive", "negative", "fraction")
ZERO, ONE, TWO = "positive:0", "positive:1", "positive:2"
MINUS_ONE = "negative:-1"
NEGATIVE_FRACTION = "fraction:<0"

# Every number has a tag, and nothing else that may stand beside one in a sum.
TAGS: dict[tuple[str, str], str] = {
    ("end", ""): "0",
    ("positive", "0"): "0",
    ("positive", "*"): ">3",
    ("negative", "*"): "<-3",
    ("fraction", "*"): ">0",
    ("fraction", "<-3"): "<0",
}
for _i in (1, 2, 3):
    TAGS |= {(f"d{_i}", "0"): f"{_i}", ("positive", f"{_i}"): f"{_i}", ("negative", f"{_i}"): f"-{_i}"}
    TAGS[("fraction", f"-{_i}")] = "<0"

# A sum or a power whose second operand is a number, and a product whose first one is, show it. So the rules need not
# look below the operands, and what they see is a finite set however deep an expression is.
TAG_CHILD = {"+": 1, "*": 0, "^": 1}
NUMBER = "number"
_NUMBER_TAGS = sorted({tag for (label, _), tag in TAGS.items() if label in NUMBERS})
TAGS |= {(operator, tag): NUMBER for operator in TAG_CHILD for tag in _NUMBER_TAGS}

constructor("end")
constructor(*(str(digit) for digit in range(10)))  # digits that count or multiply, outside a chain
constructor(*(f"d{digit}" for digit in range(1, 10)), arity=1)
constructor("positive", arity=1)
constructor("fraction", arity=2)


def chain(value: int) -> Replacement:
    """The digit chain of a natural number."""
    return "end" if value == 0 else (f"d{value % 10}", chain(value // 10))


def integer(value: int) -> Replacement:
    """The graph of an integer."""
    return ("negative", chain(-value)) if value < 0 else ("positive", chain(value))


def is_number(node: Neighbourhood) -> bool:
    return node.kind in NUMBERS


def has_number(node: Neighbourhood, operator: str) -> bool:
    """Whether the node is this operator, of `TAG_CHILD`, with a number in the place named there."""
    return node.kind == operator and node.tag == NUMBER


def is_negative(node: Neighbourhood) -> bool:
    return node.kind == "negative" or node.label == NEGATIVE_FRACTION


def digit_of(node: Neighbourhood) -> int:
    """The digit of a chain node."""
    return int(node.kind[1:])


def digit_constant(value: int) -> str:
    """The label of a digit outside a chain."""
    return str(value)


def family(names: list[str], make: Callable[[int], Rule], *, depth: int) -> None:
    """Declares labels that differ by a number: ``make(i)`` is the rule of ``names[i]``."""
    for i, name in enumerate(names):
        rule(name, depth=depth)(make(i))


@rule("d0", depth=1)
def leading_zero(rest: Neighbourhood) -> Replacement | None:
    return "end" if rest.kind == "end" else None


@rule("negative", depth=1)
def minus_zero(magnitude: Neighbourhood) -> Replacement | None:
    return ("positive", "end") if magnitude.kind == "end" else None


constructor("less", "equal", "greater")


@rule("add", depth=1)
def add(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    if a.kind == "end":
        return b
    if b.kind == "end":
        return a
    total = digit_of(a) + digit_of(b)
    return (f"d{total % 10}", ("add" if total < 10 else "add_carry", a[0], b[0]))


@rule("add_carry", depth=1)
def add_carry(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    """a + b + 1."""
    if a.kind == b.kind == "end":
        return chain(1)
    if "end" in (a.kind, b.kind):
        longer = b if a.kind == "end" else a
        total = digit_of(longer) + 1
        return (f"d{total}", longer[0]) if total < 10 else ("d0", ("add_carry", longer[0], "end"))
    total = digit_of(a) + digit_of(b) + 1
    return (f"d{total % 10}", ("add" if total < 10 else "add_carry", a[0], b[0]))


@rule("subtract", depth=1)
def subtract(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    """a - b for a >= b."""
    if a.kind == "end":
        return "end"
    if b.kind == "end":
        return a
    difference = digit_of(a) - digit_of(b)
    return (f"d{difference % 10}", ("subtract" if difference >= 0 else "subtract_borrow", a[0], b[0]))


@rule("subtract_borrow", depth=1)
def subtract_borrow(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    """a - b - 1 for a > b."""
    if a.kind == "end":
        return "end"
    if b.kind == "end":
        difference = digit_of(a) - 1
        return (f"d{difference}", a[0]) if difference >= 0 else ("d9", ("subtract_borrow", a[0], "end"))
    difference = digit_of(a) - digit_of(b) - 1
    return (f"d{difference % 10}", ("subtract" if difference >= 0 else "subtract_borrow", a[0], b[0]))


def _compare(so_far: str, name: str) -> None:
    """Compares from the least significant digit up, so the last difference decides; the label carries it."""

    @rule(name, depth=1)
    def compare(a: Neighbourhood, b: Neighbourhood) -> Replacement:
        if a.kind == b.kind == "end":
            return so_far
        if a.kind == "end":
            return "less"
        if b.kind == "end":
            return "greater"
        first, second = digit_of(a), digit_of(b)
        following = "compare_less" if first < second else "compare_greater" if first > second else name
        return (following, a[0], b[0])


_compare("equal", "compare")
_compare("less", "compare_less")
_compare("greater", "compare_greater")


@rule("times_digit", depth=1)
def times_digit(factor: Neighbourhood, carry: Neighbourhood, number: Neighbourhood) -> Replacement:
    """number * factor + carry; factor and carry are single digits."""
    carried = int(carry.kind)
    if number.kind == "end":
        return chain(carried)
    product = digit_of(number) * int(factor.kind) + carried
    return (f"d{product % 10}", ("times_digit", factor, digit_constant(product // 10), number[0]))


@rule("multiply", depth=1)
def multiply(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    """a * b, one digit of b at a time."""
    if a.kind == "end" or b.kind == "end":
        return "end"
    digit = digit_of(b)
    rest = ("d0", ("multiply", a, b[0]))
    if digit == 0:
        return rest
    return ("add", a if digit == 1 else ("times_digit", digit_constant(digit), "0", a), rest)


def _drop(count: int) -> Rule:
    def drop(number: Neighbourhood) -> Replacement:
        if number.kind == "end":
            return "end"
        return number[0] if count == 1 else (f"drop{count - 1}", number[0])

    return drop


# drop3 forgets the three least significant digits: division by 1000.
family([f"drop{count}" for count in range(1, 11)], lambda i: _drop(i + 1), depth=1)


def _longer_than(count: int) -> Rule:
    def longer_than(number: Neighbourhood) -> Replacement:
        if number.kind == "end":
            return "no"
        return "yes" if count == 0 else (f"longer_than{count - 1}", number[0])

    return longer_than


constructor("yes", "no")
family([f"longer_than{count}" for count in range(4)], _longer_than, depth=1)


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
    following = digit_constant(min(9, int(digit.kind) + 1))
    return ("try_digit", following, ("triple", quotient, ("subtract", remainder, b), b))


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


def _reduce(sign: str) -> None:
    @rule(f"reduce_{sign}", depth=0)
    def reduce_signed(divisor: Neighbourhood, numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
        quotients = [("first", ("divide", number, divisor)) for number in (numerator, denominator)]
        return ("lowest_terms", (sign, quotients[0]), quotients[1])


_reduce("positive")
_reduce("negative")


@rule("lowest_terms", depth=0)
def lowest_terms(numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return ("unless_one", ("is_one", denominator), numerator, denominator)


@rule("unless_one", depth=1)
def unless_one(is_one: Neighbourhood, numerator: Neighbourhood, denominator: Neighbourhood) -> Replacement:
    return numerator if is_one.kind == "yes" else ("fraction", numerator, denominator)


def arithmetic(operator: str, a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    """One operator on two numbers, as a step towards the digits; None where there is no value."""
    assert is_number(a) and is_number(b)
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


_OPERATORS = {"+": _add, "-": lambda a, b: ("+", a, ("negate", b)), "*": _multiply, "/": _divide, "^": _power}
