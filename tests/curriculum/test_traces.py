"""The windows of many traces: counted right, and the same however the work is shared."""

import hashlib
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.expression import parse
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.elementary import constant_terms
from dagnn.curriculum.traces import SYMBOLIC, collect_windows, kind_of
from dagnn.errors import ConfigError
from dagnn.rewriting import LEAVE, RewritingMachine, encode_replacement

SHARED = {1: 1_200, 4: 3, 7: 20}  # more than one chunk of 500 on level 1, so that two processes have work


def digest(found):
    text = repr((found.windows, found.replacements, found.counts.tolist(), found.stages))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def alone():
    return collect_windows(SHARED, seed=3)


def test_two_processes_find_the_same(alone):
    shared = collect_windows(SHARED, seed=3, processes=2)
    assert shared.windows == alone.windows
    assert shared.replacements == alone.replacements
    assert np.array_equal(shared.counts, alone.counts)


def test_another_process_with_another_hash_seed_finds_the_same(alone):
    code = (
        "import hashlib\n"
        "from dagnn.curriculum.traces import collect_windows\n"
        f"found = collect_windows({SHARED}, seed=3)\n"
        "text = repr((found.windows, found.replacements, found.counts.tolist(), found.stages))\n"
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


def test_windows_are_distinct_and_sorted(alone):
    assert alone.windows == sorted(set(alone.windows))
    assert len(alone) == len(alone.windows) == len(alone.replacements) == len(alone.counts)
    assert alone.counts.dtype == np.int64
    assert alone.counts.shape == (len(alone), 3)
    assert (alone.counts.sum(1) > 0).all()


def test_replacements_are_those_of_the_rules(alone):
    assert RuleEngine().rewrite(alone.windows) == alone.replacements


def test_the_first_stage_is_the_lowest_with_a_count(alone):
    assert alone.stages == (1, 4, 7)
    for level, counts in zip(alone.first_stage.tolist(), alone.counts.tolist(), strict=True):
        column = alone.stages.index(level)
        assert counts[column] > 0
        assert not any(counts[:column])


@pytest.mark.parametrize("level", [2])  # nothing is drilled there
def test_counts_are_the_steps_of_the_trace(level):
    found = collect_windows({level: 1}, seed=9)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    _, steps = machine.trace(to_term(make_sample(level, seed=9, index=0).input, level)[0])
    counted = Counter(step.window for step in steps)
    changing = {
        window: int(count)
        for window, replacement, (count,) in zip(found.windows, found.replacements, found.counts, strict=True)
        if replacement != LEAVE
    }
    assert changing == counted


def test_counts_grow_by_what_a_sample_adds():
    """A chunk shares its graph: what two samples have in common is rewritten, and counted, once."""
    one, both = (collect_windows({2: count}, seed=4) for count in (1, 2))
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    terms = [to_term(make_sample(2, seed=4, index=index).input, 2)[0] for index in (0, 1)]
    machine.absorb(terms)
    expected = {machine.window(w): int(times) for w, times in enumerate(machine.counts)}
    assert dict(zip(both.windows, both.counts[:, 0].tolist(), strict=True)) == expected
    assert set(one.windows) <= set(both.windows)


def test_level_4_holds_every_constant():
    found = collect_windows({4: 1}, seed=0)
    count_of = dict(zip(found.windows, found.counts[:, 0].tolist(), strict=True))
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb([encode_replacement(term, SIGNATURE) for term in constant_terms()])
    needed = [machine.window(w) for w in range(machine.num_windows)]
    assert len(needed) > 300
    assert all(count_of[window] >= 25 for window in needed)


def test_constants_belong_to_level_4_alone():
    found = collect_windows({1: 5, 4: 1}, seed=0)
    kinds = {SIGNATURE.shown[w[0]].kind for w, count in zip(found.windows, found.counts[:, 0], strict=True) if count}
    assert not any(kind.startswith(("circle", "exp", "fixed")) for kind in kinds)


def test_operations_without_a_value_are_shown_to_be_left_alone():
    found = collect_windows({1: 5, 3: 5, 4: 1}, seed=0)
    replacement_of = dict(zip(found.windows, found.replacements, strict=True))
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    for expression, level in ((("/", 7, 0), 1), (("^", 0, -2), 3), (("log", -2), 4), (("/", ("/", -1, 2), 0), 4)):
        machine.absorb([to_term(expression, level)[0]])
    windows = [machine.window(w) for w in range(machine.num_windows)]
    assert all(replacement_of[window] == machine.replacement(w) for w, window in enumerate(windows))
    assert any(replacement_of[window] == LEAVE for window in windows)


def test_general_powers_and_the_constant_e_are_shown():
    found = collect_windows({5: 5, 6: 5}, seed=0)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb([to_term(("derive", ("^", "x", "x"), "x"), 5)[0], to_term(("log", "e"), 6)[0]])
    assert {machine.window(w) for w in range(machine.num_windows)} <= set(found.windows)


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
    found = set(collect_windows({1: 300, 2: 20, level: 5} | {4: 5}, seed=0).windows)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb([to_term(parse(text), level)[0]])
    asked = {machine.window(w) for w in range(machine.num_windows)}
    unseen = {window for window in asked - found if kind_of(window) == SYMBOLIC}
    assert not unseen


def test_the_preset_and_the_seed_change_the_samples():
    base = collect_windows({2: 40}, seed=0)
    assert collect_windows({2: 40}, seed=1).windows != base.windows
    assert collect_windows({2: 40}, seed=0, preset="small").windows != base.windows
    assert digest(collect_windows({2: 40}, seed=0)) == digest(base)


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
        collect_windows(samples, **options)
