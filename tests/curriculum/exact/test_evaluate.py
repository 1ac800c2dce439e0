from fractions import Fraction

import pytest
from expression_strategies import arithmetic
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.exact.evaluate import LimitError, evaluate, exact_root
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


def with_python(expr):
    """The value by Python's own operators on Fractions."""
    if isinstance(expr, int):
        return Fraction(expr)
    head, *operands = expr
    values = [with_python(operand) for operand in operands]
    if len(values) == 1:
        return -values[0]
    total = values[0]
    for value in values[1:]:
        total = {"+": total.__add__, "-": total.__sub__, "*": total.__mul__, "/": total.__truediv__}[head](value)
    return total


@given(arithmetic())
def test_value_is_that_of_python_fractions(expr):
    try:
        expected = with_python(expr)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero at"):
            evaluate(expr)
        return
    assert evaluate(expr) == expected


@given(st.fractions(max_denominator=50), st.integers(-5, 5))
def test_whole_powers_are_those_of_python(base, exponent):
    expr = ("^", ("/", base.numerator, base.denominator), exponent)
    if base == 0 and exponent < 0:
        with pytest.raises(ExpressionError, match="zero to a negative power"):
            evaluate(expr)
        return
    assert evaluate(expr) == base**exponent


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(^ 2 64)", 18446744073709551616),
        ("(^ 0 0)", 1),
        ("(^ -1 99999999999999999999)", -1),
        ("(^ 0 99999999999999999999)", 0),
        ("(^ (/ 8 27) (/ -2 3))", Fraction(9, 4)),
        ("(- 0.1 0.1 0.1)", Fraction(-1, 10)),
        ("(subst (^ (+ x 3) 2) x 5)", 64),
        ("(subst (subst (* x y) x (+ y 1)) y 3)", 12),
        ("(subst (+ x (subst x x 2)) x 5)", 7),
        ("(- 4)", -4),
    ],
)
def test_known_values(text, value):
    assert evaluate(parse(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(/ 5 0)", "division by zero at (/ 5 0)."),
        ("(/ 1 2 (- 3 3))", "division by zero at (/ 1 2 (- 3 3))."),
        ("(^ 0 -1)", "zero to a negative power at (^ 0 -1)"),
        ("(^ 9 (^ 9 9))", "the power at (^ 9 (^ 9 9)) has more than 4,000 digits"),
        ("(^ 2 (/ 1 2))", "no rational value at (^ 2 (/ 1 2))"),
        ("(^ -8 (/ 1 3))", "no rational value at"),
        ("(sin 0)", "sin has no rational value in general"),
        ("(+ x 1)", "x has no value: bind it with (subst E x value)"),
    ],
)
def test_no_value_is_said_in_words(text, message):
    with pytest.raises(ExpressionError) as error:
        evaluate(parse(text))
    assert message in str(error.value)


def test_nested_squares_are_refused_before_they_take_memory():
    text = "3"
    for _ in range(50):
        text = f"(subst (* x x) x {text})"
    with pytest.raises(ExpressionError, match="more than 4,000 digits"):
        evaluate(parse(text))


def test_a_limit_holds_for_every_intermediate_value():
    assert evaluate(parse("(- (* 100 99) 9000)"), limit=9999) == 900
    with pytest.raises(LimitError):
        evaluate(parse("(- (* 100 100) 9000)"), limit=9999)
    with pytest.raises(LimitError):
        evaluate(parse("(* (/ 1 10001) 10001)"), limit=9999)


@given(st.fractions(min_value=0, max_denominator=10**6), st.integers(1, 5))
def test_root_undoes_power(value, degree):
    assert exact_root(value**degree, degree) == value


def test_numbers_without_a_rational_root_have_none():
    assert exact_root(Fraction(2), 2) is None
    assert exact_root(Fraction(10**40 + 1), 2) is None
    assert exact_root(Fraction(-4), 2) is None
