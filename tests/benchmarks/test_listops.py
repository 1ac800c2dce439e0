"""ListOps' grammar against drawing by its rules, values against what people would work out, and the Dag of a batch."""

import random
import statistics

import pytest

from benchmarks import listops
from benchmarks.listops_data import END, Grammar, applied, joined, parsed

MIN, MAX, MED, SM = 10, 11, 12, 13


def drawn_by_the_rules(rng: random.Random, args: int, most: int, depth: int = 1) -> list[int]:
    if depth == most or rng.random() > 0.25:
        return [rng.randrange(10)]
    parts = [drawn_by_the_rules(rng, args, most, depth + 1) for _ in range(rng.randint(2, args))]
    return [rng.randrange(10, 14), *(token for part in parts for token in part), END]


def test_lengths_are_as_likely_as_by_the_rules():
    rng, grammar = random.Random(0), Grammar(3, 4, 60)
    lengths = [len(drawn_by_the_rules(rng, 3, 4)) for _ in range(20_000)]
    for length in (1, 4, 5, 7, 8, 10):
        share = lengths.count(length) / len(lengths)
        assert grammar.of_parts[1][1][length] == pytest.approx(share, abs=0.01)
    assert grammar.of_parts[1][1].sum() == pytest.approx(1)


def test_parts_are_as_large_as_by_the_rules():
    """Among expressions of 14 tokens: how many arguments the outermost operator has, and how long the first is."""
    rng, grammar = random.Random(1), Grammar(3, 5, 14)
    by_rules = [tokens for _ in range(60_000) if len(tokens := drawn_by_the_rules(rng, 3, 5)) == 14]
    drawn = [grammar.draw(rng, 14, 14) for _ in range(len(by_rules))]
    assert len(by_rules) > 200

    def outermost(tokens: list[int]) -> tuple[int, int]:
        one = parsed(tuple(tokens))
        arguments = [node for node, parent in enumerate(one.parents) if parent == 0]
        return len(arguments), arguments[1] - arguments[0]

    for which in (0, 1):
        expected, found = ([outermost(tokens)[which] for tokens in those] for those in (by_rules, drawn))
        error = statistics.stdev(expected) / len(expected) ** 0.5
        assert statistics.mean(found) == pytest.approx(statistics.mean(expected), abs=7 * error)


@pytest.mark.parametrize(("args", "depth", "low", "high"), [(5, 20, 200, 300), (15, 9, 100, 1000), (5, 20, 1, 1)])
def test_expressions_keep_their_bounds(args, depth, low, high):
    rng, grammar = random.Random(0), Grammar(args, depth, high)
    for _ in range(20):
        tokens = grammar.draw(rng, low, high)
        assert low <= len(tokens) <= high
        one = parsed(tokens)
        depths = [1]
        for parent in one.parents[1:]:
            depths.append(depths[parent] + 1)
        assert max(depths) <= depth
        assert max(one.parents.count(node) for node in range(len(one.parents))) <= args


@pytest.mark.parametrize(
    ("operator", "values", "value"),
    [
        ("MIN", [4, 2, 9], 2),
        ("MAX", [4, 2, 9], 9),
        ("SM", [4, 2, 9], 5),
        ("MED", [9, 2, 4], 4),
        ("MED", [1, 4], 2),
        ("MED", [0, 9, 5, 7], 6),
        ("MED", [8], 8),
    ],
)
def test_operators(operator, values, value):
    assert applied(operator, values) == value


def test_an_expression_becomes_a_tree_with_its_value():
    """[MAX 2 9 [MIN 4 7 ] 0 ], the example of the paper, and [SM 8 5 ]."""
    one = parsed((MAX, 2, 9, MIN, 4, 7, END, 0, END))
    assert one == ([MAX, 2, 9, MIN, 4, 7, 0], [-1, 0, 0, 0, 3, 3, 0], [0, 0, 1, 2, 0, 1, 3], 9)
    batch = joined([one, parsed((3,)), parsed((SM, 8, 5, END))])
    assert batch.values.tolist() == [9, 3, 3]
    assert batch.roots.tolist() == [0, 7, 8]
    assert batch.symbols.tolist() == [*one.symbols, 3, SM, 8, 5]
    assert batch.dag.node_attributes["operator"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0]
    places = batch.dag.edge_attributes["position"].tolist()
    ends = [(int(u), int(v), place) for (u, v), place in zip(batch.dag.edges, places, strict=True)]
    assert sorted(ends) == [(1, 0, 0), (2, 0, 1), (3, 0, 2), (4, 3, 0), (5, 3, 1), (6, 0, 3), (9, 8, 0), (10, 8, 1)]


def test_training_sees_different_expressions_the_shortest_first():
    train = listops.training_set(0, 200)
    sizes = [len(one.symbols) for one in train]
    assert len({(tuple(one.symbols), tuple(one.parents)) for one in train}) == 200
    assert sizes[0] == 1 and sum(sizes[:50]) < sum(sizes[-50:])
    seen = list(listops.batches(train, random.Random(0), 100))
    known = {id(one) for one in train[:20]}
    assert {id(one) for one in seen[0]} <= known
    assert {id(one) for one in seen[-1]} == {id(one) for one in train}
