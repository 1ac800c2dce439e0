import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.exact import answer as exact_answer
from dagnn.curriculum.exact.answer import equivalent
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.verdict import Verdict, judge
from dagnn.errors import ConfigError, ExpressionError

RIGHT = [
    (1, "(/ 84 -36)", "(/ -7 3)"),
    (2, "(+ (* 2 3) 4)", "10"),
    (3, "(subst (^ (+ x 3) 2) x 5)", "64"),
    (4, "(sin 0)", "0"),
    (4, "(sin 3)", "0.141"),
    (4, "(sqrt 4)", "2.00"),
    (5, "(derive (^ x 2) x)", "(* 2 x)"),
    (5, "(derive (^ x 2) x)", "(+ x x)"),
    (5, "(derive (^ x 2) x)", "(- (* 3 x) x 0)"),
    (5, "(derive (log (- 0 x)) x)", "(/ 1 x)"),
    (6, "(integrate (* 3 (^ x 2)) x 0 2)", "8"),
    (6, "(integrate (^ x 2) x)", "(+ (/ (^ x 3) 3) 17)"),
    (6, "(integrate (/ 1 x) x)", "(log (* 5 x))"),
    (6, "(integrate (exp x) x 0 1)", "(- e 1)"),
    (6, "(integrate (/ 1 x) x -2 -1)", "(- (log -1) (log -2))"),
    (5, "(derive (exp (- (+ 4 x) (* -7 -8))) x)", "(* (exp (- x 50)) (exp -2))"),
    (7, "(solve (= (+ (* 2 x) 5) 13) x)", "4"),
    (7, "(solve (= (^ x 2) 9) x)", "(roots 3 -3)"),
    (7, "(solve (= (^ x 2) 0) x)", "(roots 0)"),
]
WRONG = [
    (1, "(/ 84 -36)", "(/ 7 -3)", "the right value, but not in its one spelling: (/ -7 3)"),
    (1, "(+ 2 3)", "5.0", "the right value, but not in its one spelling: 5"),
    (1, "(+ 2 3)", "6", "6, not 5"),
    (1, "(+ 2 3)", "(+ 2 3)", "(+ 2 3), not 5"),
    (2, "(+ (* 2 3) 4)", "x", "x, not 10"),
    (4, "(sin 3)", "0.142", "0.142, not 0.141"),
    (4, "(sin 3)", "(sin 3)", "(sin 3), not 0.141"),
    (5, "(derive (^ x 2) x)", "x", "not equivalent to (* 2 x)"),
    (5, "(derive (^ x 2) x)", "(* 2 y)", "not equivalent to (* 2 x)"),
    (5, "(derive (^ x 2) x)", "(derive (^ x 2) x)", "not worked out: derive is left"),
    (5, "(derive (^ x 2) x)", "(+ (* 2 x) (/ 1 0))", "not equivalent to (* 2 x)"),
    (5, "(derive (^ x 2) x)", "(* (/ 2000001 1000000) x)", "not equivalent to (* 2 x)"),
    (5, "(derive (^ x 2) x)", "(+ (* 2 x) 0.00000000001)", "not equivalent to (* 2 x)"),
    (5, "(derive (exp (- (+ 4 x) (* -7 -8))) x)", "0", "not equivalent to (exp (+ x -52))"),
    (6, "(integrate (exp x) x 0 1)", "1.718281", "not equivalent to (+ (exp 1) -1)"),
    (6, "(integrate (exp x) x 0 1)", "1.718282", "not equivalent to (+ (exp 1) -1)"),
    (6, "(integrate (/ 1 x) x)", "(log (+ x 0.0000000001))", "its derivative is not (/ 1 x)"),
    (5, "(derive (^ x 2) x)", "(roots 1 2)", "cannot be compared: roots has no numeric value"),
    (6, "(integrate (^ x 2) x)", "(^ x 3)", "its derivative is not (^ x 2)"),
    (6, "(integrate (^ x 2) x)", "(integrate (^ x 2) x)", "not worked out: integrate is left"),
    (6, "(integrate (^ x 2) x)", "(/ x 0)", "cannot be differentiated: division by zero"),
    (6, "(integrate (* 3 (^ x 2)) x 0 2)", "9", "9, not 8"),
    (7, "(solve (= (^ x 2) 9) x)", "3", "3, not (roots -3 3)"),
    (7, "(solve (= (^ x 2) 9) x)", "(roots -3 3 4)", "(roots -3 3 4), not (roots -3 3)"),
    (7, "(solve (= x 2) x)", "(= x 2)", "not worked out: = is left"),
    (7, "(solve (= x 2) x)", "3", "3, not 2"),
]


