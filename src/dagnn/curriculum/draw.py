"""Random expressions of each level: what all levels draw from, and how each level draws."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import TypeVar

from dagnn.curriculum.exact.calculus import derivative
from dagnn.curriculum.exact.simplify import add, as_number, collect_terms, multiply, raise_to, subtract
from dagnn.curriculum.expression import CONSTANTS, FUNCTIONS, Expr, from_fraction, symbols_of, walk

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
    """The sizes that a level draws from, by default the full ones. Every range is symmetric: ``-limit .. limit``."""

    depths: Mapping[int, tuple[int, ...]]  # level -> depths, one drawn with equal chance
    name: str = "full"
    operand_limit: int = 99  # level 1
    leaf_limit: int = 20  # levels 2 to 4
    constant_limit: int = 9  # level 5
    coefficient_limit: int = 9  # level 6
    power_limit: int = 6  # level 6: highest power of an antiderivative
    root_limit: int = 20  # level 7
    quadratic_root_limit: int = 12  # level 7
    number_limit: int = NUMBER_LIMIT  # levels 1 to 3: numerator and denominator of every value


PRESETS: Mapping[str, Preset] = {
    "full": Preset({2: (2, 2, 3, 3, 3), 3: (1, 2, 2, 3, 3), 4: (1, 2, 2, 3, 3), 5: (1, 2, 2, 3, 3, 4), 7: (1, 2, 3)}),
    "small": Preset(
        {2: (2,), 3: (1, 2), 4: (1, 2), 5: (1, 2), 7: (1, 2)},
        name="small",
        operand_limit=9,
        leaf_limit=5,
        constant_limit=4,
        coefficient_limit=4,
        power_limit=3,
        root_limit=6,
        quadratic_root_limit=4,
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
    return draws.choice(list(walk(expr)))


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


_SYMBOL = "x"
_OTHER_LEAVES = ("y", "y", "z", "e", "pi")
_OTHER_LEAF_CHANCE = 0.1


def draw_level_5(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, None]:
    """``(derive E x)`` with every operator and function; one path of E reaches the drawn depth.

    Some leaves are another symbol or a constant, some operands stand in the other one too, or are it.
    """
    expr = _term(draws, depth or draws.choice(preset.depths[5]), preset.constant_limit)
    if _SYMBOL not in symbols_of(expr):
        raise Dropped(OFF_LEVEL)
    return ("derive", expr, _SYMBOL), None


def draw_level_6(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, Expr | None]:
    """Two of five: the definite integral of a polynomial. The others: an integrand whose antiderivative was drawn."""
    return _definite(draws, preset) if draws.chance(0.4) else _indefinite(draws, preset)


def _term(draws: Draws, depth: int, limit: int) -> Expr:
    if depth == 0:
        if draws.chance(_OTHER_LEAF_CHANCE):
            return draws.choice(_OTHER_LEAVES)
        return _SYMBOL if draws.chance(0.6) else draws.within(limit)
    kind = draws.integer(0, 99)
    if kind < 25:
        return (draws.choice(FUNCTIONS), _term(draws, depth - 1, limit))
    if kind < 40:
        return ("^", _term(draws, depth - 1, limit), draws.choice((2, 2, 3, 3, 4, 5, -1, -1, -2, -3)))
    operator = draws.choice(("+", "-", "*", "*", "/"))
    spine = _term(draws, depth - 1, limit)
    other = part_of(draws, spine) if draws.chance(REPEATED_CHANCE) else _term(draws, draws.integer(0, depth - 1), limit)
    return (operator, spine, other) if draws.chance(0.5) else (operator, other, spine)


def _definite(draws: Draws, preset: Preset) -> tuple[Expr, None]:
    """One to three terms up to the fourth power, bounds within 5."""
    limit, integrand = preset.coefficient_limit, _monomial(draws, draws.within(preset.coefficient_limit) or 1)
    for _ in range(draws.integer(0, 2)):
        integrand = add(integrand, _monomial(draws, draws.within(limit)))
    lower, upper = draws.within(5), draws.within(5)
    if as_number(integrand) is not None:
        raise Dropped(OFF_LEVEL)
    return ("integrate", integrand, _SYMBOL, lower, upper), None


def _monomial(draws: Draws, coefficient: int) -> Expr:
    return multiply(coefficient, raise_to(_SYMBOL, draws.integer(0, 4)))


def _indefinite(draws: Draws, preset: Preset) -> tuple[Expr, Expr]:
    """One to three terms."""
    whole = _antiderivative_term(draws, preset)
    more = draws.integer(0, 2)
    for _ in range(more):
        whole = add(whole, _antiderivative_term(draws, preset))
    if more == 2:  # add merges the like terms of two
        whole = collect_terms(whole)
    integrand = _slope(whole)
    if integrand == 0:
        raise Dropped(OFF_LEVEL)
    return ("integrate", integrand, _SYMBOL), whole


def _antiderivative_term(draws: Draws, preset: Preset) -> Expr:
    """Powers 40 %, functions of a linear term 20 %; log, by parts, substitution, powers of a linear term 10 % each."""
    kind = draws.integer(0, 9)
    coefficient = _fraction(draws.within(preset.coefficient_limit) or 1, draws.choice((1, 1, 1, 2, 3, 4)))
    term: Expr
    if kind < 4:
        term = raise_to(_SYMBOL, draws.integer(1, preset.power_limit))
    elif kind < 6:
        term = (draws.choice(("sin", "cos", "exp")), _linear(draws))
    elif kind < 7:
        term = ("log", _SYMBOL)
    elif kind < 8:
        angle = multiply(draws.choice((1, 1, 2, 3, -1, -2)), _SYMBOL)
        term = multiply(_SYMBOL, (draws.choice(("exp", "sin", "cos")), angle))
    elif kind < 9:
        term = (draws.choice(("sin", "cos", "exp")), raise_to(_SYMBOL, draws.choice((2, 3))))
    else:
        term = raise_to(_linear(draws), draws.integer(2, min(5, preset.power_limit)))
    return multiply(coefficient, term)


def _slope(expr: Expr) -> Expr:
    """The derivative of a sum of terms. Nine of ten draws of a held-out split are dropped for their integrand alone."""
    if isinstance(expr, tuple):
        head = expr[0]
        if head in ("+", "-"):
            return (add if head == "+" else subtract)(_slope(expr[1]), _slope(expr[2]))
        if head == "*" and as_number(expr[1]) is not None:
            return multiply(expr[1], _slope_of_term(expr[2]))
    return _slope_of_term(expr)


@lru_cache(maxsize=1024)
def _slope_of_term(expr: Expr) -> Expr:
    """Without its coefficient a term is one of 500."""
    return derivative(expr, _SYMBOL)


def _fraction(numerator: int, denominator: int) -> Expr:
    """As ``from_fraction``, at half its time."""
    common = gcd(numerator, denominator)
    return numerator // common if denominator == common else ("/", numerator // common, denominator // common)


def _linear(draws: Draws) -> Expr:
    slope, offset = draws.choice((1, 1, 2, 3, 4, 5, -1, -2, -3)), draws.choice((0, 0, 1, 2, 3, -1, -2, 5, -4))
    return add(multiply(slope, _SYMBOL), offset)


def draw_level_7(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, Expr]:
    """35 % nested with x on one side, 40 % linear with x on both, 25 % quadratic with rational roots."""
    kind = draws.integer(0, 99)
    if kind < 35:
        left, right, answer = _nested(draws, preset, depth or draws.choice(preset.depths[7]))
    elif kind < 75:
        left, right, answer = _both_sides(draws, preset)
    else:
        left, right, answer = _quadratic(draws, preset)
    if depth is None and draws.chance(REPEATED_CHANCE):
        left, right = _done_to_both(draws, preset, left, right)
    return ("solve", ("=", left, right), _SYMBOL), answer


def _done_to_both(draws: Draws, preset: Preset, left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """Both sides plus or minus a part of one of them, or times a whole number: the answer stays."""
    operator = draws.choice(("+", "-", "*"))
    of_side = operator != "*"
    same = part_of(draws, draws.choice((left, right))) if of_side else draws.within(preset.quadratic_root_limit) or 2
    if draws.chance(0.5) and operator != "-":
        return (operator, same, left), (operator, same, right)
    return (operator, left, same), (operator, right, same)


def _nested(draws: Draws, preset: Preset, depth: int) -> tuple[Expr, Expr, Expr]:
    """``depth`` operations on x, one inside the other, each with a whole number."""
    root = _root(draws, preset)
    left: Expr = _SYMBOL
    value = root
    for _ in range(depth):
        operator, n = draws.choice(OPERATORS), draws.within(preset.leaf_limit)
        if n == 0 and operator in ("*", "/"):
            raise Dropped(UNDEFINED)
        if operator == "/":
            left, value = (operator, left, n), value / n
            continue
        x_first = draws.chance(0.5)
        left = (operator, left, n) if x_first else (operator, n, left)
        if operator == "+":
            value += n
        elif operator == "*":
            value *= n
        else:
            value = value - n if x_first else n - value
        _refuse_large(value)
    _refuse_large(value)
    return left, from_fraction(value), from_fraction(root)


def _both_sides(draws: Draws, preset: Preset) -> tuple[Expr, Expr, Expr]:
    """Two linear sides; what the right one lacks to give the drawn root is added to it."""
    root = _root(draws, preset)
    left, slope_left, offset_left = _side(draws, preset)
    right, slope_right, offset_right = _side(draws, preset)
    if slope_left == slope_right:
        raise Dropped(OFF_LEVEL)
    missing = (slope_left - slope_right) * root + offset_left - offset_right
    _refuse_large(missing)
    if missing:
        right = ("+", right, from_fraction(missing))
    return left, right, from_fraction(root)


def _side(draws: Draws, preset: Preset) -> tuple[Expr, int, int]:
    """The side, its slope and its value at 0: 50 % ax + b, 20 % b - ax, 15 % a(x + b), 15 % ax - b."""
    a, b = draws.within(preset.quadratic_root_limit), draws.within(50 * preset.root_limit // 20)
    kind = draws.integer(0, 99)
    if kind < 50:
        return ("+", ("*", a, _SYMBOL), b), a, b
    if kind < 70:
        return ("-", b, ("*", a, _SYMBOL)), -a, b
    if kind < 85:
        return ("*", a, ("+", _SYMBOL, b)), a, a * b
    return ("-", ("*", a, _SYMBOL), b), a, -b


def _quadratic(draws: Draws, preset: Preset) -> tuple[Expr, Expr, Expr]:
    """``c2 x^2 + c1 x + c0 = 0``, half of them with c0 on the right."""
    limit = preset.quadratic_root_limit
    first, second = Fraction(draws.within(limit)), Fraction(draws.within(limit))
    scale = draws.choice((1, 1, 1, 2, 3, -1))
    if draws.chance(0.3):
        first /= draws.choice((2, 3))
    c1, c0 = -scale * (first + second), scale * first * second
    factor = lcm(c1.denominator, c0.denominator)
    square, linear, constant = scale * factor, int(c1 * factor), int(c0 * factor)
    left: Expr = ("^", _SYMBOL, 2) if square == 1 else ("*", square, ("^", _SYMBOL, 2))
    right: Expr = 0
    if linear:
        left = ("+", left, ("*", linear, _SYMBOL))
    if constant and draws.chance(0.5):
        left = ("+", left, constant)
    elif constant:
        right = -constant
    roots = from_fraction(min(first, second)), from_fraction(max(first, second))
    return left, right, roots[0] if first == second else ("roots", *roots)


def _root(draws: Draws, preset: Preset) -> Fraction:
    """70 % whole, 30 % a fraction with a denominator up to 9."""
    if draws.chance(0.7):
        return Fraction(draws.within(preset.root_limit))
    return Fraction(draws.within(preset.root_limit), draws.integer(2, 9))


def _refuse_large(value: Fraction) -> None:
    if abs(value.numerator) > NUMBER_LIMIT or value.denominator > NUMBER_LIMIT:
        raise Dropped(TOO_LARGE)
