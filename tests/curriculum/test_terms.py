"""Expressions as terms and back."""

from fractions import Fraction

import pytest
from expression_strategies import expressions
from hypothesis import given, settings
from hypothesis import strategies as st

from dagnn.curriculum.engine import from_term, to_term
from dagnn.curriculum.expression import ARITY, from_fraction, symbols_of, to_binary, walk
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE
from dagnn.errors import ConfigError, ExpressionError


def labels(text, level=None):
    return " ".join(SIGNATURE.labels[token].name for token in to_term(parse(text), level)[0])


def tokens(*names):
    return [SIGNATURE.id_of[name] for name in names]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "positive end"),
        ("23", "positive d3 d2 end"),
        ("-7", "negative d7 end"),
        ("0.5", "/ positive d1 end positive d2 end"),
        ("-2.50", "/ negative d5 end positive d2 end"),
        ("3.0", "positive d3 end"),
        ("x", "x"),
        ("pi", "pi"),
        ("(- x)", "- positive end x"),
        ("(+ x y z x)", "+ + + x y z x"),
        ("(- x (- y z x) y)", "- - x - - y z x y"),
        ("(integrate x x)", "integrate x x"),
        ("(integrate x x y z)", "definite x x y z"),
        ("(roots x y)", "roots x y"),
        ("(solve (= x y) x)", "solve = x y x"),
        ("(approx x)", "approx x"),
    ],
)
def test_a_term_is_the_expression_in_preorder(text, expected):
    assert labels(text) == expected


def test_a_numeric_level_reads_approx():
    assert labels("(sin x)", 4) == "approx sin x"
    assert labels("(sin x)", 5) == labels("(sin x)") == "sin x"


def plain(expression):
    """Decimals as fractions, as the term writes them."""
    if isinstance(expression, tuple):
        return (expression[0], *map(plain, expression[1:]))
    if isinstance(expression, str) and expression[0] in "-0123456789":
        return from_fraction(Fraction(expression))
    return expression


@given(expressions(max_leaves=12))
@settings(max_examples=100)
def test_what_is_written_reads_back(expression):
    term, names = to_term(expression)
    assert from_term(term, names) == plain(to_binary(expression))


@given(st.integers(-(10**100), 10**100))
def test_long_numbers_read_back(value):
    assert from_term(to_term(value)[0]) == value


def test_strange_symbols_are_renamed_and_named_back():
    term, names = to_term(parse("(+ speed (* alpha_2 x))"))
    assert names == {"x": "alpha_2", "y": "speed", "z": "x"}
    assert [SIGNATURE.labels[token].name for token in term] == ["+", "y", "*", "x", "z"]
    assert from_term(term, names) == parse("(+ speed (* alpha_2 x))")


def test_letters_are_given_in_the_order_of_binding_then_of_the_alphabet():
    assert to_term(parse("(+ (* q b) y)"))[1] == {"x": "b", "y": "q", "z": "y"}
    assert to_term(parse("(+ x y z)"))[1] == {}
    assert to_term(parse("(+ x y z c)"))[1] == {"x": "c", "y": "x", "z": "y", "a": "z"}


@pytest.mark.fault("curriculum", 8)
@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ("(derive (* alpha beta) beta)", "(derive (* y x) x)"),
        ("(derive (^ y 2) y)", "(derive (^ x 2) x)"),
        ("(solve (= (+ t 2) 5) t)", "(solve (= (+ x 2) 5) x)"),
        ("(subst (subst (+ p q) q 1) p 2)", "(subst (subst (+ x y) y 1) x 2)"),
    ],
)
def test_the_symbol_that_is_bound_is_the_x_of_the_drawn_expressions(given, drawn):
    assert to_term(parse(given))[0] == to_term(parse(drawn))[0]


def test_symbols_named_as_labels_are_symbols():
    expression = parse("(+ (* end add) (- positive irrational))")
    term, names = to_term(expression)
    assert from_term(term, names) == expression


def test_as_many_symbols_as_letters():
    names = [f"s{i}" for i in range(25)]
    expression = ("+", *names)
    term, renamed = to_term(expression)
    assert len(renamed) == 25
    assert symbols_of(from_term(term, renamed)) == set(names)
    with pytest.raises(ExpressionError, match="has 26 symbols, the rewriting system takes 25"):
        to_term(("+", *names, "x"))


@pytest.mark.parametrize("text", ["(roots 1)", "(roots 1 2 3)", "(+ 1 (roots 1 2 3))"])
def test_roots_of_another_number_of_values_are_refused(text):
    with pytest.raises(ExpressionError, match=r"roots with [13] operands has no rewrite rule"):
        to_term(parse(text))


@pytest.mark.parametrize(
    "expression", [("foo", 1), ("add", 1, 2), ("definite", 1, "x", 0, 1), ("+", 1), ("=", 1, 2, 3)]
)
def test_other_operators_are_refused(expression):
    with pytest.raises(ExpressionError, match=r"with \d operands has no rewrite rule"):
        to_term(expression)


def test_every_operator_of_the_language_is_written_or_refused():
    for head, (fewest, most) in ARITY.items():
        for count in range(fewest, (most or fewest + 3) + 1):
            expression = (head, *["x"] * count)
            if (head, count) == ("integrate", 3):
                continue  # no expression of the language
            if head == "roots" and count != 2:
                with pytest.raises(ExpressionError):
                    to_term(expression)
            else:
                assert from_term(to_term(expression)[0]) == to_binary(expression)


def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match="level 0 does not exist"):
        to_term(5, 0)


def test_many_operands_and_deep_terms_need_no_recursion():
    expression = ("+", *["x"] * 5_000)
    term, _ = to_term(expression)
    assert len(term) == 9_999
    assert sum(1 for _ in walk(from_term(term))) == 9_999


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["fraction", "negative", "d7", "end", "d3", "end"], ("/", -7, 3)),
        (["decimal", "positive", *["d0"] * 9, "d5", "end"], "0.5"),
        (["decimal", "negative", *["d0"] * 10, "d2", "end"], -2),
        (["decimal", "x"], ("decimal", "x")),
        (["positive", "add", "d3", "end", "end"], ("positive", ("add", ("d3", "end"), "end"))),
        (["positive", "d4", "add", "end", "end"], ("positive", ("d4", ("add", "end", "end")))),
        (["fraction", "x", "drop1", "end"], ("/", "x", ("drop1", "end"))),
        (["fixed", "positive", "d1", "end"], ("fixed", 1)),
        (["no_rational_roots"], "no_rational_roots"),
        (["positive", "d3", "d0", "end"], 3),
        (["pair", "d3", "end", "7"], ("pair", ("d3", "end"), "7")),
    ],
)
def test_half_finished_terms_are_shown_as_they_are(names, expected):
    assert from_term(tokens(*names)) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["add", "d3", "d2", "end", "end"], ("add", "#23", "end")),
        (["d3", "d0", "end"], "#03"),
        (["positive", "d3", "d2", "end"], 23),
        (["d4", "add", "d1", "end", "end"], ("d4", ("add", "#1", "end"))),
        (["fraction", "negative", "d7", "end", "d3", "end"], ("/", -7, 3)),
    ],
)
def test_digit_chains_can_be_shown_as_numerals(names, expected):
    assert from_term([SIGNATURE.id_of[name] for name in names], numerals=True) == expected


def test_names_reach_every_part_of_a_stuck_term():
    assert from_term(tokens("positive", "first", "a"), {"a": "speed"}) == ("positive", ("first", "speed"))
