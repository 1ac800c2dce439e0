"""Readouts from node features: a vector per graph, logits per node, edge or graph, or a whole predicted graph.

`GraphPool` and the three heads come first. `GraphDecoder` predicts a graph and returns `GraphLogits`. Attention, which
it uses, comes last: `MultiHeadAttention` between two sets of rows, `NodeAttention` among the nodes of each graph.
"""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.kernels.graph_plans import Graph, check_graph, dense_places, edge_ends, graph_of_node, num_graphs
from dagnn.kernels.reference import Aggregate, aggregate, check_aggregate
from dagnn.nn.learnable import LearnableModule, check_rows, check_size


class GraphPool(LearnableModule):
    """The sum, mean or maximum of every graph's nodes; 0 for a graph without nodes. No parameters.

    The gradient of ``"max"`` goes to the largest entry of each column; equal ones share it evenly, as
    in ``torch.amax``.

    Args:
        aggregate: ``"sum"``, ``"mean"`` or ``"max"``.

    Raises:
        ConfigError: ``aggregate`` is another word.
        GraphError: (at the call) x has not one row per node.

    Shapes: x ``[num_nodes, dim]`` and a `DagBatch` -> ``[num_graphs, dim]``; a `Dag` counts as one graph.

    >>> from dagnn import Dag
    >>> GraphPool("max")(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), Dag([(0, 1)]))
    tensor([[3., 5.]])
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
    """Logits for every node from its features, through one hidden layer.

    Args:
        dim: width of the features and of the hidden layer.
        out_features: logits per node.

    Raises:
        ConfigError: a size below 1.
        DtypeError, GraphError: (at the call) x has another dtype or shape.

    Shapes: x ``[num_nodes, dim]`` -> ``[num_nodes, out_features]``.

    >>> NodeHead(dim=8, out_features=3)(torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, dim: int, out_features: int) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.layers = _two_layers(dim, dim, check_size("out_features", out_features))

    def forward(self, x: Tensor) -> Tensor:
        check_rows("x", x, len(x), self.dim, _dtype(self.layers))
        return cast(Tensor, self.layers(x))


class EdgeHead(LearnableModule):
    """Logits for every edge from the features of its source and its target, through one hidden layer.

    Args:
        dim: width of the features and of the hidden layer.
        out_features: logits per edge.

    Raises:
        ConfigError: a size below 1.
        DtypeError, GraphError: (at the call) x has another dtype or shape.

    Shapes: x ``[num_nodes, dim]`` and a `Dag` or `DagBatch` -> ``[num_edges, out_features]``, in the
    order of ``graph.edges``.

    >>> from dagnn import Dag
    >>> EdgeHead(dim=8, out_features=2)(torch.randn(4, 8), Dag([(0, 2), (1, 2), (2, 3)])).shape
    torch.Size([3, 2])
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
    """Logits for every graph from its pooled nodes, through one hidden layer.

    Args:
        dim: width of the features and of the hidden layer.
        out_features: logits per graph.
        aggregate: of `GraphPool`: ``"sum"``, ``"mean"`` or ``"max"``.

    Raises:
        ConfigError: a size below 1, or another word for ``aggregate``.
        DtypeError, GraphError: (at the call) x has another dtype or shape.

    Shapes: x ``[num_nodes, dim]`` and a `Dag` or `DagBatch` -> ``[num_graphs, out_features]``.

    >>> from dagnn import Dag, DagBatch
    >>> batch = DagBatch.from_dags([Dag([(0, 2), (1, 2)]), Dag([(0, 1)])])
    >>> GraphHead(dim=8, out_features=3)(torch.randn(5, 8), batch).shape
    torch.Size([2, 3])
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


