"""`GraphTransformNet` and its `GraphDecoder`: shapes, batches, and learning to predict a graph."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import expression_dags

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import GedLoss
from dagnn.graph import Dag, DagBatch
from dagnn.nn import GraphDecoder, GraphTransformNet

DIM, LABELS, SLOTS = 8, 5, 4


def net_of(**options) -> GraphTransformNet:
    torch.manual_seed(0)
    options = {"cell": "child_sum", "attention_heads": 2, "decoder_heads": 2, "edge_types": 3, **options}
    return GraphTransformNet(7, LABELS, SLOTS, DIM, **options)


def symbols_of(graph: Dag | DagBatch) -> torch.Tensor:
    return torch.tensor([sum(map(ord, label)) % 7 for label in graph.node_attributes["label"]], dtype=torch.int64)


@pytest.mark.parametrize("cell", ["child_sum", "tree_lstm", "gru", "attention"])
@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_shapes(cell, direction):
    net = net_of(cell=cell, direction=direction, max_children=2)
    batch = DagBatch.from_dags([Dag.from_polish(text) for text in ("(+ (* x x) y)", "z", "(f (g x))")])
    logits = net(symbols_of(batch), batch)
    assert logits.existence.shape == (3, SLOTS)
    assert logits.labels.shape == (3, SLOTS, LABELS)
    assert logits.edges.shape == (3, SLOTS, SLOTS)
    assert net.encode(symbols_of(batch), batch).shape == (batch.num_nodes, DIM)


@pytest.mark.parametrize(
    "options", [{}, {"attention_heads": 0}, {"message_layers": 0}, {"sweeps": 0}, {"message_layers": 0, "sweeps": 0}]
)
def test_empty_batches_and_empty_graphs(options):
    net = net_of(**options)
    none = torch.empty(0, dtype=torch.int64)
    assert net(none, DagBatch.from_dags([])).edges.shape == (0, SLOTS, SLOTS)
    logits = net(none, DagBatch.from_dags([Dag([], 0)] * 2))
    assert logits.labels.shape == (2, SLOTS, LABELS)
    assert all(part.isfinite().all() for part in logits)
    sum(part.sum() for part in logits).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


@settings(max_examples=12)
@given(graphs=st.lists(expression_dags(), min_size=1, max_size=5))
def test_a_graph_alone_equals_itself_inside_a_batch(graphs):
    net = net_of().double()
    batch = DagBatch.from_dags(graphs)
    together = net(symbols_of(batch), batch)
    for i, graph in enumerate(graphs):
        for inside, alone in zip(together, net(symbols_of(graph), graph), strict=True):
            torch.testing.assert_close(inside[i : i + 1], alone, rtol=1e-10, atol=1e-10)


def test_the_order_of_operands_matters_when_types_or_places_are_told_apart():
    first, second = (Dag.from_polish(text) for text in ("(- x y)", "(- y x)"))

    def difference(net: GraphTransformNet) -> float:
        one, other = (net(symbols_of(graph), graph).labels for graph in (first, second))
        return (one - other).abs().max().item()

    assert difference(net_of(edge_types=2)) > 1e-4
    assert difference(net_of(edge_types=1, cell="tree_lstm")) > 1e-4
    assert difference(net_of(edge_types=1)) < 1e-6


def test_another_device_gets_plans_of_its_own():
    net = net_of(edge_types=1).to("meta")  # a device without values: what is left is where every tensor lives
    batch = DagBatch.from_dags([Dag.from_polish("(+ (* x x) y)", share=True), Dag.from_polish("z")])
    assert all(part.is_meta for part in net(symbols_of(batch).to("meta"), batch))


def test_positions_differ_from_the_start():
    graph = Dag.from_polish("(+ x y)")
    label = net_of()(symbols_of(graph), graph).labels[0]
    assert (label[0] - label[1]).abs().max() > 1e-3


def test_it_learns_to_predict_a_graph_per_input():
    """Targets in a fixed order: the operator, then its operands; edges operand -> operator."""
    torch.manual_seed(0)
    texts = ["(+ x y)", "(* y x)", "x", "(f x)"]
    batch = DagBatch.from_dags([Dag.from_polish(text) for text in texts])
    exists = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]).float()
    label = torch.tensor([[0, 3, 4, 0], [1, 4, 3, 0], [3, 0, 0, 0], [2, 3, 0, 0]])
    edge = torch.zeros(4, SLOTS, SLOTS)
    edge[0, 1, 0] = edge[0, 2, 0] = edge[1, 1, 0] = edge[1, 2, 0] = edge[3, 1, 0] = 1
    pair = exists.unsqueeze(1) * exists.unsqueeze(2) * (1 - torch.eye(SLOTS))

    net = net_of(cell="tree_lstm")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        logits = net(symbols_of(batch), batch)
        loss = F.binary_cross_entropy_with_logits(logits.existence, exists)
        loss = loss + (exists * F.cross_entropy(logits.labels.transpose(1, 2), label, reduction="none")).mean()
        loss = loss + F.binary_cross_entropy_with_logits(logits.edges, edge, weight=pair)
        loss.backward()
        optimizer.step()

    assert torch.equal((logits.existence > 0).float(), exists)
    assert torch.equal(logits.labels.argmax(2) * exists.long(), label * exists.long())
    assert torch.equal((logits.edges > 0) * pair, edge)


def test_logits_train_with_the_graph_edit_loss():
    graphs = [Dag.from_polish(text) for text in ("(+ x y)", "(* y x)", "x", "(* x x)")]
    batch = DagBatch.from_dags(graphs)
    net = net_of()
    ged_loss = GedLoss(node_vocabulary=["+", "*", "x", "y", "unused"])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = ged_loss(*net(symbols_of(batch), batch), graphs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_bad_arguments():
    with pytest.raises(ConfigError, match="cell must be one of child_sum, tree_lstm, gru, attention, got 'lstm'"):
        net_of(cell="lstm")
    with pytest.raises(ConfigError, match="sweeps must be a whole number of at least 0, got -1"):
        net_of(sweeps=-1)
    with pytest.raises(ConfigError, match="dim must be a multiple of heads, got dim=8 and heads=3"):
        net_of(decoder_heads=3)
    with pytest.raises(ConfigError, match="max_nodes must be a whole number of at least 1, got 0"):
        GraphDecoder(8, 3, 0)


def test_bad_calls():
    graph = Dag.from_polish("(+ x y)")
    with pytest.raises(GraphError, match=r"symbol 7 is out of range: num_symbols=7"):
        net_of()(torch.tensor([0, 7, 1]), graph)
    with pytest.raises(GraphError, match=r"symbols must have the shape \[num_nodes\] = \[3\], got \[2\]"):
        net_of()(torch.tensor([0, 1]), graph)
    with pytest.raises(DtypeError, match="symbols must be int64"):
        net_of()(torch.tensor([0.0, 1.0, 2.0]), graph)
    with pytest.raises(GraphError, match="position 1, but max_children=1"):
        net_of(cell="tree_lstm", max_children=1)(torch.tensor([0, 1, 2]), graph)
