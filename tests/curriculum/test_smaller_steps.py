"""Facts about digits by smaller steps: right whatever the network guesses, and believed for what they rest on."""

import random

import pytest

from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import chain
from dagnn.curriculum.smaller_steps import FinerSteps, _term
from dagnn.curriculum.solving import solve_with
from dagnn.rewriting.machine import RewritingMachine
from dagnn.rewriting.network import Proposal
from dagnn.rewriting.system import encode_replacement, read_neighbourhood

FACTS = {"times_digit", "add", "add_carry", "subtract", "subtract_borrow"}


class Recorded:
    """The exact engine, with everything that it was asked."""

    def __init__(self):
        self.answers = {}

    def rewrite(self, neighbourhoods):
        answers = RuleEngine().rewrite(neighbourhoods)
        self.answers.update(zip(neighbourhoods, answers, strict=True))
        return answers


class Guessing:
    """The exact engine, but for some neighbourhoods, for which it writes "end"."""

    def __init__(self, guessed, confidence=0.6):
        self.guessed, self.confidence = guessed, confidence

    def propose(self, neighbourhoods):
        return [self._proposal(neighbourhood) for neighbourhood in neighbourhoods]

    def _proposal(self, neighbourhood):
        try:
            if neighbourhood not in self.guessed:
                return Proposal(RuleEngine().rewrite([neighbourhood])[0], 0.999)
        except (ValueError, KeyError, IndexError):  # what a wrong guess before led to
            pass
        return Proposal(encode_replacement("end", SIGNATURE), self.confidence)


@pytest.fixture(scope="module")
def answers():
    rng, recorded = random.Random(0), Recorded()
    numbers = [sorted(rng.randrange(10 ** rng.randrange(1, 5)) for _ in range(2)) for _ in range(400)]
    calls = [("add", a, b) for pair in numbers for a, b in (pair, pair[::-1])]
    calls += [("multiply", a, b) for a, b in numbers] + [("subtract", b, a) for a, b in numbers]
    RewritingMachine(SIGNATURE, recorded).run([_term((name, chain(a), chain(b))) for name, a, b in calls])
    return recorded.answers


def facts_of(answers):
    """The neighbourhoods that are about two digits."""
    found = []
    for neighbourhood in sorted(answers):
        root = read_neighbourhood(neighbourhood, SIGNATURE)
        if root.kind in FACTS and all(child.kind not in ("end", "?") for child in root.children):
            found.append(neighbourhood)
    return found


@pytest.mark.fault("curriculum", 8)
@pytest.mark.parametrize("confidence", [0.6, 0.9999])
def test_every_fact_is_right_by_smaller_steps_however_sure_the_guess_is(answers, confidence):
    facts = facts_of(answers)
    guessed = set(random.Random(1).sample(facts, len(facts) // 10))
    steps = FinerSteps(Guessing(guessed, confidence), set(answers) - guessed)

    judged = steps.judge(sorted(guessed))

    assert {SIGNATURE.shown[fact[0]].kind for fact in guessed} == FACTS
    assert [each.proposal.replacement for each in judged] == [answers[fact] for fact in sorted(guessed)]
    assert all(each.worked_out and not each.guesses for each in judged)


def test_without_its_training_at_hand_only_what_it_is_unsure_of_is_worked_out(answers):
    facts = facts_of(answers)[::97]
    for confidence, worked_out in ((0.6, True), (0.9999, False)):
        judged = FinerSteps(Guessing(set(facts), confidence)).judge(facts)
        assert {each.worked_out for each in judged} == {worked_out}
        right = [each.proposal.replacement == answers[fact] for each, fact in zip(judged, facts, strict=True)]
        assert set(right) == {worked_out}


def test_what_smaller_steps_rest_on_is_told(answers):
    roots = {str(read_neighbourhood(fact, SIGNATURE)): fact for fact in facts_of(answers)}
    fact = roots["(times_digit 7 5 (d8 ?))"]
    alone = FinerSteps(Guessing({fact}), set(answers) - {fact}).judge([fact])[0]
    assert alone.worked_out and not alone.unseen and alone.proposal.confidence == 0.999
    nothing_shown = FinerSteps(Guessing({fact}), set()).judge([fact])[0]
    assert nothing_shown.unseen and nothing_shown.guesses


def test_what_has_no_smaller_steps_is_left_to_the_network(answers):
    others = sorted(set(answers) - set(facts_of(answers)))[::20]
    network = Guessing(set(others))
    judged = FinerSteps(network, set()).judge(others)
    symbolic = [one for one in judged if not one.worked_out]
    assert len(symbolic) > len(others) // 2
    assert [each.proposal for each in judged if not each.worked_out] == [
        network.propose([other])[0] for other, each in zip(others, judged, strict=True) if not each.worked_out
    ]


def test_a_question_is_answered_by_smaller_steps_and_says_so(answers):
    recorded = Recorded()
    expression = parse("(* 7 8)")
    solve_with(_Sure(recorded), expression)
    guessed = {fact for fact in facts_of(recorded.answers) if SIGNATURE.shown[fact[0]].kind == "times_digit"}
    trained = (set(answers) | set(recorded.answers)) - guessed

    plain = solve_with(Guessing(guessed), expression, trained=trained)
    finer = solve_with(Guessing(guessed), expression, trained=trained, finer=True)

    assert not plain.right and plain.worked_out == 0
    assert finer.right and finer.worked_out > 0
    assert any(line.startswith("worked out  ") for line in finer.lines)


class _Sure:
    def __init__(self, rewriter):
        self.rewriter = rewriter

    def propose(self, neighbourhoods):
        return [Proposal(replacement, 0.999) for replacement in self.rewriter.rewrite(neighbourhoods)]
