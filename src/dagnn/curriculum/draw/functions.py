"""Level 4: functions of numbers, answered with three digits."""

from dagnn.curriculum.draw.arithmetic import OPERATORS, with_depth
from dagnn.curriculum.draw.draws import OFF_LEVEL, Draws, Dropped, Preset
from dagnn.curriculum.expression import CONSTANTS, FUNCTIONS, Expr, walk

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
