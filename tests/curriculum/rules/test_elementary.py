"""Functions in fixed point, against Python's math."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_terms import SCALE, fixed_term, fixed_value, normal

from dagnn.curriculum.rules.elementary import constant_terms
from dagnn.curriculum.rules.numbers import chain

# Each digit of the argument brings the rounding of one constant and of one product.
ERROR = 3e-9

angles = st.integers(-9_999 * SCALE, 9_999 * SCALE)
small = st.integers(-20 * SCALE, 20 * SCALE)
positive = st.one_of(st.integers(SCALE // 10**4, 10 * SCALE), st.integers(10 * SCALE, 10**6 * SCALE))


@given(st.one_of(small, angles))
@settings(max_examples=60)
def test_sine_and_cosine(scaled):
    angle = scaled / SCALE
    assert fixed_value(("fixed_sin", fixed_term(scaled))) == pytest.approx(math.sin(angle), abs=ERROR)
    assert fixed_value(("fixed_cos", fixed_term(scaled))) == pytest.approx(math.cos(angle), abs=ERROR)


@given(small)
def test_tangent(scaled):
    angle = scaled / SCALE
    if abs(math.cos(angle)) > 0.05:
        assert fixed_value(("fixed_tan", fixed_term(scaled))) == pytest.approx(math.tan(angle), rel=2e-6, abs=1e-7)


@given(small)
def test_exponential(scaled):
    expected = math.exp(scaled / SCALE)
    assert fixed_value(("fixed_exp", fixed_term(scaled))) == pytest.approx(expected, rel=ERROR, abs=ERROR)


@given(positive)
def test_logarithm(scaled):
    assert fixed_value(("fixed_log", fixed_term(scaled))) == pytest.approx(math.log(scaled / SCALE), abs=1e-5)


@given(positive.filter(lambda scaled: scaled >= SCALE // 10))
def test_square_root(scaled):
    expected = math.sqrt(scaled / SCALE)
    assert fixed_value(("fixed_sqrt", fixed_term(scaled))) == pytest.approx(expected, rel=1e-7)


def test_square_root_of_zero():
    assert fixed_value(("fixed_sqrt", fixed_term(0))) == 0


def test_every_constant_term_has_its_value():
    functions = {"fixed_sin": math.sin, "fixed_exp": math.exp}
    seen = dict.fromkeys(functions, 0)
    for term in constant_terms():
        name, (_, (_, digits)) = term
        argument = 0
        for power, digit in enumerate(_digits(digits)):
            argument += digit * 10**power / SCALE
        assert fixed_value(term) == pytest.approx(functions[name](argument), rel=1e-10, abs=1e-10)
        seen[name] += 1
    assert seen == {"fixed_sin": 14 * 9, "fixed_exp": 11 * 9 + 2}


def _digits(chain_term):
    while chain_term != "end":
        yield int(chain_term[0][1])
        chain_term = chain_term[1]


@pytest.mark.parametrize("name", ["fixed_exp", "fixed_sin", "fixed_cos", "fixed_tan", "fixed_log", "fixed_sqrt"])
def test_what_is_not_fixed_waits(name):
    assert normal((name, "x")) == (name, "x")
    assert normal((name, ("fixed", "x"))) != 0


@pytest.mark.parametrize("exponent", [30, 90, 100, 2_000, 12_345])
def test_exponents_out_of_range_have_no_value(exponent):
    assert normal(("fixed_exp", fixed_term(exponent * SCALE)))[0] != "fixed"
    assert normal(("fixed_exp", fixed_term(-exponent * SCALE)))[0] == "fixed/"


# The digits from 10,000 up were once read as thousands: (sin 12345) was 0.715.
@pytest.mark.parametrize("angle", [10_000, 12_345, 123_456, 10**9])
@pytest.mark.parametrize("name", ["fixed_sin", "fixed_cos", "fixed_tan"])
def test_angles_out_of_range_have_no_value(name, angle):
    assert normal((name, fixed_term(angle * SCALE)))[0] != "fixed"


@pytest.mark.parametrize("value", [0, -1, -(SCALE)])
def test_logarithms_of_what_is_not_positive_have_no_value(value):
    assert normal(("fixed_log", fixed_term(value))) == ("fixed_log", ("fixed", value))
    if value:
        assert normal(("fixed_sqrt", fixed_term(value))) == ("fixed_sqrt", ("fixed", value))


def test_the_digit_chain_of_an_angle_ends_anywhere():
    assert normal(("circle14", chain(0))) == ("pair", ("fixed", SCALE), ("fixed", 0))
    assert normal(("circle3", chain(0))) == ("pair", ("fixed", SCALE), ("fixed", 0))
