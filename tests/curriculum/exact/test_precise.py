import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy_bridge import to_sympy

from dagnn.curriculum.decimals import decimal_leaf
from dagnn.curriculum.exact.precise import approximate, approximate_once, precise_value
from dagnn.curriculum.expression import parse, to_text
from dagnn.errors import ExpressionError


@given(
    st.sampled_from(["sin", "cos", "tan", "exp"]),
    st.fractions(min_value=-700, max_value=700, max_denominator=1000),
    st.sampled_from([25, 60, 120]),
)
def test_functions_have_all_their_digits(name, argument, digits):
    expr = (name, ("/", argument.numerator, argument.denominator))
    ours = precise_value(expr, digits)
    theirs = sympy.N(to_sympy(expr), digits + 20)
    error = abs(sympy.Float(str(ours), digits + 20) - theirs)
    # An argument of hundreds has its last digit three places higher; tan grows by 1 + tan^2 of that.
    assert error <= (1 + theirs**2) * sympy.Float(10) ** (4 - digits)


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("(sin 0)", "0"),
        ("(sin 3)", "0.141"),
        ("(* (log 9) (/ 12 (cos 19)))", "26.7"),
        ("(- (sqrt 2) (sqrt 2))", "0"),
        ("(- (exp (* pi (sqrt 163))) 262537412640768744)", "-0.00000000000075"),
        ("(sin (^ 10 30))", "-0.0901"),
        ("(sin (* 100000 pi))", "0"),
        ("(exp 50)", "5180000000000000000000"),
        ("(^ 2 0.5)", "1.41"),
        ("(^ 0 0)", "1"),
        ("(+ e pi)", "5.86"),
        ("(- (sin 1))", "-0.841"),
    ],
)
def test_three_digits_are_right_under_cancellation(text, digits):
    assert to_text(approximate(parse(text))) == digits


def test_the_digits_of_a_large_angle_are_those_of_sympy():
    assert approximate(parse("(sin (^ 10 30))")) == decimal_leaf(float(sympy.N(sympy.sin(10**30), 20)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(log 0)", "log of 0 at (log 0)"),
        ("(log -2)", "log of a negative number at (log -2)"),
        ("(sqrt -4)", "sqrt of a negative number at (sqrt -4)"),
        ("(/ 1 (- 2 2))", "division by zero at (/ 1 (- 2 2))"),
        ("(^ 0 -1)", "zero to a negative power"),
        ("(^ -2 0.5)", "a negative number to a fractional power"),
        ("(exp (exp (exp 9)))", "too large"),
        ("(exp (exp 9))", "10 to the 3519: too far from 1 to write out"),
        ("(tan (/ pi 2))", "tan at a pole"),
        ("(sin (^ 10 2000))", "the angle at (sin (^ 10 2000)) is too large"),
        ("(+ x 1)", "x has no value"),
        ("(roots 1 2)", "roots has no numeric value"),
    ],
)
def test_no_real_value_is_said_in_words(text, message):
    with pytest.raises(ExpressionError) as error:
        approximate(parse(text))
    assert message in str(error.value)


def test_one_precision_is_enough_without_cancellation():
    expr = parse("(* (log 9) (/ 12 (cos 19)))")
    assert approximate_once(expr) == approximate(expr)
