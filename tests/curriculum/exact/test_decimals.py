import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.exact.precise import decimal_leaf, decimal_of_digits, same_decimal
from dagnn.curriculum.expression import number_of, to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("value", "leaf"),
    [
        (0.0, 0), (-0.0, 0), (26.6969, "26.7"), (0.04118, "0.0412"), (-0.5, "-0.5"), (2.0, 2), (1234.5, 1230),
        (0.0999999, "0.1"), (9999.4, 10000), (99.96, 100), (-12.34, "-12.3"), (5.18e21, 5180 * 10**18),
    ],
)  # fmt: skip
def test_leaf_is_the_value_to_three_digits(value, leaf):
    assert decimal_leaf(value) == leaf


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30))
def test_leaf_rounds_as_python_does_and_has_one_spelling(value):
    leaf = decimal_leaf(value)
    assert number_of(leaf) == Fraction(f"{value:.3g}") or value == 0
    assert parse(to_text(leaf)) == leaf
    if isinstance(leaf, str):
        assert not leaf.endswith("0")
        assert number_of(leaf).denominator > 1


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9))
def test_floats_fractions_and_decimals_round_alike(value):
    if abs(value) < 1e-30:
        value = 0.0
    assert decimal_leaf(value) == decimal_leaf(Fraction(value)) == decimal_leaf(Decimal(value))


@given(st.integers(-999, 999), st.integers(-9, 9))
def test_digits_and_exponent_give_the_number(mantissa, exponent):
    assert number_of(decimal_of_digits(mantissa, exponent)) == mantissa * Fraction(10) ** exponent


def test_equal_numbers_are_the_same_whatever_their_zeros():
    assert same_decimal("2.50", "2.5")
    assert same_decimal("2.0", 2)
    assert same_decimal("-0.0", 0)
    assert not same_decimal("2.51", "2.5")
    assert not same_decimal(("/", 5, 2), "2.5")
    assert not same_decimal("x", 0)


def test_three_digits_of_pi():
    assert decimal_leaf(math.pi) == "3.14"


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_has_no_digits(value):
    with pytest.raises(ExpressionError, match="give a finite number"):
        decimal_leaf(value)
