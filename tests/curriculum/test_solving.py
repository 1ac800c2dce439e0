"""One expression and every step of a network, which here is the exact engine with one thing wrong."""

import time

import pytest

from dagnn.curriculum import make_sample, parse
from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.solving import Solution, _doubt, _read, solve, solve_with
from dagnn.curriculum.verdict import is_worked_out
from dagnn.errors import ConfigError, ExpressionError
from dagnn.rewriting import LEAVE, RewritingMachine, encode_replacement, read_neighbourhood
from dagnn.rewriting.network import Proposal


class Almost:
    """The exact engine, as sure as 0.5 of each node, but for what ``instead(neighbourhood)`` gives: that it is sure
    of."""

    def __init__(self, instead=lambda neighbourhood: None):
        self._instead = instead

    def propose(self, neighbourhoods):
        proposals = []
        for neighbourhood, right in zip(neighbourhoods, RuleEngine().rewrite(neighbourhoods), strict=True):
            other = self._instead(read_neighbourhood(neighbourhood, SIGNATURE))
            if other is None:
                proposals.append(Proposal(right, 0.5 ** max(1, len(right))))
            else:
                proposals.append(Proposal(other if other == LEAVE else encode_replacement(other, SIGNATURE), 0.875))
        return proposals


class Sure:
    """The exact engine, as sure as 0.9."""

    def propose(self, neighbourhoods):
        return [Proposal(right, 0.9) for right in RuleEngine().rewrite(neighbourhoods)]


def solved(text: str, instead=lambda neighbourhood: None, **options) -> Solution:
    return solve_with(Almost(instead), parse(text), trace=True, **options)


def test_every_step_is_told_from_the_expression_to_the_answer():
    found = solved("(derive (^ speed 2) speed)")
    assert (found.answer, found.right, found.departure) == ("(* 2 speed)", True, None)
    assert found.lines[:4] == [
        " 2  0.0625  (derive (^ speed 2) speed) -> (derive_power speed 2 speed)",
        " 3  0.0001  (derive_power speed 2 speed) -> (* (* 2 (^ speed (- 2 1))) (derive speed speed))",
        " 4  0.0625  (- 2 1) -> (+ 2 (negate 1))",
        " 5  0.2500  (negate 1) -> -1",
    ]
    assert found.trace[-1].after == found.answer
    assert [step.number for step in found.trace] == sorted({step.number for step in found.trace})
    assert found.steps >= found.trace[-1].number
    assert found.lines[-4:-1] == [
        "answer      (* 2 speed)",
        "verdict     right, equal to the engine's answer",
        f"confidence  {0.5**13:.4f} or more, least at step 3: {found.trace[1]}",
    ]


def test_numbers_whose_digits_are_worked_on_are_written_short():
    found = solved("(+ 2 34)")
    assert [str(step) for step in found.trace] == [
        "(+ 2 34) -> (positive (add #2 #34))",
        "(add #2 #34) -> (d6 (add end #3))",
        "(add end #3) -> #3",
    ]


def test_the_steps_are_left_out_where_nobody_asks():
    found = solve_with(Almost(), parse("(+ 2 34)"))
    assert found.trace == ()
    assert [line.split()[0] for line in found.lines] == ["answer", "verdict", "confidence", "seconds"]


def test_a_wrong_answer_tells_where_the_network_left_the_path():
    def one_too_many(neighbourhood):
        return (
            ("d7", ("add", neighbourhood[0][0], neighbourhood[1][0]))
            if str(neighbourhood) == "(add (d2 ?) (d4 ?))"
            else None
        )

    found = solved("(* 3 (+ 2 34))", one_too_many)
    assert (found.answer, found.right) == ("111", False)
    assert found.verdict == "wrong, 111, not 108"
    told = "(add #2 #34) -> (d7 (add end #3)), where the engine has (d6 (add end #3))"
    assert str(found.departure) == f"at step {found.departure.step.number}: {told}"
    assert found.lines[-3] == f"departs     {found.departure}"
    assert found.departure.step in found.trace
    assert found.departure.step.confidence == 0.875


@pytest.mark.parametrize(
    ("text", "instead", "told"),
    [
        (
            "(+ 2 34)",
            lambda neighbourhood: LEAVE if neighbourhood.kind == "+" else None,
            "at step 1: (+ 2 34) is left as it is, where the engine has (positive (add #2 #34))",
        ),
        (
            "(derive (sin x) x)",
            lambda neighbourhood: neighbourhood[0] if neighbourhood.kind == "sin" else None,
            "at step 1: (sin x) -> x, where the engine leaves it",
        ),
    ],
)
def test_a_network_may_leave_the_path_by_doing_nothing_or_something(text, instead, told):
    found = solved(text, instead)
    assert str(found.departure) == told
    assert not found.right


