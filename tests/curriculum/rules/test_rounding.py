"""Three significant digits, and level 4 against Python's math."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import SCALE, fixed_term, normal, rewritten

from dagnn.curriculum.exact.precise import decimal_leaf


@given(st.integers(-(10**16), 10**16))
def test_numbers_are_rounded_to_three_digits(scaled):
    digits = str(abs(scaled))
    tie = len(digits) > 3 and digits[3:].rstrip("0") == "5"
    if not tie:
        assert normal(("rounded", fixed_term(scaled))) == decimal_leaf(Fraction(scaled, SCALE))


@pytest.mark.parametrize(
    ("scaled", "expected"),
    [
        (0, 0),
        (5, "0.0000000005"),
        (123, "0.0000000123"),
        (1234, "0.000000123"),
        (9994, "0.000000999"),
        (9996, "0.000001"),
        (9_994_999_999, "0.999"),
        (9_995_000_001, 1),
        (19_994_999_999_999, 2000),
        (-2_669_690_000_000, -267),
        (11_250_000_000, "1.13"),  # a tie goes up
        (-11_250_000_000, "-1.13"),
    ],
)
def test_rounding(scaled, expected):
    assert normal(("rounded", fixed_term(scaled))) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(sin 0)", 0),
        ("(sin 3)", math.sin(3)),
        ("(cos -2.50)", math.cos(-2.5)),
        ("(tan 1)", math.tan(1)),
        ("(tan -9)", math.tan(-9)),
        ("(log 9)", math.log(9)),
        ("(log 0.1)", math.log(0.1)),
        ("(exp 1)", math.e),
        ("(exp -5)", math.exp(-5)),
        ("(exp 24)", math.exp(24)),
        ("(sqrt 2)", math.sqrt(2)),
        ("(sqrt (/ 1 3))", math.sqrt(1 / 3)),
        ("pi", math.pi),
        ("(^ e 3)", math.e**3),
        ("(^ (sin 1) -2)", math.sin(1) ** -2),
        ("(* (log 9) (/ 12 (cos 19)))", math.log(9) * 12 / math.cos(19)),
        ("(+ (exp (sin 2)) (sqrt (- 30 (tan 4))))", math.exp(math.sin(2)) + math.sqrt(30 - math.tan(4))),
        ("(sin (* 99 99))", math.sin(9801)),
    ],
)
def test_level_4_is_what_math_says(text, value):
    assert rewritten(text, 4) == str(decimal_leaf(float(value)))
    assert rewritten(f"(approx {text})") == str(decimal_leaf(float(value)))


@given(
    st.sampled_from(["sin", "cos", "tan", "log", "exp", "sqrt"]),
    st.sampled_from(["sin", "cos", "exp", "sqrt"]),
    st.fractions(-9, 9, max_denominator=20),
    st.integers(1, 20),
)
def test_random_compositions_are_what_math_says(outer, inner, argument, factor):
    def value_off_by(error):
        return factor * getattr(math, outer)(getattr(math, inner)(float(argument)) + error)

    try:
        values = [value_off_by(error) for error in (-1e-7, 0.0, 1e-7)]
    except (ValueError, OverflowError):
        return  # outside the domain
    if len({decimal_leaf(value) for value in values}) > 1 or not 0.02 < abs(values[0]) < 1e9:
        return  # near a tie or a pole: ten decimals need not be enough
    text = f"(* {factor} ({outer} ({inner} (/ {argument.numerator} {argument.denominator}))))"
    assert rewritten(text, 4) == str(decimal_leaf(values[1]))


@pytest.mark.parametrize("text", ["x", "(log 0)", "(log -1)", "(sqrt -4)", "(/ 1 0)", "(exp 30)", "(sin 12345)"])
def test_what_has_no_value_is_not_rounded(text):
    assert rewritten(text, 4).startswith("(rounded ")
