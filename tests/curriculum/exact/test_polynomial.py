from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.exact.polynomial import has_root_between, times

small = st.fractions(-5, 5, max_denominator=6)


@given(st.lists(small, min_size=1, max_size=6).filter(lambda p: p[-1] != 0), small, small)
def test_roots_are_found_where_sympy_counts_them(coefficients, a, b):
    lower, upper = min(a, b), max(a, b)
    x = sympy.Symbol("x")
    theirs = sympy.Poly([sympy.Rational(c.numerator, c.denominator) for c in reversed(coefficients)], x)
    ends = [sympy.Rational(end.numerator, end.denominator) for end in (lower, upper)]
    assert has_root_between(coefficients, lower, upper) == (theirs.count_roots(*ends) > 0)


@given(small, st.integers(1, 4))
def test_a_root_of_any_order_is_found(root, order):
    polynomial = [Fraction(1)]
    for _ in range(order):
        polynomial = times(polynomial, [-root, Fraction(1)])
    assert has_root_between(polynomial, root - 1, root + Fraction(1, 3))
    assert has_root_between(polynomial, root, root + 1)
    assert not has_root_between(polynomial, root + Fraction(1, 1000), root + 1)


@pytest.mark.parametrize(("upper", "found"), [(Fraction(141421356, 10**8), False), (Fraction(141421357, 10**8), True)])
def test_an_irrational_root_is_found_exactly(upper, found):
    assert has_root_between([Fraction(-2), Fraction(0), Fraction(1)], Fraction(0), upper) is found
