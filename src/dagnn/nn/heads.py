"""What is read off a graph's nodes: vectors, logits per node, edge or graph, or a whole predicted graph."""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from dagnn.kernels.graph_plans import Graph, check_graph, edge_ends, graph_of_node, num_graphs
from dagnn.kernels.reference import Aggregate, aggregate, check_aggregate
from dagnn.nn.attention import MultiHeadAttention, to_dense
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


class SlotLogits(NamedTuple):
    """A predicted graph per batch entry, undecided: B graphs, M slots, L labels.

    ``sigmoid(existence[b, i])`` is the probability that slot i is a node, ``softmax(labels[b, i])``
    those of its label, ``sigmoid(edges[b, i, j])`` that of the edge i -> j. The diagonal of
    ``edges`` means nothing. In the order of `dagnn.ged.GedLoss`: ``loss(*logits, targets)``.
    """

    existence: Tensor
    """``[B, M]``"""
    labels: Tensor
    """``[B, M, L]``"""
    edges: Tensor
    """``[B, M, M]``"""


class SlotDecoder(LearnableModule):
    """Slots, each with a trainable vector of its own, ask the nodes of the input and each other.

    Distinct slot vectors break the symmetry between slots; without them all slots would stay equal.
    Source: Carion et al., "End-to-End Object Detection with Transformers", ECCV 2020, section 3.2.

    Args:
        dim: width of the features, a multiple of ``heads``.
        num_labels: labels per node.
        max_nodes: slots, the most nodes a predicted graph can have.
        layers: rounds of asking.
        heads: of every attention.

    Raises:
        ConfigError: a size below 1, or ``dim`` no multiple of ``heads``.

    Shapes: x ``[num_nodes, dim]`` and a `Dag` or `DagBatch` -> `SlotLogits`; a graph without nodes
    gets logits too.
    """

    def __init__(self, dim: int, num_labels: int, max_nodes: int, *, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.slots = nn.Parameter(torch.empty(check_size("max_nodes", max_nodes), dim))
        self.pool = GraphPool("mean")
        self.pooled = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(_SlotLayer(dim, heads) for _ in range(check_size("layers", layers)))
        self.norm = nn.LayerNorm(dim)
        self.existence = nn.Linear(dim, 1)
        self.label = nn.Linear(dim, check_size("num_labels", num_labels))
        self.edge_ends = nn.Linear(dim, 2 * dim)
        self.edge_bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Slot vectors standard normal; no edge is favoured. The layers keep PyTorch's own start."""
        nn.init.normal_(self.slots)
        nn.init.zeros_(self.edge_bias)

    def forward(self, x: Tensor, graph: Graph) -> SlotLogits:
        """Logits of a graph for every graph of the batch."""
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, self.slots.dtype)
        nodes, is_node = to_dense(x, graph)
        # The pooled graph is one more row to ask: there is always one, also where there are no nodes.
        memory = torch.cat([self.pooled(self.pool(x, graph)).unsqueeze(1), nodes], dim=1)
        present = torch.cat([is_node.new_ones(len(is_node), 1), is_node], dim=1)

        slots = self.slots.expand(len(memory), -1, -1)
        for layer in self.layers:
            slots = layer(slots, memory, present)
        slots = self.norm(slots)
        tail, head = self.edge_ends(slots).chunk(2, dim=-1)
        return SlotLogits(
            existence=self.existence(slots).squeeze(-1),
            labels=self.label(slots),
            edges=tail @ head.transpose(1, 2) / math.sqrt(self.dim) + self.edge_bias,
        )


class _SlotLayer(nn.Module):
    """Slots ask each other, then the memory, then think: each with a residual and a norm before."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.among_slots = MultiHeadAttention(dim, heads)
        self.to_memory = MultiHeadAttention(dim, heads)
        self.think = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))

    def forward(self, slots: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        all_slots = present.new_ones(slots.shape[:2])
        normed = self.norms[0](slots)
        slots = slots + self.among_slots(normed, normed, all_slots)
        slots = slots + self.to_memory(self.norms[1](slots), memory, present)
        return cast(Tensor, slots + self.think(self.norms[2](slots)))
