"""Levels 1 to 3: one operator, nested operators, symbols with values."""

from collections.abc import Callable, Sequence

from dagnn.curriculum.draw.draws import OFF_LEVEL, UNDEFINED, Draws, Dropped, Preset
from dagnn.curriculum.expression import FUNCTIONS, Expr, symbols_of

OPERATORS = ("+", "-", "*", "/")
_SYMBOLS = ("x", "y", "z")


def draw_level_1(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, None]:
    """One of ``+ - * /`` on two whole numbers."""
    operator, a, b = draws.choice(OPERATORS), draws.within(preset.operand_limit), draws.within(preset.operand_limit)
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

    def leaf() -> Expr:
        return draws.choice(symbols) if draws.chance(0.55) else draws.within(preset.leaf_limit)

    expr = with_depth(draws, depth, (*OPERATORS, "^"), leaf)
    if len(symbols_of(expr)) < len(symbols):
        raise Dropped(OFF_LEVEL)
    for symbol in symbols:
        expr = ("subst", expr, symbol, draws.within(preset.leaf_limit))
    return expr, None


def with_depth(
    draws: Draws, depth: int, operators: Sequence[str], leaf: Callable[[], Expr], leaf_chance: float = 0.3
) -> Expr:
    """A random expression of exactly this depth: one path reaches it, the others end early with ``leaf_chance``.

    Exponents are whole numbers from 2 to 4.
    """
    if depth == 0:
        return leaf()
    operator = draws.choice(operators)
    spine = with_depth(draws, depth - 1, operators, leaf, leaf_chance)
    if operator in FUNCTIONS:
        return (operator, spine)
    if operator == "^":
        return (operator, spine, draws.integer(2, 4))
    other = _up_to_depth(draws, depth - 1, operators, leaf, leaf_chance)
    return (operator, spine, other) if draws.chance(0.5) else (operator, other, spine)


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
        return (operator, first, draws.integer(2, 4))
    return (operator, first, _up_to_depth(draws, depth - 1, operators, leaf, leaf_chance))
