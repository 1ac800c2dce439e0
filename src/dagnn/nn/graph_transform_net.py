"""`GraphTransformNet`: from a batch of labelled DAGs to a predicted graph for each."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from dagnn.errors import ConfigError, GraphError
from dagnn.kernels.graph_plans import Direction, Graph, check_graph, edge_positions
from dagnn.kernels.reference import Aggregate
from dagnn.nn.cells import AttentionCell, ChildSumTreeLSTMCell, GRUCell, TreeLSTMCell
from dagnn.nn.dag_sweep import DagSweep
from dagnn.nn.heads import GraphDecoder, GraphLogits, NodeAttention
from dagnn.nn.learnable import LearnableModule, check_size
from dagnn.nn.message_passing import Embedding, MessagePassing

CellName = Literal["tree_lstm", "child_sum", "gru", "attention"]

_CELLS: dict[str, Callable[[int, int], LearnableModule]] = {
    "child_sum": lambda dim, max_children: ChildSumTreeLSTMCell(dim, dim),
    "tree_lstm": lambda dim, max_children: TreeLSTMCell(dim, dim, max_children),
    "gru": lambda dim, max_children: GRUCell(dim, dim),
    "attention": lambda dim, max_children: AttentionCell(dim, dim),
}


class GraphTransformNet(LearnableModule):
    """Embedding, message passing, sweeps, optional attention over nodes, and a `GraphDecoder`.

    Each stage adds to the node features and is followed by a layer norm::

        symbols -> Embedding -> MessagePassing x message_layers -> DagSweep x sweeps
                -> NodeAttention (attention_heads > 0) -> GraphDecoder

    All nodes and edges are predicted at once::

        loss = dagnn.GedLoss(node_vocabulary=vocabulary)(*net(symbols, inputs), targets)
        predicted = dagnn.ged.decode(*net(symbols, inputs), node_vocabulary=vocabulary)

    `encode` stops before the decoder, for heads of your own.

    Args:
        num_symbols: symbols of the input nodes.
        num_labels: labels of the predicted nodes.
        max_nodes: the most nodes a predicted graph can have.
        dim: width of all features, a multiple of ``decoder_heads`` and ``attention_heads``.
        message_layers: rounds of message passing, at least 0.
        sweeps: number of sweeps, at least 0.
        cell: ``"child_sum"``, ``"tree_lstm"`` (ordered operands), ``"gru"`` or ``"attention"``.
        max_children: operands that ``"tree_lstm"`` tells apart.
        direction: of message passing and sweeps: ``"up"``, ``"down"`` or ``"both"``.
        aggregate: of message passing: ``"sum"``, ``"mean"`` or ``"max"``.
        edge_types: types that message passing tells apart: the edge attribute "type"; without it the
            position of the operand, where the last type is shared by all later positions.
        attention_heads: 0 for no attention over nodes.
        decoder_layers, decoder_heads: of the decoder.

    Raises:
        ConfigError: a size out of range, or an unknown word.

    Shapes: symbols int64 ``[num_nodes]`` and a `Dag` or `DagBatch` of B graphs -> `GraphLogits` with
    ``[B, M]``, ``[B, M, L]``, ``[B, M, M]``, for ``M = max_nodes`` and ``L = num_labels``.

    >>> import torch
    >>> from dagnn import Dag
    >>> net = GraphTransformNet(num_symbols=5, num_labels=4, max_nodes=3, dim=8)
    >>> net(torch.tensor([0, 1, 2]), Dag([(0, 2), (1, 2)])).edges.shape
    torch.Size([1, 3, 3])
    """

    def __init__(
        self,
        num_symbols: int,
        num_labels: int,
        max_nodes: int,
        dim: int = 64,
        *,
        message_layers: int = 2,
        sweeps: int = 1,
        cell: CellName = "child_sum",
        max_children: int = 2,
        direction: Direction = "both",
        aggregate: Aggregate = "sum",
        edge_types: int = 1,
        attention_heads: int = 0,
        decoder_layers: int = 2,
        decoder_heads: int = 4,
    ) -> None:
        super().__init__()
        if cell not in _CELLS:
            raise ConfigError(f"cell must be one of {', '.join(_CELLS)}, got {cell!r}.")
        message_layers = check_size("message_layers", message_layers, least=0)
        sweeps = check_size("sweeps", sweeps, least=0)
        attention_heads = check_size("attention_heads", attention_heads, least=0)
        self.edge_types = check_size("edge_types", edge_types)
        self.embedding = Embedding(num_symbols, dim)
        self.messages = nn.ModuleList(
            MessagePassing(dim, edge_types, aggregate, direction) for _ in range(message_layers)
        )
        self.sweeps = nn.ModuleList(DagSweep(_CELLS[cell](dim, max_children), direction) for _ in range(sweeps))
        self.joins = nn.ModuleList(nn.Linear((2 if direction == "both" else 1) * dim, dim) for _ in range(sweeps))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(message_layers + sweeps + 1))
        self.attention = NodeAttention(dim, attention_heads) if attention_heads else None
        self.decoder = GraphDecoder(dim, num_labels, max_nodes, layers=decoder_layers, heads=decoder_heads)

    def encode(self, symbols: Tensor, graph: Graph) -> Tensor:
        """Node features ``[num_nodes, dim]``. Arguments and errors as of `forward`."""
        check_graph(graph)
        if symbols.shape != (graph.num_nodes,):
            raise GraphError(
                f"symbols must have the shape [num_nodes] = [{graph.num_nodes}], got {list(symbols.shape)}."
            )
        x: Tensor = self.embedding(symbols)
        edge_type = self._edge_type(graph, x)
        norms = iter(self.norms)
        for message in self.messages:
            x = next(norms)(x + message(x, graph, edge_type))
        for sweep, join in zip(self.sweeps, self.joins, strict=True):
            x = next(norms)(x + join(sweep(x, graph)))
        if self.attention is not None:
            x = self.attention(x, graph)
        x = next(norms)(x)
        return x

    def forward(self, symbols: Tensor, graph: Graph) -> GraphLogits:
        """Logits of a predicted graph for every graph of the batch.

        Args:
            symbols: int64 ``[num_nodes]``.
            graph: a `Dag` or a `DagBatch`.

        Raises:
            DtypeError: symbols are not integers.
            GraphError: a symbol out of range, or not one symbol per node.
        """
        logits: GraphLogits = self.decoder(self.encode(symbols, graph), graph)
        return logits

    def _edge_type(self, graph: Graph, x: Tensor) -> Tensor | None:
        if self.edge_types == 1 or "type" in graph.edge_attributes:
            return None
        return edge_positions(graph, x.device).clamp(max=self.edge_types - 1)
