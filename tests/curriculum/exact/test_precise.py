import mpmath
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.exact.precise import approximate, approximate_once, decimal_leaf, enclosure, ends_of
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@given(
    st.sampled_from(["sin", "cos", "tan", "exp"]),
    st.fractions(min_value=-700, max_value=700, max_denominator=1000),
    st.sampled_from([64, 256, 1024]),
)
def test_the_value_lies_in_its_ball(name, argument, bits):
    ball = enclosure((name, ("/", argument.numerator, argument.denominator)), bits)
    theirs = mpmath.mp.clone()
    theirs.prec = bits + 200
    value = getattr(theirs, name)(theirs.mpf(argument.numerator) / argument.denominator)
    low, high = ends_of(ball)
    assert theirs.mpf(low.numerator) / low.denominator <= value <= theirs.mpf(high.numerator) / high.denominator
    assert value == 0 or ball.rel_accuracy_bits() > bits - 40


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
        ("(- (exp 1) e)", "is 0 or too near to 0 to tell, with 16,384 bits"),
        ("(/ 1 (- (exp 1) e))", "it cannot be decided whether (- (exp 1) e) is 0"),
        ("(exp (exp 9))", "10 to the 3519: too far from 1 to write out"),
        ("(exp (- (exp 9)))", "10 to the -3520: too far from 1 to write out"),
        ("(tan (/ pi 2))", "tan at a pole"),
        ("(sin (exp 20000))", "is 0 or too near to 0 to tell"),
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