@pytest.mark.parametrize(("level", "text", "given_"), RIGHT)
def test_right_answers(level, text, given_):
    verdict = judge(level, parse(text), parse(given_))
    assert verdict.right, verdict.reason


@pytest.mark.parametrize(("level", "text", "given_", "reason"), WRONG)
def test_wrong_answers_with_the_reason(level, text, given_, reason):
    verdict = judge(level, parse(text), parse(given_))
    assert not verdict.right
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "garbage",
    [
        None, True, 1.5, [], b"5", (), ("+",), ("+", 1), ("foo", 1), (None, 1), ("+", 1, None), "", "(", "5 6", "sin",
        ("sin", ("sin",)), {"a": 1}, float("nan"), 10**5000, ("derive", 1, 2), (("+",), 1),
        (10**5000, 1),
    ],
    ids=lambda garbage: type(garbage).__name__,
)  # fmt: skip
@pytest.mark.parametrize("level", LEVELS)
def test_garbage_is_wrong_and_never_raises(level, garbage):
    verdict = judge(level, parse(LEVELS[level].example), garbage)
    assert not verdict.right
    assert verdict.reason


@given(st.sampled_from(list(LEVELS)), expressions())
def test_any_expression_is_judged_without_raising(level, given_):
    assert isinstance(judge(level, parse(LEVELS[level].example), given_), Verdict)


@pytest.mark.parametrize("level", [5, 6])
def test_a_sample_with_another_form_is_right_and_with_a_small_error_wrong(level):
    for index in range(60):
        sample = make_sample(level, seed=7, index=index)
        if len(sample.input) == 5:
            continue
        nothing = ("-", ("+", ("^", ("sin", "x"), 2), ("^", ("cos", "x"), 2)), 1)
        error = ("*", ("/", 1, 10**8), sample.answer)
        assert judge(level, sample.input, ("+", sample.answer, ("*", "x", nothing))).right
        if not equivalent(sample.answer, 0):  # (- (* e x) (* x e)) is 0 in another form
            assert not judge(level, sample.input, ("+", sample.answer, error)).right
            assert not judge(level, sample.input, 0).right


@pytest.mark.parametrize("level", LEVELS)
def test_huge_answers_are_refused_quickly(level):
    problem = parse(LEVELS[level].example)
    deep, wide = "x", ("+", *(["x"] * 5_000))
    for _ in range(3_000):
        deep = ("sin", deep)
    assert not judge(level, problem, deep).right
    assert not judge(level, problem, wide).right
    assert not judge(level, problem, parse("(^ 9 (^ 9 9))")).right
    while isinstance(deep, tuple):
        deep = deep[1]


@pytest.mark.parametrize("level", LEVELS)
def test_the_answer_of_the_engine_is_right(level):
    problem = parse(LEVELS[level].example)
    assert judge(level, problem, exact_answer(problem, level)) == Verdict(True, "equal to the engine's answer")


def test_an_input_without_an_answer_is_the_callers_mistake():
    with pytest.raises(ExpressionError, match="division by zero"):
        judge(1, parse("(/ 5 0)"), 3)
    with pytest.raises(ExpressionError, match="division by zero"):
        judge(1, parse("(/ 5 0)"), None)
    with pytest.raises(ExpressionError, match="takes at least 2"):
        judge(1, ("+", 1), 3)


def test_unknown_level_is_refused():
    with pytest.raises(ConfigError, match="level 8"):
        judge(8, parse("(+ 2 3)"), 5)
