"""Kinds of windows, windows kept from training, and what a training set must never hold."""

import random
from collections import Counter

import pytest

from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import LABELS, RULES
from dagnn.curriculum.traces import CONSTANTS, DIGITS, KINDS, PRODUCTS, SYMBOLIC, collect_windows, kind_of
from dagnn.rewriting.dataset import is_held_out
from dagnn.rewriting.features import WindowFeatures


@pytest.fixture(scope="module")
def collected():
    return collect_windows({1: 400, 2: 100, 3: 60, 4: 12, 5: 250, 6: 120, 7: 120}, seed=8)


def test_every_label_that_is_rewritten_has_a_kind():
    kinds = {name: kind_of((SIGNATURE.id_of[name],)) for name in RULES}
    assert set(kinds.values()) == set(KINDS)
    assert len(kinds) == sum(label.window_depth is not None for label in LABELS.values())
    for names, kind in (
        (("add", "divide", "reduce", "d0", "gcd"), DIGITS),
        (("times_digit",), PRODUCTS),
        (("circle3", "fixed*", "rounded", "approx"), CONSTANTS),
        (("+", "derive", "integrate", "solve", "subst", "sin"), SYMBOLIC),
    ):
        assert {kinds[name] for name in names} == {kind}


def test_no_window_has_two_replacements(collected):
    """Neither as it is written, nor as the network sees it: what the rules tell apart, its features must."""
    order = list(range(len(collected)))
    random.Random(0).shuffle(order)
    again = RuleEngine().rewrite([collected.windows[i] for i in order])
    assert again == [collected.replacements[i] for i in order]

    features = WindowFeatures.from_windows(SIGNATURE, collected.windows)
    inputs = [tuple(sorted(row)) for row in features.encode(collected.windows).tolist()]
    assert len(set(inputs)) == len(set(collected.windows)) == len(collected)
    assert max(sum(row > 0 for row in each) for each in inputs) < features.max_features


def test_a_share_of_the_windows_is_held_out(collected):
    held_out = [window for window in collected.windows if is_held_out(window, 0.1)]
    assert 0.08 < len(held_out) / len(collected) < 0.12
    kinds = Counter(map(kind_of, held_out))
    assert set(kinds) == set(KINDS)
    assert not any(is_held_out(window, 0.0) for window in collected.windows)
    assert all(is_held_out(window, 0.5) for window in held_out)


def test_which_windows_are_held_out_never_changes():
    # BLAKE2b of the 16-bit tokens, four bytes of it as a part of 2^32: worked out once.
    assert not is_held_out((3, 1, 4, 1, 5), 0.23144)
    assert is_held_out((3, 1, 4, 1, 5), 0.23145)
