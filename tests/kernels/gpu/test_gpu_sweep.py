"""Sweeps in Triton's interpreter, on the CPU, against the reference: every cell, odd graphs, derivatives, fallbacks.

``make test-triton`` runs them all. Without triton they are skipped.
"""

import copy
import os
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from precision import assert_rounded
from strategies import dags
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from dagnn.graph import Dag, DagBatch
from dagnn.kernels import autograd, choose_path, graph_plans
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, FormulaCell, GRUCell, TreeLSTMCell

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported
triton = pytest.importorskip("triton", reason="triton is not installed: make test-triton runs these tests")
if not triton.knobs.runtime.interpret:
    pytest.skip(
        "triton was imported for a GPU before: run these tests in a process of their own", allow_module_level=True
    )

from dagnn.kernels.gpu import sweep as gpu  # noqa: E402
from dagnn.kernels.gpu import sweep_code  # noqa: E402

# NumPy's, where a GPU divides 0 by 0 in silence: in the lanes behind the last column.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
D, OPERATORS, CPU = 3, 3, torch.device("cpu")


class SetLSTM(FormulaCell):
    """What no built-in cell has: two aggregates, two vectors, a softmax by columns, a third state."""

    states = ("h", "c", "e")

    def formula(self, x, operands, weights):
        weighed = operands.sum(operands.softmax(operands.h) * operands.e)
        m = weights.product(operands.mean(operands.h), operands.max(operands.c))
        gate = torch.sigmoid(x.f + weights.p * weighed + m.f)
        c = gate * weighed + (1 - gate) * torch.tanh(x.u + m.u)
        return torch.cos(x.o + weights.q) * c, c, torch.maximum(c, m.f - 0.3)


CELLS = {
    "tree_lstm": lambda hidden: TreeLSTMCell(D, hidden, max_children=12),
    "tree_lstm by operator": lambda hidden: TreeLSTMCell(D, hidden, max_children=12, operators=OPERATORS),
    "child_sum": lambda hidden: ChildSumTreeLSTMCell(D, hidden),
    "child_sum by operator": lambda hidden: ChildSumTreeLSTMCell(D, hidden, operators=OPERATORS),
    "gru sum": lambda hidden: GRUCell(D, hidden),
    "gru mean": lambda hidden: GRUCell(D, hidden, "mean"),
    "gru max": lambda hidden: GRUCell(D, hidden, "max"),
    "gru mean by operator": lambda hidden: GRUCell(D, hidden, "mean", operators=OPERATORS),
    "attention": lambda hidden: AttentionCell(D, hidden),
    "attention by operator": lambda hidden: AttentionCell(D, hidden, operators=OPERATORS),
    "a user's": lambda hidden: SetLSTM(D, hidden),
}
every_cell = pytest.mark.parametrize("name", CELLS)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    """`choose_path` takes tensors on the CPU for those on a GPU, which the interpreter can read; counts the passes."""

    def is_on_gpu(*tensors: Tensor) -> bool:
        floats = all(one.dtype == tensors[0].dtype in (torch.float32, torch.float64) for one in tensors)
        return floats and choose_path.kernel_path() == "compiled" and not autograd.is_watched()

    monkeypatch.setattr(choose_path, "_is_compiled", lambda *tensors: False)
    monkeypatch.setattr(choose_path, "_is_on_gpu", is_on_gpu)
    for module in (autograd, gpu):
        monkeypatch.setattr(module, "is_plain_on_gpu", autograd.is_plain)
    counts = {"forward": 0, "backward": 0}
    for name in counts:
        original = getattr(gpu.GpuSweep, name)

        def counted(self, *args, name=name, original=original):
            counts[name] += 1
            return original(self, *args)

        monkeypatch.setattr(gpu.GpuSweep, name, counted)
    return counts


def with_operators(graph: Dag) -> Dag:
    """The same edges and positions, and an operator for every node."""
    operator = torch.arange(graph.num_nodes) * 7 % OPERATORS
    position = graph_plans.edge_positions(graph, CPU)
    attributes = {"node_attributes": {"operator": operator}, "edge_attributes": {"position": position}}
    return Dag(graph.edges, graph.num_nodes, **attributes)


GRAPHS = dags(max_nodes=7, positions=True).map(with_operators)


