"""`DagSweep`: level by level equals node by node, alone equals inside a batch, and any cell will do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags, expression_dags
from torch import Tensor, nn

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.kernels.graph_plans import edge_positions
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

D = 3


class OwnCell(nn.Module):
    """A user's cell: two states, an aggregate of its own, no dagnn inside."""

    state_sizes = (2, 1)

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(D, 2)

    def forward(self, features, states, target, position):
        out, depth = states
        incoming = features.new_zeros(len(features), 2).index_add(0, target, out * (position + 1).unsqueeze(1))
        deeper = features.new_zeros(len(features), 1).index_add(0, target, depth + 1)
        return torch.tanh(self.mix(features) + incoming + 0.1 * deeper), deeper


CELLS = {
    "tree_lstm": lambda: TreeLSTMCell(D, 4, max_children=10),
    "child_sum": lambda: ChildSumTreeLSTMCell(D, 4),
    "gru": lambda: GRUCell(D, 4, "max"),
    "attention": lambda: AttentionCell(D, 4),
    "own": OwnCell,
}


def sweep_of(name: str, direction: str) -> DagSweep:
    torch.manual_seed(0)
    return DagSweep(CELLS[name](), direction).double()


def node_by_node(cell: nn.Module, x: Tensor, graph: Dag, direction: str) -> Tensor:
    """One call of the cell per node, each after those that it depends on."""
    edges = graph.edges.tolist()
    position = edge_positions(graph, x.device)
    states: dict[int, tuple[Tensor, ...]] = {}
    order = graph.order.tolist() if direction == "up" else graph.order.tolist()[::-1]
    for v in order:
        incoming = [
            (e, u if direction == "up" else w) for e, (u, w) in enumerate(edges) if v == (w if direction == "up" else u)
        ]
        given_states = tuple(
            torch.cat([states[u][i] for _, u in incoming]) if incoming else x.new_zeros(0, width)
            for i, width in enumerate(cell.state_sizes)
        )
        target = torch.zeros(len(incoming), dtype=torch.int64)
        places = position[torch.tensor([e for e, _ in incoming], dtype=torch.int64)]
        states[v] = cell(x[v : v + 1], given_states, target, places)
    return torch.cat([states[v][0] for v in range(graph.num_nodes)])


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("name", sorted(CELLS))
@settings(max_examples=12)
@given(graph=st.one_of(dags(min_nodes=1), expression_dags()), seed=st.integers(0, 9))
def test_level_by_level_equals_node_by_node(name, direction, graph, seed):
    sweep = sweep_of(name, direction)
    x = torch.randn(graph.num_nodes, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = node_by_node(sweep.cells[direction], x, graph, direction)
    torch.testing.assert_close(sweep(x, graph), expected, rtol=1e-12, atol=1e-12)

    parameters = list(sweep.parameters())
    ours = torch.autograd.grad(sweep(x, graph).square().sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(expected.square().sum(), parameters, allow_unused=True)
    for mine, other, p in zip(ours, theirs, parameters, strict=True):
        mine, other = (torch.zeros_like(p) if grad is None else grad for grad in (mine, other))
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(CELLS))
@settings(max_examples=8)
@given(graphs=st.lists(expression_dags(), min_size=1, max_size=6))
def test_a_graph_alone_equals_itself_inside_a_batch(name, graphs):
    sweep = sweep_of(name, "both")
    batch = DagBatch.from_dags(graphs)
    x = torch.randn(batch.num_nodes, D, dtype=torch.float64)
    together = sweep(x, batch)
    alone = [sweep(part, graph) for part, graph in zip(x.split([g.num_nodes for g in graphs]), graphs, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_both_joins_an_upward_and_a_downward_sweep():
    graph = Dag.from_polish("(+ (* a b) a)", share=True)
    x = torch.randn(graph.num_nodes, D)
    up, down = GRUCell(D, 4), GRUCell(D, 2)
    both = DagSweep(up, "both", down_cell=down)
    assert both.out_features == 6
    y = both(x, graph)
    assert torch.equal(y[:, :4], DagSweep(up, "up")(x, graph))
    assert torch.equal(y[:, 4:], DagSweep(down, "down")(x, graph))


def test_the_second_cell_is_newly_drawn():
    both = DagSweep(TreeLSTMCell(D, 4), "both")
    assert not torch.equal(both.cells["up"].state_weight, both.cells["down"].state_weight)


@pytest.mark.parametrize("name", sorted(CELLS))
def test_graphs_without_edges_and_without_nodes(name):
    sweep = DagSweep(CELLS[name](), "both")
    width = sweep.out_features
    assert sweep(torch.randn(3, D), Dag([], 3)).shape == (3, width)
    assert sweep(torch.randn(0, D), Dag([], 0)).shape == (0, width)
    assert sweep(torch.randn(0, D), DagBatch.from_dags([])).shape == (0, width)
    assert sweep(torch.randn(2, D), DagBatch.from_dags([Dag([], 0), Dag([(0, 1)]), Dag([], 0)])).shape == (2, width)


@pytest.mark.parametrize("name", ["tree_lstm", "gru"])
def test_a_long_chain_has_a_gradient_at_its_far_end(name):
    length = 1_500
    sweep = DagSweep(CELLS[name](), "up")
    x = torch.randn(length, D, requires_grad=True)
    y = sweep(x, Dag([(i, i + 1) for i in range(length - 1)]))
    y[-1].sum().backward()
    assert y.isfinite().all()
    assert x.grad[-1].abs().sum() > 0


@pytest.mark.parametrize("name", ["child_sum", "gru", "attention"])
def test_a_node_with_a_thousand_parents(name):
    sweep = DagSweep(CELLS[name](), "up").double()
    graph = Dag([(i, 1_000) for i in range(1_000)])
    x = torch.randn(1_001, D, dtype=torch.float64)
    torch.testing.assert_close(sweep(x, graph), node_by_node(sweep.cells["up"], x, graph, "up"), rtol=1e-10, atol=1e-12)


def test_without_positions_operands_count_in_the_order_of_edges():
    edges = [("c", "f"), ("a", "f"), ("b", "f")]
    plain = Dag(edges, names=["a", "b", "c", "f"])
    placed = Dag(edges, names=["a", "b", "c", "f"], edge_attributes={"position": torch.tensor([2, 0, 1])})
    sweep = DagSweep(TreeLSTMCell(D, 4, max_children=3))
    x = torch.randn(4, D)
    assert torch.equal(sweep(x, plain), sweep(x, placed))


@pytest.mark.parametrize("name", sorted(CELLS))
def test_rows_of_a_table_serve_many_nodes(name):
    sweep = sweep_of(name, "both")
    graph = Dag.from_polish("(+ (* a b) (- a a))", share=True)
    table = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    rows = torch.arange(graph.num_nodes) % 3  # the last row belongs to nobody
    torch.testing.assert_close(sweep(table, graph, rows), sweep(table[rows], graph), rtol=1e-12, atol=1e-12)
    (found,) = torch.autograd.grad(sweep(table, graph, rows).square().sum(), table)
    (expected,) = torch.autograd.grad(sweep(table[rows], graph).square().sum(), table)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_bad_rows():
    sweep, graph, table = DagSweep(GRUCell(D, 4)), Dag([(0, 1)]), torch.randn(3, D)
    with pytest.raises(GraphError, match=r"rows has 3, but x has 3 rows: use 0 \.\. 2, or give x more"):
        sweep(table, graph, torch.tensor([0, 3]))
    with pytest.raises(GraphError, match="rows has -1, but x has 3 rows"):
        sweep(table, graph, torch.tensor([-1, 2]))
    with pytest.raises(GraphError, match=r"rows must have the shape \[num_nodes\] = \[2\], got \[3\]"):
        sweep(table, graph, torch.tensor([0, 1, 2]))
    with pytest.raises(DtypeError, match=r"rows must be torch.int64, got torch.int32: convert it with .long\(\)"):
        sweep(table, graph, torch.tensor([0, 1], dtype=torch.int32))


@pytest.mark.parametrize("path", ["compiled", "reference"])
def test_operators_are_a_node_attribute(path, monkeypatch):
    monkeypatch.setenv("DAGNN_KERNELS", path)
    sweep = DagSweep(TreeLSTMCell(D, 4, operators=2))
    x, edges = torch.randn(3, D), [(0, 2), (1, 2)]

    def run(operator) -> Tensor:
        return sweep(x, Dag(edges, node_attributes={} if operator is None else {"operator": operator}))

    assert not torch.equal(run(torch.tensor([0, 0, 0]))[2], run(torch.tensor([0, 0, 1]))[2])
    assert torch.equal(run([0, 0, 1]), run(torch.tensor([0, 0, 1])))
    with pytest.raises(GraphError, match="give the graph the node attribute 'operator', int64"):
        run(None)
    with pytest.raises(GraphError, match=r"a node has operator 2, but operators=2 allows operators 0 \.\. 1"):
        run(torch.tensor([0, 2, 0]))
    with pytest.raises(GraphError, match=r"'operator' must be int64 \[num_nodes\] = \[3\], got float32 \[3\]"):
        run(torch.zeros(3))
    with pytest.raises(GraphError, match=r"'operator' must be whole numbers, got 'plus'"):
        run(["plus", "plus", "minus"])


@pytest.mark.parametrize("path", ["compiled", "reference"])
def test_both_paths_say_the_same_of_bad_positions(path, monkeypatch):
    monkeypatch.setenv("DAGNN_KERNELS", path)
    graph = Dag([(0, 2), (1, 2)], edge_attributes={"position": torch.tensor([0, 2])})
    with pytest.raises(GraphError, match=r"position 2, but max_children=2 allows positions 0 \.\. 1: raise"):
        DagSweep(TreeLSTMCell(D, 4))(torch.randn(3, D), graph)


def test_bad_arguments():
    with pytest.raises(ConfigError, match=r"direction must be 'up' \(along the edges\).*got 'left'"):
        DagSweep(GRUCell(D, 4), "left")
    with pytest.raises(ConfigError, match="Linear is no cell: a cell has state_sizes"):
        DagSweep(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="down_cell is for direction='both', got direction='up'"):
        DagSweep(GRUCell(D, 4), "up", down_cell=GRUCell(D, 4))


def test_bad_calls():
    sweep = DagSweep(GRUCell(D, 4))
    graph = Dag([(0, 1)])
    with pytest.raises(GraphError, match=r"x must have the shape \[num_nodes, features\] = \[2, 3\], got \[3, 3\]"):
        sweep(torch.randn(3, D), graph)
    with pytest.raises(GraphError, match=r"= \[2, 3\], got \[2, 5\]"):
        sweep(torch.randn(2, 5), graph)
    with pytest.raises(DtypeError, match=r"x must be torch.float32, the dtype of the parameters, got torch.float64"):
        sweep(torch.randn(2, D).double(), graph)
    with pytest.raises(GraphError, match="graph must be a Dag or a DagBatch, got Tensor"):
        sweep(torch.randn(2, D), torch.tensor([[0, 1]]))


@pytest.mark.fault("graphs_and_networks", 20, 24)
@pytest.mark.parametrize("x", [np.zeros((2, 3)), None, torch.zeros(2, 3).to_sparse()])
def test_features_are_a_dense_tensor(x):
    sweep, dag = DagSweep(GRUCell(3, 4)), Dag([(0, 1)])
    with pytest.raises(DtypeError, match=r"x must be (a tensor|dense), got a"):
        sweep(x, dag)


@pytest.mark.parametrize("direction", ["up", "both"])
def test_a_batch_without_nodes_goes_backward(direction):
    x = torch.zeros(0, 3, requires_grad=True)
    DagSweep(GRUCell(3, 4), direction)(x, DagBatch.from_dags([])).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 3)
