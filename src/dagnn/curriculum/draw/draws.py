"""What every level draws from: random numbers, the sizes of a preset, and the reasons to drop a draw."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dagnn.curriculum.expression import Expr

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
