"""Derivatives: every operator by hand, random functions by the judge."""

import pytest
from expression_strategies import functions_of_x
from hypothesis import given, settings
from rule_terms import rewritten

from dagnn.curriculum.engine import normal_form
from dagnn.curriculum.verdict import judge
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("5", "0"),
        ("(/ 1 2)", "0"),
        ("pi", "0"),
        ("y", "0"),
        ("x", "1"),
        ("(^ x 2)", "(* 2 x)"),
        ("(^ x -1)", "(* -1 (^ x -2))"),
        ("(+ (^ x 2) x)", "(+ (* 2 x) 1)"),
        ("(- x y)", "1"),
        ("(* x y)", "y"),
        ("(* (sin x) x)", "(+ (* (cos x) x) (sin x))"),
        ("(/ 1 x)", "(* -1 (/ 1 (^ x 2)))"),
        ("(/ x y)", "(/ y (^ y 2))"),
        ("(sin (* 2 x))", "(* 2 (cos (* 2 x)))"),
        ("(cos x)", "(* -1 (sin x))"),
        ("(tan x)", "(+ (^ (tan x) 2) 1)"),
        ("(log x)", "(/ 1 x)"),
        ("(exp (* 3 x))", "(* 3 (exp (* 3 x)))"),
        ("(sqrt x)", "(* (/ 1 2) (/ 1 (sqrt x)))"),
        ("(^ 2 x)", "(* (^ 2 x) (log 2))"),
        ("(^ x x)", "(* (^ x x) (+ (log x) (* x (/ 1 x))))"),
    ],
)
def test_derivative(function, expected):
    assert rewritten(f"(derive {function} x)") == expected


def test_a_second_derivative():
    assert rewritten("(derive (derive (^ x 4) x) x)") == "(* 12 (^ x 2))"


@given(functions_of_x(max_leaves=8))
@settings(max_examples=60)
def test_the_judge_accepts_every_derivative(function):
    expression = ("derive", function, "x")
    found = normal_form(expression)
    try:
        verdict = judge(5, expression, found)
    except ExpressionError:
        return  # the function has no value, or no exact answer
    assert verdict.right, verdict.reason


def test_what_is_no_function_stays():
    assert rewritten("(derive (roots x 1) x)") == "(derive (roots x 1) x)"
