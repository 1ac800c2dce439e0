import cmath

import pytest
from expression_strategies import functions_of_x
from hypothesis import given, settings

from dagnn.curriculum.exact.evaluate import complex_value
from dagnn.curriculum.exact.simplify import collect_terms, simplify
from dagnn.curriculum.expression import size, to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(+ 3 x)", "(+ x 3)"),
        ("(+ (+ x 1) 2)", "(+ x 3)"),
        ("(+ x (+ y 3))", "(+ (+ x y) 3)"),
        ("(+ x x)", "(* 2 x)"),
        ("(+ x (* 3 x))", "(* 4 x)"),
        ("(- (* 3 x) (* 5 x))", "(* -2 x)"),
        ("(- x x)", "0"),
        ("(- 0 x)", "(* -1 x)"),
        ("(- x)", "(* -1 x)"),
        ("(- x 5)", "(+ x -5)"),
        ("(- x (+ y 5))", "(+ (- x y) -5)"),
        ("(* x 3)", "(* 3 x)"),
        ("(* 2 (* 3 x))", "(* 6 x)"),
        ("(* (* 2 x) (* 3 y))", "(* 6 (* x y))"),
        ("(* x x)", "(^ x 2)"),
        ("(* x (^ x 3))", "(^ x 4)"),
        ("(* 0 (sin x))", "0"),
        ("(/ x 2)", "(* (/ 1 2) x)"),
        ("(/ 6 x)", "(* 6 (/ 1 x))"),
        ("(/ x x)", "1"),
        ("(/ (^ x 3) x)", "(^ x 2)"),
        ("(/ x (^ x 3))", "(/ 1 (^ x 2))"),
        ("(* x (/ 1 y))", "(/ x y)"),
        ("(^ (^ x 2) 3)", "(^ x 6)"),
        ("(^ (^ x 2) (/ 1 2))", "(^ (^ x 2) (/ 1 2))"),
        ("(^ (* 2 x) 3)", "(* 8 (^ x 3))"),
        ("(^ (sqrt x) 4)", "(^ x 2)"),
        ("(^ x 0)", "1"),
        ("(^ x 1)", "x"),
        ("(sqrt (/ 9 4))", "(/ 3 2)"),
        ("(sqrt 2)", "(sqrt 2)"),
        ("(log e)", "1"),
        ("(log (exp x))", "x"),
        ("(exp (log x))", "x"),
        ("(exp 0)", "1"),
        ("(sin 3)", "(sin 3)"),
        ("(cos (* 3 pi))", "-1"),
        ("(tan pi)", "0"),
        ("(* 0.5 x)", "(* (/ 1 2) x)"),
        ("(roots (+ 1 1) 3)", "(roots 2 3)"),
    ],
)
def test_canonical_forms(text, canonical):
    assert to_text(simplify(parse(text))) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(/ x (- 2 2))", "division by zero at (/ x 0)"),
        ("(log (- x x))", "log of 0"),
        ("(^ (- x x) -2)", "zero to a negative power at (^ 0 -2)"),
        ("(^ (^ 10 2000) 3)", "more than 4,000 digits"),
    ],
)
def test_what_has_no_value_is_refused(text, message):
    with pytest.raises(ExpressionError) as error:
        simplify(parse(text))
    assert message in str(error.value)


@settings(max_examples=150)
@given(functions_of_x())
def test_canonical_form_keeps_the_value(expr):
    try:
        canonical = simplify(expr)
    except ExpressionError:
        return
    for x in (0.83 + 0.21j, 1.37 - 0.29j, 0.31 - 0.17j):
        try:
            before, after = complex_value(expr, {"x": x}), complex_value(canonical, {"x": x})
        except (ArithmeticError, ValueError):
            continue
        if not (cmath.isfinite(before) and cmath.isfinite(after)) or abs(before) > 1e8:
            continue
        # log(exp u) is u up to whole turns; nothing else may differ.
        if "log" in to_text(expr) and "exp" in to_text(expr):
            continue
        assert cmath.isclose(before, after, rel_tol=1e-6, abs_tol=1e-6)


@settings(max_examples=150)
@given(functions_of_x())
def test_canonical_form_is_stable(expr):
    try:
        canonical = simplify(expr)
    except ExpressionError:
        return
    assert simplify(canonical) == canonical


def test_like_terms_are_collected_however_deep():
    expr = simplify(parse("(+ (+ (* 2 x) (sin x)) (- (* 3 x) (* 2 (+ (sin x) 4))))"))
    assert to_text(collect_terms(expr)) == "(+ (+ (* 5 x) (* -1 (sin x))) -8)"
    assert collect_terms(parse("(- x x)")) == 0


def test_folding_never_makes_an_expression_larger_by_much():
    assert size(simplify(parse("(* (+ x 1) (+ x 1) (+ x 1))"))) <= 5
