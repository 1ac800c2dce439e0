"""The symbolic closure against neighbourhoods that are listed in other ways: by building terms, and by running them."""

import itertools

import pytest

from dagnn.curriculum.certificate import closure_of, drawn_expression, engine_answer
from dagnn.curriculum.closure import Closure, pictures
from dagnn.curriculum.engine import RuleEngine, normal_form, to_term
from dagnn.curriculum.exact import answer
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import chain
from dagnn.curriculum.verdict import judge
from dagnn.errors import ExpressionError
from dagnn.rewriting import RewritingMachine, encode_term, read_neighbourhood

SIZES = {1: 6_983, 2: 7_428, 3: 15_726}


class LeaveAll:
    def rewrite(self, neighbourhoods):
        return [() for _ in neighbourhoods]


def shown_by(terms, label):
    """The neighbourhoods of this label in the terms, of which nothing is rewritten."""
    machine = RewritingMachine(SIGNATURE, LeaveAll(), eager=True)
    machine.run([encode_term(term, SIGNATURE) for term in terms])
    shown = (machine.neighbourhood(number) for number in range(machine.num_neighbourhoods))
    return {tokens for tokens in shown if SIGNATURE.shown[tokens[0]].kind == label}


def shown_by_calls(label, *values):
    calls = itertools.product([label], *values)
    return {picture.tokens for call in calls for picture in pictures(call)}


@pytest.mark.parametrize("label", ["add", "compare"])
def test_pictures_of_two_chains_are_those_of_all_pairs_of_small_numbers(label):
    chains = [chain(number) for number in range(130)]
    sizes = ("Zero", "One", "Many")
    assert shown_by_calls(label, sizes, sizes) == shown_by([(label, a, b) for a in chains for b in chains], label)


def test_pictures_of_two_forms_are_those_of_all_ways_to_share_their_operands():
    symbols = ["a", "b", "c", "d"]
    simple = [("-", p, q) for p in symbols for q in symbols]
    nested = [("-", p, q) for p in (*symbols, *simple) for q in (*symbols, *simple)]
    terms = [("*", *pair) for a in simple for b in nested for pair in ((a, b), (b, a))]
    assert shown_by_calls("*", ["-"], ["-"]) == shown_by(terms, "*")


def test_pictures_of_a_form_beside_a_symbol_or_a_number():
    operands = ["a", "b", "x", ("positive", chain(7))]
    terms = [("derive", ("-", p, q), "x") for p in operands for q in operands]
    assert shown_by_calls("derive", ["-"], ["x"]) == shown_by(terms, "derive")
    terms = [("subst", ("+", p, ("positive", chain(n))), "x", ("positive", chain(7))) for p in operands for n in (7, 8)]
    assert shown_by_calls("subst", ["+:number"], ["x"], [("positive", "Many")]) > shown_by(terms, "subst")


def test_fractions_share_digits_with_what_stands_beside_them():
    numbers = [("positive", chain(number)) for number in range(5)]
    fractions = [("fraction", a, chain(number)) for a in numbers for number in range(5)]
    terms = [("+", a, b) for a in fractions for b in fractions]
    sizes = ("Zero", "One", "Many")
    values = [("fraction", ("positive", a), b) for a in sizes for b in sizes]
    assert shown_by(terms, "+") <= shown_by_calls("+", values, values)


@pytest.mark.parametrize(("level", "size"), SIZES.items())
def test_closures_are_of_these_sizes(level, size):
    assert len(closure_of(level)) == size


def has_value(expression, level):
    try:
        answer(expression, level)
    except ExpressionError:
        return False
    return True


def engine_meets(level, expressions):
    """The neighbourhoods that the engine meets on those of the expressions that have a value."""
    expressions = [expression for expression in expressions if has_value(expression, level)]
    assert len(expressions) > 200
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.run([to_term(expression)[0] for expression in expressions], budget=20_000)
    return {machine.neighbourhood(number) for number in range(machine.num_neighbourhoods)}


LEAVES = {2: [0, 1, -12, 3], 3: [0, "x", -3, "y"]}


