"""Kinds of neighbourhoods, neighbourhoods kept from training, and what a training set must never hold."""

import random
from collections import Counter

import pytest

from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import LABELS, RULES
from dagnn.curriculum.traces import CONSTANTS, DIGITS, KINDS, PRODUCTS, SYMBOLIC, collect_neighbourhoods, kind_of
from dagnn.rewriting.dataset import is_held_out
from dagnn.rewriting.features import NeighbourhoodFeatures


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
