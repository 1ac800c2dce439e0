"""Integrals: every supported form by hand, polynomials exactly, and no answer for what no rule covers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import rewritten

from dagnn.curriculum.engine import normal_form
from dagnn.curriculum.expression import from_fraction
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.verdict import judge


@pytest.mark.parametrize(
    ("integrand", "expected"),
    [
        ("0", "0"),
        ("5", "(* 5 x)"),
        ("y", "(* y x)"),
        ("x", "(* (/ 1 2) (^ x 2))"),
        ("(^ x 2)", "(* (/ 1 3) (^ x 3))"),
        ("(^ x -1)", "(log x)"),
        ("(^ (+ (* 2 x) 1) -1)", "(* (/ 1 2) (log (+ (* 2 x) 1)))"),
        ("(^ (+ (* 2 x) 1) 3)", "(* (/ 1 8) (^ (+ (* 2 x) 1) 4))"),
        ("(^ x (/ 1 2))", "(* (/ 2 3) (^ x (/ 3 2)))"),
        ("(/ 1 x)", "(log x)"),
        ("(/ 3 x)", "(* 3 (log x))"),
        ("(+ x 1)", "(+ (* (/ 1 2) (^ x 2)) x)"),
        ("(- 1 x)", "(- x (* (/ 1 2) (^ x 2)))"),
        ("(sin x)", "(* -1 (cos x))"),
        ("(cos (* 2 x))", "(* (/ 1 2) (sin (* 2 x)))"),
        ("(exp (+ (* -1 x) 3))", "(* -1 (exp (+ (* -1 x) 3)))"),
        ("(* (cos (^ x 2)) x)", "(* (/ 1 2) (sin (^ x 2)))"),
        ("(* (sin x) y)", "(* -1 (* y (cos x)))"),
        ("(sin (* y x))", "(* -1 (* (/ 1 y) (cos (* y x))))"),
        ("(* x (exp x))", "(- (* x (exp x)) (exp x))"),
        ("(* x (sin (* 2 x)))", "(- (* (/ -1 2) (* x (cos (* 2 x)))) (* (/ -1 4) (sin (* 2 x))))"),
    ],
)
def test_antiderivative(integrand, expected):
    assert rewritten(f"(integrate {integrand} x)") == expected
    assert judge(6, parse(f"(integrate {integrand} x)"), parse(expected)).right


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(integrate (^ x 2) x 0 1)", "(/ 1 3)"),
        ("(integrate (* 3 (^ x 2)) x 0 2)", "8"),
        ("(integrate (/ 1 x) x 1 e)", "1"),
        ("(integrate (sin x) x 0 pi)", "(+ (* -1 (cos pi)) 1)"),
        ("(integrate x x 1 1)", "0"),
        ("(integrate x x 0 y)", "(* (/ 1 2) (^ y 2))"),
    ],
)
def test_definite_integral(text, expected):
    assert rewritten(text) == expected


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-5, 5), st.integers(-5, 5))
def test_definite_integrals_of_polynomials_are_those_of_fractions(coefficients, lower, upper):
    polynomial = ("+", 0, *(("*", c, ("^", "x", power)) for power, c in enumerate(coefficients)))
    area = sum(Fraction(c, k + 1) * (upper ** (k + 1) - lower ** (k + 1)) for k, c in enumerate(coefficients))
    assert normal_form(("integrate", polynomial, "x", lower, upper)) == from_fraction(area)


# The rules once took every inner function for a linear one: the first was (* (/ -1 2) (/ (cos (^ x 2)) x)).
@pytest.mark.parametrize(
    "integrand",
    [
        "(sin (^ x 2))",
        "(^ (sin x) 2)",
        "(* (exp x) (sin x))",
        "(* (sin x) x x)",
        "(* x (exp (^ x 2)))",
        "(^ y 2)",
        "(exp (sin x))",
        "(^ (sin x) -1)",
        "(tan x)",
        "(/ (sin x) x)",
        "(^ x x)",
        "(* y x)",
    ],
)
@pytest.mark.parametrize("bounds", ["", " 0 1", " 1 y"])
def test_no_answer_where_no_rule_holds(integrand, bounds):
    text = f"(integrate {integrand} x{bounds})"
    result = normal_form(parse(text))
    labels = str(result)
    assert "integrate" in labels or "times_constant" in labels


def test_a_stuck_integral_keeps_its_symbol():
    # Its bounds were once put into the integrand too, and the integral of 1 / (1 + x^2) over 0 .. 1 was 1/2.
    stuck = "(integrate (/ 1 (+ (^ x 2) 1)) x)"
    definite = rewritten("(integrate (/ 1 (+ 1 (^ x 2))) x 0 1)")
    assert definite == f"(- (subst {stuck} x 1) (subst {stuck} x 0))"