class GraphLogits(NamedTuple):
    """Logits of one predicted graph per batch entry: B graphs, M positions, L labels.

    ``sigmoid(existence[b, i])`` is the probability that position i is a node, ``softmax(labels[b, i])``
    those of its label, ``sigmoid(edges[b, i, j])`` that of the edge i -> j. The diagonal of
    ``edges`` is not used. The order is that of `dagnn.GedLoss`: ``loss(*logits, targets)``.

    >>> from dagnn import Dag
    >>> logits = GraphDecoder(dim=8, num_labels=4, max_nodes=3)(torch.randn(2, 8), Dag([(0, 1)]))
    >>> logits.existence.shape, logits.labels.shape, logits.edges.shape
    (torch.Size([1, 3]), torch.Size([1, 3, 4]), torch.Size([1, 3, 3]))
    """

    existence: Tensor
    """``[B, M]``"""
    labels: Tensor
    """``[B, M, L]``"""
    edges: Tensor
    """``[B, M, M]``"""


class GraphDecoder(LearnableModule):
    """A graph at once: M positions, each a possible node, attend to the input nodes and to each other.

    Each position starts from a trainable vector of its own; with equal vectors, all would stay
    equal. Source: Carion et al., "End-to-End Object Detection with Transformers", ECCV 2020, section 3.2.

    Args:
        dim: width of the features, a multiple of ``heads``.
        num_labels: labels per node.
        max_nodes: positions, the most nodes a predicted graph can have.
        layers: rounds of attention.
        heads: of every attention.

    Raises:
        ConfigError: a size below 1, or ``dim`` no multiple of ``heads``.

    Shapes: x ``[num_nodes, dim]`` and a `Dag` or `DagBatch` -> `GraphLogits`, ``[B, M]``,
    ``[B, M, L]`` and ``[B, M, M]``; a graph without nodes gets logits too.

    >>> from dagnn import Dag
    >>> decoder = GraphDecoder(dim=8, num_labels=4, max_nodes=3)
    >>> decoder(torch.randn(2, 8), Dag([(0, 1)])).labels.shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, dim: int, num_labels: int, max_nodes: int, *, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.positions = nn.Parameter(torch.empty(check_size("max_nodes", max_nodes), dim))
        self.pool = GraphPool("mean")
        self.pooled = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(PositionLayer(dim, heads) for _ in range(check_size("layers", layers)))
        self.norm = nn.LayerNorm(dim)
        self.existence = nn.Linear(dim, 1)
        self.label = nn.Linear(dim, check_size("num_labels", num_labels))
        self.edge_ends = nn.Linear(dim, 2 * dim)
        self.edge_bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The positions standard normal, the bias of edges 0. The layers keep their initial values from PyTorch."""
        nn.init.normal_(self.positions)
        nn.init.zeros_(self.edge_bias)

    def forward(self, x: Tensor, graph: Graph) -> GraphLogits:
        """Logits of a predicted graph for every graph of the batch.

        Raises:
            DtypeError, GraphError: ``x`` is not ``[num_nodes, dim]`` of the parameters' dtype.
        """
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, self.positions.dtype)
        nodes, is_node = to_dense(x, graph)
        # The pooled graph is one more memory row, so that a graph without nodes has a row to attend to.
        memory = torch.cat([self.pooled(self.pool(x, graph)).unsqueeze(1), nodes], dim=1)
        present = torch.cat([is_node.new_ones(len(is_node), 1), is_node], dim=1)

        positions = self.positions.expand(len(memory), -1, -1)
        for layer in self.layers:
            positions = layer(positions, memory, present)
        positions = self.norm(positions)
        tail, head = self.edge_ends(positions).chunk(2, dim=-1)
        return GraphLogits(
            existence=self.existence(positions).squeeze(-1),
            labels=self.label(positions),
            edges=tail @ head.transpose(1, 2) / math.sqrt(self.dim) + self.edge_bias,
        )


