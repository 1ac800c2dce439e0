"""Counters: ranking and the round trip through strict JSON."""

import json

import pytest

from dagnn.training.counters import Counters, strict_json


@pytest.mark.parametrize(
    ("mode", "scores", "best"), [("max", [0.2, 0.5, 0.5, 0.4], 2), ("min", [0.2, 0.1, 0.3, 0.1], 2)]
)
def test_best_is_the_first_of_the_best(mode, scores, best):
    counters = Counters()
    for step, score in enumerate(scores, 1):
        counters.step = step
        counters.rank(score, mode)
    assert (counters.best_step, counters.best_score) == (best, scores[best - 1])


def test_scores_that_are_not_finite_never_win():
    counters = Counters()
    assert [counters.rank(score, "min") for score in (1.0, float("nan"), -float("inf"), 0.5)] == [
        True,
        False,
        False,
        True,
    ]
    assert counters.best_score == 0.5


def test_round_trip():
    counters = Counters(step=3, loss=0.5, evaluation={"accuracy": float("nan")}, save_due=True, best_score=0.1)
    again = Counters.from_json(json.loads(json.dumps(counters.to_json(), allow_nan=False)))
    assert again == Counters(step=3, loss=0.5, evaluation={"accuracy": "nan"}, save_due=True, best_score=0.1)


def test_strict_json_reaches_everything():
    assert strict_json({1: (float("inf"), [float("nan"), "x", None, True, 2])}) == {
        "1": ["inf", ["nan", "x", None, True, 2]]
    }
