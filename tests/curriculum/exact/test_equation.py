import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.exact.polynomial import rational_roots, solve
from dagnn.curriculum.expression import from_fraction, to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError

rationals = st.fractions(min_value=-50, max_value=50, max_denominator=12)


@given(rationals.filter(bool), rationals, rationals)
def test_linear_equation_is_solved(a, b, root):
    left = ("+", ("*", from_fraction(a), "x"), from_fraction(b))
    assert rational_roots(left, from_fraction(a * root + b), "x") == [root]


@given(rationals.filter(bool), rationals, rationals)
def test_quadratic_equation_is_solved(a, r, s):
    product = ("*", from_fraction(a), ("*", ("-", "x", from_fraction(r)), ("-", "x", from_fraction(s))))
    assert rational_roots(product, 0, "x") == sorted({r, s})


@pytest.mark.parametrize(
    ("left", "right", "answer"),
    [
        ("(+ (* 2 x) 5)", "13", "4"),
        ("(^ x 2)", "9", "(roots -3 3)"),
        ("(^ (- x 3) 2)", "0", "3"),
        ("(/ 6 x)", "3", "2"),
        ("(/ (- x 1) (+ x 2))", "(/ 1 2)", "4"),
        ("(* 0.5 x)", "1", "2"),
        ("(* (sqrt 4) x)", "(cos 0)", "(/ 1 2)"),
        ("(^ x (+ 1 1))", "4", "(roots -2 2)"),
        ("(- x)", "3", "-3"),
        ("(^ x -1)", "4", "(/ 1 4)"),
        ("(/ (* x x) x)", "2", "2"),
    ],
)
def test_known_solutions(left, right, answer):
    assert to_text(solve(parse(left), parse(right), "x")) == answer


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ("(^ x 2)", "2", "no rational roots: the discriminant 8"),
        ("(^ x 2)", "-1", "no real roots"),
        ("(+ x 1)", "(+ x 1)", "every number solves"),
        ("(+ x 1)", "x", "no number solves"),
        ("(^ x 3)", "9", "has irrational roots"),
        ("(^ x 4)", "-1", "no real roots"),
        ("(+ x (/ 1 x))", "(/ 1 x)", "no number solves"),
        ("(/ 1 (/ 1 x))", "0", "no number solves (= (/ 1 (/ 1 x)) 0): a denominator is zero there"),
        ("(/ (* x x) x)", "0", "no number solves (= (/ (* x x) x) 0): a denominator is zero there"),
        ("(sin x)", "0", "(sin x) is not a polynomial in x"),
        ("(+ x a)", "0", "a has no rational value: bind it"),
        ("(^ x (/ 1 2))", "2", "the exponent is no whole number"),
        ("(/ x 0)", "2", "division by zero at (/ x 0)"),
        ("(^ (- x x) -1)", "2", "zero to a negative power"),
        ("(^ x 1000000)", "2", "degree above 64"),
        ("(^ (^ x 60) 60)", "2", "degree above 64"),
    ],
)
def test_no_solution_is_said_in_words(left, right, message):
    with pytest.raises(ExpressionError) as error:
        solve(parse(left), parse(right), "x")
    assert message in str(error.value)
