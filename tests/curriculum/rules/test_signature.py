"""All rules together: every one looks at its neighbourhood alone, and none is dead."""

from itertools import product

import pytest

from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.expression import ARITY
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE, SUBJECTS, apply_rule
from dagnn.curriculum.rules.elementary import constant_terms
from dagnn.curriculum.rules.numbers import LABELS, RULES
from dagnn.rewriting import RewritingMachine, encode_replacement, neighbourhood_nodes, read_neighbourhood
from dagnn.rewriting.features import NeighbourhoodFeatures

SAMPLES = {1: 400, 2: 400, 3: 400, 4: 150, 5: 400, 6: 400, 7: 400}
# What no sample holds: forms that find no rule, equations without rational roots, all functions at all special values.
RARE = [
    "(solve (= (^ x 2) (/ 2 3)) x)",
    "(solve (= (^ x 2) 2) x)",
    "(solve (= (* x (^ x 2)) 2) x)",
    "(approx (exp 100))",
    "(approx (sin 123456))",
    "(approx (- 0 (exp -30)))",
    "(derive (roots x 1) x)",
    "(integrate (tan x) x 0 1)",
    "(integrate (sin (^ x 2)) x)",
    *(f"({name} {value})" for name, value in product(("sin", "cos", "tan", "log", "exp", "sqrt"), (0, 1, 2, "e"))),
]
NAMES = [label.name for label in SIGNATURE.labels]


@pytest.fixture(scope="module")
def replacements():
    """Neighbourhood -> replacement, of a few thousand samples and of what they do not hold."""
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    for level, count in SAMPLES.items():
        samples = [make_sample(level, seed=5, index=index) for index in range(count)]
        machine.absorb([to_term(sample.input, level)[0] for sample in samples])
    machine.absorb([to_term(parse(text))[0] for text in RARE])
    machine.absorb([encode_replacement(term, SIGNATURE) for term in constant_terms()])
    return {machine.neighbourhood(w): machine.replacement(w) for w in range(machine.num_neighbourhoods)}


def test_the_same_neighbourhood_has_the_same_replacement_whoever_asks_and_when(replacements):
    assert len(replacements) > 5_000
    for neighbourhood in reversed(replacements):
        assert (
            encode_replacement(apply_rule(read_neighbourhood(neighbourhood, SIGNATURE)), SIGNATURE)
            == replacements[neighbourhood]
        )


def test_neighbourhoods_and_replacements_are_small(replacements):
    assert max(map(len, replacements)) <= 32
    assert max(map(len, replacements.values())) <= 32


def test_no_neighbourhood_is_cut_by_the_networks_features(replacements):
    longest = NeighbourhoodFeatures.from_neighbourhoods(SIGNATURE, replacements, max_features=200).encode(
        list(replacements)
    )
    assert (longest > 0).sum(1).max() <= NeighbourhoodFeatures(SIGNATURE).max_features


def test_a_replacement_points_into_its_neighbourhood(replacements):
    for neighbourhood, replacement in replacements.items():
        nodes = neighbourhood_nodes(read_neighbourhood(neighbourhood, SIGNATURE))
        assert all(token < len(NAMES) + len(nodes) for token in replacement)


def test_no_replacement_is_what_it_replaces(replacements):
    """A rule that puts the node itself back would never end."""
    for neighbourhood, replacement in replacements.items():
        assert replacement != (len(NAMES),)
        root = read_neighbourhood(neighbourhood, SIGNATURE)
        same = (SIGNATURE.id_of[root.kind], *(len(NAMES) + child.index for child in root.children))
        assert replacement != same, root


def test_every_rule_is_reached(replacements):
    reached = {SIGNATURE.shown[neighbourhood[0]].kind for neighbourhood in replacements}
    assert sorted(set(RULES) - reached) == []


def test_every_label_is_written_by_a_rule_or_by_to_term(replacements):
    written = {NAMES[token] for replacement in replacements.values() for token in replacement if token < len(NAMES)}
    language = {*ARITY, "definite", "e", "pi", *"abcdfghijklmnopqrstuvwxyz"}
    assert language <= set(NAMES)
    assert sorted(set(NAMES) - written - language) == []


def test_rules_and_constructors_are_all_there_is():
    assert set(LABELS) == set(NAMES)
    assert {label.name for label in SIGNATURE.labels if label.neighbourhood_depth is not None} == set(RULES)
    assert sorted(NAMES) == NAMES
    assert {rule.__module__ for rule in RULES.values()} <= {subject.__name__ for subject in SUBJECTS}


def test_every_level_is_traced():
    assert list(SAMPLES) == list(LEVELS)