@pytest.mark.parametrize("level", LEAVES)
def test_no_small_expression_leads_out_of_the_closure(level):
    pairs = [(f, a, b) for f in "+-*/" for a in LEAVES[level] for b in LEAVES[level]]
    nested = [(f, *both) for f in "+-*/" for a in pairs for b in pairs[:: 1 + level] for both in ((a, b), (b, a))]
    if level == 3:
        nested += [("^", a, n) for a in pairs for n in (-2, -1, 0, 1, 2, 3)]
        nested = [("subst", ("subst", a, "x", 5), "y", -2) for a in nested]
    met = engine_meets(level, nested)
    assert len(met) > 1_500
    assert met <= closure_of(level).keys()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_drawn_expression_leads_out_of_the_closure(level):
    drawn = [drawn_expression(level, index) for index in range(400)]
    drawn += [make_sample(level, seed=3, index=index).input for index in range(100)]
    if level > 1:
        drawn += [make_sample(level, seed=3, index=index, depth=6).input for index in range(10)]
    assert engine_meets(level, drawn) <= closure_of(level).keys()


def coefficients_shared_in_every_way():
    """Six of them, as letters: every way in which some are equal."""
    ways = [""]
    for _ in range(6):
        ways = [way + letter for way in ways for letter in "abcdef"[: len(set(way)) + 1]]
    return ways


def test_two_polynomials_share_their_coefficients_in_every_way():
    closure = Closure(engine_answer)
    numbers = [("positive", "Zero"), ("positive", "One")]
    for triple in itertools.product(numbers, repeat=3):
        assert closure.ask(("polynomial", *triple)) == {"polynomial"}
    closure.ask(("polynomial_plus", "polynomial", "polynomial"))
    closure.run()
    terms = [
        ("polynomial_plus", ("polynomial", *way[:3]), ("polynomial", *way[3:]))
        for way in coefficients_shared_in_every_way()
    ]
    listed = {tokens for tokens in closure.replacement_of if SIGNATURE.shown[tokens[0]].kind == "polynomial_plus"}
    assert listed == shown_by(terms, "polynomial_plus")
    assert len(listed) == 203


@pytest.mark.slow
def test_no_equation_that_is_solved_leads_out_of_the_closure_of_level_7():
    drawn = [drawn_expression(7, index) for index in range(2_000)]
    drawn += [make_sample(7, seed=3, index=index).input for index in range(2_000)]
    drawn += [make_sample(7, seed=3, index=index, depth=6).input for index in range(50)]
    assert len(closure_of(7)) == 16_920
    solved = [each for each in drawn if has_value(each, 7) and judge(7, each, normal_form(each)).right]
    assert len(solved) > 0.7 * len(drawn)
    assert engine_meets(7, solved) <= closure_of(7).keys()


@pytest.mark.slow
def test_no_expression_of_level_5_leads_out_of_its_closure():
    drawn = [drawn_expression(5, index) for index in range(2_000)]
    drawn += [make_sample(5, seed=3, index=index).input for index in range(500)]
    assert engine_meets(5, drawn) <= closure_of(5).keys()


def test_all_of_a_closure_is_reached_where_brute_force_reaches_all():
    """The other direction, where no relation between values is forgotten."""
    wanted = [tokens for tokens in closure_of(1) if SIGNATURE.shown[tokens[0]].kind in ("d0", "negative", "negate")]
    met = engine_meets(1, [(f, a, b) for f in "+-*/" for a in range(-31, 32) for b in range(-41, 42) if b])
    met |= engine_meets(1, [("-", a, b) for a in range(100, 140) for b in range(101)])
    assert set(wanted) <= met


def test_calls_without_a_value_are_named():
    closure = Closure(engine_answer)
    assert closure.ask(("/", ("positive", "Many"), ("positive", "Zero"))) == set()
    closure.run()
    ((call, tokens),) = closure.left.items()
    assert call == ("/", ("positive", "Many"), ("positive", "Zero"))
    assert read_neighbourhood(tokens, SIGNATURE)[1].label == "positive:0"


def test_results_hold_every_size_that_a_sum_can_have():
    closure = Closure(engine_answer)
    call = ("+", ("positive", "One"), ("negative", "Many"))
    closure.ask(call)
    closure.run()
    assert closure.results[call] >= {("negative", "One"), ("negative", "Many")}
    assert all(value[0] in ("positive", "negative") for value in closure.results[call])
