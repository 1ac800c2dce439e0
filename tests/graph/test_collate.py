"""collate: samples with Dags in them to batches."""

from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag, DagBatch, collate


class Pair(NamedTuple):
    source: Dag
    target: Dag


GRAPHS = [Dag.from_polish(text) for text in ("(+ 1 x)", "y", "(* x (+ x 2))")]


def test_dags_become_a_batch():
    assert list(collate(GRAPHS)) == GRAPHS


def test_structures_are_kept():
    pair = collate([Pair(dag, dag) for dag in GRAPHS])
    assert isinstance(pair, Pair)
    assert list(pair.target) == GRAPHS
    batch = collate([{"graph": [dag, i], "x": torch.ones(2)} for i, dag in enumerate(GRAPHS)])
    assert list(batch["graph"][0]) == GRAPHS
    assert batch["graph"][1].tolist() == [0, 1, 2]
    assert batch["x"].shape == (3, 2)


def test_a_data_loader_uses_it():
    loader = DataLoader([(dag, float(i)) for i, dag in enumerate(GRAPHS)], batch_size=2, collate_fn=collate)
    batches = list(loader)
    assert [len(graphs) for graphs, _ in batches] == [2, 1]
    assert all(isinstance(graphs, DagBatch) for graphs, _ in batches)
    assert [dag for graphs, _ in batches for dag in graphs] == GRAPHS
    assert [targets.tolist() for _, targets in batches] == [[0.0, 1.0], [2.0]]


@pytest.mark.slow
def test_worker_processes_send_batches():
    loader = DataLoader(GRAPHS * 20, batch_size=7, collate_fn=collate, num_workers=1)
    assert [dag for graphs in loader for dag in graphs] == GRAPHS * 20


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "collate needs at least one sample, got none."),
        ([(GRAPHS[0], 1), (GRAPHS[1],)], "sample 1 has the length 1, but sample 0 has 2: give all the same."),
        ([{"a": 1}, {"b": 1}], "sample 1 has the keys ['b'], but sample 0 has ['a']: give all the same."),
    ],
)
def test_samples_of_different_structure_are_refused(samples, message):
    with pytest.raises(GraphError) as error:
        collate(samples)
    assert str(error.value) == message


@pytest.mark.fault("graphs_and_networks", 8)
def test_a_batch_is_no_sample():
    batch = DagBatch.from_dags(GRAPHS)
    with pytest.raises(DtypeError, match="a sample holds a DagBatch, which is a batch already"):
        collate([(batch, 1), (batch, 2)])
