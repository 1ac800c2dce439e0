"""Evaluation and solving with a network that has learned something, judged by the exact engine."""

import pytest

from dagnn.curriculum import judge, level_of, parse
from dagnn.curriculum.engine import RuleEngine, normal_form
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.rules import SIGNATURE
from dagnn.errors import CheckpointError, ConfigError, ExpressionError, RunError
from dagnn.graph.rewriting import RewritingMachine, RuleRewriter
from dagnn.training.checkpoint import read_checkpoint
from dagnn.training.config import TrainingConfig
from dagnn.training.curriculum_run import train
from dagnn.training.evaluate import _window_counts, ask, evaluate, model_of, solve
from dagnn.training.evaluation import Evaluation, WindowCounts


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that has learned sums and products of small numbers in a few seconds."""
    path = tmp_path_factory.mktemp("learned") / "run"
    config = TrainingConfig.resolve(
        environment={},
        flags={
            "run_directory": str(path),
            "max_steps": 450,
            "batch_size": 256,
            "threads": 1,
            "ema_decay": 0.98,
            "eval_every": 0,
            "test_samples": 20,
            "curriculum.levels": [1],
            "curriculum.preset": "small",
            "curriculum.samples": [2000],
            "model.width": 128,
            "optimizer.lr": 4e-3,
            "schedule.warmup_steps": 20,
            "checkpoint.keep_best": 0,
        },
    )
    return path, train(config, note=lambda line: None)


def test_the_exact_engine_as_rewriter_is_always_right():
    for level in range(1, 8):
        samples = [make_sample(level, seed=3, index=index, split="test") for index in range(10)]
        examples, _ = ask(RewritingMachine(SIGNATURE, RuleEngine()), samples)
        assert [example.right for example in examples] == [True] * 10
        assert {example.reason for example in examples} == {""}


def test_a_rewriter_that_leaves_everything_is_wrong_with_a_reason():
    samples = [make_sample(level, seed=3, index=0, split="test") for level in range(1, 8)]
    examples, _ = ask(RewritingMachine(SIGNATURE, RuleRewriter(lambda window: ())), samples)
    assert not any(example.right for example in examples)
    assert all(example.reason for example in examples)


def test_a_trained_network_answers_expressions_it_never_saw(learned):
    _, evaluation = learned
    assert evaluation.levels[1].accuracy >= 0.9


def test_windows_never_trained_on_are_counted():
    machine = RewritingMachine(SIGNATURE, RuleEngine())
    ask(machine, [make_sample(2, seed=3, index=0, split="test")])
    asked = [machine.window(w) for w in range(machine.num_windows)]
    assert _window_counts(machine, set(asked[:4])) == WindowCounts(len(asked), len(asked) - 4, len(asked) - 4)

    idle = RewritingMachine(SIGNATURE, RuleRewriter(lambda window: ()))
    ask(idle, [make_sample(1, seed=3, index=0, split="test")])
    assert _window_counts(idle, set()) == WindowCounts(1, 1, 0)


def test_evaluating_again_gives_the_same_and_changes_nothing(learned):
    path, evaluation = learned
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    again = evaluate(path, expressions=20)
    assert again.levels[1].accuracy == evaluation.levels[1].accuracy
    assert again.levels[1].examples == evaluation.levels[1].examples
    assert again.parameters == evaluation.parameters
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert Evaluation.read(path) == evaluation


def test_other_seeds_and_splits_ask_other_expressions(learned):
    path, evaluation = learned
    inputs = [
        {example.input for example in found.levels[1].examples}
        for found in (
            evaluation,
            evaluate(path, expressions=20, seed=1),
            evaluate(path, expressions=20, split="validation"),
        )
    ]
    assert inputs[0] != inputs[1] != inputs[2] != inputs[0]


def test_solve_gives_the_networks_answer_and_the_engines_verdict(learned):
    path, _ = learned
    found = solve(path, "(+ 2 3)")
    assert (found.answer, found.right) == ("5", True)
    assert found.steps > 0


def test_solve_takes_any_legal_expression(learned):
    path, _ = learned
    for text in ("(derive (^ speed 2) speed)", "(- 0.1 0.1 0.1)", "(sin 0)", "(integrate (/ 1 x) x 1 e)", "7"):
        found = solve(path, text)
        assert found.reason
        assert found.verdict.startswith(("right, ", "wrong, "))


@pytest.mark.parametrize(
    "text",
    [
        "(derive (^ speed 2) speed)",
        "(- 0.1 0.1 0.1)",
        "(sin 0)",
        "(approx (sin 3))",
        "(+ (approx (/ 1 3)) (sin 1))",
        "(integrate (/ 1 x) x 1 e)",
        "(solve (= (* 2 y) 3) y)",
        "7",
    ],
)
def test_what_a_perfect_network_would_answer_is_right(text):
    expression = parse(text)
    level = level_of(expression)
    assert judge(level, expression, normal_form(expression, level)).right


def test_an_expression_without_an_answer_is_said_to_have_none(learned):
    path, _ = learned
    found = solve(path, "(/ 5 0)")
    assert not found.right
    assert "division by zero at (/ 5 0)" in found.reason


def test_bad_input_is_refused_in_words(learned, tmp_path):
    path, _ = learned
    with pytest.raises(ExpressionError, match="never closed"):
        solve(path, "(+ 2 3")
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        evaluate(path, expressions=0)
    with pytest.raises(ConfigError, match="split"):
        evaluate(path, split="trian")
    with pytest.raises(RunError, match="holds no run"):
        evaluate(tmp_path)
    with pytest.raises(CheckpointError):
        evaluate(path / "checkpoints/step-99999999")


def test_a_checkpoint_of_other_rules_is_refused(learned):
    path, _ = learned
    checkpoint = read_checkpoint(sorted((path / "checkpoints").glob("step-*"))[-1])
    description = checkpoint.state["description"]
    description["labels"] = description["labels"][:-1]
    with pytest.raises(CheckpointError, match="another set of rewrite rules"):
        model_of(checkpoint)
    description["labels"] = None
    del description["features"]
    with pytest.raises(CheckpointError):
        model_of(checkpoint)
