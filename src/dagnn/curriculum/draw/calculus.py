"""Levels 5 and 6: derivatives and integrals."""

from functools import lru_cache
from math import gcd

from dagnn.curriculum.draw.arithmetic import REPEATED_CHANCE, part_of
from dagnn.curriculum.draw.draws import OFF_LEVEL, Draws, Dropped, Preset
from dagnn.curriculum.exact.derivative import derivative
from dagnn.curriculum.exact.simplify import add, as_number, collect_terms, multiply, raise_to, subtract
from dagnn.curriculum.expression import FUNCTIONS, Expr, symbols_of

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
