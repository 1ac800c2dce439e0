"""Level 7: equations built from their roots."""

from fractions import Fraction
from math import lcm

from dagnn.curriculum.draw.arithmetic import OPERATORS
from dagnn.curriculum.draw.draws import (
    NUMBER_LIMIT,
    OFF_LEVEL,
    TOO_LARGE,
    UNDEFINED,
    Draws,
    Dropped,
    Preset,
)
from dagnn.curriculum.expression import Expr, from_fraction

_SYMBOL = "x"


def draw_level_7(draws: Draws, preset: Preset, depth: int | None) -> tuple[Expr, Expr]:
    """35 % nested with x on one side, 40 % linear with x on both sides, 25 % quadratic with rational roots."""
    kind = draws.integer(0, 99)
    if kind < 35:
        left, right, answer = _nested(draws, preset, depth or draws.choice(preset.depths[7]))
    elif kind < 75:
        left, right, answer = _both_sides(draws, preset)
    else:
        left, right, answer = _quadratic(draws, preset)
    return ("solve", ("=", left, right), _SYMBOL), answer


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
    first, second, scale = (
        Fraction(draws.within(limit)),
        Fraction(draws.within(limit)),
        draws.choice((1, 1, 1, 2, 3, -1)),
    )
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
    if first == second:
        return left, right, from_fraction(first)
    return left, right, ("roots", from_fraction(min(first, second)), from_fraction(max(first, second)))


def _root(draws: Draws, preset: Preset) -> Fraction:
    """70 % whole, 30 % a fraction with a denominator up to 9."""
    if draws.chance(0.7):
        return Fraction(draws.within(preset.root_limit))
    return Fraction(draws.within(preset.root_limit), draws.integer(2, 9))


def _refuse_large(value: Fraction) -> None:
    if abs(value.numerator) > NUMBER_LIMIT or value.denominator > NUMBER_LIMIT:
        raise Dropped(TOO_LARGE)
