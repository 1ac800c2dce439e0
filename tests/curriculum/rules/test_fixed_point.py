"""Fixed point with ten decimals, against integers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import SCALE, fixed_term, fixed_value, normal, rewritten

from dagnn.curriculum.rules.elementary import fixed
from dagnn.curriculum.rules.numbers import chain, integer

scaled_numbers = st.one_of(st.integers(-(10**10), 10**10), st.integers(-(10**18), 10**18))


def toward_zero(value: Fraction) -> int:
    return math.trunc(value)


@given(scaled_numbers, scaled_numbers)
def test_the_operators(a, b):
    assert normal(("fixed+", fixed_term(a), fixed_term(b))) == ("fixed", a + b)
    assert normal(("fixed-", fixed_term(a), fixed_term(b))) == ("fixed", a - b)
    assert normal(("fixed*", fixed_term(a), fixed_term(b))) == ("fixed", toward_zero(Fraction(a * b, SCALE)))
    if b:
        assert normal(("fixed/", fixed_term(a), fixed_term(b))) == ("fixed", toward_zero(Fraction(a * SCALE, b)))
    assert normal(("fixed_negate", fixed_term(a))) == ("fixed", -a)


@given(st.integers(-(10**20), 10**20))
def test_scaling_down(number):
    assert normal(("scale_down", integer(number))) == toward_zero(Fraction(number, SCALE))


@given(st.integers(1, 5 * SCALE), st.integers(-5, 6))
def test_powers(base, exponent):
    expected = (base / SCALE) ** exponent
    if 1e-3 < expected < 1e9 and base > SCALE // 10:
        assert fixed_value(("fixed^", fixed_term(base), integer(exponent))) == pytest.approx(expected, rel=1e-5)


def test_powers_at_the_edges():
    assert normal(("fixed^", fixed_term(3), integer(0))) == ("fixed", SCALE)
    assert normal(("fixed^", fixed_term(3), integer(1))) == ("fixed", 3)
    half = ("fraction", integer(1), chain(2))
    assert normal(("fixed^", fixed_term(3), half)) == ("fixed^", ("fixed", 3), ("/", 1, 2))


@given(st.fractions(-999, 999, max_denominator=99))
def test_rationals_are_cut_to_ten_decimals(value):
    term = integer(value.numerator)
    if value.denominator > 1:
        term = ("fraction", term, chain(value.denominator))
    assert normal(("numeric", term)) == ("fixed", toward_zero(value * SCALE))


def test_constants():
    assert normal(("numeric", "pi")) == ("fixed", 31_415_926_536)
    assert normal(("numeric", "e")) == ("fixed", 27_182_818_285)
    assert normal(fixed(-0.5)) == ("fixed", -5_000_000_000)


@pytest.mark.parametrize("text", ["(numeric x)", "(fixed/ (fixed 10000000000) (fixed 0))"])
def test_what_has_no_value_waits(text):
    expression = {"(numeric x)": "x", "(fixed/ (fixed 10000000000) (fixed 0))": "(/ 1 0)"}[text]
    # A quotient of two numbers is no fraction when the divisor is 0, so it reaches fixed point as it stands.
    assert rewritten(expression, 4) == f"(rounded {text})"


@pytest.mark.parametrize("name", ["fixed+", "fixed-", "fixed*", "fixed/"])
def test_operators_wait_for_both_values(name):
    assert normal((name, "x", fixed_term(5))) == (name, "x", ("fixed", 5))
    assert normal((name, fixed_term(5), "x")) == (name, ("fixed", 5), "x")
    assert normal(("fixed^", "x", integer(2))) == ("fixed^", "x", 2)
    assert normal(("fixed_negate", "x")) == ("fixed_negate", "x")
