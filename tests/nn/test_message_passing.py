"""`Embedding`: rows of a table, sparse or dense alike. `MessagePassing` against a loop over edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import Embedding, MessagePassing


def pair() -> tuple[Embedding, Embedding]:
    dense, sparse = Embedding(6, 3), Embedding(6, 3, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    return dense, sparse


def test_vectors_are_rows_of_the_table():
    table = Embedding(6, 3)
    symbols = torch.tensor([[5, 0], [2, 2]])
    assert torch.equal(table(symbols), table.weight[symbols])
    assert table(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 3)


def test_only_symbols_seen_get_a_gradient():
    dense, sparse = pair()
    for table in (dense, sparse):
        table(torch.tensor([4, 1, 4])).sum().backward()
    assert dense.weight.grad.sum(1).tolist() == [0, 3, 0, 0, 6, 0]
    assert sparse.weight.grad.is_sparse
    assert sparse.weight.grad.coalesce().indices().tolist() == [[1, 4]]


def test_sparse_gradients_behave_as_dense_ones():
    dense, sparse = (table.double() for table in pair())
    norms = []
    for table in (dense, sparse):
        for _ in range(2):
            table(torch.tensor([4, 1, 4])).square().sum().backward()
        norms.append(table.clip_gradients(1.0))
        table.step(0.5)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
    torch.testing.assert_close(sparse.weight, dense.weight)


def test_a_step_moves_only_symbols_seen():
    table = Embedding(6, 3)
    before = table.weight.detach().clone()
    table(torch.tensor([4, 1])).sum().backward()
    table.step(0.1)
    moved = (table.weight.detach() != before).any(1)
    assert moved.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("bad", [6, -1])
def test_a_symbol_out_of_range_is_named(bad):
    with pytest.raises(GraphError, match=rf"symbol {bad} is out of range: num_symbols=6 allows 0 \.\. 5"):
        Embedding(6, 3)(torch.tensor([0, bad, 9]))


def test_symbols_of_another_dtype():
    with pytest.raises(DtypeError, match=r"symbols must be int64, got torch.float32: convert it with \.long\(\)"):
        Embedding(6, 3)(torch.tensor([1.0]))


def test_bad_sizes():
    with pytest.raises(ConfigError, match="num_symbols must be a whole number of at least 1, got 0"):
        Embedding(0, 3)
    with pytest.raises(ConfigError, match="dim must be a whole number of at least 1, got True"):
        Embedding(3, True)


def test_reset_parameters_repeats_with_a_generator():
    table = Embedding(6, 3)
    table.reset_parameters(torch.Generator().manual_seed(1))
    first = table.weight.tolist()
    table.reset_parameters(torch.Generator().manual_seed(1))
    assert table.weight.tolist() == first


D = 3


def edge_by_edge(module: MessagePassing, x: torch.Tensor, graph: Dag, kind: torch.Tensor) -> torch.Tensor:
    rows = []
    ways = ["up", "down"] if module.direction == "both" else [module.direction]
    for v in range(graph.num_nodes):
        y = x[v] @ module.self_weight + module.bias
        for way, weights in zip(ways, module.edge_weight, strict=True):
            messages = []
            for (u, w), t in zip(graph.edges.tolist(), kind.tolist(), strict=True):
                sender, receiver = (u, w) if way == "up" else (w, u)
                if receiver == v:
                    messages.append(x[sender] @ weights[t])
            if messages:
                stacked = torch.stack(messages)
                y = y + {"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0)}[module.aggregate]
        rows.append(y.relu())
    return torch.stack(rows)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max"])
@pytest.mark.parametrize("direction", ["up", "down", "both"])
@settings(max_examples=15)
@given(graph=dags(min_nodes=1), types=st.integers(1, 3), seed=st.integers(0, 9))
def test_one_round_equals_a_loop_over_edges(aggregate, direction, graph, types, seed):
    torch.manual_seed(seed)
    module = MessagePassing(D, types, aggregate, direction).double()
    x = torch.randn(graph.num_nodes, D, dtype=torch.float64)
    kind = torch.randint(types, (graph.num_edges,))
    y = module(x, graph, kind)
    torch.testing.assert_close(y, edge_by_edge(module, x, graph, kind), rtol=1e-12, atol=1e-12)


@settings(max_examples=15)
@given(graphs=st.lists(dags(), max_size=5))
def test_a_graph_alone_equals_itself_inside_a_batch(graphs):
    module = MessagePassing(D).double()
    batch = DagBatch.from_dags(graphs)
    x = torch.randn(batch.num_nodes, D, dtype=torch.float64)
    parts = x.split([graph.num_nodes for graph in graphs]) if graphs else []
    alone = [module(part, graph) for part, graph in zip(parts, graphs, strict=True)]
    together = module(x, batch)
    torch.testing.assert_close(together, torch.cat([together[:0], *alone]), rtol=1e-12, atol=1e-12)


def test_the_gradient_of_max_goes_to_the_winner_and_ties_share_it():
    module = MessagePassing(1, aggregate="max", direction="up", activation="identity")
    with torch.no_grad():
        module.edge_weight.fill_(1.0)
        module.self_weight.zero_()
    graph = Dag([(0, 3), (1, 3), (2, 3)])
    for values, expected in (([1.0, 5.0, 2.0], [0, 1, 0]), ([5.0, 1.0, 5.0], [0.5, 0, 0.5])):
        x = torch.tensor([[v] for v in [*values, 0.0]], requires_grad=True)
        y = module(x, graph)
        assert y[3].item() == 5.0
        y[3].backward()
        assert x.grad.flatten().tolist() == [*expected, 0]


def test_types_come_from_the_edge_attribute():
    kind = torch.tensor([1, 0])
    graph = Dag([(0, 2), (1, 2)], edge_attributes={"type": kind})
    module = MessagePassing(D, edge_types=2)
    x = torch.randn(3, D)
    assert torch.equal(module(x, graph), module(x, Dag([(0, 2), (1, 2)]), kind))


def test_a_hub_of_half_precision_messages_is_summed_without_loss():
    module = MessagePassing(1, aggregate="mean", direction="up", activation="identity").bfloat16()
    with torch.no_grad():
        module.edge_weight.fill_(1.0)
        module.self_weight.zero_()
    graph = Dag([(i, 512) for i in range(512)])
    assert module(torch.ones(513, 1, dtype=torch.bfloat16), graph)[512].item() == 1.0


def test_bad_arguments():
    with pytest.raises(ConfigError, match="aggregate must be one of sum, mean, max, got 'min'"):
        MessagePassing(D, aggregate="min")
    with pytest.raises(ConfigError, match="direction must be 'up'"):
        MessagePassing(D, direction="sideways")
    with pytest.raises(ConfigError, match="edge_types must be a whole number of at least 1, got 0"):
        MessagePassing(D, edge_types=0)
    with pytest.raises(ConfigError, match="activation must be one of"):
        MessagePassing(D, activation="swish")


def test_bad_calls():
    module, graph = MessagePassing(D, edge_types=2), Dag([(0, 1), (0, 2)])
    x = torch.randn(3, D)
    with pytest.raises(GraphError, match=r"edge_types=2 needs the type of every edge: give edge_type="):
        module(x, graph)
    with pytest.raises(GraphError, match=r"edge_type must have the shape \[num_edges\] = \[2\], got \[3\]"):
        module(x, graph, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(GraphError, match=r"edge_type\[1\] is 2, but edge_types=2 allows 0 \.\. 1"):
        module(x, graph, torch.tensor([0, 2]))
    with pytest.raises(DtypeError, match=r"edge_type must be int64, got torch.float32"):
        module(x, graph, torch.zeros(2))
    with pytest.raises(GraphError, match=r"x must have the shape \[num_nodes, features\] = \[3, 3\], got \[4, 3\]"):
        module(torch.randn(4, D), graph, torch.tensor([0, 1]))
