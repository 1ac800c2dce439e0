"""Natural numbers digit by digit: addition and subtraction with carry, comparison, schoolbook multiplication."""

from dagnn.curriculum.rules.numbers import chain, digit_constant, digit_of, family
from dagnn.curriculum.rules.registry import Rule, constructor, rule
from dagnn.graph.rewriting.window import Replacement, Window

constructor("less", "equal", "greater")


@rule("add", depth=1)
def add(a: Window, b: Window) -> Replacement:
    if a.kind == "end":
        return b
    if b.kind == "end":
        return a
    total = digit_of(a) + digit_of(b)
    return (f"d{total % 10}", ("add" if total < 10 else "add_carry", a[0], b[0]))


@rule("add_carry", depth=1)
def add_carry(a: Window, b: Window) -> Replacement:
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
def subtract(a: Window, b: Window) -> Replacement:
    """a - b for a >= b."""
    if a.kind == "end":
        return "end"
    if b.kind == "end":
        return a
    difference = digit_of(a) - digit_of(b)
    return (f"d{difference % 10}", ("subtract" if difference >= 0 else "subtract_borrow", a[0], b[0]))


@rule("subtract_borrow", depth=1)
def subtract_borrow(a: Window, b: Window) -> Replacement:
    """a - b - 1 for a > b."""
    if a.kind == "end":
        return "end"
    if b.kind == "end":
        difference = digit_of(a) - 1
        return (f"d{difference}", a[0]) if difference >= 0 else ("d9", ("subtract_borrow", a[0], "end"))
    difference = digit_of(a) - digit_of(b) - 1
    return (f"d{difference % 10}", ("subtract" if difference >= 0 else "subtract_borrow", a[0], b[0]))


def _compare(so_far: str, name: str) -> None:
    """Digits are met least significant first, so the last difference decides: it is carried in the label."""

    @rule(name, depth=1)
    def compare(a: Window, b: Window) -> Replacement:
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
def times_digit(factor: Window, carry: Window, number: Window) -> Replacement:
    """number * factor + carry; factor and carry are single digits."""
    carried = int(carry.kind)
    if number.kind == "end":
        return chain(carried)
    product = digit_of(number) * int(factor.kind) + carried
    return (f"d{product % 10}", ("times_digit", factor, digit_constant(product // 10), number[0]))


@rule("multiply", depth=1)
def multiply(a: Window, b: Window) -> Replacement:
    """a * b, one digit of b at a time."""
    if a.kind == "end" or b.kind == "end":
        return "end"
    digit = digit_of(b)
    rest = ("d0", ("multiply", a, b[0]))
    if digit == 0:
        return rest
    return ("add", a if digit == 1 else ("times_digit", digit_constant(digit), "0", a), rest)


def _drop(count: int) -> Rule:
    def drop(number: Window) -> Replacement:
        if number.kind == "end":
            return "end"
        return number[0] if count == 1 else (f"drop{count - 1}", number[0])

    return drop


# drop3 forgets the three least significant digits: division by 1000.
family([f"drop{count}" for count in range(1, 11)], lambda i: _drop(i + 1), depth=1)


def _longer_than(count: int) -> Rule:
    def longer_than(number: Window) -> Replacement:
        if number.kind == "end":
            return "no"
        return "yes" if count == 0 else (f"longer_than{count - 1}", number[0])

    return longer_than


constructor("yes", "no")
family([f"longer_than{count}" for count in range(4)], _longer_than, depth=1)
