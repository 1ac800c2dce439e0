"""What every level draws from, and levels 1 to 4: operators, symbols with values, functions of numbers."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dagnn.curriculum.expression import CONSTANTS, FUNCTIONS, Expr, walk

T = TypeVar("T")

# Why a draw is not used. `GenerationStats` counts each.
OFF_LEVEL = "off level"  # not of this level: a symbol that does not occur, no function, nothing left to integrate
UNDEFINED = "undefined"  # no answer: division by zero, log of zero
TOO_LARGE = "too large"  # a number above 9999, or an answer of too many nodes
ILL_CONDITIONED = "ill-conditioned"  # level 4: three digits are not well defined
OTHER_SPLIT = "other split"  # its hash belongs to another split
HELD_OUT_PART = "held-out part"  # a training draw that contains an expression of validation or test
UNVERIFIED = "unverified"  # the second route does not confirm the answer
REPEATED = "repeated"  # already in a dataset of distinct expressions
DROP_REASONS = (
    OFF_LEVEL, UNDEFINED, TOO_LARGE, ILL_CONDITIONED, OTHER_SPLIT, HELD_OUT_PART, UNVERIFIED, REPEATED,
)  # fmt: skip

# The largest numerator and denominator of every number in levels 1 to 3 and 5 to 7.
NUMBER_LIMIT = 9999


class Dropped(Exception):
    """This draw is not used; draw again. Never leaves the generator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Preset:
    """The sizes that a level draws from. Every range is symmetric: ``-limit .. limit``."""

    name: str
    operand_limit: int  # level 1
    leaf_limit: int  # levels 2 to 4
    constant_limit: int  # level 5
    coefficient_limit: int  # level 6
    power_limit: int  # level 6: highest power of an antiderivative
    root_limit: int  # level 7
    quadratic_root_limit: int  # level 7
    number_limit: int  # levels 1 to 3: numerator and denominator of every value
    depths: Mapping[int, tuple[int, ...]]  # level -> depths, one drawn with equal chance


PRESETS: Mapping[str, Preset] = {
    "full": Preset(
        name="full",
        operand_limit=99,
        leaf_limit=20,
        constant_limit=9,
        coefficient_limit=9,
        power_limit=6,
        root_limit=20,
        quadratic_root_limit=12,
        number_limit=NUMBER_LIMIT,
        depths={2: (2, 2, 3, 3, 3), 3: (1, 2, 2, 3, 3), 4: (1, 2, 2, 3, 3), 5: (1, 2, 2, 3, 3, 4), 7: (1, 2, 3)},
    ),
    "small": Preset(
        name="small",
        operand_limit=9,
        leaf_limit=5,
        constant_limit=4,
        coefficient_limit=4,
        power_limit=3,
        root_limit=6,
        quadratic_root_limit=4,
        number_limit=NUMBER_LIMIT,
        depths={2: (2,), 3: (1, 2), 4: (1, 2), 5: (1, 2), 7: (1, 2)},
    ),
}


def with_digits(preset: Preset, digits: int) -> Preset:
    """The preset with whole numbers of up to so many digits on levels 1 to 3, and values of twice as many."""
    largest = 10**digits - 1
    return replace(preset, operand_limit=largest, leaf_limit=largest, number_limit=10 ** (2 * digits) - 1)


