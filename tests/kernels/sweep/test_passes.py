"""The compiled path of a sweep against the reference: values, gradients, bits, and the oddest graphs."""

import copy
import os
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import assert_rounded
from strategies import dags, expression_dags
from torch import Tensor

from dagnn.graph import Dag, DagBatch
from dagnn.kernels import graph_plans
from dagnn.kernels.emit import native
from dagnn.kernels.sweep import passes
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

D, OPERATORS = 3, 3
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
}
every_cell = pytest.mark.parametrize("name", CELLS)


def sweep_of(name: str, direction: str = "up", hidden: int = 5, dtype: torch.dtype = torch.float64) -> DagSweep:
    torch.manual_seed(0)
    return DagSweep(CELLS[name](hidden), direction).to(dtype)


def with_operators(graph: Dag) -> Dag:
    """The same edges and positions, and an operator for every node."""
    operator = torch.arange(graph.num_nodes) * 7 % OPERATORS
    position = graph_plans.edge_positions(graph, torch.device("cpu"))
    attributes = {"node_attributes": {"operator": operator}, "edge_attributes": {"position": position}}
    return Dag(graph.edges, graph.num_nodes, **attributes)


GRAPHS = st.one_of(dags(min_nodes=1, positions=True), expression_dags()).map(with_operators)


def forced(path: str):
    return mock.patch.dict(os.environ, {"DAGNN_KERNELS": path})


