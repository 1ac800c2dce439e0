"""Samples of every level against SymPy, which shares no code with us."""

from itertools import islice

import pytest
import sympy
from sympy_bridge import same_function, to_sympy

from dagnn.curriculum.exact import answer
from dagnn.curriculum.exact.precise import decimal_leaf
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.generator import stream
from dagnn.curriculum.levels import LEVELS

X = sympy.Symbol("x")


def agrees_on_a_number(expr, given):
    return to_sympy(expr) == to_sympy(given)


def agrees_on_digits(expr, given):
    value = sympy.N(to_sympy(expr), 20)
    return decimal_leaf(float(value)) == given or (given == 0 and abs(value) < 1e-12)


def agrees_on_a_derivative(expr, given):
    return same_function(sympy.diff(to_sympy(expr[1]), X), to_sympy(given))


def agrees_on_an_integral(expr, given):
    if len(expr) == 5:
        return sympy.integrate(to_sympy(expr[1]), (X, expr[3], expr[4])) == to_sympy(given)
    return same_function(sympy.diff(to_sympy(given), X), to_sympy(expr[1]))


def agrees_on_roots(expr, given):
    _, left, right = expr[1]
    theirs = set(sympy.solve(sympy.Eq(to_sympy(left), to_sympy(right)), X))
    ours = given[1:] if isinstance(given, tuple) and given[0] == "roots" else (given,)
    return theirs == {to_sympy(root) for root in ours}


AGREES = {
    1: agrees_on_a_number,
    2: agrees_on_a_number,
    3: agrees_on_a_number,
    4: agrees_on_digits,
    5: agrees_on_a_derivative,
    6: agrees_on_an_integral,
    7: agrees_on_roots,
}


def disagreements(level, count, seed):
    """Texts of the samples where SymPy says otherwise, of the sample's answer or of the engine's own."""
    wrong = []
    for sample in islice(stream(level, seed=seed), count):
        for given in {sample.answer, answer(sample.input, level)}:
            if not AGREES[level](sample.input, given):
                wrong.append(f"{to_text(sample.input)} -> {to_text(given)}")
    return wrong


@pytest.mark.parametrize("level", LEVELS)
def test_answers_are_those_of_sympy(level):
    assert disagreements(level, 60, seed=100) == []


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_two_thousand_answers_are_those_of_sympy(level):
    assert disagreements(level, 2_000, seed=200) == []
