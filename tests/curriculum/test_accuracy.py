"""Evaluation and solving with a network that has learned something, judged by the exact engine."""

from dataclasses import replace

import pytest

from dagnn.curriculum import Sample, judge, level_of, parse
from dagnn.curriculum import accuracy as module
from dagnn.curriculum.accuracy import _able_levels, _neighbourhood_counts, ask, evaluate, model_of, with_engine_misses
from dagnn.curriculum.engine import RuleEngine, normal_form
from dagnn.curriculum.evaluation_file import Evaluation, NeighbourhoodCounts
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.rules import SIGNATURE
from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.rewriting import LEAVE, RewritingMachine, RuleRewriter, read_neighbourhood
from dagnn.training.run.checkpoints import read_checkpoint


def test_the_exact_engine_as_rewriter_is_always_right():
    for level in range(1, 8):
        samples = [make_sample(level, seed=3, index=index, split="test") for index in range(10)]
        examples, _ = ask(RewritingMachine(SIGNATURE, RuleEngine()), samples)
        assert [example.right for example in examples] == [True] * 10
        assert {example.reason for example in examples} == {""}


def test_a_rewriter_that_leaves_everything_is_wrong_with_a_reason():
    samples = [make_sample(level, seed=3, index=0, split="test") for level in range(1, 8)]
    examples, _ = ask(RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: ())), samples)
    assert not any(example.right for example in examples)
    assert all(example.reason for example in examples)


class NeverDerives:
    """The exact engine as a network, but that it leaves every derivative as it is."""

    def rewrite(self, neighbourhoods):
        answers = zip(neighbourhoods, RuleEngine().rewrite(neighbourhoods), strict=True)
        return [
            LEAVE if read_neighbourhood(neighbourhood, SIGNATURE).kind == "derive" else right
            for neighbourhood, right in answers
        ]

    def num_parameters(self):
        return 1


def sample_of(text: str, expected: str) -> Sample:
    expression = parse(text)
    return Sample(text, level_of(expression), "test", expression, parse(expected))


DERIVATIVE = sample_of("(derive (^ x 2) x)", "(* 2 x)")
PRODUCT = sample_of("(* 2 3)", "6")
NEAR_A_POLE = sample_of("(tan 1.5707963)", "37300000")  # ten decimals are too few
ASKED = [DERIVATIVE, PRODUCT, NEAR_A_POLE]


def test_what_the_engine_misses_too_is_marked():
    examples, _ = ask(RewritingMachine(SIGNATURE, NeverDerives()), ASKED)
    assert [example.right for example in examples] == [False, True, False]
    marked = with_engine_misses(examples, ASKED)
    assert [example.engine_misses for example in marked] == [False, False, True]
    assert [replace(example, engine_misses=False) for example in marked] == examples
    # What takes longer than the network had is no fault of the network.
    (marked, _) = with_engine_misses(examples[:2], ASKED[:2], budget=1)
    assert marked.engine_misses


def test_the_engine_is_asked_only_where_the_network_is_wrong(monkeypatch):
    asked = []

    def counted(machine, samples, **options):
        asked.extend(samples)
        return ask(machine, samples, **options)

    examples, _ = ask(RewritingMachine(SIGNATURE, NeverDerives()), ASKED)
    monkeypatch.setattr(module, "ask", counted)
    with_engine_misses(examples, ASKED)
    assert asked == [DERIVATIVE, NEAR_A_POLE]
    assert with_engine_misses([examples[1]], [PRODUCT]) == [examples[1]]


def test_an_evaluation_counts_apart_what_the_engine_misses_too(learned, monkeypatch):
    path, _ = learned
    monkeypatch.setattr(module, "model_of", lambda checkpoint: NeverDerives())
    monkeypatch.setattr(module, "samples_of", lambda *_, **__: ASKED)
    found = evaluate(path, expressions=3).levels[1]
    assert (found.accuracy, found.wrong, found.engine_misses) == (1 / 3, 2, 1)
    assert found.errors == {"derive ^": {"stuck half-way": 1}, "tan": {"other value (engine's steps too)": 1}}


def test_a_trained_network_answers_expressions_it_never_saw(learned):
    _, evaluation = learned
    assert evaluation.levels[1].accuracy >= 0.9


def test_a_single_long_expression_is_given_the_rounds_that_it_takes(monkeypatch):
    sample = make_sample(4, seed=0, index=2, split="test")
    samples = [sample]
    assert ask(RewritingMachine(SIGNATURE, RuleEngine()), samples)[0][0].reason == "no end"
    assert ask(RewritingMachine(SIGNATURE, RuleEngine()), samples, rounds=3_000)[0][0].right


def test_neighbourhoods_never_trained_on_are_counted():
    machine = RewritingMachine(SIGNATURE, RuleEngine())
    ask(machine, [make_sample(2, seed=3, index=0, split="test")])
    asked = [machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)]
    assert _neighbourhood_counts(machine, set(asked[:4])) == NeighbourhoodCounts(
        len(asked), len(asked) - 4, len(asked) - 4
    )

    idle = RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: ()))
    ask(idle, [make_sample(1, seed=3, index=3, split="test")])
    assert _neighbourhood_counts(idle, set()) == NeighbourhoodCounts(1, 1, 0)


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


def test_bad_input_is_refused_in_words(learned, tmp_path):
    path, _ = learned
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        evaluate(path, expressions=0)
    with pytest.raises(ConfigError, match="split"):
        evaluate(path, split="trian")
    with pytest.raises(RunError, match="holds no run"):
        evaluate(tmp_path)
    with pytest.raises(ConfigError, match="none of the run's levels 1 has depth to set"):
        evaluate(path, depth=5)
    with pytest.raises(ConfigError, match="none of the run's levels 1 has depth and digits to set"):
        evaluate(path, depth=5, digits=3)
    with pytest.raises(ConfigError, match="digits must be a whole number from 1 to 12, got 0"):
        evaluate(path, digits=0)
    with pytest.raises(CheckpointError):
        evaluate(path / "checkpoints/step-99999999")


def test_longer_numbers_than_trained_may_be_asked(learned):
    path, _ = learned
    found = evaluate(path, expressions=20, digits=3)
    inputs = [parse(example.input) for example in found.levels[1].examples]
    assert max(abs(number) for _, *numbers in inputs for number in numbers) > 99
    # As long as trained, and other expressions.
    assert evaluate(path, expressions=20, digits=1).levels[1].accuracy >= 0.9


def test_the_levels_asked_are_those_that_have_what_is_set():
    levels = (1, 2, 3, 4, 5, 6, 7)
    assert _able_levels(levels, None, None) == list(levels)
    assert _able_levels(levels, 5, None) == [2, 3, 4, 5, 7]
    assert _able_levels(levels, None, 4) == [1, 2, 3]
    assert _able_levels(levels, 5, 4) == [2, 3]


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
