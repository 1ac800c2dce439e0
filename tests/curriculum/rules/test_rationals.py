"""The four operators and powers of rationals, against fractions.Fraction."""

import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import normal, rewritten

from dagnn.curriculum.expression import from_fraction, to_text
from dagnn.curriculum.rules.numbers import chain, integer

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
short = st.fractions(-99, 99, max_denominator=40)
long = st.builds(Fraction, st.integers(-(10**40), 10**40), st.one_of(st.just(1), st.integers(1, 10**40)))


def result_of(name, *values):
    return rewritten(f"({name} {' '.join(to_text(from_fraction(value)) for value in values)})")


@pytest.mark.parametrize("name", OPERATORS)
@given(st.one_of(st.tuples(short, short), st.tuples(long, long), short.map(lambda a: (a, a))))
def test_operators(name, pair):
    a, b = pair
    if name == "/" and b == 0:
        return
    assert result_of(name, a, b) == to_text(from_fraction(OPERATORS[name](a, b)))


@given(st.fractions(-30, 30, max_denominator=12), st.integers(-6, 9))
def test_powers(base, exponent):
    if base == 0 and exponent < 0:
        return
    expected = to_text(from_fraction(base**exponent))
    assert rewritten(f"(^ {to_text(from_fraction(base))} {exponent})") == expected


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6), st.integers(1, 1000))
def test_fractions_are_reduced(numerator, denominator, factor):
    term = ("reduce", integer(numerator * factor), chain(denominator * factor))
    assert normal(term) == from_fraction(Fraction(numerator, denominator))


@given(st.one_of(short, long))
def test_negation(value):
    term = integer(value.numerator)
    if value.denominator > 1:
        term = ("fraction", term, chain(value.denominator))
    assert normal(("negate", term)) == from_fraction(-value)


@pytest.mark.parametrize("text", ["(/ 5 0)", "(/ 0 0)", "(/ (/ -1 2) 0)", "(^ 0 -1)", "(^ 2 (/ 1 2))"])
def test_what_has_no_rational_value_stays(text):
    assert rewritten(text) == text


def test_zero_to_the_zeroth_is_one():
    assert rewritten("(^ 0 0)") == "1"


def test_a_number_has_one_spelling_only():
    assert rewritten("(/ 84 -36)") == "(/ -7 3)"
    assert rewritten("(/ -84 -42)") == "2"
    assert rewritten("-2.50") == "(/ -5 2)"
