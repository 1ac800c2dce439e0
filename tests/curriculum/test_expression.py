import sys
from fractions import Fraction

import pytest
from expression_strategies import arithmetic, expressions
from hypothesis import given

from dagnn.curriculum.exact.evaluate import evaluate
from dagnn.curriculum.expression import (
    bind,
    check,
    depth,
    free_symbols,
    from_fraction,
    leaf_of,
    number_of,
    size,
    symbols_of,
    to_binary,
    to_text,
    walk,
)
from dagnn.curriculum.parsing import parse
from dagnn.errors import DagnnError, ExpressionError


@given(expressions())
def test_text_reads_back_to_the_same_expression(expr):
    check(expr)
    assert parse(to_text(expr)) == expr


@given(expressions())
def test_size_and_depth_count_the_tree(expr):
    def by_recursion(item):
        if not isinstance(item, tuple):
            return 1, 0
        parts = [by_recursion(operand) for operand in item[1:]]
        return 1 + sum(n for n, _ in parts), 1 + max(d for _, d in parts)

    assert (size(expr), depth(expr)) == by_recursion(expr)
    assert len(list(walk(expr))) == size(expr)


def test_white_space_is_free():
    assert parse("  (+\n\t( * 2 x )5)  ") == ("+", ("*", 2, "x"), 5)


def test_decimal_stays_as_written_and_reads_as_a_rational():
    assert parse("0.10") == "0.10"
    assert number_of("0.10") == Fraction(1, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        ("   ", "the text is empty"),
        ("(+ 1 2", "the parenthesis at position 0 is never closed"),
        ("(+ 1 2))", "the expression ends before position 7, but ')' follows"),
        (") 1", "')' at position 0 closes nothing"),
        ("1 2", "the expression ends before position 2"),
        ("()", "empty parentheses at position 0"),
        ("(sine x)", "expected an operator at position 1, got 'sine': did you mean 'sin'?"),
        ("((+ 1 2) 3)", "expected an operator at position 1, got '('"),
        ("(+ 1 sin)", "'sin' at position 5 is an operator without parentheses: write (sin ...)"),
        ("(+ 1)", "+ at position 0 takes at least 2 operands, got 1"),
        ("(* 2 (sin 1 2))", "sin at position 5 takes 1 operand, got 2"),
        ("(^ 1 2 3)", "^ at position 0 takes 2 operands, got 3"),
        ("(integrate x x 1)", "integrate at position 0 takes 2 operands (E x) or 4 (E x from to), got 3"),
        ("(derive x 3)", "derive at position 0 needs a symbol as operand 2, got '3'"),
        ("(derive x pi)", "any name but the constants e and pi"),
        ("(solve x x)", "solve at position 0 needs an equation (= L R) as operand 1, got 'x'"),
        ("1e5", "'1e5' at position 0 is neither a number"),
        (".5", "neither a number"),
        ("9" * 5000, "has more than 4,000 digits"),
        ("0." + "9" * 5000, "has more than 4,000 digits"),
        ("(+ 1 \x00)", "neither a number"),
    ],
)
def test_bad_text_is_refused_with_its_position(text, message):
    with pytest.raises(ExpressionError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize("given_", [None, 5, b"(+ 1 2)", ["+"]])
def test_parse_takes_text_only(given_):
    with pytest.raises(ExpressionError, match="parse reads text"):
        parse(given_)


@pytest.mark.parametrize("wrap", ["(sin {})", "(+ 1 {})", "(- {})", "(derive {} x)"])
def test_fifty_deep_works_and_a_thousand_deep_is_refused(wrap):
    text = "x"
    for _ in range(50):
        text = wrap.format(text)
    expr = parse(text)
    assert depth(expr) == 50
    assert to_text(expr) == text
    for _ in range(950):
        text = wrap.format(text)
    with pytest.raises(ExpressionError, match="nested deeper than 100 at position"):
        parse(text)


def test_deep_tuples_are_refused_without_recursion():
    expr = "x"
    for _ in range(10 * sys.getrecursionlimit()):
        expr = ("sin", expr)
    assert depth(expr) == size(expr) - 1
    assert to_text(expr).startswith("(sin (sin")
    with pytest.raises(ExpressionError, match="nested deeper than 100"):
        check(expr)
    while isinstance(expr, tuple):  # freed from the outside in: the deallocator must not recurse either
        expr = expr[1]


def test_text_of_too_many_nodes_is_refused_as_its_tuple_is():
    largest = parse(f"(+ {'x ' * 99_999})")
    assert size(largest) == 100_000
    check(largest)
    with pytest.raises(ExpressionError, match="more than 100,000 nodes at position 200001: split it"):
        parse(f"(+ {'x ' * 100_000})")
    with pytest.raises(ExpressionError, match="more than 100,000 nodes"):
        check(("+", *["x"] * 100_000))


def test_a_tuple_that_shares_parts_is_refused_when_it_is_too_large():
    expr = "x"
    for _ in range(60):
        expr = ("+", expr, expr)
    with pytest.raises(ExpressionError, match="more than 100,000 nodes"):
        check(expr)


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (True, "a leaf is an int or a str, got bool True"),
        (1.5, "a leaf is an int or a str, got float 1.5"),
        (None, "got NoneType None"),
        ((), "a tuple starts with an operator"),
        ((1, 2), "a tuple starts with an operator, got 1"),
        (("foo", 2), "a tuple starts with an operator, got 'foo'"),
        (("+", 1), "+ takes at least 2 operands, got 1"),
        (("+", 1, ""), "neither a number"),
        (("+", 1, "a b"), "neither a number"),
        (10**4001, "more than 4,000 digits"),
    ],
)
def test_check_refuses_what_is_no_expression(expr, message):
    with pytest.raises(ExpressionError) as error:
        check(expr)
    assert message in str(error.value)