def test_a_right_answer_by_another_path_departs_too():
    def exchanged(neighbourhood):
        if (
            neighbourhood.kind == "+"
            and neighbourhood[0].label == "positive:2"
            and neighbourhood[1].label == "positive:3"
        ):
            return ("+", neighbourhood[1], neighbourhood[0])
        return None

    found = solved("(+ 2 3)", exchanged)
    assert (found.answer, found.right) == ("5", True)
    assert str(found.departure).startswith("at step 1: (+ 2 3) -> (+ 3 2), where")


@pytest.mark.parametrize("end", [lambda add: "end", lambda add: add[0]])
def test_a_node_in_sight_and_its_label_written_anew_are_the_same_path(end):
    def ended(add):
        return end(add) if add.kind == "add" and add[0].kind == add[1].kind == "end" else None

    assert solved("(+ 2 3)", ended).departure is None


def test_what_has_no_answer_is_said_to_have_none():
    found = solved("(+ 1 (/ 5 0))")
    assert (found.right, found.has_answer) == (False, False)
    assert found.verdict.startswith("the engine has no answer: division by zero at (/ 5 0)")
    assert found.lines[-4].startswith("answer      none, the network ended with (+ ")


def test_what_the_engine_reaches_and_the_network_leaves_half_way_is_no_answer():
    found = solved("(derive (^ x 2) x)", lambda neighbourhood: LEAVE if neighbourhood.kind == "derive" else None)
    assert (found.right, found.finished, found.engine_fails) == (False, False, "")
    assert found.verdict == "no answer was reached (not worked out: derive is left)"
    assert f"answer      none, the network ended with {found.answer}" in found.lines


def test_where_the_engine_is_at_its_end_too_the_verdict_says_so():
    found = solved("(integrate (* x (log x)) x)")
    assert found.verdict == (
        "no answer was reached (not worked out: integrate is left); the engine's own steps end there too"
    )
    found = solved(
        "(integrate (* x (log x)) x)",
        lambda neighbourhood: neighbourhood[1] if neighbourhood.kind == "integrate" else None,
    )
    assert found.answer == "x"
    assert found.verdict == (
        "wrong, its derivative is not (* x (log x)); the engine's own steps reach no answer either"
    )
    # Ten decimals are too few so near a pole.
    found = solved("(tan 1.5707963)")
    assert found.verdict == "wrong, 36800000, not 37300000; the engine's own steps end there too"
    found = solved(
        "(tan 1.5707963)", lambda neighbourhood: neighbourhood[0] if neighbourhood.kind == "rounded" else None
    )
    assert found.verdict.endswith("; the engine's own steps give 36800000, not right either")


def test_what_the_engine_does_not_know_is_not_said_to_have_no_answer():
    found = solved("(integrate (exp (^ x 2)) x 0 1)")
    assert found.verdict.startswith("the engine has no answer: no supported antiderivative of (exp (^ x 2))")


def test_one_step_is_told_in_the_singular():
    assert solved("(/ 5 0)").lines[-1].endswith(" for 1 step")
    assert solved("7").lines[-1].endswith(" for 0 steps")


def grows(neighbourhood):
    return ("+", neighbourhood[0], ("+", neighbourhood[0], neighbourhood[1])) if neighbourhood.kind == "+" else None


def turns_for_ever(neighbourhood):
    return ("+", neighbourhood[1], neighbourhood[0]) if neighbourhood.kind == "+" else None


@pytest.mark.parametrize("instead", [grows, turns_for_ever])
def test_a_network_without_an_end_is_stopped(instead):
    found = solved("(+ 2 3)", instead, budget=700)
    assert (found.answer, found.right) == ("", False)
    assert found.verdict == "stopped, no answer within 700 steps"
    assert found.lines[-4] == "verdict     stopped, no answer within 700 steps"
    assert found.steps == 700
    assert found.departure.step.number == 1

    start = time.monotonic()
    found = solve_with(Almost(instead), parse("(+ 2 3)"), budget=5_000_000, seconds=0.02)
    assert found.verdict in ("stopped, no answer within 0.02 seconds", "stopped, the graph grew without end")
    assert time.monotonic() - start < 60


def test_a_sub_expression_too_long_to_write_shows_its_neighbourhood():
    found = solved(f"(+ 3 {'7' * 1500})")
    assert str(found.trace[0]) == "(+:number (positive:3 ?1) (positive:>3 ?2)) -> (positive (add ?1 ?2))"


def test_solve_asks_the_network_of_a_run(learned):
    path, _ = learned
    found = solve(path, "(+ 2 3)", trace=True)
    assert (found.answer, found.right) == ("5", True)
    assert 0 < found.trace[0].confidence <= 1
    assert found.least_certain.confidence == min(step.confidence for step in (*found.trace, found.least_certain))
    assert found.departure is None
    assert solve(path, "(+ 2 3)").answer == "5"


