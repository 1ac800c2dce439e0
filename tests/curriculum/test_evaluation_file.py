"""evaluation.json: what is counted, what is kept, and a whole round trip."""

import json

import pytest

from dagnn.curriculum.evaluation_file import Evaluation, Example, LevelResult, operator_of
from dagnn.errors import RunError

RIGHT = [Example(f"(+ {i} 1)", str(i + 1), str(i + 1), True) for i in range(20)]
WRONG = [
    Example("(* 2 3)", "5", "6", False, "other value"),
    Example("(* 2 4)", "", "8", False, "no answer"),
    Example("(* 2 5)", "11", "10", False, "other value"),
    Example("(derive (^ x 2) x)", "x", "(* 2 x)", False, "other value"),
]
# As far as the engine's own steps come, which are no better here.
MISSED = [
    Example("(tan 1.5)", "14", "14.1", False, "other value", engine_misses=True),
    Example("(tan (* 2 3))", "", "-0.291", False, engine_misses=True),
]


def evaluation():
    levels = {
        2: LevelResult.of(RIGHT + WRONG, samples_seen=1200, seconds=0.5),
        1: LevelResult.of(RIGHT, samples_seen=3000, seconds=0.25),
    }
    return Evaluation(levels, cpu_seconds=12.5, wall_seconds=14.0, parameters=1000, step=300)


def test_level_counts_right_answers_and_errors_by_operator_and_reason():
    result = LevelResult.of(RIGHT + WRONG, samples_seen=1200, seconds=0.5)

    assert result.accuracy == 20 / 24
    assert result.expressions == 24
    assert result.samples_seen == 1200
    assert result.samples_per_second == 48
    assert result.errors == {"*": {"no answer": 1, "other value": 2}, "derive ^": {"other value": 1}}


def test_what_the_engine_misses_too_is_counted_apart():
    result = LevelResult.of(RIGHT + WRONG + MISSED, samples_seen=0, seconds=1)

    assert (result.wrong, result.engine_misses) == (6, 2)
    assert result.accuracy == 20 / 26
    assert result.errors["tan"] == {"other value (engine's steps too)": 1, "wrong (engine's steps too)": 1}
    assert LevelResult.of(RIGHT + WRONG, samples_seen=0, seconds=1).engine_misses == 0


@pytest.mark.parametrize(("right", "wrong"), [(20, 4), (20, 1), (20, 0), (1, 4), (0, 4), (2, 1), (0, 0)])
def test_five_examples_are_kept_right_and_wrong_ones(right, wrong):
    shown = LevelResult.of(WRONG[:wrong] + RIGHT[:right], samples_seen=0, seconds=1).examples

    assert len(shown) == min(5, right + wrong)
    assert len(set(shown)) == len(shown)
    assert sum(not example.right for example in shown) >= min(2, wrong)
    assert sum(example.right for example in shown) >= min(3, right)


def test_nothing_asked_is_no_accuracy():
    assert LevelResult.of([], samples_seen=0, seconds=0) == LevelResult(0.0, 0)


def test_file_gives_back_the_evaluation(tmp_path):
    path = evaluation().write(tmp_path)

    assert path == tmp_path / "evaluation.json"
    assert Evaluation.read(tmp_path) == evaluation()
    assert list(json.loads(path.read_text())["levels"]) == ["1", "2"]


def test_a_file_from_before_the_engine_was_asked_is_read(tmp_path):
    level = LevelResult.of(RIGHT + MISSED, samples_seen=0, seconds=1)
    path = Evaluation({4: level}, None, None, None, step=1).write(tmp_path)
    assert Evaluation.read(tmp_path).levels[4] == level

    content = json.loads(path.read_text())
    del content["levels"]["4"]["engine_misses"]
    for example in content["levels"]["4"]["examples"]:
        del example["engine_misses"]
    path.write_text(json.dumps(content))
    assert Evaluation.read(tmp_path).levels[4].engine_misses == 0


def test_summary_is_the_documented_json():
    assert json.loads(json.dumps(evaluation().summary())) == {
        "levels": {"1": {"accuracy": 1.0, "expressions": 20}, "2": {"accuracy": 20 / 24, "expressions": 24}},
        "cpu_seconds": 12.5,
        "wall_seconds": 14.0,
        "parameters": 1000,
        "step": 300,
    }


def test_missing_file_is_no_evaluation_yet(tmp_path):
    assert Evaluation.read(tmp_path) is None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"levels": {}}', '{"levels": {"a": {}}}', '{"levels": {"1": {"x": 1}}}']
)
def test_damaged_file_is_told(tmp_path, content):
    (tmp_path / "evaluation.json").write_text(content)

    with pytest.raises(RunError, match=r"evaluation\.json is damaged \(.+\): evaluate the run again"):
        Evaluation.read(tmp_path)


def test_file_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*evaluation\.json: No such file or directory"):
        evaluation().write(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("(+ (* 2 3) 4)", "+"),
        ("(integrate (exp x) x 0 1)", "integrate exp"),
        ("(approx (sin 3))", "approx sin"),
        ("(subst (subst (^ x y) x 2) y 3)", "subst subst ^"),
        ("( solve ( = x 2 ) x )", "solve ="),
        ("x", "x"),
        ("", ""),
    ],
)
def test_operator_is_that_of_what_the_task_is_about(text, operator):
    assert operator_of(text) == operator
