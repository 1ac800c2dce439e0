"""All contestants of the benchmark compute the same, and the graphs are what it says."""

from importlib.util import find_spec

import pytest
import torch
from precision import assert_rounded
from torch import nn

from benchmarks import batch_cortex
from benchmarks.batch import SYMBOLS, Contest, Stack, all_at_once, one_by_one, random_dags
from benchmarks.batch_peers import CHILDREN, Problem, by_operator, eager, function, pyg, recursion
from dagnn.graph import DagBatch


def test_graphs_have_the_sizes_and_operands_that_are_claimed():
    dags = random_dags(64)
    batch = DagBatch.from_dags(dags)
    assert min(dag.num_nodes for dag in dags) >= 5 and max(dag.num_nodes for dag in dags) <= 40
    assert int(batch.in_degree.max()) == CHILDREN
    assert int(batch.out_degree.max()) > 1  # some are shared
    assert int(batch.node_attributes["operator"].max()) < SYMBOLS
    assert dags == random_dags(64)


@pytest.fixture
def double_precision():
    """Peers compute in another order: equal to rounding, which in float64 is far below any mistake."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # PyG's own
@pytest.mark.parametrize("make", [eager, function, pyg, recursion], ids=lambda make: make.__name__)
def test_peers_agree_with_the_sweep(make, double_precision):
    if make is pyg and find_spec("torch_geometric") is None:
        pytest.skip("torch-geometric is not installed")
    contest = Contest(DagBatch.from_dags(random_dags(5)), 16)
    peer = contest.peer(make(Problem.of(contest.batch, SYMBOLS)))
    for ours, theirs in zip(contest.ours(), peer(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_models_on_parse_trees_agree_with_their_peers(double_precision, monkeypatch):
    monkeypatch.setattr(batch_cortex, "WIDTH", 16)
    monkeypatch.setattr(batch_cortex, "MATRIX_WIDTH", 8)
    cases = list(batch_cortex.cases(quick=False))
    assert len(cases) == 6
    for case in cases:
        case.check()
    assert batch_cortex.TreeGRU(2, 3).explain() == batch_cortex.TreeLSTM(2, 3).explain() == "compiled"


@pytest.mark.parametrize("how", ["loop", "bmm"])
def test_peers_with_a_weight_per_operator_agree(how, double_precision):
    contest = Contest(DagBatch.from_dags(random_dags(5)), 16, operators=SYMBOLS)
    peer = contest.peer(by_operator(Problem.of(contest.batch, SYMBOLS), how))
    for ours, theirs in zip(contest.ours(), peer(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_grouped_products_agree_as_far_as_float32_goes():
    batch = DagBatch.from_dags(random_dags(5))
    single = Contest(batch, 16, operators=SYMBOLS)
    found = single.peer(by_operator(Problem.of(batch, SYMBOLS), "grouped"))()  # takes no float64
    double = Contest(batch, 16, operators=SYMBOLS)
    double.cell.double()
    double.table = nn.Parameter(double.table.detach().double())
    double.parameters, double.grad = [double.table, *double.cell.parameters()], double.grad.double()
    assert_rounded(found, double.ours)


def test_a_step_of_all_parameters_at_once_is_that_of_one_after_another(double_precision):
    ours, theirs = Stack(2, 4), Stack(2, 4)
    begin = [p.detach().clone() for p in ours.parameters()]
    for _ in range(2):
        torch.testing.assert_close(all_at_once(ours), one_by_one(theirs))
    for p, q, before in zip(ours.parameters(), theirs.parameters(), begin, strict=True):
        torch.testing.assert_close(p, q)
        assert not torch.equal(p, before) and p.grad is None and q.grad is None
