"""Layers on extreme graphs: a thousand parents, a chain of five thousand nodes, one graph among 512."""

import copy
import random
from collections.abc import Callable

import pytest
import torch
from precision import assert_rounded
from torch import Tensor, nn

import dagnn.nn as dnn
from dagnn.ged import GedLoss
from dagnn.graph import Dag, DagBatch

D = 8
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "MessagePassing sum": (lambda: dnn.MessagePassing(D, 1, "sum"), lambda layer, x, graph: layer(x, graph)),
    "MessagePassing mean": (lambda: dnn.MessagePassing(D, 1, "mean"), lambda layer, x, graph: layer(x, graph)),
    "MessagePassing max": (lambda: dnn.MessagePassing(D, 1, "max"), lambda layer, x, graph: layer(x, graph)),
    "NodeAttention": (lambda: dnn.NodeAttention(D, 2), lambda layer, x, graph: layer(x, graph)),
    "GraphPool sum": (lambda: dnn.GraphPool("sum"), lambda layer, x, graph: layer(x, graph)),
    "GraphPool mean": (lambda: dnn.GraphPool("mean"), lambda layer, x, graph: layer(x, graph)),
    "GraphPool max": (lambda: dnn.GraphPool("max"), lambda layer, x, graph: layer(x, graph)),
    "NodeHead": (lambda: dnn.NodeHead(D, 3), lambda layer, x, graph: layer(x)),
    "EdgeHead": (lambda: dnn.EdgeHead(D, 3), lambda layer, x, graph: layer(x, graph)),
    "GraphHead": (lambda: dnn.GraphHead(D, 3), lambda layer, x, graph: layer(x, graph)),
    "GraphDecoder": (lambda: dnn.GraphDecoder(D, 3, 4, heads=2), lambda layer, x, graph: layer(x, graph).edges),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name][0]()


def rows_of(name: str, batch: DagBatch, graph: int) -> slice:
    """Where a layer's output has the rows of one graph."""
    if name.startswith(("MessagePassing", "NodeAttention", "NodeHead")):
        return slice(int(batch.node_offsets[graph]), int(batch.node_offsets[graph + 1]))
    if name == "EdgeHead":
        return slice(int(batch.edge_offsets[graph]), int(batch.edge_offsets[graph + 1]))
    return slice(graph, graph + 1)


def random_dags(count: int) -> list[Dag]:
    pick = random.Random(0)
    graphs = []
    for _ in range(count):
        size = pick.randint(1, 40)
        edges = {(pick.randrange(v), v) for v in range(1, size) for _ in range(pick.randint(0, 3))}
        graphs.append(Dag(torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2), size))
    return graphs


@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_alone_equals_itself_among_512(name):
    graphs = random_dags(512)
    batch = DagBatch.from_dags(graphs)
    x = torch.randn(batch.num_nodes, D, dtype=torch.float64)
    layer, run = made(name).double(), LAYERS[name][1]
    together = run(layer, x, batch)
    for i in (0, 17, 255, 511):
        own = x[batch.node_offsets[i] : batch.node_offsets[i + 1]]
        for alone in (graphs[i], DagBatch.from_dags([graphs[i]])):
            torch.testing.assert_close(
                together[rows_of(name, batch, i)], run(layer, own, alone), rtol=1e-11, atol=1e-12
            )


# Attention among all nodes is for small graphs: it needs their square in memory.
@pytest.mark.parametrize(
    ("shape", "name"),
    [("thousand parents", name) for name in LAYERS]
    + [("chain of 5,000", name) for name in LAYERS if name != "NodeAttention"],
)
@pytest.mark.fault("graphs_and_networks", 21)
def test_results_and_gradients_of_extreme_graphs_are_those_in_double_precision(shape, name):
    nodes = torch.arange(1_000 if shape == "thousand parents" else 5_000 - 1)
    edges = torch.stack([nodes, torch.full_like(nodes, len(nodes)) if shape == "thousand parents" else nodes + 1], 1)
    graph = Dag(edges)
    layer, run = made(name), LAYERS[name][1]
    x = torch.randn(graph.num_nodes, D)

    def results(layer: nn.Module, given: Tensor) -> list[Tensor]:
        given = given.clone().requires_grad_()
        y = run(layer, given, graph)
        (y * torch.linspace(0.5, 1, y.numel(), dtype=torch.float64).to(y.dtype).view_as(y)).sum().backward()
        return [y.detach(), given.grad]

    single, exact = results(layer, x), copy.deepcopy(layer).double()
    assert_rounded(single, lambda: results(exact, x.double()))


def test_a_network_reads_a_chain_of_5000_nodes():
    graph = Dag.from_polish("(f " * 4_999 + "x" + ")" * 4_999)
    torch.manual_seed(0)
    net = dnn.GraphTransformNet(2, 2, 4, D, decoder_heads=2)
    symbols = torch.tensor([label == "f" for label in graph.node_attributes["label"]]).long()
    GedLoss(node_vocabulary=["f", "x"])(*net(symbols, graph), [Dag.from_polish("(f x)")]).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    assert net.gradient_norm() > 0
