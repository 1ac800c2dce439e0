"""Simplification: by hand, and the same function before and after."""

import pytest
from expression_strategies import functions_of_x
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_terms import rewritten

from dagnn.curriculum.engine import normal_form
from dagnn.curriculum.exact.evaluate import evaluate
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(+ 0 x)", "x"),
        ("(+ x 0)", "x"),
        ("(+ 2 x)", "(+ x 2)"),
        ("(+ (+ x 2) 3)", "(+ x 5)"),
        ("(+ x x)", "(* 2 x)"),
        ("(+ x y)", "(+ x y)"),
        ("(- x 0)", "x"),
        ("(- x x)", "0"),
        ("(- 0 x)", "(* -1 x)"),
        ("(- x 2)", "(+ x -2)"),
        ("(- 2 x)", "(- 2 x)"),
        ("(* 0 x)", "0"),
        ("(* x 0)", "0"),
        ("(* 1 x)", "x"),
        ("(* x 1)", "x"),
        ("(* x 2)", "(* 2 x)"),
        ("(* 3 (* 2 x))", "(* 6 x)"),
        ("(* y (* 2 x))", "(* 2 (* y x))"),
        ("(* (* 2 x) y)", "(* 2 (* x y))"),
        ("(* x x)", "(^ x 2)"),
        ("(/ 0 x)", "0"),
        ("(/ x 2)", "(* (/ 1 2) x)"),
        ("(/ x x)", "1"),
        ("(/ (* 2 x) y)", "(* 2 (/ x y))"),
        ("(/ x (* 2 y))", "(* (/ 1 2) (/ x y))"),
        ("(/ 3 x)", "(* 3 (/ 1 x))"),
        ("(/ 1 x)", "(/ 1 x)"),
        ("(/ x 0)", "(/ x 0)"),
        ("(^ x 0)", "1"),
        ("(^ x 1)", "x"),
        ("(^ (^ x 2) 3)", "(^ x 6)"),
        ("(^ (^ x (/ 1 2)) 2)", "x"),
        ("(^ (^ x 2) (/ 1 2))", "(^ (^ x 2) (/ 1 2))"),  # once x, which is wrong where x is negative
        ("(^ 2 x)", "(^ 2 x)"),
        ("(^ 0 (/ 1 2))", "0"),
        ("(^ 0 (/ -1 2))", "(^ 0 (/ -1 2))"),
        ("(^ 4 (/ 1 2))", "(^ 4 (/ 1 2))"),
        ("(sin 0)", "0"),
        ("(cos 0)", "1"),
        ("(tan 0)", "0"),
        ("(log 1)", "0"),
        ("(log e)", "1"),
        ("(exp 0)", "1"),
        ("(sqrt 0)", "0"),
        ("(sqrt 1)", "1"),
        ("(sin 3)", "(sin 3)"),
        ("(sin x)", "(sin x)"),
    ],
)
def test_simplification(text, expected):
    assert rewritten(text) == expected


rational_functions = st.recursive(
    st.one_of(st.integers(-5, 5), st.just("x")),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("^"), inner, st.sampled_from([-2, -1, 0, 1, 2, 3])),
    ),
    max_leaves=10,
)


@given(rational_functions, st.fractions(-9, 9, max_denominator=9))
@settings(max_examples=100)
def test_the_value_stays(expr, x):
    try:
        before = evaluate(expr, {"x": x})
    except ExpressionError:
        return  # a division by zero
    assert evaluate(normal_form(expr), {"x": x}) == before


@given(functions_of_x(max_leaves=10))
@settings(max_examples=100)
def test_a_normal_form_is_its_own_normal_form(expr):
    once = normal_form(expr)
    assert normal_form(once) == once


def test_equal_operands_are_seen_whatever_their_size():
    big = "(sin (* x (exp (+ y (^ x 3)))))"
    assert rewritten(f"(- {big} {big})") == "0"
    assert rewritten(f"(/ {big} {big})") == "1"
    assert rewritten(f"(* {big} {big})") == to_text(("^", parse(big), 2))
