"""Levels 5 to 7: derivatives, integrals, and equations built from their roots."""

from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

from dagnn.curriculum.draw.arithmetic import (
    NUMBER_LIMIT,
    OFF_LEVEL,
    OPERATORS,
    REPEATED_CHANCE,
    TOO_LARGE,
    UNDEFINED,
    Draws,
    Dropped,
    Preset,
    part_of,
)
from dagnn.curriculum.exact.derivative import derivative
from dagnn.curriculum.exact.simplify import add, as_number, collect_terms, multiply, raise_to, subtract
from dagnn.curriculum.expression import FUNCTIONS, Expr, from_fraction, symbols_of

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
    repeated = draws.chance(REPEATED_CHANCE)
    other = part_of(draws, spine) if repeated else _term(draws, draws.integer(0, depth - 1), limit)
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
        if head == "+":
            return add(_slope(expr[1]), _slope(expr[2]))
        if head == "-":
            return subtract(_slope(expr[1]), _slope(expr[2]))
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