class PositionLayer(nn.Module):
    """Positions attend to each other, then to the memory, then pass a feed-forward net; pre-norm, with residuals."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.among_positions = MultiHeadAttention(dim, heads)
        self.to_memory = MultiHeadAttention(dim, heads)
        self.feed_forward = _two_layers(dim, 2 * dim, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))

    def forward(self, positions: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        all_positions = present.new_ones(positions.shape[:2])
        normed = self.norms[0](positions)
        positions = positions + self.among_positions(normed, normed, all_positions)
        positions = positions + self.to_memory(self.norms[1](positions), memory, present)
        return cast(Tensor, positions + self.feed_forward(self.norms[2](positions)))


class MultiHeadAttention(LearnableModule):
    """Every query row takes a weighted mean of the memory rows of its batch entry.

    It uses plain matrix products: PyTorch's fused attention has no second derivative on the CPU, and
    graphs are small. Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017,
    section 3.2.

    Args:
        dim: width of all rows, a multiple of ``heads``.
        heads: number of independent weightings.

    Raises:
        ConfigError: a size below 1, or ``dim`` no multiple of ``heads``.

    Shapes: query ``[B, Q, dim]``, memory ``[B, K, dim]``, present bool ``[B, K]`` (memory rows that
    exist) -> ``[B, Q, dim]``. Where no row exists, the weights are equal, never NaN.

    >>> attention = MultiHeadAttention(dim=8, heads=2)
    >>> attention(torch.randn(3, 5, 8), torch.randn(3, 4, 8), torch.ones(3, 4, dtype=torch.bool)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.heads = check_size("heads", heads)
        if dim % heads:
            raise ConfigError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}.")
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, query: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        q = self._split(self.query(query))
        k, v = (self._split(part) for part in self.key_value(memory).chunk(2, dim=-1))
        score = q @ k.transpose(-1, -2) / math.sqrt(self.dim / self.heads)
        # Not -inf: an entry without any row would give NaN, which reaches the gradients of the
        # parameters even if nobody uses that output.
        hidden = ~present.view(memory.shape[0], 1, 1, memory.shape[1])
        score = score.masked_fill(hidden, torch.finfo(score.dtype).min)
        mixed = score.softmax(dim=-1) @ v
        return cast(Tensor, self.out(mixed.transpose(1, 2).reshape(query.shape)))

    def _split(self, rows: Tensor) -> Tensor:
        """``[B, R, dim]`` -> ``[B, heads, R, dim / heads]``."""
        return rows.view(*rows.shape[:2], self.heads, self.dim // self.heads).transpose(1, 2)


class NodeAttention(LearnableModule):
    """``y = x + attention(norm(x))``: every node attends to all nodes of its own graph.

    Args:
        dim: width of the features, a multiple of ``heads``.
        heads: number of independent weightings.

    Raises:
        ConfigError: a size below 1, or ``dim`` no multiple of ``heads``.
        DtypeError, GraphError: (at the call) x has another dtype or shape.

    Shapes: x ``[num_nodes, dim]`` of the parameters' dtype and a `Dag` or `DagBatch` ->
    ``[num_nodes, dim]``. Memory grows with the number of graphs times the square of the largest one.

    >>> from dagnn import Dag
    >>> NodeAttention(dim=8)(torch.randn(3, 8), Dag([(0, 2), (1, 2)])).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads)
        self.norm = nn.LayerNorm(dim)
        self.dim = dim

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, self.norm.weight.dtype)
        if graph.num_nodes == 0:
            return x
        rows, present = to_dense(self.norm(x), graph)
        mixed: Tensor = self.attention(rows, rows, present).reshape(-1, self.dim)
        place, _ = dense_places(graph, x.device)
        return x + mixed.index_select(0, place)


def to_dense(x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """The nodes of B graphs, ``x [num_nodes, dim]``, as a batch padded with zeros.

    Returns ``[B, K, dim]``, where the largest graph has K nodes; and bool ``[B, K]``, which rows are nodes.
    """
    place, width = dense_places(graph, x.device)
    graphs = num_graphs(graph)
    rows = x.new_zeros(graphs * width, x.shape[1]).index_copy(0, place, x)
    present = torch.zeros(graphs * width, dtype=torch.bool, device=x.device).index_fill(0, place, True)
    return rows.view(graphs, width, x.shape[1]), present.view(graphs, width)
