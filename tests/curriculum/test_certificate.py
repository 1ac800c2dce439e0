"""Certificates: what holds is said to hold, every wrong fact is found, and an expression shows it."""

import json
import re

import pytest

from dagnn.cli import main
from dagnn.curriculum.certificate import (
    certify,
    certify_run,
    closure_of,
    drawn_expression,
    engine_answer,
    expressions_for,
)
from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE
from dagnn.errors import ConfigError
from dagnn.rewriting import RewritingMachine, read_neighbourhood
from dagnn.rewriting.network import Proposal

# A network that measured 100 % got these wrong: an operand that stands on both sides is one node.
SHARED = ["(subst (* (- 3 x) (- 3 x)) x 5)", "(subst (* (- -2 x) (- -2 x)) x 5)", "(subst (- (/ 1 x) (/ 1 x)) x 5)"]


class Knowing:
    """A network that knows every rule, but for some wrong facts."""

    def __init__(self, wrong=None):
        self.wrong = wrong or {}

    def propose(self, neighbourhoods):
        return [Proposal(self.wrong.get(each) or engine_answer(each), 0.9) for each in neighbourhoods]

    def leads(self, neighbourhoods, replacements):
        return [-1.5 if each in self.wrong else 2.5 for each in neighbourhoods]


def met_by(text):
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.run([to_term(parse(text))[0]])
    return [machine.neighbourhood(number) for number in range(machine.num_neighbourhoods)]


def other_digit(replacement):
    """The replacement with its first digit, and with it the fact, changed."""
    d4, d5 = SIGNATURE.id_of["d4"], SIGNATURE.id_of["d5"]
    return (d5 if replacement[0] == d4 else d4, *replacement[1:])


def test_a_network_that_knows_all_is_certified():
    certificate = certify(Knowing(), 1)
    assert certificate.holds
    assert (certificate.neighbourhoods, certificate.wrong, certificate.least_lead) == (6_983, 0, 2.5)
    assert certificate.lines == [
        "level 1: right for every input: one of + - * / on two whole numbers, of any length",
        "  the network writes what the exact engine writes at all 6,983 neighbourhoods that such an input can lead to; "
        "least lead 2.50 logits",
    ]
    assert certificate.summary()["holds"] is True


def test_one_wrong_digit_of_add_carry_is_found_and_shown():
    (wrong,) = [each for each in met_by("(+ 579 568)") if _text_of(each) == "(add_carry (d7 ?) (d6 ?))"]
    certificate = certify(Knowing({wrong: other_digit(engine_answer(wrong))}), 1)
    assert not certificate.holds
    assert (certificate.wrong, certificate.reached) == (1, 1)
    (shown,) = certificate.counterexamples
    assert shown.neighbourhood == "(add_carry (d7 ?1) (d6 ?1))"
    assert (shown.expected, shown.written) == ("(d4 (add_carry ?1 ?1))", "(d5 (add_carry ?1 ?1))")
    assert wrong in met_by(shown.expression)
    assert "wrong" in shown.given
    assert certificate.lines[0] == (
        "level 1: NOT right for every input: wrong at 1 of 6,983 neighbourhoods, 1 of them shown by an expression"
    )


def test_a_wrong_step_that_no_expression_takes_is_said_to_be_such():
    """25 - 52 is never subtracted that way round."""
    d2, d5, end = (SIGNATURE.id_of[name] for name in ("d2", "d5", "end"))
    wrong = next(
        each
        for each in closure_of(1)
        if SIGNATURE.shown[each[0]].kind == "subtract" and each[1] == d2 and d5 in each and end not in each
        if engine_answer(each)[1] == SIGNATURE.id_of["subtract_borrow"]
    )
    machine = {wrong: other_digit(engine_answer(wrong))}
    certificate = certify(Knowing(machine), 1, expressions=0)
    assert certificate.reached == 0
    assert certificate.lines[-1] == "    no expression was found that leads there; perhaps none does"


@pytest.mark.parametrize("text", SHARED)
def test_shared_operands_are_in_the_closure_of_level_3(text):
    assert set(met_by(text)) <= closure_of(3).keys()


def test_drawn_expressions_repeat_operands_and_parts_of_numbers():
    drawn = [drawn_expression(3, index) for index in range(500)]
    bodies = [str(expression) for expression in drawn]
    repeated = sum(bool(re.search(r"\('[-+*/]', (\([^()]*\)), \1\)", body)) for body in bodies)
    assert repeated >= 5


@pytest.mark.parametrize("level", [2, pytest.param(7, marks=pytest.mark.slow)])
def test_expressions_are_found_for_what_can_occur(level):
    wanted = [each for index in range(10) for each in _met(drawn_expression(level, 5_000 + index))]
    some = sorted(set(wanted))[::80]
    found = expressions_for(level, some)
    assert len(found) >= 0.9 * len(some)
    assert all(each in _met(expression) for each, expression in found.items())


def _text_of(neighbourhood):
    return str(read_neighbourhood(neighbourhood, SIGNATURE))


def _met(expression):
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.run([to_term(expression)[0]], budget=20_000)
    return {machine.neighbourhood(number) for number in range(machine.num_neighbourhoods)}


def test_levels_without_a_certificate_are_refused():
    with pytest.raises(
        ConfigError, match=r"level 4 has no certificate: .* The levels that have one are 1, 2, 3, 5, 7\."
    ):
        closure_of(4)
    with pytest.raises(ConfigError, match="no level is given: name some of 1, 2, 3, 5, 7"):
        certify_run("nowhere", ())


def test_the_command_says_what_is_wrong_and_its_exit_status_tells(learned, capsys):
    path, _ = learned
    assert main(["certify", str(path), "--levels", "1,", "--expressions", "100"]) == 1
    out, err = capsys.readouterr()
    assert re.match(r"level 1: NOT right for every input: wrong at [\d,]+ of 6,983 neighbourhoods, ", out)
    assert "bounds of the claim" not in out
    assert "level 1: asking the network about 6,983 neighbourhoods" in err

    assert main(["certify", str(path), "--levels", "1", "--expressions", "0", "--json"]) == 1
    given = json.loads(capsys.readouterr().out)
    assert given["holds"] is False
    assert given["levels"][0]["neighbourhoods"] == 6_983
    assert given["levels"][0]["least_lead"] < 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--levels", "1,x"], "levels = x: expected numbers of levels, such as 1,2,3."),
        (["--levels", "4"], "level 4 has no certificate"),
        (["--expressions", "-1"], "expressions must be at least 0, got -1."),
        ([], "nowhere"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments, text, capsys):
    assert main(["certify", "nowhere", *arguments]) == 2
    assert text in capsys.readouterr().err
