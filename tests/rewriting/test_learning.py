"""RewritingTask: terms as tuples, what is learned and judged, and the five systems of `examples/` in a short form."""

import importlib.util
import random
from pathlib import Path

import pytest
import torch

from dagnn.errors import ConfigError, GraphError
from dagnn.rewriting import Label, RewritingTask, Score, Signature, decode_term, encode_term
from dagnn.rewriting.machine import RewritingMachine, RuleRewriter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SYSTEMS = ("rewriter_boolean", "rewriter_lambda", "rewriter_ski", "rewriter_stack", "rewriter_types")
SIGNATURE = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))


def number(n):
    return ("next", number(n - 1)) if n else "zero"


def rule(plus):
    a, b = plus.children
    return b if a.kind == "zero" else ("next", ("plus", a[0], b))


def is_sum(term, normal_form):
    return number(str(term).count("next")) == normal_form


def sums(draw, depth):
    return ("plus", number(draw.randint(0, depth)), number(draw.randint(0, depth)))


TASK = RewritingTask(SIGNATURE, rule, sums, is_sum, depth=3)


def example(name: str) -> RewritingTask:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TASK


def test_terms_come_back_from_their_tokens():
    term = ("plus", ("next", ("plus", "zero", "zero")), ("next", "zero"))
    tokens = encode_term(term, SIGNATURE)
    assert tokens == [2, 1, 2, 0, 0, 1, 0]
    assert decode_term(tokens, SIGNATURE) == term
    assert decode_term(encode_term("zero", SIGNATURE), SIGNATURE) == "zero"


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([2, 0], "the children of token 0, 'plus', are missing"),
        ([0, 0], "the tokens spell 2 trees, expected one"),
        ([], "the tokens spell 0 trees"),
        ([1, 3], "token 1 is 3, expected a label id below 3"),
    ],
)
def test_tokens_that_are_no_tree_are_refused(tokens, message):
    with pytest.raises(GraphError, match=message):
        decode_term(tokens, SIGNATURE)


def test_a_term_with_a_label_of_another_signature_is_refused():
    with pytest.raises(GraphError, match="minus"):
        encode_term(("minus", "zero", "zero"), SIGNATURE)


def test_neighbourhoods_are_those_on_the_way_to_the_normal_forms():
    # (plus 1 1): the first operand is a next over zero, then it is zero.
    seen = TASK.neighbourhoods([("plus", number(1), number(1))])
    assert [TASK.replacement(neighbourhood) for neighbourhood in seen] == [(1, 2, 5, 4), (5,)]


def test_the_same_seed_learns_the_same_and_leaves_the_generator_of_torch_alone():
    torch.manual_seed(3)
    nets = [TASK.learn(terms=50, width=16, max_steps=20) for _ in range(2)]
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
    assert all(torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True))
    assert not nets[0].is_training()


def test_a_score_counts_what_the_judge_accepts():
    net = TASK.learn(terms=100, width=32)
    assert TASK.score(net, depth=9, count=40) == Score(9, 40, 40, pytest.approx(12, abs=2))
    even = RewritingTask(SIGNATURE, rule, sums, lambda term, normal: str(normal).count("next") % 2 == 0, depth=3)
    right = even.score(net, depth=9, count=40)
    draw = random.Random("1 at 9")
    assert right.right == sum(str(sums(draw, 9)).count("next") % 2 == 0 for _ in range(40))
    assert right.share == right.right / 40


def test_a_term_without_a_normal_form_is_wrong():
    loop = Signature((Label("zero", 0), Label("again", 1, neighbourhood_depth=1)))
    task = RewritingTask(
        loop, lambda node: ("again", ("again", node[0])), lambda draw, depth: ("again", "zero"), is_sum, depth=1
    )
    net = GraphRewriterThatNeverStops()
    assert task.score(net, depth=1, count=2).right == 0


class GraphRewriterThatNeverStops:
    def solve(self, terms, budget):
        machine = RewritingMachine(
            Signature((Label("zero", 0), Label("again", 1, neighbourhood_depth=1))),
            RuleRewriter(lambda tokens: (1, 1, 3)),
            eager=True,
        )
        return machine.run(terms, budget=100)


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ConfigError, match="depth must be at least 1, got 0"):
        RewritingTask(SIGNATURE, rule, sums, is_sum, depth=0)
    with pytest.raises(ConfigError, match="at least 1, got 0, 512 and 3000"):
        TASK.learn(terms=0)
    with pytest.raises(ConfigError, match="none of 5 terms has a node to rewrite"):
        RewritingTask(SIGNATURE, rule, lambda draw, depth: "zero", is_sum, depth=1).learn(terms=5)
    with pytest.raises(ConfigError, match="count must be at least 1, got 0"):
        TASK.score(None, depth=1, count=0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_judge_accepts_what_the_rules_give_and_nothing_else(name):
    """The terms' own normal forms are right; those of other terms are not, but where both are the same."""
    task, draw = example(name), random.Random(0)
    terms = [task.term(draw, 2 * task.depth) for _ in range(40)]
    machine = RewritingMachine(task.signature, RuleRewriter(task.replacement), eager=True)
    results = machine.run([encode_term(term, task.signature) for term in terms])
    normal_forms = [decode_term(result.tokens, task.signature) for result in results]
    assert all(task.is_right(term, normal) for term, normal in zip(terms, normal_forms, strict=True))
    others = [(term, other) for term, other, own in zip(terms, normal_forms[1:], normal_forms, strict=False)
              if other != own]  # fmt: skip
    assert len(others) >= 10
    assert sum(task.is_right(*pair) for pair in others) <= len(others) // 4


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_learned_at_three_times_the_depth(name):
    task = example(name)
    net = task.learn(terms=1500, width=64, lr=1e-2)
    assert task.score(net, depth=3 * task.depth, count=60).share >= 0.95


def test_a_report_prints_a_line_for_each_depth(capsys, monkeypatch):
    net = TASK.learn(terms=100, width=32)
    monkeypatch.setattr(RewritingTask, "learn", lambda self, seed: net)
    assert [score.depth for score in TASK.report(count=20)] == [3, 6, 9]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("depth  3: 100.00% of 20 right, ")
    assert len(lines) == 4
