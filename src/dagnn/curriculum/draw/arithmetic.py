"""Levels 1 to 3: one operator, nested operators, symbols with values."""

from collections.abc import Callable, Sequence

from dagnn.curriculum.draw.draws import OFF_LEVEL, UNDEFINED, Draws, Dropped, Preset
from dagnn.curriculum.expression import FUNCTIONS, Expr, walk

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
