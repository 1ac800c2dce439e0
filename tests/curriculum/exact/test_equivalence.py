import pytest
from expression_strategies import functions_of_x
from hypothesis import given, settings

from dagnn.curriculum.exact.answer import equivalent
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(+ x x)", "(* 2 x)"),
        ("(^ (+ x 1) 2)", "(+ (* x x) (+ (* 2 x) 1))"),
        ("(+ (^ (sin x) 2) (^ (cos x) 2))", "1"),
        ("(log (* x y))", "(+ (log x) (log y))"),
        ("(/ 1 (sqrt x))", "(^ x (/ -1 2))"),
        ("(log (- x 50))", "(log (+ -50 x))"),
        ("(* (log x) (^ x x))", "(* (^ x x) (log x))"),
        ("(sqrt (* -1 (* x x)))", "(sqrt (- 0 (^ x 2)))"),
        ("3", "(/ 6 2)"),
        ("0.5", "(/ 1 2)"),
        ("(log (- 0 x))", "(log (/ x -1))"),
        ("(+ x (log (/ x (- 0 x))))", "(+ x (log -1))"),
        ("(* e x)", "(* x (exp 1))"),
        ("e", "(exp 1)"),
        ("(- (+ (^ (sin 3) 2) (^ (cos 3) 2)) 1)", "0"),
        ("(- (+ (^ (sin x) 2) (^ (cos x) 2)) 1)", "0"),
        ("(- (log -2) (log -1))", "(log 2)"),
        ("(exp (+ (exp 5) 1000))", "(* (exp (exp 5)) (exp 1000))"),
        ("(exp (- x 900))", "(/ (exp x) (exp 900))"),
        ("(/ (^ x 3) (* (^ x 2) (exp 1)))", "(/ (* x (exp 1)) (^ (exp 1) 2))"),
        ("(/ (- (* x x) (* y y)) (- x y))", "(+ x y)"),
    ],
)
def test_equal_functions_are_equivalent(a, b):
    assert equivalent(parse(a), parse(b))
    assert equivalent(parse(b), parse(a))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x", "y"),
        ("(* 2 x)", "(* 2.000004 x)"),
        ("(sin x)", "(cos x)"),
        ("(sqrt (^ x 2))", "x"),
        ("(log x)", "(log (* 2 x))"),
        ("(log (- -1 (^ x 2)))", "(+ 1 (log (- -1 (^ x 2))))"),
        ("0", "1"),
        ("x", "(+ x (log (- x x)))"),
        ("(* e x)", "x"),
        ("(^ 9 (^ 9 9))", "x"),
        ("(* 2 x)", "(* (/ 2000001 1000000) x)"),
        ("(* 2 x)", "(+ (* 2 x) 0.00000000001)"),
        ("(exp x)", "(* 1.0000000001 (exp x))"),
        ("(exp x)", "(+ (exp x) (* 0.00000000000000000001 (sin x)))"),
        ("(- (exp 1) 1)", "1.718281"),
        ("(- (exp 1) 1)", "1.71828182845904523536028747"),
        ("(exp (- x 52))", "0"),
        ("(exp (- x 900))", "0"),
        ("(exp (- x 900))", "(* 2 (exp (- x 900)))"),
        ("(sqrt (^ (- x 3) 2))", "(- 3 x)"),
        ("(log (- -1 (^ x 2)))", "(* 1.0000001 (log (- -1 (^ x 2))))"),
        ("(log -1)", "(log -2)"),
    ],
)
def test_different_functions_are_not(a, b):
    assert not equivalent(parse(a), parse(b))


def test_antiderivatives_are_compared_up_to_a_constant():
    a, b = parse("(^ (+ x 1) 2)"), parse("(+ (^ x 2) (* 2 x))")
    assert not equivalent(a, b)
    assert equivalent(a, b, up_to_constant=True)
    assert equivalent(parse("(log (* 3 x))"), parse("(log x)"), up_to_constant=True)
    assert equivalent(parse("(+ x 7)"), "x", up_to_constant=True)
    assert not equivalent(parse("(^ x 2)"), parse("(^ x 3)"), up_to_constant=True)
    assert not equivalent(parse("(+ x (/ 1 0))"), "x", up_to_constant=True)
    assert not equivalent(parse("(+ x y)"), "x", up_to_constant=True)
    assert equivalent(parse("(log (* x y))"), parse("(+ 7 (log x) (log y))"), up_to_constant=True)
    assert not equivalent(parse("(* 1.00000000001 (exp x))"), parse("(exp x)"), up_to_constant=True)


@settings(max_examples=60)
@given(functions_of_x())
def test_canonical_form_is_equivalent_and_a_shifted_one_is_not(expr):
    try:
        canonical = simplify(expr)
    except ExpressionError:
        return
    assert equivalent(expr, canonical)
    assert not equivalent(("+", expr, 1), canonical)


def test_a_small_term_beside_a_huge_one_is_no_difference():
    # At x = 11.71 exp(x^3) has 700 digits: rounded to 240 of them, the sum is 1 and not 0.
    huge, one = parse("(exp (^ x 3))"), parse("(+ (^ (sin x) 2) (^ (cos x) 2))")
    product = ("*", ("exp", ("/", ("^", "x", 3), 2)), ("exp", ("/", ("^", "x", 3), 2)))
    assert equivalent(("+", huge, ("-", one, 1)), huge)
    assert equivalent(("+", product, one), ("+", huge, 1))
    assert not equivalent(("+", product, one), ("+", huge, 2))


def test_unsolved_expressions_are_refused():
    with pytest.raises(ExpressionError, match="derive has no numeric value"):
        equivalent(parse("(derive (^ x 2) x)"), parse("(* 2 x)"))
