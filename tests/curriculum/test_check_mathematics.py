"""The short form of scripts/check_mathematics.py: the engine against an oracle that shares no code with it."""

import sys
from pathlib import Path

import mpmath
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import check_mathematics as script


@pytest.fixture(autouse=True)
def _forty_digits():
    with mpmath.workdps(script.DIGITS):
        yield


@pytest.mark.fault("curriculum", 1, 2, 3, 4)
@pytest.mark.parametrize("level", [*script.CHECKS, "language"])
def test_no_answer_is_wrong(level):
    count = 80 if level == "language" else 40
    counts, wrong = script.run(level, count, seed=11, first=0, seconds=20)
    assert wrong == []
    assert counts["right"] >= count / 2


@pytest.mark.slow
@pytest.mark.parametrize("level", [*script.CHECKS, "language"])
def test_none_of_two_thousand_answers_is_wrong(level):
    assert script.run(level, 2_000, seed=12, first=0, seconds=20)[1] == []


@pytest.mark.parametrize(
    ("level", "expression", "wrong"),
    [
        (1, ("+", 2, 3), 6),
        (4, ("sin", 3), "0.142"),
        (4, ("exp", -100), 0),
        (5, ("derive", ("^", "x", 2), "x"), "x"),
        (6, ("integrate", ("^", "x", 2), "x"), ("^", "x", 3)),
        (6, ("integrate", "x", "x", 0, 1), 1),
        (7, ("solve", ("=", ("^", "x", 2), 4), "x"), 2),
        (7, ("solve", ("=", ("/", 1, ("/", 1, "x")), 0), "x"), 0),
    ],
)
def test_the_oracle_finds_what_is_wrong(level, expression, wrong):
    assert script.CHECKS[level](expression, wrong) is not None


@pytest.mark.parametrize(("factor", "is_right"), [("2", True), ("-2", False), ("3", False)])
def test_the_oracle_judges_roots_of_negative_numbers_beside_their_cut(factor, is_right):
    # x / z * (-9 / x) is negative for every x, and rounding gives it one branch of the root or the other.
    whole = ("*", ("sqrt", ("*", ("/", "x", "z"), ("/", "-9", "x"))), ("+", ("+", "x", "-2"), "x"))
    given = ("*", factor, ("sqrt", ("*", "-9", ("/", ("/", "x", "z"), "x"))))
    with mpmath.workdps(script.DIGITS):
        assert (script.CHECKS[5](("derive", whole, "x"), given) is None) == is_right


@pytest.mark.parametrize(
    "expression", [("sqrt", ("tan", "pi")), ("^", ("tan", "pi"), "e"), ("sin", ("*", "200", "pi"))]
)
def test_the_oracle_takes_no_rounding_for_a_sign(expression):
    assert script.real(expression, {}) == 0  # in 40 digits tan(pi) would be a little below


def test_the_oracle_knows_what_no_digits_can_tell():
    assert script.refused_wrongly(("approx", ("log", ("sqrt", ("exp", "281"))))) is None  # 140.5, in the middle
    assert script.refused_wrongly(("approx", ("log", ("sqrt", ("exp", "283.1"))))) == "has the value 141.55"
