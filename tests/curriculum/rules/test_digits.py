"""Natural numbers digit by digit, against Python's integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import normal

from dagnn.curriculum.rules.numbers import chain

naturals = st.one_of(st.integers(0, 120), st.integers(0, 10**9), st.integers(10**80, 10**120))
pairs = st.one_of(
    st.tuples(naturals, naturals), naturals.map(lambda a: (a, a)), naturals.map(lambda a: (a + 10, a + 1))
)


@given(pairs)
def test_sums(pair):
    a, b = pair
    assert normal(("add", chain(a), chain(b))) == chain(a + b)
    assert normal(("add_carry", chain(a), chain(b))) == chain(a + b + 1)


@given(pairs)
def test_differences(pair):
    a, b = max(pair), min(pair)
    assert normal(("subtract", chain(a), chain(b))) == chain(a - b)
    assert normal(("subtract_borrow", chain(a + 1), chain(b))) == chain(a - b)


@given(pairs)
def test_comparisons(pair):
    a, b = pair
    order = "less" if a < b else "greater" if a > b else "equal"
    assert normal(("compare", chain(a), chain(b))) == order


@given(naturals)
def test_a_comparison_in_progress_keeps_its_verdict_where_the_rest_is_equal(a):
    assert normal(("compare_less", chain(a), chain(a))) == "less"
    assert normal(("compare_greater", chain(a), chain(a))) == "greater"


@given(naturals, st.integers(0, 9), st.integers(0, 9))
def test_times_a_digit(number, factor, carry):
    assert normal(("times_digit", str(factor), str(carry), chain(number))) == chain(number * factor + carry)


@given(pairs)
def test_products(pair):
    a, b = pair
    assert normal(("multiply", chain(a), chain(b))) == chain(a * b)


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("number", [0, 7, 1234, 10**8, 123456789012])
def test_dropped_digits(count, number):
    assert normal((f"drop{count}", chain(number))) == chain(number // 10**count)


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("number", [0, 5, 10, 999, 1000, 10**30])
def test_longer_than(count, number):
    digits = len(str(number)) if number else 0
    assert normal((f"longer_than{count}", chain(number))) == ("yes" if digits > count else "no")
