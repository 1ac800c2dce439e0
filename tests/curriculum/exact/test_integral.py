import pytest
import sympy
from sympy_bridge import same_function, to_sympy

from dagnn.curriculum.exact.calculus import antiderivative, definite_integral
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError

SUPPORTED = [
    ("3", "(* 3 x)"),
    ("y", "(* y x)"),
    ("(^ x 2)", "(* (/ 1 3) (^ x 3))"),
    ("(+ (* 2 x) 5)", "(+ (^ x 2) (* 5 x))"),
    ("(* (+ x 1) (- x 2))", "(+ (+ (* (/ 1 3) (^ x 3)) (* (/ -1 2) (^ x 2))) (* -2 x))"),
    ("(^ (+ (* 2 x) 1) 3)", "(* (/ 1 8) (^ (+ (* 2 x) 1) 4))"),
    ("(/ 1 x)", "(log x)"),
    ("(/ 1 (^ x 3))", "(* (/ -1 2) (^ x -2))"),
    ("(/ 1 (+ (* 2 x) 3))", "(* (/ 1 2) (log (+ (* 2 x) 3)))"),
    ("(sqrt (+ (* 3 x) 1))", "(* (/ 2 9) (* (+ (* 3 x) 1) (sqrt (+ (* 3 x) 1))))"),
    ("(/ 1 (sqrt x))", "(* 2 (sqrt x))"),
    ("(sin (* 2 x))", "(* (/ -1 2) (cos (* 2 x)))"),
    ("(cos (+ x 1))", "(sin (+ x 1))"),
    ("(tan x)", "(* -1 (log (cos x)))"),
    ("(exp (- 1 x))", "(* -1 (exp (+ (* -1 x) 1)))"),
    ("(log x)", "(+ (* x (log x)) (* -1 x))"),
    ("(^ 2 x)", "(/ (^ 2 x) (log 2))"),
    ("(* x (exp x))", "(+ (* x (exp x)) (* -1 (exp x)))"),
    ("(* (^ x 2) (sin x))", "(+ (+ (* -1 (* (^ x 2) (cos x))) (* 2 (* x (sin x)))) (* 2 (cos x)))"),
    ("(* x (log x))", "(+ (* (/ 1 2) (* (^ x 2) (log x))) (* (/ -1 4) (^ x 2)))"),
    ("(* (^ x 2) (cos (^ x 3)))", "(* (/ 1 3) (sin (^ x 3)))"),
    ("(* x (exp (^ x 2)))", "(* (/ 1 2) (exp (^ x 2)))"),
    ("(/ x (+ (^ x 2) 1))", "(* (/ 1 2) (log (+ (^ x 2) 1)))"),
    ("(* (sin x) (cos x))", "(* (/ 1 2) (^ (sin x) 2))"),
    ("(/ (log x) x)", "(* (/ 1 2) (^ (log x) 2))"),
    ("(+ (exp x) (* x (exp x)))", "(* x (exp x))"),
    ("(/ (+ x 1) x)", "(+ x (log x))"),
    ("(* (exp x) (+ x 1))", "(+ (* (+ x 1) (exp x)) (* -1 (exp x)))"),
]


@pytest.mark.parametrize(("text", "expected"), SUPPORTED)
def test_supported_forms(text, expected):
    integrand = simplify(parse(text))
    whole = antiderivative(integrand, "x")
    assert to_text(whole) == expected
    assert same_function(sympy.diff(to_sympy(whole), sympy.Symbol("x")), to_sympy(integrand))


def test_long_sums_are_integrated_term_by_term():
    expr = "x"
    for n in range(2, 60):
        expr = ("+", expr, ("sin", ("*", n, "x")))
    whole = antiderivative(simplify(expr), "x")
    assert same_function(sympy.diff(to_sympy(whole), sympy.Symbol("x")), to_sympy(expr))


@pytest.mark.parametrize("text", ["(exp (^ x 2))", "(sin (log (sin x)))", "(^ x x)", "(/ (sin x) x)"])
def test_other_forms_are_refused_with_the_list_of_forms(text):
    with pytest.raises(ExpressionError, match=r"no supported antiderivative of .* the forms are polynomials"):
        antiderivative(simplify(parse(text)), "x")


@pytest.mark.parametrize(
    ("text", "lower", "upper", "expected"),
    [
        ("(/ 1 x)", 1, "e", "1"),
        ("(^ x 2)", 0, 1, "(/ 1 3)"),
        ("(^ x 2)", 1, 0, "(/ -1 3)"),
        ("(* x t)", 0, 2, "(* 2 t)"),
        ("x", 0, "t", "(* (/ 1 2) (^ t 2))"),
        ("(sin x)", 0, "pi", "2"),
        ("(/ 1 (^ x 2))", 1, 2, "(/ 1 2)"),
        ("(sqrt (+ (* 2 x) 1))", 0, 4, "(/ 26 3)"),
        ("(exp x)", 0, 1, "(+ (exp 1) -1)"),
        ("(/ 1 x)", -2, -2, "0"),
        ("(/ 1 x)", -2, -1, "(* -1 (log 2))"),
        ("(tan x)", "pi", 4, "(* -1 (log (* -1 (cos 4))))"),
        ("(/ x (+ (^ x 2) -2))", 2, 3, "(- (* (/ 1 2) (log 7)) (* (/ 1 2) (log 2)))"),
    ],
)
def test_definite_integrals(text, lower, upper, expected):
    assert to_text(definite_integral(simplify(parse(text)), "x", lower, upper)) == expected


@pytest.mark.parametrize(
    ("text", "lower", "upper", "message"),
    [
        ("(/ 1 x)", -1, 1, "the integrand (/ 1 x) has a pole between -1 and 1: x is 0 there"),
        ("(/ 1 (^ x 2))", -1, 1, "has a pole between"),
        ("(^ (+ (* 3 x) -1) -2)", 0, 1, "has a pole between"),
        ("(/ 1 x)", 0, 1, "has a pole between"),
        ("(/ 1 (^ x 2))", -1, 2, "has a pole between -1 and 2: x is 0 there"),
        ("(/ 1 (+ (+ (^ x 2) (* -2 x)) 1))", 0, 3, "has a pole between"),
        ("(/ x (^ (+ (^ x 2) -2) 2))", 0, 3, "(+ (^ x 2) -2) is 0 there"),
        ("(/ x (+ (^ x 2) -2))", ("sqrt", 2), 3, "has a pole between"),
        ("(/ x (* (exp x) (^ (+ x -1) 2)))", 0, 3, "(+ x -1) is 0 there"),
        ("(/ 1 (^ (cos x) 2))", 1, 2, "(cos x) is 0 there"),
        ("(tan x)", 1, 2, "has a pole between"),
        ("(log x)", -1, 1, "does not have a real value everywhere between -1 and 1"),
        ("(sqrt x)", -1, 1, "does not have a real value everywhere between -1 and 1"),
    ],
)
def test_a_pole_in_the_interval_is_refused(text, lower, upper, message):
    with pytest.raises(ExpressionError) as error:
        definite_integral(simplify(parse(text)), "x", lower, upper)
    assert message in str(error.value)
