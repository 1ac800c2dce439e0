import pytest
import sympy
from expression_strategies import functions_of_x
from hypothesis import given, settings
from sympy_bridge import same_function, to_sympy

from dagnn.curriculum.exact.calculus import derivative
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", "0"),
        ("x", "1"),
        ("y", "0"),
        ("pi", "0"),
        ("(^ x 2)", "(* 2 x)"),
        ("(^ x -1)", "(* -1 (^ x -2))"),
        ("(^ x x)", "(* (+ (log x) 1) (^ x x))"),
        ("(^ 2 x)", "(* (log 2) (^ 2 x))"),
        ("(^ e x)", "(^ e x)"),
        ("(* y x)", "y"),
        ("(sin (* 3 x))", "(* 3 (cos (* 3 x)))"),
        ("(cos x)", "(* -1 (sin x))"),
        ("(tan x)", "(+ (^ (tan x) 2) 1)"),
        ("(log x)", "(/ 1 x)"),
        ("(exp x)", "(exp x)"),
        ("(sqrt x)", "(* (/ 1 2) (/ 1 (sqrt x)))"),
        ("(sin 3)", "0"),
        ("(/ x y)", "(/ 1 y)"),
        ("(* e (^ x 2))", "(* 2 (* e x))"),
    ],
)
def test_known_derivatives(text, expected):
    assert to_text(derivative(simplify(parse(text)), "x")) == expected


@settings(max_examples=40)
@given(functions_of_x(max_leaves=4))
def test_derivative_is_that_of_sympy(expr):
    try:
        function = simplify(expr)
        ours = derivative(function, "x")
    except ExpressionError:
        return
    theirs = sympy.diff(to_sympy(function), sympy.Symbol("x"))
    # What has no value anywhere, such as (sqrt (- -1 (^ (log 1) 2))) over 0, cannot be compared.
    if same_function(theirs, theirs):
        assert same_function(theirs, to_sympy(ours))


def test_equation_has_no_derivative():
    with pytest.raises(ExpressionError, match=r"= has no derivative, at \(= x 2\)"):
        derivative(("=", "x", 2), "x")