def sweep_of(name: str, direction: str = "up", hidden: int = 5, dtype: torch.dtype = torch.float64) -> DagSweep:
    torch.manual_seed(0)
    sweep = DagSweep(CELLS[name](hidden), direction).to(dtype)
    for parameter in sweep.parameters():
        nn.init.normal_(parameter, std=0.7)
    return sweep


def features(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def values(sweep: DagSweep, x: Tensor, graph, rows: Tensor | None = None) -> list[Tensor]:
    """Output, and gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    y = sweep(x, graph, rows)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    given = [x, *sweep.parameters()]
    found = torch.autograd.grad((y * weight).sum(), given, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(t) if g is None else g for g, t in zip(found, given, strict=True))]


def by_reference(sweep: DagSweep, x: Tensor, graph, rows: Tensor | None = None) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGNN_KERNELS", "reference")
        return values(sweep, x, graph, rows)


def agree(sweep: DagSweep, x: Tensor, graph, counts: dict[str, int], rows: Tensor | None = None) -> None:
    before = counts["backward"]
    found = values(sweep, x, graph, rows)
    assert counts["backward"] == before + (len(sweep.cells) if graph.num_nodes else 0)
    if x.dtype == torch.float32:
        exact = copy.deepcopy(sweep).double()
        assert_rounded(found, lambda: values(exact, x.double(), graph, rows))
        return
    for ours, theirs in zip(found, by_reference(sweep, x, graph, rows), strict=True):
        # Of each tensor's largest number: small ones among them are sums of large ones that cancel.
        largest = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12 * largest)


def random_case(name, direction, dtype, graphs, hidden, seed, counts) -> None:
    batch = DagBatch.from_dags(graphs)
    agree(sweep_of(name, direction, hidden, dtype), features(batch.num_nodes, seed).to(dtype), batch, counts)


PATCHED = [HealthCheck.function_scoped_fixture]  # `on_gpu` is the same for every example
CASES = (
    st.sampled_from(list(CELLS)),
    st.sampled_from(["up", "down"]),
    st.sampled_from([torch.float64, torch.float32]),
    st.lists(GRAPHS, min_size=1, max_size=3),
    st.sampled_from([1, 5, 16, 20]),
    st.integers(0, 9),
)


@settings(max_examples=12, suppress_health_check=PATCHED)
@given(*CASES)
def test_any_batch_has_the_values_and_gradients_of_the_reference(on_gpu, name, direction, dtype, graphs, hidden, seed):
    random_case(name, direction, dtype, graphs, hidden, seed, on_gpu)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=PATCHED)
@given(*CASES)
def test_two_hundred_batches_have_the_values_and_gradients_of_the_reference(
    on_gpu, name, direction, dtype, graphs, hidden, seed
):
    random_case(name, direction, dtype, graphs, hidden, seed, on_gpu)


GRAPH = DagBatch.from_dags(
    [
        Dag(
            torch.tensor([(0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 5)]),
            6,
            node_attributes={"operator": torch.tensor([0, 1, 0, 1, 2, 0])},
            edge_attributes={"position": torch.tensor([0, 1, 2, 0, 1, 0, 1])},
        ),
        Dag(
            torch.empty(0, 2, dtype=torch.int64),
            2,
            node_attributes={"operator": torch.tensor([0, 1])},
            edge_attributes={"position": torch.empty(0, dtype=torch.int64)},
        ),
    ]
)


@every_cell
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_batch_with_nodes_without_edges_both_ways(name, dtype, on_gpu):
    for direction in ("up", "down"):
        agree(sweep_of(name, direction, dtype=dtype), features(8).to(dtype), GRAPH, on_gpu)


@every_cell
def test_rows_of_a_table_are_the_features_of_many_nodes(name, on_gpu):
    agree(sweep_of(name), features(4), GRAPH, on_gpu, torch.tensor([0, 1, 1, 2, 0, 2, 1, 1]))


@every_cell
def test_a_node_of_many_operands_and_one_that_many_use(name, on_gpu):
    count = 12 if name.startswith("tree") else gpu.EDGES + 2  # more than are read at once
    edges = [(node, count) for node in range(count)] + [(count, count + 1 + node) for node in range(count)]
    agree(sweep_of(name), features(2 * count + 1), with_operators(Dag(edges)), on_gpu)


@every_cell
def test_one_node_a_chain_and_no_node(name, on_gpu):
    for edges, count in (([], 1), ([(0, 1), (1, 2), (2, 3)], 4), ([], 0)):
        agree(sweep_of(name), features(count), with_operators(Dag(edges, count)), on_gpu)


@every_cell
def test_equal_operands_share_the_gradient(name, on_gpu):
    graph = with_operators(Dag([(0, 3), (1, 3), (2, 3), (0, 4), (1, 4)], 6))
    agree(sweep_of(name), torch.ones(6, D, dtype=torch.float64), graph, on_gpu)


@every_cell
def test_the_bits_are_the_same_for_any_launch(name, monkeypatch):
    sweep, x = sweep_of(name, hidden=40, dtype=torch.float32), features(8).float()
    whole = values(sweep, x, GRAPH)
    monkeypatch.setattr(sweep_code, "MOST_COLUMNS", 16)
    for one, other in zip(whole, values(sweep, x, GRAPH), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree_lstm by operator", "child_sum", "gru max", "attention"])
def test_a_batch_of_two_thousand_edges_is_off_by_what_rounding_explains(name, on_gpu):
    generator = torch.Generator().manual_seed(0)
    edges = [(u, v) for v in range(1, 520) for u in torch.randperm(v, generator=generator)[:4].tolist()]
    graph = with_operators(Dag(edges, 520))
    assert graph.num_edges > 2_000
    torch.manual_seed(0)
    sweep, x = DagSweep(CELLS[name](12)), features(520)
    agree(sweep, x.float(), graph, on_gpu)


def function_of(sweep: DagSweep, graph, rows: Tensor | None = None):
    names = [name for name, _ in sweep.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(sweep, dict(zip(names, parameters, strict=True)), (x, graph, rows))

    return call


@pytest.mark.slow
@every_cell
def test_derivatives_of_both_orders_are_differences(name, on_gpu):
    sweep, graph = sweep_of(name, hidden=2), with_operators(Dag([(0, 2), (1, 2), (1, 3), (2, 3)]))
    inputs = [features(4).requires_grad_(), *(p.detach().clone().requires_grad_() for p in sweep.parameters())]
    assert gradcheck(function_of(sweep, graph), inputs, fast_mode=True)
    assert on_gpu["backward"] > 0
    assert gradgradcheck(function_of(sweep, graph), inputs, fast_mode=True)


def test_both_directions_and_frozen_weights(on_gpu):
    sweep = sweep_of("child_sum", "both")
    agree(sweep, features(8), GRAPH, on_gpu)
    for parameter in sweep.parameters():
        parameter.requires_grad_(parameter.dim() == 1)
    x = features(8)
    sweep(x, GRAPH).sum().backward()
    assert [p.grad is None for p in sweep.parameters()] == [p.dim() > 1 for p in sweep.parameters()]
    with torch.no_grad():
        assert not sweep(x, GRAPH).requires_grad


def test_a_second_backward_pass_gives_the_same_again(on_gpu):
    sweep, x = sweep_of("gru sum"), features(8).requires_grad_()
    y = sweep(x, GRAPH).square().sum()
    first, second = (torch.autograd.grad(y, [x, *sweep.parameters()], retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))
    assert on_gpu == {"forward": 2, "backward": 2}


def test_a_weight_written_to_before_the_backward_pass_is_noticed():
    sweep = sweep_of("child_sum")
    y = sweep(features(8), GRAPH).sum()
    with torch.no_grad():
        sweep.cells["up"].state_weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_training_takes_the_same_steps_as_on_the_processor(monkeypatch):
    def weights() -> Tensor:
        sweep = sweep_of("tree_lstm by operator")
        optimizer = torch.optim.AdamW(sweep.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            sweep(features(8, step), GRAPH).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in sweep.parameters()])

    ours = weights()
    monkeypatch.undo()
    torch.testing.assert_close(ours, weights(), rtol=1e-10, atol=1e-12)


def test_what_the_kernels_do_not_take_runs_level_by_level_and_says_so(on_gpu, monkeypatch):
    sweep = sweep_of("gru sum")
    assert sweep.cells["up"].explain() == "compiled: Triton kernels for cpu"
    with torch.autocast("cpu"):
        sweep(features(8), GRAPH)
    half = sweep_of("gru sum", dtype=torch.bfloat16)
    half(features(8).bfloat16(), GRAPH)
    assert half.cells["up"].explain() == "level by level: its parameters are torch.bfloat16"
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    sweep(features(8), GRAPH)
    assert sweep.cells["up"].explain() == "level by level: DAGNN_KERNELS=reference"
    assert on_gpu == {"forward": 0, "backward": 0}
