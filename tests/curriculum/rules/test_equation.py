"""Equations, built from their roots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import rewritten

from dagnn.curriculum.engine import normal_form
from dagnn.curriculum.expression import from_fraction

rationals = st.fractions(-9, 9, max_denominator=6)
numbers = st.integers(-9, 9)


@given(rationals, numbers.filter(bool), numbers)
def test_linear_equations(root, slope, offset):
    left = ("+", ("*", slope, "x"), offset)
    assert normal_form(("solve", ("=", left, from_fraction(slope * root + offset)), "x")) == from_fraction(root)


@given(rationals, rationals, numbers.filter(bool))
def test_quadratic_equations(r, s, leading):
    factors = (("-", "x", from_fraction(r)), ("-", "x", from_fraction(s)))
    roots = tuple(from_fraction(root) for root in sorted({r, s}))
    expected = ("roots", *roots) if len(roots) == 2 else roots[0]
    assert normal_form(("solve", ("=", ("*", leading, *factors), 0), "x")) == expected


@given(rationals, rationals)
def test_expanded_quadratic_equations(r, s):
    left = ("+", ("*", from_fraction(-r - s), "x"), ("^", "x", 2))
    roots = tuple(from_fraction(root) for root in sorted({r, s}))
    expected = ("roots", *roots) if len(roots) == 2 else roots[0]
    assert normal_form(("solve", ("=", left, from_fraction(-r * s)), "x")) == expected


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("(= (+ (* 2 x) 5) 13)", "4"),
        ("(= 13 (+ (* 2 x) 5))", "4"),
        ("(= (^ (- x 1) 2) 0)", "1"),
        ("(= (* x x) x)", "(roots 0 1)"),
        ("(= (^ x 2) x)", "(roots 0 1)"),
        ("(= (/ x 3) 2)", "6"),
        ("(= (* (+ x 1) 2) (- x (* 3 4)))", "-14"),
        ("(= (- (* x (^ x 2)) (* x (^ x 2))) x)", "0"),
        ("(= (^ x 2) 2)", "no_rational_roots"),
        ("(= (^ x 2) -1)", "no_rational_roots"),
        ("(= (+ (^ x 2) x) -1)", "no_rational_roots"),
        ("(= (^ x 2) (/ 1 6))", "no_rational_roots"),  # discriminant 2/3: once (roots (/ -1 2) (/ 1 2))
        ("(= (^ x 2) (/ 2 9))", "no_rational_roots"),
        ("(= x x)", "(/ 0 0)"),
        ("(= x (+ x 1))", "(/ 1 0)"),
    ],
)
def test_solution(equation, expected):
    assert rewritten(f"(solve {equation} x)") == expected


@pytest.mark.parametrize(
    "equation",
    [
        "(= (+ (* x (^ x 2)) x) 2)",  # once 2, as if the cube were not there
        "(= (* (^ x 2) (^ (+ x 1) 2)) 3)",
        "(= (^ x 3) 8)",
        "(= (* x y) 2)",
        "(= (* pi x) 2)",
        "(= (sin x) 0)",
        "(= (/ 1 x) 3)",
        "(= x (/ 5 0))",
    ],
)
def test_no_answer_to_what_is_no_quadratic_equation_in_numbers(equation):
    assert rewritten(f"(solve {equation} x)").startswith("(root_of (polynomial_minus ")


def test_an_equation_alone_stays():
    assert rewritten("(= (+ 1 1) x)") == "(= 2 x)"