def values(sweep: DagSweep, x: Tensor, graph, rows: Tensor | None = None) -> list[Tensor]:
    """Output, and gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    y = sweep(x, graph, rows)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    parameters = list(sweep.parameters())
    grads = torch.autograd.grad((y * weight).sum(), [x, *parameters], allow_unused=True)
    return [
        y.detach(),
        *(torch.zeros_like(t) if g is None else g for g, t in zip(grads, [x, *parameters], strict=True)),
    ]


def both(sweep: DagSweep, x: Tensor, graph, rows: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
    with forced("reference"):
        expected = values(sweep, x, graph, rows)
    with mock.patch.object(passes.Sweep, "backward", autospec=True, side_effect=passes.Sweep.backward) as ran:
        found = values(sweep, x, graph, rows)
    assert ran.call_count == (len(sweep.cells) if graph.num_nodes else 0)
    return found, expected


@every_cell
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=4)
@given(
    graphs=st.lists(GRAPHS, min_size=1, max_size=4),
    hidden=st.sampled_from([1, 5, 16, 40]),
    seed=st.integers(0, 9),
)
def test_values_and_gradients_are_those_of_the_reference(name, direction, dtype, graphs, hidden, seed):
    batch = DagBatch.from_dags(graphs)
    x = torch.randn(batch.num_nodes, D, generator=torch.Generator().manual_seed(seed)).to(dtype)
    sweep = sweep_of(name, direction, hidden, dtype)
    found, expected = both(sweep, x, batch)
    if dtype == torch.float32:
        exact = copy.deepcopy(sweep).double()
        assert_rounded(found, lambda: values(exact, x.double(), batch))
        return
    for ours, theirs in zip(found, expected, strict=True):
        # Of each tensor's largest number: small ones among them are sums of large ones that cancel.
        largest = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11 * largest)


@every_cell
@settings(max_examples=3)
@given(graph=GRAPHS, seed=st.integers(0, 9))
def test_rows_of_a_table_are_the_features_of_many_nodes(name, graph, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(4, D, dtype=torch.float64, generator=generator)
    rows = torch.randint(4, (graph.num_nodes,), generator=generator)
    sweep = sweep_of(name)
    found, expected = both(sweep, table, graph, rows)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found[0], values(sweep, table[rows], graph)[0], rtol=1e-11, atol=1e-12)


@every_cell
def test_equal_operands_share_the_gradient_and_leaves_are_alike(name):
    graph = with_operators(Dag([(0, 3), (1, 3), (2, 3), (0, 4), (1, 4)], 6))
    x = torch.ones(6, D, dtype=torch.float64)
    found, expected = both(sweep_of(name), x, graph)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("tree_lstm", "up"),
        ("attention", "down"),
        *(
            pytest.param(name, direction, marks=pytest.mark.slow)
            for name, direction in (("tree_lstm", "down"), ("child_sum", "up"), ("gru max", "up"), ("attention", "up"))
        ),
    ],
)
def test_a_chain_of_5000_nodes(name, direction):
    length = 5_000
    graph = with_operators(Dag(torch.arange(length).unfold(0, 2, 1), length))
    x = torch.randn(length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with forced("reference"), torch.no_grad():
        expected = sweep_of(name, direction)(x, graph)
    found, *gradients = values(sweep_of(name, direction), x, graph)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", [name for name in CELLS if "tree_lstm" not in name])
def test_a_node_with_a_thousand_neighbours(name):
    graph = with_operators(Dag(torch.stack([torch.arange(1_000), torch.full((1_000,), 1_000)], 1), 1_001))
    x = torch.randn(1_001, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for way in ("up", "down"):
        for found, expected in zip(*both(sweep_of(name, way), x, graph), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_an_ordered_node_with_a_thousand_successors():
    graph = Dag(torch.stack([torch.zeros(1_000, dtype=torch.int64), torch.arange(1, 1_001)], 1), 1_001)
    x = torch.randn(1_001, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for way in ("up", "down"):  # on the way down, a thousand operands have the same position
        for found, expected in zip(*both(sweep_of("tree_lstm", way), x, graph), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@every_cell
@pytest.mark.parametrize(
    "graph", [Dag([], 0), Dag([], 1), Dag([], 100), DagBatch.from_dags([Dag([], 0), Dag([(0, 1)])])]
)
def test_without_edges_or_nodes(name, graph):
    if isinstance(graph, Dag):
        graph = with_operators(graph)
    else:
        graph = DagBatch.from_dags([with_operators(part) for part in graph])
    x = torch.randn(graph.num_nodes, D, dtype=torch.float64)
    sweep = sweep_of(name)
    with forced("reference"):
        expected = sweep(x, graph)
    torch.testing.assert_close(sweep(x, graph), expected, rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def many() -> DagBatch:
    """512 graphs of 5 to 40 nodes, up to three operands each, shared ones among them."""
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for _ in range(512):
        size = int(torch.randint(5, 41, (), generator=generator))
        count = torch.randint(4, (size - 1,), generator=generator)
        target = torch.arange(1, size).repeat_interleave(count)
        source = target - 1 - (torch.rand(len(target), generator=generator) * target.clamp(max=8)).long()
        position = torch.cat([torch.arange(int(k)) for k in count])
        edges = torch.stack([source, target], 1)
        graphs.append(with_operators(Dag(edges, size, edge_attributes={"position": position})))
    return DagBatch.from_dags(graphs)


@every_cell
def test_a_graph_alone_equals_itself_among_512(name, many):
    sweep = sweep_of(name, hidden=16)
    x = torch.randn(many.num_nodes, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = sweep(x, many)
    for number in (0, 17, 511):
        first, last = many.node_offsets[number : number + 2].tolist()
        torch.testing.assert_close(sweep(x[first:last], many[number]), together[first:last], rtol=0, atol=1e-12)


@pytest.fixture
def restored_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "direction"), [*((name, "up") for name in CELLS), ("tree_lstm", "down")])
def test_the_bits_do_not_depend_on_the_number_of_threads(name, direction, many, monkeypatch, restored_threads):
    monkeypatch.setattr(passes, "PARALLEL_WORK", 0)
    monkeypatch.setattr(passes, "PARALLEL_SPEEDUP", 0)
    sweep = sweep_of(name, direction, hidden=16, dtype=torch.float32)
    table = torch.randn(7, D, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(many.num_nodes) % 7
    results = []
    for threads in (1, 2, 3, 2, 1):
        torch.set_num_threads(threads)
        results.append([tensor.numpy().tobytes() for tensor in values(sweep, table, many, rows)])
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", ["tree_lstm", "child_sum", "attention"])
def test_every_processor_of_the_family_gives_the_same_numbers(name, many, monkeypatch):
    x = torch.randn(many.num_nodes, D, dtype=torch.float64)
    expected = values(sweep_of(name), x, many)
    monkeypatch.setattr(passes, "host_target", lambda: native.PLAIN)
    torch.testing.assert_close(values(sweep_of(name), x, many), expected, rtol=1e-9, atol=1e-10)


CELLS_OF_64 = {
    "tree_lstm": lambda: TreeLSTMCell(64, 64, max_children=4),
    "child_sum": lambda: ChildSumTreeLSTMCell(64, 64),
    "gru over a sum": lambda: GRUCell(64, 64),
    "gru over a mean": lambda: GRUCell(64, 64, "mean"),
    "gru over a maximum": lambda: GRUCell(64, 64, "max"),
    "attention": lambda: AttentionCell(64, 64),
}


@pytest.mark.parametrize("name", CELLS_OF_64)
def test_gradients_in_float32_are_as_near_as_pytorchs(monkeypatch, name):
    """Root mean squares over thousands of numbers, so that no one rounding decides; sums over many nodes and chains."""
    generator, parts = torch.Generator().manual_seed(0), []
    for _ in range(64):
        pairs = torch.randint(0, 20, (30, 2), generator=generator).sort(1).values
        pairs = torch.unique(pairs[pairs[:, 0] != pairs[:, 1]].flip(1), dim=0).flip(1)  # by target
        position = torch.arange(len(pairs)) - torch.searchsorted(pairs[:, 1].contiguous(), pairs[:, 1].contiguous())
        few = position < 4
        parts.append(Dag(pairs[few], 20, edge_attributes={"position": position[few]}))
    graph = DagBatch.from_dags(parts)
    torch.manual_seed(0)
    sweep = DagSweep(CELLS_OF_64[name]())
    x, grad_y = torch.randn(2, graph.num_nodes, 64).unbind(0)

    def gradients(path: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        monkeypatch.setenv("DAGNN_KERNELS", path)
        own, given = copy.deepcopy(sweep).to(dtype), x.to(dtype).clone().requires_grad_()
        own(given, graph).backward(grad_y.to(dtype))
        return {"x": given.grad, **{key: parameter.grad for key, parameter in own.named_parameters()}}

    exact, ours, theirs = (
        gradients(path, dtype)
        for path, dtype in (("reference", torch.float64), ("compiled", torch.float32), ("reference", torch.float32))
    )
    for key, value in exact.items():
        error, of_pytorch = ((each[key].double() - value).square().mean().sqrt() for each in (ours, theirs))
        assert error <= 2 * of_pytorch, (key, error / of_pytorch)
