"""The neighbourhoods of many traces: counted right, and the same however the work is shared."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.elementary import constant_terms
from dagnn.curriculum.rules.numbers import LABELS, RULES
from dagnn.curriculum.traces import CONSTANTS, DIGITS, KINDS, PRODUCTS, SYMBOLIC, collect_neighbourhoods, kind_of
from dagnn.errors import ConfigError
from dagnn.rewriting import LEAVE, RewritingMachine, encode_replacement
from dagnn.rewriting.dataset import is_held_out
from dagnn.rewriting.features import NeighbourhoodFeatures

SHARED = {1: 1_200, 4: 3, 7: 20}  # more than one chunk of 500 on level 1, so that two processes have work


def digest(found):
    text = repr((found.neighbourhoods, found.replacements, found.counts.tolist(), found.stages))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def alone():
    return collect_neighbourhoods(SHARED, seed=3)


def test_two_processes_with_another_hash_seed_find_the_same(alone, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "77")  # they are started anew, and take it; this process keeps its own
    shared = collect_neighbourhoods(SHARED, seed=3, processes=2)
    assert shared.neighbourhoods == alone.neighbourhoods
    assert shared.replacements == alone.replacements
    assert np.array_equal(shared.counts, alone.counts)
    assert shared.stages == alone.stages


@pytest.mark.slow
def test_another_process_with_another_hash_seed_finds_the_same(alone):
    code = (
        "import hashlib\n"
        "from dagnn.curriculum.traces import collect_neighbourhoods\n"
        f"found = collect_neighbourhoods({SHARED}, seed=3)\n"
        "text = repr((found.neighbourhoods, found.replacements, found.counts.tolist(), found.stages))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(alone)


def test_neighbourhoods_are_distinct_and_sorted(alone):
    assert alone.neighbourhoods == sorted(set(alone.neighbourhoods))
    assert len(alone) == len(alone.neighbourhoods) == len(alone.replacements) == len(alone.counts)
    assert alone.counts.dtype == np.int64
    assert alone.counts.shape == (len(alone), 3)
    assert (alone.counts.sum(1) > 0).all()


def test_replacements_are_those_of_the_rules(alone):
    assert RuleEngine().rewrite(alone.neighbourhoods) == alone.replacements


def test_the_first_stage_is_the_lowest_with_a_count(alone):
    assert alone.stages == (1, 4, 7)
    for level, counts in zip(alone.first_stage.tolist(), alone.counts.tolist(), strict=True):
        column = alone.stages.index(level)
        assert counts[column] > 0
        assert not any(counts[:column])


@pytest.mark.parametrize("level", [2])  # nothing is drilled there
def test_counts_are_the_steps_of_the_trace(level):
    found = collect_neighbourhoods({level: 1}, seed=9)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    _, steps = machine.trace(to_term(make_sample(level, seed=9, index=0).input, level)[0])
    counted = Counter(step.neighbourhood for step in steps)
    changing = {
        neighbourhood: int(count)
        for neighbourhood, replacement, (count,) in zip(
            found.neighbourhoods, found.replacements, found.counts, strict=True
        )
        if replacement != LEAVE
    }
    assert changing == counted


def test_counts_grow_by_what_a_sample_adds():
    """A chunk shares its graph: what two samples have in common is rewritten, and counted, once."""
    one, both = (collect_neighbourhoods({2: count}, seed=4) for count in (1, 2))
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    terms = [to_term(make_sample(2, seed=4, index=index).input, 2)[0] for index in (0, 1)]
    machine.absorb(terms)
    expected = {machine.neighbourhood(w): int(times) for w, times in enumerate(machine.counts)}
    assert dict(zip(both.neighbourhoods, both.counts[:, 0].tolist(), strict=True)) == expected
    assert set(one.neighbourhoods) <= set(both.neighbourhoods)


def test_level_4_holds_every_constant():
    found = collect_neighbourhoods({4: 1}, seed=0)
    count_of = dict(zip(found.neighbourhoods, found.counts[:, 0].tolist(), strict=True))
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb([encode_replacement(term, SIGNATURE) for term in constant_terms()])
    needed = [machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)]
    assert len(needed) > 300
    assert all(count_of[neighbourhood] >= 25 for neighbourhood in needed)


def test_constants_belong_to_level_4_alone():
    found = collect_neighbourhoods({1: 5, 4: 1}, seed=0)
    kinds = {
        SIGNATURE.shown[w[0]].kind for w, count in zip(found.neighbourhoods, found.counts[:, 0], strict=True) if count
    }
    assert not any(kind.startswith(("circle", "exp", "fixed")) for kind in kinds)


def test_operations_without_a_value_are_shown_to_be_left_alone():
    found = collect_neighbourhoods({1: 5, 3: 5, 4: 1}, seed=0)
    replacement_of = dict(zip(found.neighbourhoods, found.replacements, strict=True))
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    for expression, level in ((("/", 7, 0), 1), (("^", 0, -2), 3), (("log", -2), 4), (("/", ("/", -1, 2), 0), 4)):
        machine.absorb([to_term(expression, level)[0]])
    neighbourhoods = [machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)]
    assert all(
        replacement_of[neighbourhood] == machine.replacement(w) for w, neighbourhood in enumerate(neighbourhoods)
    )
    assert any(replacement_of[neighbourhood] == LEAVE for neighbourhood in neighbourhoods)


def test_general_powers_and_the_constant_e_are_shown():
    found = collect_neighbourhoods({5: 5, 6: 5}, seed=0)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb([to_term(("derive", ("^", "x", "x"), "x"), 5)[0], to_term(("log", "e"), 6)[0]])
    assert {machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)} <= set(found.neighbourhoods)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("(^ 0 0)", 3),
        ("(exp 30)", 4),
        ("(sin 12345)", 4),
        ("(+ (approx (/ 1 2)) (sin 1))", 4),
        ("(integrate (exp (^ x 2)) x)", 6),
        ("(solve (= (^ x 2) 2) x)", 7),
        ("(solve (= (^ x 2) -1) x)", 7),
        ("(solve (= x x) x)", 7),
        ("(solve (= 1 2) x)", 7),
        ("(solve (= (^ x 3) 8) x)", 7),
        ("(solve (= (* (+ x 1) (- x 2)) 0) x)", 7),
    ],
)
def test_the_hard_cases_are_shown(text, level):
    """Nearly all steps: digits of other numbers are learned from drawn expressions."""
    found = set(collect_neighbourhoods({1: 300, 2: 20, level: 5} | {4: 5}, seed=0).neighbourhoods)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb([to_term(parse(text), level)[0]])
    asked = {machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)}
    unseen = {neighbourhood for neighbourhood in asked - found if kind_of(neighbourhood) == SYMBOLIC}
    assert not unseen


def test_the_preset_and_the_seed_change_the_samples():
    base = collect_neighbourhoods({2: 40}, seed=0)
    assert collect_neighbourhoods({2: 40}, seed=1).neighbourhoods != base.neighbourhoods
    assert collect_neighbourhoods({2: 40}, seed=0, preset="small").neighbourhoods != base.neighbourhoods
    assert digest(collect_neighbourhoods({2: 40}, seed=0)) == digest(base)


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ({8: 10}, {}, "level 8 does not exist"),
        ({1: 10, 0: 1}, {}, "level 0 does not exist"),
        ({1: 0}, {}, "samples of level 1 = 0: expected at least 1"),
        ({1: 5, 2: -3}, {}, "samples of level 2 = -3: expected at least 1"),
        ({}, {}, "names no level"),
        ({1: 1}, {"preset": "tiny"}, "preset 'tiny' does not exist"),
    ],
)
def test_wrong_arguments_are_refused(samples, options, message):
    with pytest.raises(ConfigError, match=message):
        collect_neighbourhoods(samples, **options)


@pytest.fixture(scope="module")
def collected():
    return collect_neighbourhoods({1: 400, 2: 100, 3: 60, 4: 12, 5: 250, 6: 120, 7: 120}, seed=8)


def test_every_label_that_is_rewritten_has_a_kind():
    kinds = {name: kind_of((SIGNATURE.id_of[name],)) for name in RULES}
    assert set(kinds.values()) == set(KINDS)
    assert len(kinds) == sum(label.neighbourhood_depth is not None for label in LABELS.values())
    for names, kind in (
        (("add", "divide", "reduce", "d0", "gcd"), DIGITS),
        (("times_digit",), PRODUCTS),
        (("circle3", "fixed*", "rounded", "approx"), CONSTANTS),
        (("+", "derive", "integrate", "solve", "subst", "sin"), SYMBOLIC),
    ):
        assert {kinds[name] for name in names} == {kind}


def test_no_neighbourhood_has_two_replacements(collected):
    """Neither as it is written, nor as the network sees it: what the rules tell apart, its features must."""
    order = list(range(len(collected)))
    random.Random(0).shuffle(order)
    again = RuleEngine().rewrite([collected.neighbourhoods[i] for i in order])
    assert again == [collected.replacements[i] for i in order]

    features = NeighbourhoodFeatures.from_neighbourhoods(SIGNATURE, collected.neighbourhoods)
    inputs = [tuple(sorted(row)) for row in features.encode(collected.neighbourhoods).tolist()]
    assert len(set(inputs)) == len(set(collected.neighbourhoods)) == len(collected)
    assert max(sum(row > 0 for row in each) for each in inputs) < features.max_features


def test_a_share_of_the_neighbourhoods_is_held_out(collected):
    held_out = [neighbourhood for neighbourhood in collected.neighbourhoods if is_held_out(neighbourhood, 0.1)]
    assert 0.08 < len(held_out) / len(collected) < 0.12
    kinds = Counter(map(kind_of, held_out))
    assert set(kinds) == set(KINDS)
    assert not any(is_held_out(neighbourhood, 0.0) for neighbourhood in collected.neighbourhoods)
    assert all(is_held_out(neighbourhood, 0.5) for neighbourhood in held_out)


def test_which_neighbourhoods_are_held_out_never_changes():
    # BLAKE2b of the 16-bit tokens, four bytes of it as a part of 2^32: worked out once.
    assert not is_held_out((3, 1, 4, 1, 5), 0.23144)
    assert is_held_out((3, 1, 4, 1, 5), 0.23145)
