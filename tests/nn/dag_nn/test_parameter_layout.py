"""Slots follow names: the same for equal names, in any order of declaration, process and hash seed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from names import declared, digest, named_graph

from dagnn.errors import DtypeError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import DagNN
from dagnn.nn.dag_nn.parameters import ParameterLayout

SCRIPT = Path(__file__).parents[2] / "names.py"


@pytest.mark.fault("graphs_and_networks", 2)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_equal_dags_share_their_state_dicts(seed, rng):
    names, edges = named_graph(seed)
    a, b = (declared(names, edges, rng, renumber=False) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a.names) == repr(b.names) or any("frozenset" in repr(name) for name in names)
    first, second = DagNN(a, dtype=torch.float64), DagNN(b, dtype=torch.float64)
    second.load_state_dict(first.state_dict())
    x = torch.randn(3, len(a.inputs), dtype=torch.float64)
    assert torch.equal(first(x), second(x))


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_slots_do_not_depend_on_the_order_of_the_nodes(seed, rng):
    names, edges = named_graph(seed)
    a, b = (ParameterLayout(declared(names, edges, rng, renumber=True), True) for _ in range(2))
    assert a.edge_names() == b.edge_names()


@pytest.mark.fault("graphs_and_networks", 3)
def test_slots_are_the_same_in_processes_of_any_hash_seed():
    others = [
        subprocess.Popen(
            [sys.executable, SCRIPT, seed], env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    assert [other.communicate()[0].strip() for other in others] == [digest(0)] * 2


@pytest.mark.fault("graphs_and_networks", 2)
@pytest.mark.parametrize(("kind", "numpy_kind"), [(int, np.int64), (str, np.str_)])
def test_numpy_names_have_the_slots_of_python_names(kind, numpy_kind):
    names = list(map(kind, range(12)))
    edges = [(name, names[-1]) for name in names[:-1]]
    a, b = (DagNN(Dag(edges, names=list(map(of, names)))) for of in (kind, numpy_kind))
    assert a.dag == b.dag
    b.load_state_dict(a.state_dict())
    for u, v in edges:
        assert a.weight_of(u, v) == b.weight_of(numpy_kind(u), v)


def test_int_and_str_names_sort_as_they_always_have():
    names = [10, 9, "b", "a", "B", -1, "10", "9"]
    layout = ParameterLayout(Dag([(name, "o") for name in names]), True)
    assert [u for u, _ in layout.edge_names()] == [-1, 9, 10, "10", "9", "B", "a", "b"]


@pytest.mark.fault("graphs_and_networks", 3)
def test_blocks_of_a_quotient_graph_are_sorted_by_their_members():
    rng, graph = random.Random(0), networkx.DiGraph([(0, 3), (1, 3), (2, 4), (3, 5), (4, 5)])
    for blocks in ([{0, 1}, {2}, {3, 4}, {5}], [{2}, {3, 4}, {5}, {1, 0}]):
        for block in blocks:
            rng.shuffle(sorted(block))
        dag = Dag.from_networkx(networkx.quotient_graph(graph, blocks))
        assert ParameterLayout(dag, True).edge_names() == [
            (frozenset({0, 1}), frozenset({3, 4})),
            (frozenset({2}), frozenset({3, 4})),
            (frozenset({3, 4}), frozenset({5})),
        ]


@pytest.mark.fault("graphs_and_networks", 8)
def test_a_batch_is_no_dag():
    batch = DagBatch.from_dags([Dag([("a", "b")]), Dag([("a", "c")])])
    with pytest.raises(DtypeError, match=r"dag must be a Dag, got DagBatch: .* take batch\[i\]"):
        DagNN(batch)
