"""Values for symbols."""

import pytest
from expression_strategies import arithmetic
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import rewritten

from dagnn.curriculum.engine import normal_form
from dagnn.curriculum.exact.evaluate import evaluate
from dagnn.curriculum.expression import from_fraction
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(subst x x 5)", "5"),
        ("(subst y x 5)", "y"),
        ("(subst 7 x 5)", "7"),
        ("(subst pi x 5)", "pi"),
        ("(subst (/ 7 3) x 5)", "(/ 7 3)"),
        ("(subst (^ (+ x 3) 2) x 5)", "64"),
        ("(subst (+ x y) x y)", "(* 2 y)"),
        ("(subst (subst (* x y) x 3) y 4)", "12"),
        ("(subst (subst x x y) y 2)", "2"),
        ("(subst (sin (* x y)) x 0)", "0"),
        ("(subst (roots x y) x 3)", "(roots 3 y)"),
        ("(subst (derive (^ x 3) x) x 2)", "12"),
        ("(subst (integrate x x) x 4)", "8"),
        ("(subst (approx x) x 3)", "3"),
    ],
)
def test_substitution(text, expected):
    assert rewritten(text) == expected


@pytest.mark.parametrize(
    "stuck",
    ["(integrate (tan x) x)", "(derive (roots x 1) x)", "(subst (integrate (tan y) y) y x)"],
)
def test_nothing_is_put_into_what_still_needs_its_symbol(stuck):
    assert rewritten(f"(subst {stuck} x 1)") == f"(subst {stuck} x 1)"


@given(arithmetic(leaf=st.one_of(st.integers(-9, 9), st.sampled_from(["x", "y"]))), st.integers(-9, 9))
def test_values_are_those_of_fractions(expr, value):
    expression = ("subst", ("subst", expr, "x", value), "y", ("/", value, 7))
    try:
        expected = from_fraction(evaluate(expression))
    except ExpressionError:
        return  # a division by zero
    assert normal_form(expression) == expected
