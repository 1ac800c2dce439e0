"""Sums of 10,000 terms are worked out; what is nested 10,000 deep is refused in words."""

import pytest

from dagnn.curriculum import answer, equivalent, from_dag, judge, parse, simplify, split_of, to_dag, to_text
from dagnn.curriculum import exact as engine
from dagnn.errors import ExpressionError

N = 10_000
SUM_OF_X = ("+", *["x"] * N)
LOGARITHMS = ("+", *[("log", n) for n in range(2, N)])


def nested(head, depth=N):
    expr = "x"
    for _ in range(depth):
        expr = (head, expr) if head == "sin" else (head, 1, expr)
    return expr


@pytest.mark.fault("curriculum", 9)
@pytest.mark.parametrize("count", [1_900, N])
def test_a_right_sum_is_right_and_a_wrong_one_wrong(count):
    problem = parse(f"(derive (* {count // 2} (^ x 2)) x)")
    assert judge(5, problem, ("+", *["x"] * count)).right
    assert not judge(5, problem, ("+", *["x"] * (count - 1))).right


@pytest.mark.parametrize(
    ("level", "problem", "right"),
    [
        (2, ("+", *range(N)), N * (N - 1) // 2),
        (3, ("subst", SUM_OF_X, "x", 2), 2 * N),
        (4, LOGARITHMS, 82100),
        (5, ("derive", ("+", *[("^", "x", 2)] * N), "x"), ("*", 2 * N, "x")),
        (6, ("integrate", SUM_OF_X, "x"), ("*", N // 2, ("^", "x", 2))),
        (6, ("integrate", ("*", 10_000, "x"), "x"), ("+", *[("^", "x", 2)] * 5_000)),
        (7, ("solve", ("=", SUM_OF_X, N), "x"), 1),
    ],
)
def test_sums_of_ten_thousand_terms(level, problem, right):
    assert judge(level, problem, right).right


def test_long_canonical_sums():
    assert to_text(simplify(SUM_OF_X)) == f"(* {N} x)"
    once = simplify(LOGARITHMS)
    assert equivalent(once, LOGARITHMS)
    assert not equivalent(once, ("+", LOGARITHMS, 1))
    assert parse(to_text(SUM_OF_X)) == SUM_OF_X
    assert from_dag(to_dag(SUM_OF_X)) == SUM_OF_X


@pytest.mark.parametrize("head", ["sin", "+", "^"])
def test_deep_nesting_is_refused_in_words(head):
    deep = nested(head)
    for function in (
        answer,
        simplify,
        to_dag,
        split_of,
        engine.evaluate,
        engine.approximate,
        lambda e: engine.derivative(e, "x"),
        lambda e: engine.substitute(e, "x", 2),
        lambda e: engine.solve(e, 0, "x"),
        lambda e: equivalent(e, e),
        lambda e: judge(5, e, 1),
        lambda e: parse(to_text(e)),
    ):
        with pytest.raises(ExpressionError):
            function(deep)
    assert not judge(5, parse("(derive (^ x 2) x)"), deep).right


def test_a_runaway_answer_is_refused_quickly():
    product = ("*", *[("sin", ("+", "x", n)) for n in range(240)])
    verdict = judge(6, parse("(integrate x x)"), product)
    assert not verdict.right
    assert "its derivative has more than 25,000 nodes" in verdict.reason
    assert "a term of more than" in judge(6, parse("(integrate x x)"), ("*", *["x"] * 3_000)).reason
