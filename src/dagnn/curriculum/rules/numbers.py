"""How numbers are written as graphs, and what a window shows of them.

A natural number is a chain of digit nodes, least significant first, closed by `end`: 23 is ``(d3 (d2 end))`` and 0
is ``end``. A rational is ``(positive chain)``, ``(negative chain)`` or ``(fraction numerator chain)`` in lowest
terms. Windows hide the digits and show the integers -3 .. 3 and the sign of a fraction by a tag.
"""

from collections.abc import Callable

from dagnn.curriculum.rules.registry import Rule, constructor, rule
from dagnn.graph.rewriting.window import Replacement, Window

NUMBERS = ("positive", "negative", "fraction")
ZERO, ONE, TWO = "positive:0", "positive:1", "positive:2"
MINUS_ONE = "negative:-1"
NEGATIVE_FRACTION = "fraction:<0"

TAGS: dict[tuple[str, str], str] = {
    ("end", ""): "0",
    ("positive", "0"): "0",
    ("negative", "*"): "<-3",
    ("fraction", "<-3"): "<0",
}
for _i in (1, 2, 3):
    TAGS |= {(f"d{_i}", "0"): f"{_i}", ("positive", f"{_i}"): f"{_i}", ("negative", f"{_i}"): f"-{_i}"}
    TAGS[("fraction", f"-{_i}")] = "<0"

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


def is_number(node: Window) -> bool:
    return node.kind in NUMBERS


def is_negative(node: Window) -> bool:
    return node.kind == "negative" or node.label == NEGATIVE_FRACTION


def digit_of(node: Window) -> int:
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
def leading_zero(rest: Window) -> Replacement | None:
    return "end" if rest.kind == "end" else None


@rule("negative", depth=1)
def minus_zero(magnitude: Window) -> Replacement | None:
    return ("positive", "end") if magnitude.kind == "end" else None
