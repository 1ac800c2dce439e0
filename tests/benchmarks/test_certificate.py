"""The guard of the certificate, in short: injected faults are found and shown, shared expressions are answered."""

import random

from benchmarks.certificate import WithFault, faults_found, shared_expression, wrong_answers, wrong_fact
from dagnn.curriculum.certificate import closure_of
from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.rules import SIGNATURE


def test_every_injected_fault_is_found_and_shown():
    assert faults_found(1, 4) == (4, 4)


def test_a_wrong_fact_is_another_tree():
    draw = random.Random(0)
    for neighbourhood, right in list(closure_of(1).items())[::500]:
        wrong = wrong_fact(right, draw)
        assert wrong != right
        missing = 1
        for token in wrong:
            missing += (SIGNATURE.labels[token].arity if token < len(SIGNATURE.labels) else 0) - 1
        assert missing == 0
        network = WithFault(neighbourhood, wrong)
        assert network.propose([neighbourhood])[0].replacement == wrong


def test_the_engine_answers_shared_expressions_and_one_that_leaves_all_does_not():
    class Leaving:
        def rewrite(self, neighbourhoods):
            return [() for _ in neighbourhoods]

    assert [wrong_answers(RuleEngine(), level, 20) for level in (1, 2, 3, 7)] == [[], [], [], []]
    # A fraction in lowest terms is its own answer.
    assert wrong_answers(Leaving(), 1, 5) == ["(+ 1 101)", "(* 10 1)", "(/ 1016 1)"]
    assert str(shared_expression(7, 3)).count("solve") == 1