class Draws:
    """Random choices from a text seed: the same in every process, whatever its hash seed."""

    __slots__ = ("_random",)

    def __init__(self, seed: str) -> None:
        # random() alone, never randint(): three times as fast, and its stream is promised across Python versions.
        self._random = random.Random(seed).random

    def integer(self, low: int, high: int) -> int:
        """A whole number in ``low .. high``, both ends included."""
        return low + int(self._random() * (high - low + 1))

    def within(self, limit: int) -> int:
        """A whole number in ``-limit .. limit``."""
        return int(self._random() * (2 * limit + 1)) - limit

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, with equal chance."""
        return options[int(self._random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability


def refuse_large_numbers(expr: Expr) -> None:
    """Drop a draw that writes a number above 9999."""
    if isinstance(expr, int):
        if not -NUMBER_LIMIT <= expr <= NUMBER_LIMIT:
            raise Dropped(TOO_LARGE)
    elif isinstance(expr, tuple):
        for operand in expr[1:]:
            refuse_large_numbers(operand)


OPERATORS = ("+", "-", "*", "/")
_SYMBOLS = ("x", "y", "z")
# An operand that stands in the other one too, or is it. The rewriting system has one node for both, and a network that
# hardly ever saw that gave 9 for (- 3 x) times itself at x = 5.
REPEATED_CHANCE = 0.08
_REPEATED_OPERAND_CHANCE = 0.03
_OTHER_EXPONENT_CHANCE = 0.15


def draw_level_1(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, None]:
    """One of ``+ - * /`` on two whole numbers."""
    operator, a, b = draws.choice(OPERATORS), draws.within(preset.operand_limit), draws.within(preset.operand_limit)
    if draws.chance(_REPEATED_OPERAND_CHANCE):
        b = a
    if operator == "/" and b == 0:
        raise Dropped(UNDEFINED)
    return (operator, a, b), None


def draw_level_2(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, None]:
    """Nested ``+ - * /``; one path reaches the drawn depth."""
    depth = depth or draws.choice(preset.depths[2])
    return with_depth(draws, depth, OPERATORS, lambda: draws.within(preset.leaf_limit)), None


def draw_level_3(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, None]:
    """One to three symbols, bound by nested ``subst``, in ``+ - * / ^``."""
    symbols = _SYMBOLS[: draws.choice((1, 1, 2, 3))]
    depth = depth or draws.choice(preset.depths[3])
    drawn: set[str] = set()  # every leaf that is drawn stands in the expression

    def leaf() -> Expr:
        if not draws.chance(0.55):
            return draws.within(preset.leaf_limit)
        symbol = draws.choice(symbols)
        drawn.add(symbol)
        return symbol

    expr = with_depth(draws, depth, (*OPERATORS, "^"), leaf)
    if len(drawn) < len(symbols):
        raise Dropped(OFF_LEVEL)
    for symbol in symbols:
        expr = ("subst", expr, symbol, draws.within(preset.leaf_limit))
    return expr, None


def with_depth(
    draws: Draws, depth: int, operators: Sequence[str], leaf: Callable[[], Expr], leaf_chance: float = 0.3
) -> Expr:
    """A random expression of exactly this depth: one path reaches it, the others end early with ``leaf_chance``.

    Exponents are whole numbers, most of them from 2 to 4. Some operands stand in the other one too, or are it.
    """
    if depth == 0:
        return leaf()
    operator = draws.choice(operators)
    spine = with_depth(draws, depth - 1, operators, leaf, leaf_chance)
    if operator in FUNCTIONS:
        return (operator, spine)
    if operator == "^":
        return (operator, spine, _exponent(draws))
    if draws.chance(REPEATED_CHANCE):
        other = part_of(draws, spine)
    else:
        other = _up_to_depth(draws, depth - 1, operators, leaf, leaf_chance)
    return (operator, spine, other) if draws.chance(0.5) else (operator, other, spine)


def part_of(draws: Draws, expr: Expr) -> Expr:
    """The expression itself, half of the time, or a part of it that stands in an operand's place."""
    if draws.chance(0.5):
        return expr
    parts = list(walk(expr))
    return draws.choice(parts)


def _exponent(draws: Draws) -> int:
    return draws.choice((-3, -2, -1, -1, 0, 1)) if draws.chance(_OTHER_EXPONENT_CHANCE) else draws.integer(2, 4)


def _up_to_depth(
    draws: Draws, depth: int, operators: Sequence[str], leaf: Callable[[], Expr], leaf_chance: float
) -> Expr:
    if depth == 0 or draws.chance(leaf_chance):
        return leaf()
    operator = draws.choice(operators)
    first = _up_to_depth(draws, depth - 1, operators, leaf, leaf_chance)
    if operator in FUNCTIONS:
        return (operator, first)
    if operator == "^":
        return (operator, first, _exponent(draws))
    return (operator, first, _up_to_depth(draws, depth - 1, operators, leaf, leaf_chance))


# sin and cos twice: every angle has a value, while most draws under log, sqrt and exp leave their domain.
_CONSTANT_CHANCE = 0.06
_OPERATORS = (*OPERATORS, "^", *FUNCTIONS, "sin", "cos")


def draw_level_4(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, None]:
    """``sin cos tan log exp sqrt`` mixed with ``+ - * / ^``; leaves are numbers, ``e`` and ``pi``."""
    depth = depth or draws.choice(preset.depths[4])
    limit = preset.leaf_limit

    def leaf() -> Expr:
        if draws.chance(_CONSTANT_CHANCE):
            return draws.choice(CONSTANTS)
        if draws.chance(0.8):
            return draws.within(limit)
        return ("/", draws.within(limit), draws.integer(2, limit))

    if depth == 1:
        # Alone, a function sees more of its domain: numerators up to 99.
        whole = draws.chance(0.3)
        argument = draws.within(limit) if whole else ("/", draws.within(preset.operand_limit), draws.integer(2, limit))
        return (draws.choice(FUNCTIONS), argument), None
    expr = with_depth(draws, depth, _OPERATORS, leaf, leaf_chance=0.4)
    if not any(isinstance(item, tuple) and item[0] in FUNCTIONS for item in walk(expr)):
        raise Dropped(OFF_LEVEL)
    return expr, None
