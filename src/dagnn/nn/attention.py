"""Attention: `MultiHeadAttention` between two sets of rows, `NodeAttention` among the nodes of each graph."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.kernels.graph_plans import Graph, check_graph, dense_places, num_graphs
from dagnn.nn.checks import check_rows, check_size
from dagnn.nn.learnable import LearnableModule


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
    """The nodes of every graph as one entry of a batch, padded with zeros.

    Args:
        x: ``[num_nodes, dim]``.

    Returns:
        ``[B, K, dim]`` for B graphs, of which the largest has K nodes; and bool ``[B, K]``, which rows are nodes.
    """
    place, width = dense_places(graph, x.device)
    graphs = num_graphs(graph)
    rows = x.new_zeros(graphs * width, x.shape[1]).index_copy(0, place, x)
    present = torch.zeros(graphs * width, dtype=torch.bool, device=x.device).index_fill(0, place, True)
    return rows.view(graphs, width, x.shape[1]), present.view(graphs, width)
