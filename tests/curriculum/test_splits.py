from collections import Counter

import pytest
from expression_strategies import expressions
from hypothesis import given

from dagnn.curriculum.expression import number_of, walk
from dagnn.curriculum.generator import (
    SPLITS,
    TEST_SHARE,
    VALIDATION_SHARE,
    _visit,
    canonical_text,
    check_split,
    has_held_out_part,
    split_of,
)
from dagnn.curriculum.parsing import parse
from dagnn.errors import ConfigError


def reordered(expr):
    """The same expression with the operands of every ``+ * =`` turned round."""
    if not isinstance(expr, tuple):
        return expr
    operands = [reordered(operand) for operand in expr[1:]]
    return (expr[0], *(reversed(operands) if expr[0] in ("+", "*", "=") else operands))


@given(expressions())
def test_rearranged_expressions_share_their_split(expr):
    assert canonical_text(reordered(expr)) == canonical_text(expr)
    assert split_of(reordered(expr)) == split_of(expr)
    assert has_held_out_part(reordered(expr)) == has_held_out_part(expr)


@given(expressions())
def test_both_walks_give_one_text(expr):
    assert _visit(expr, [])[0] == canonical_text(expr)


def test_order_matters_where_it_matters():
    assert canonical_text(parse("(- 2 3)")) != canonical_text(parse("(- 3 2)"))


def test_shares_are_as_stated():
    counts = Counter(split_of(("+", a, b)) for a in range(-70, 70) for b in range(a, 70))
    total = sum(counts.values())
    assert set(counts) == set(SPLITS)
    assert abs(100 * counts["test"] / total - TEST_SHARE) < 1
    assert abs(100 * counts["validation"] / total - VALIDATION_SHARE) < 1


def test_known_splits_never_move():
    """A moved split would put yesterday's test expressions into today's training."""
    assert {text: split_of(parse(text)) for text in KNOWN} == KNOWN


KNOWN = {
    "(- 7 -8)": "train",
    "(- -4 4)": "validation",
    "(* -5 -9)": "test",
    "(- (+ 0 5) (/ 1 2))": "train",
    "(- (* -4 -1) (* 4 -4))": "validation",
    "(/ (- 5 4) (* -4 -2))": "test",
    "(subst (* x (* x x)) x -1)": "train",
    "(subst (+ x 0) x -5)": "validation",
    "(subst (- (^ x 3) (* x 2)) x 4)": "test",
    "(sin (/ -4 3))": "train",
    "(sqrt (/ 8 5))": "validation",
    "(sin (^ -2 4))": "test",
}


def test_numbers_belong_to_training():
    assert all(split_of(("/", n, 7)) == "train" for n in range(1, 7))
    assert any(split_of(("/", n, 7)) != "train" for n in range(7, 7 * 60, 7))
    assert not has_held_out_part("x")


def test_level_4_is_in_one_split_with_and_without_its_marker():
    for n in range(60):
        assert split_of(("approx", ("sin", n))) == split_of(("sin", n))


def test_a_held_out_part_is_found_at_any_depth():
    part = next(("+", 2, n) for n in range(100) if split_of(("+", 2, n)) == "test")
    free = next(("+", "x", n) for n in range(100) if split_of(("+", "x", n)) == "test")
    derivative = next(
        ("derive", ("^", "x", n), "x")
        for n in range(2, 200)
        if split_of(("derive", ("^", "x", n), "x")) == "validation"
    )
    trained = next(n for n in range(100) if split_of(("sin", n)) == "train")
    held_out = next(n for n in range(100) if split_of(("sin", n)) != "train")
    assert has_held_out_part(part)
    assert has_held_out_part(("*", "x", ("sin", part)))
    assert has_held_out_part(("*", "x", ("sin", ("+", part[2], part[1]))))
    assert has_held_out_part(("*", "y", derivative))
    # The whole is asked for its split too, so one of training is taken: what remains is its part.
    factor = next(n for n in range(100) if split_of(("*", ("sin", trained), ("+", "x", n))) == "train")
    assert not has_held_out_part(("*", ("sin", trained), ("+", "x", factor)))
    factor = next(n for n in range(100) if split_of(("*", ("sin", held_out), ("+", "x", n))) == "train")
    assert has_held_out_part(("*", ("sin", held_out), ("+", "x", factor)))
    # (+ x 3) is no input of any level: inside a training expression it gives nothing away.
    whole = next(
        ("derive", ("*", free, n), "x") for n in range(100) if split_of(("derive", ("*", free, n), "x")) == "train"
    )
    assert not has_held_out_part(whole)


@given(expressions())
def test_a_training_expression_has_only_training_parts(expr):
    if has_held_out_part(expr):
        return
    for part in walk(expr):
        if isinstance(part, tuple) and number_of(part) is None and part[0] in ("derive", "integrate", "solve", "subst"):
            assert split_of(part) == "train"


def test_unknown_split_names_the_splits():
    with pytest.raises(ConfigError, match="split 'dev' does not exist: the splits are train, validation, test"):
        check_split("dev")
