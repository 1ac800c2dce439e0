"""How numbers are written, and what neighbourhoods show of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_terms import normal

from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import chain, integer, is_negative, is_number
from dagnn.rewriting import LEAVE, RewritingMachine, RuleRewriter, encode_replacement, read_neighbourhood


def shown(term):
    """The neighbourhood node of `term` under a node that is being rewritten."""
    machine = RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: LEAVE), eager=True)
    machine.run([encode_replacement(("+", term, "x"), SIGNATURE)])
    return read_neighbourhood(machine.neighbourhood(machine.num_neighbourhoods - 1), SIGNATURE)[0]


def test_digits_are_least_significant_first():
    assert chain(203) == ("d3", ("d0", ("d2", "end")))
    assert chain(0) == "end"
    assert integer(-23) == ("negative", ("d3", ("d2", "end")))
    assert integer(0) == ("positive", "end")


@given(st.integers(-(10**60), 10**60))
def test_an_integer_is_its_own_normal_form(value):
    assert normal(integer(value)) == value


def test_leading_zeros_are_dropped():
    assert normal(("positive", ("d3", ("d0", ("d0", "end"))))) == 3
    assert normal(("positive", ("d0", ("d0", "end")))) == 0


def test_minus_zero_is_zero():
    assert normal(("negative", ("d0", "end"))) == 0


@pytest.mark.parametrize("value", range(-3, 4))
def test_small_integers_are_shown(value):
    sign = "negative" if value < 0 else "positive"
    assert shown(integer(value)).label == f"{sign}:{value}"
    assert shown(integer(value)).kind == sign


@pytest.mark.parametrize(
    ("term", "label"),
    [
        (integer(4), "positive:>3"),
        (integer(13), "positive:>3"),
        (integer(10), "positive:>3"),
        (integer(-4), "negative:<-3"),
        (integer(-11), "negative:<-3"),
        (("fraction", integer(1), chain(3)), "fraction:>0"),
        (("fraction", integer(-1), chain(3)), "fraction:<0"),
        (("fraction", integer(-17), chain(3)), "fraction:<0"),
    ],
)
def test_other_numbers_show_their_sign(term, label):
    node = shown(term)
    assert node.label == label
    assert all(child.kind == "?" for child in node.children)
    assert is_number(node)
    assert is_negative(node) == ("<" in label)


def test_a_symbol_is_no_number():
    assert not is_number(shown("y"))
    assert not is_negative(shown("y"))
