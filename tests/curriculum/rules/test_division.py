"""Quotients, greatest common divisors and square roots, against Python's integers."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rule_terms import MACHINE, normal

from dagnn.curriculum.expression import from_fraction
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import chain, integer
from dagnn.rewriting import encode_replacement

naturals = st.one_of(st.integers(0, 120), st.integers(0, 10**9), st.integers(10**30, 10**50))
divisors = naturals.filter(bool)


@given(naturals, divisors)
@example(0, 7)
@example(10**40, 1)
def test_quotient_and_remainder(a, b):
    quotient, remainder = divmod(a, b)
    assert normal(("divide", chain(a), chain(b))) == ("pair", chain(quotient), chain(remainder))
    assert normal(("first", ("divide", chain(a), chain(b)))) == chain(quotient)
    assert normal(("second", ("divide", chain(a), chain(b)))) == chain(remainder)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 1000))
@example(0, 0, 1)
@example(0, 12, 1)
def test_greatest_common_divisor(a, b, factor):
    assert normal(("gcd", chain(a * factor), chain(b * factor))) == chain(math.gcd(a * factor, b * factor))


@pytest.mark.parametrize("number", [0, 1, 2, 10, 11, 21, 10**20])
def test_is_one(number):
    assert normal(("is_one", chain(number))) == ("yes" if number == 1 else "no")


@pytest.mark.parametrize("number", [*range(30), 9801, 9802, 9800, 250_000])
def test_square_root_of_a_natural(number):
    root = math.isqrt(number)
    assert normal(("square_root", integer(number))) == (root if root * root == number else "irrational")


@pytest.mark.parametrize("value", [Fraction(4, 9), Fraction(1, 10_000), Fraction(49, 36), Fraction(1, 4)])
def test_square_root_of_a_fraction(value):
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    fraction = ("fraction", integer(value.numerator), chain(value.denominator))
    assert normal(("square_root", fraction)) == from_fraction(root)


# 2/3 once had the root 1: both roots were the one label `irrational`, and a / a is 1.
@pytest.mark.parametrize(("numerator", "denominator"), [(2, 3), (4, 3), (8, 9), (-4, 9), (-2, 3), (-1, 4)])
def test_a_fraction_without_a_rational_root(numerator, denominator):
    assert normal(("square_root", ("fraction", integer(numerator), chain(denominator)))) == "irrational"


def test_a_negative_number_has_no_root():
    assert normal(("square_root", integer(-4))) == "irrational"


def test_what_is_no_number_waits():
    assert normal(("square_root", "x")) == ("square_root", "x")
    assert normal(("first", "x")) == ("first", "x")


def test_division_of_a_long_number_takes_a_number_of_steps_in_proportion_to_its_digits():
    def steps(digits):
        MACHINE.clear_graph()
        return MACHINE.run([encode_replacement(("divide", chain(10**digits - 1), chain(7)), SIGNATURE)])[0].steps

    assert steps(200) < 2.2 * steps(100)
