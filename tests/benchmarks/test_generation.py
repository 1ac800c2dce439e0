"""Both sides of the benchmark do the same work."""

import pytest

from benchmarks.generation import (
    TRACES,
    PlainMachine,
    cases,
    compiled_counts,
    plain_counts,
    samples_case,
    terms_of,
    traces_case,
)
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import integer
from dagnn.rewriting import encode_replacement


@pytest.mark.parametrize("level", LEVELS)
def test_both_count_the_same_neighbourhoods(level):
    terms = terms_of(level, 3 if level == 4 else 15)
    counts = compiled_counts(terms)

    assert plain_counts(terms) == counts
    assert sum(counts.values()) > 5 * len(terms)


def test_a_difference_is_noticed(monkeypatch):
    case = traces_case(1, 5)
    case.check()
    monkeypatch.setattr("benchmarks.generation.plain_counts", lambda terms: {})

    with pytest.raises(AssertionError, match="the neighbourhoods of level 1 are counted otherwise"):
        case.check()


def test_the_plain_machine_rewrites():
    machine = PlainMachine()
    total, seven = (
        machine.built(encode_replacement(term, SIGNATURE), ()) for term in (("+", integer(3), integer(4)), integer(7))
    )

    assert machine.normal_form(total) is seven
    assert machine.normal_form(seven) is seven


def test_the_limit_is_what_3000_samples_a_second_take():
    case = samples_case(2, 30, "test")

    assert case.limits == {"3,000 samples/s": 0.01}
    assert [(sample.level, sample.split) for sample in case.ours()] == [(2, "test")] * 30


def test_every_level_has_its_cases():
    names = [case.name for case in cases(quick=True)]

    assert names[:14] == [f"level {n}, {split}: 300 verified samples" for split in ("train", "test") for n in LEVELS]
    assert list(TRACES) == list(LEVELS)
    assert [name.split(" traces, ")[0] for name in names[14:]] == [
        f"level {level}: {size // 8:,}" for level, size in TRACES.items()
    ]
    assert all(name.endswith(" steps") for name in names[14:])