def test_solve_takes_any_legal_expression(learned):
    path, _ = learned
    for text in ("(derive (^ speed 2) speed)", "(- 0.1 0.1 0.1)", "(sin 0)", "(integrate (/ 1 x) x 1 e)", "7"):
        found = solve(path, text, budget=5_000)
        assert found.reason
        assert found.verdict.startswith(("right, ", "wrong, ", "no answer was reached (", "stopped, "))
        assert found.right or found.departure is not None


def test_an_expression_without_an_answer_is_said_to_have_none(learned):
    path, _ = learned
    found = solve(path, "(/ 5 0)")
    assert not found.right
    assert "division by zero at (/ 5 0)" in found.reason


def test_bad_input_is_refused_in_words(learned):
    path, _ = learned
    with pytest.raises(ExpressionError, match="never closed"):
        solve(path, "(+ 2 3")
    with pytest.raises(ConfigError, match="budget must be a number of steps from 1 to 10,000,000, got 0"):
        solve(path, "(+ 2 3)", budget=0)
    with pytest.raises(ConfigError, match="seconds must be above 0, got nan"):
        solve(path, "(+ 2 3)", seconds=float("nan"))


@pytest.mark.fault("curriculum", 10)
@pytest.mark.fault("docs_and_packaging", 20)
@pytest.mark.parametrize(
    ("infix", "polish"),
    [
        ("2*x + 5 = 13", "(solve (= (+ (* 2 x) 5) 13) x)"),
        ("d/dx x^2", "(derive (^ x 2) x)"),
        ("2 + 3", "(+ 2 3)"),
        ("(x + 1)^2 = 4", "(solve (= (^ (+ x 1) 2) 4) x)"),
        ("sin(3)", "(sin 3)"),
    ],
)
def test_infix_text_is_understood(infix, polish):
    assert _read(infix) == _read(polish) == parse(polish)


def test_a_text_of_neither_notation_is_refused_as_the_one_it_looks_like():
    with pytest.raises(ExpressionError, match="expected an operator"):
        _read("(plus 2 3)")
    with pytest.raises(ExpressionError, match="two ways"):
        _read("1/2x")


@pytest.mark.fault("curriculum", 8)
def test_a_neighbourhood_never_shown_in_training_is_believed_half_at_most():
    expression = parse("(+ 2 34)")
    machine = RewritingMachine(SIGNATURE, RuleEngine())
    machine.run([to_term(expression)[0]])
    shown = {machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)}
    found = solve_with(Sure(), expression, trained=shown)
    assert (found.confidence, found.unseen) == (0.9, 0)
    last = machine.neighbourhood(machine.num_neighbourhoods - 1)
    found = solve_with(Sure(), expression, trained=shown - {last})
    assert (found.confidence, found.unseen) == (0.5, 1)
    assert found.lines[-2] == "unseen      1 of its neighbourhoods, never shown in training"
    assert solve_with(Sure(), expression).unseen is None


@pytest.mark.fault("curriculum", 8)
@pytest.mark.parametrize("text", ["(tan (/ pi 2))", "(approx (exp -30))", "(* (sin 3) (- (^ 10 12) (^ 10 12)))"])
def test_digits_that_ten_decimals_may_not_give_are_doubted(text):
    found = solve_with(Sure(), parse(text))
    assert found.doubt
    assert found.confidence <= 0.5
    assert any(line.startswith("doubt") for line in found.lines)


def test_drawn_digits_are_not_doubted():
    for index in range(30):
        expression = make_sample(4, seed=5, index=index).input
        assert _doubt(expression, 4) == ""


@pytest.mark.parametrize(
    ("level", "text"), [(3, "(^ 2 (/ 1 2))"), (7, "(/ 3 0)"), (7, "(roots 1 (/ 2 0))"), (4, "(sin 3)")]
)
def test_an_answer_without_a_number_is_none(level, text):
    assert not is_worked_out(parse(text), level)


@pytest.mark.fault("curriculum", 8)
@pytest.mark.parametrize(
    ("text", "confidence", "why"),
    [
        ("(derive (sqrt -6) x)", 0.5, "the engine has no answer"),
        ("(integrate (exp (^ x 2)) x)", 0.0, "no answer was reached"),
    ],
)
def test_an_answer_that_the_engine_has_not_or_that_was_not_reached_is_not_believed(text, confidence, why):
    found = solve_with(Sure(), parse(text))
    assert found.confidence == confidence
    assert any(f"confidence  {confidence:.4f}, as {why}; in its steps 0.9000 or more" in line for line in found.lines)
