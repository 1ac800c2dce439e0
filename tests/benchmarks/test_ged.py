"""The pairs of the benchmark are what it says, and all sides agree on them."""

import random

import pytest
import torch

from benchmarks.ged import (
    against,
    as_networkx,
    distance,
    edited,
    gaps,
    has_pygmtools,
    loss_batch,
    main,
    matrix,
    near_pairs,
    networkx_distance,
    pygmtools_distance,
    random_dag,
    two_threads,
    unrelated_pairs,
    within,
)


@pytest.mark.parametrize("nodes", [1, 2, 9])
def test_edited_graphs_are_acyclic_and_at_most_that_far_away(nodes):
    rng = random.Random(nodes)
    for _ in range(10):
        dag = random_dag(rng, nodes)
        other = edited(rng, dag) if nodes > 1 else dag
        assert distance((dag, other)) <= 4
        assert distance((dag, edited(rng, dag, 0))) == 0


def test_pairs_are_the_same_in_every_run():
    assert near_pairs(6, 2) == near_pairs(6, 2)
    assert unrelated_pairs(6, 2) == unrelated_pairs(6, 2)


def test_networkx_gets_the_same_graph():
    graph = as_networkx(dag := random_dag(random.Random(1), 6))

    assert set(graph.edges) == {tuple(edge) for edge in dag.edges.tolist()}


def test_peers_agree():
    pairs = [*near_pairs(5, 3), *unrelated_pairs(5, 2)]
    against("case", "NetworkX", 1.0, pairs, [networkx_distance(pair) for pair in pairs]).check()
    if has_pygmtools():
        against("case", "pygmtools", 1.0, pairs, [pygmtools_distance(pair) for pair in pairs]).check()


def test_disagreement_is_found():
    with pytest.raises(AssertionError, match=r"ours found \[0.0\], peer \[1.0\]"):
        pair = near_pairs(4, 1)[0]
        against("case", "peer", 1.0, [(pair[0], pair[0])], [lambda: 1.0]).check()


def test_other_cases_run():
    assert within("case", near_pairs(6, 3), 25).limits == {"25 ms": 0.025}
    matrix(5, 3).check()
    two_threads().ours()
    loss_batch(batch=2, slots=6).ours()


def test_gaps_are_never_negative(monkeypatch):
    monkeypatch.setattr("benchmarks.ged.near_pairs", lambda nodes, count: near_pairs(6, 2))
    monkeypatch.setattr("benchmarks.ged.unrelated_pairs", lambda nodes, count: unrelated_pairs(6, 2))

    rows = gaps(quick=True)

    assert len(rows) == 9 and all(row.ours_seconds >= 0 and row.ok for row in rows)
    assert all(row.ours_seconds <= row.seconds for row in rows[-1:])


def test_missing_pygmtools_is_told(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.ged.has_pygmtools", lambda: False)
    monkeypatch.setattr("benchmarks.ged.networkx_distance", lambda pair: lambda: distance(pair))
    monkeypatch.setattr("benchmarks.ged.gaps", lambda quick: [])
    monkeypatch.setattr("benchmarks.ged.measure", lambda case, rounds: [])
    threads = torch.get_num_threads()
    try:
        assert main(["--quick"]) == 0
    finally:
        torch.set_num_threads(threads)

    assert "pygmtools is not installed (pip install pygmtools): the row" in capsys.readouterr().out
