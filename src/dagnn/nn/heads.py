"""What is read off a graph's nodes: one vector per graph, and logits per node, edge or graph."""

from typing import cast

import torch
from torch import Tensor, nn

from dagnn.kernels.graph_plans import Graph, check_graph, edge_ends, graph_of_node, num_graphs
from dagnn.kernels.segments import Aggregate, aggregate, check_aggregate
from dagnn.nn.checks import check_rows, check_size
from dagnn.nn.learnable import LearnableModule


class GraphPool(LearnableModule):
    """The sum, mean or maximum of every graph's nodes; 0 for a graph without nodes. No parameters.

    The gradient of ``"max"`` goes to the winner of each column; equal winners share it evenly, as in
    ``torch.amax``.

    Args:
        aggregate: ``"sum"``, ``"mean"`` or ``"max"``.

    Raises:
        ConfigError: ``aggregate`` is another word.

    Shapes: x ``[num_nodes, dim]`` and a `DagBatch` -> ``[num_graphs, dim]``; a `Dag` counts as one graph.
    """

    def __init__(self, aggregate: Aggregate = "sum") -> None:
        super().__init__()
        check_aggregate(aggregate)
        self.aggregate = aggregate

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, x.shape[-1] if x.dim() else 0, x.dtype)
        return aggregate(self.aggregate, x, graph_of_node(graph, x.device), num_graphs(graph))


class NodeHead(LearnableModule):
    """Logits for every node from its features, by one hidden layer.

    Args:
        dim: width of the features and of the hidden layer.
        out_features: logits per node.

    Raises:
        ConfigError: a size below 1.

    Shapes: x ``[num_nodes, dim]`` -> ``[num_nodes, out_features]``.
    """

    def __init__(self, dim: int, out_features: int) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.layers = _two_layers(dim, dim, check_size("out_features", out_features))

    def forward(self, x: Tensor) -> Tensor:
        check_rows("x", x, len(x), self.dim, _dtype(self.layers))
        return cast(Tensor, self.layers(x))


class EdgeHead(LearnableModule):
    """Logits for every edge from the features of its source and its target, by one hidden layer.

    Args:
        dim: width of the features and of the hidden layer.
        out_features: logits per edge.

    Raises:
        ConfigError: a size below 1.

    Shapes: x ``[num_nodes, dim]`` and a `Dag` or `DagBatch` -> ``[num_edges, out_features]``, in the
    order of ``graph.edges``.
    """

    def __init__(self, dim: int, out_features: int) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.layers = _two_layers(2 * dim, dim, check_size("out_features", out_features))

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, _dtype(self.layers))
        source, target = edge_ends(graph, x.device)
        return cast(Tensor, self.layers(torch.cat([x.index_select(0, source), x.index_select(0, target)], dim=1)))


class GraphHead(LearnableModule):
    """Logits for every graph from its pooled nodes, by one hidden layer.

    Args:
        dim: width of the features and of the hidden layer.
        out_features: logits per graph.
        aggregate: how nodes are pooled, see `GraphPool`.

    Raises:
        ConfigError: a size below 1, or another word for ``aggregate``.

    Shapes: x ``[num_nodes, dim]`` and a `Dag` or `DagBatch` -> ``[num_graphs, out_features]``.
    """

    def __init__(self, dim: int, out_features: int, aggregate: Aggregate = "mean") -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.pool = GraphPool(aggregate)
        self.layers = _two_layers(dim, dim, check_size("out_features", out_features))

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, _dtype(self.layers))
        return cast(Tensor, self.layers(self.pool(x, graph)))


def _two_layers(in_features: int, hidden: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(in_features, hidden), nn.GELU(), nn.Linear(hidden, out_features))


def _dtype(layers: nn.Sequential) -> torch.dtype:
    return next(layers.parameters()).dtype