def test_every_refusal_is_a_dagnn_error_and_a_value_error():
    with pytest.raises(DagnnError) as error:
        leaf_of("(")
    assert isinstance(error.value, ValueError)


def test_symbols_leave_out_constants_and_numbers():
    assert symbols_of(parse("(+ x (* e (- pi 0.5 y)))")) == {"x", "y"}


def test_free_symbols_are_those_without_a_value():
    assert free_symbols(parse("(subst (+ x y) x z)")) == {"y", "z"}
    assert free_symbols(parse("(derive (^ x 2) x)")) == {"x"}
    assert free_symbols(parse("(integrate (* x t) x 0 1)")) == {"t"}
    assert free_symbols(parse("(solve (= x 3) x)")) == frozenset()


def test_bind_nests_substitutions():
    expr = bind(parse("(+ x (* y z))"), {"x": 2, "y": Fraction(1, 3), "z": "0.5"})
    assert to_text(expr) == "(subst (subst (subst (+ x (* y z)) x 2) y (/ 1 3)) z 0.5)"
    assert evaluate(expr) == Fraction(13, 6)


def test_bind_names_the_free_symbols():
    with pytest.raises(ExpressionError, match=r"'y' is no free symbol of '\(\+ x 3\)': its free symbols are x"):
        bind(("+", "x", 3), {"y": 1})


@given(arithmetic())
def test_binary_form_has_the_same_value(expr):
    binary = to_binary(expr)
    assert all(len(item) == 3 for item in walk(binary) if isinstance(item, tuple))
    try:
        value = evaluate(expr)
    except ExpressionError:
        return
    assert evaluate(binary) == value


@given(arithmetic())
def test_a_fraction_has_one_spelling(expr):
    try:
        value = evaluate(expr)
    except ExpressionError:
        return
    assert number_of(from_fraction(value)) == value


def test_numbers_are_told_from_other_expressions():
    assert number_of(("/", 3, 0)) is None
    assert number_of(("/", 1, "x")) is None
    assert number_of(("+", 1, 2)) is None
    assert number_of("-2.5") == Fraction(-5, 2)
