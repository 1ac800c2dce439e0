"""The first layers over labelled DAGs: `Embedding` makes node features, `MessagePassing` mixes them along the edges."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.errors import DtypeError, GraphError
from dagnn.kernels.graph_plans import Direction, Graph, check_direction, check_graph, edge_ends
from dagnn.kernels.nodes import ACTIVATIONS, check_activation
from dagnn.kernels.reference import Aggregate, aggregate, check_aggregate
from dagnn.nn.learnable import LearnableModule, check_rows, check_size


class Embedding(LearnableModule):
    """A trainable vector for every symbol.

    Only the symbols of the batch get a gradient. With ``sparse=True`` the gradient stores only their
    rows, so the cost of a step depends on the batch, not on the table. ``torch.optim.SGD``,
    ``SparseAdam``, `step` and `clip_gradients` take such gradients.

    Args:
        num_symbols: symbols are ``0 .. num_symbols - 1``.
        dim: width of a vector.
        sparse: make the gradient a sparse tensor.

    Raises:
        ConfigError: a size is below 1.
        DtypeError: (at the call) symbols are not integers.
        GraphError: (at the call, on the CPU) a symbol is out of range; the message names it.

    Shapes: symbols int64 ``[...]`` -> ``[..., dim]``.

    >>> table = Embedding(num_symbols=5, dim=2)
    >>> table(torch.tensor([1, 3, 3])).sum().backward()
    >>> table.weight.grad[:, 0].tolist()
    [0.0, 1.0, 0.0, 2.0, 0.0]
    """

    def __init__(self, num_symbols: int, dim: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.num_symbols = check_size("num_symbols", num_symbols)
        self.dim = check_size("dim", dim)
        self.sparse = sparse
        self.weight = nn.Parameter(torch.empty(num_symbols, dim))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Standard normal, as ``nn.Embedding``."""
        nn.init.normal_(self.weight, generator=generator)

    def forward(self, symbols: Tensor) -> Tensor:
        """Vectors ``[..., dim]`` of ``symbols``, int64 of any shape."""
        if symbols.dtype not in (torch.int64, torch.int32):
            raise DtypeError(f"symbols must be int64, got {symbols.dtype}: convert it with .long().")
        try:
            return F.embedding(symbols, self.weight, sparse=self.sparse)
        except IndexError:
            bad = symbols[(symbols < 0) | (symbols >= self.num_symbols)].flatten()
            raise GraphError(
                f"symbol {int(bad[0])} is out of range: num_symbols={self.num_symbols} allows "
                f"0 .. {self.num_symbols - 1}; raise num_symbols, or map unknown symbols to a reserved one."
            ) from None

    def extra_repr(self) -> str:
        return f"{self.num_symbols}, {self.dim}" + (", sparse=True" if self.sparse else "")


class MessagePassing(LearnableModule):
    """``y_v = act(x_v W_0 + b + aggregate over edges u -> v of x_u W_type(u, v))``.

    ``"up"`` sends messages along the edges, ``"down"`` against them (over the edges v -> u),
    ``"both"`` adds the two, each with weights of its own. Where no message arrives, the aggregate is
    0. The gradient of ``"max"`` goes to the largest entry of each column; equal ones share it evenly,
    as in ``torch.amax``.
    Source: Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks",
    ESWC 2018, equation 2 (which is ``aggregate="mean"``, counted per type there).

    Args:
        dim: width of the features, in and out.
        edge_types: edges have types ``0 .. edge_types - 1``, and each type weights of its own.
        aggregate: ``"sum"``, ``"mean"`` or ``"max"``.
        direction: ``"up"``, ``"down"`` or ``"both"``.
        activation: one of `dagnn.kernels.ACTIVATIONS`.

    Raises:
        ConfigError: a size below 1, or an unknown word.

    Shapes: x ``[num_nodes, dim]`` of the parameters' dtype and a `Dag` or `DagBatch` -> ``[num_nodes, dim]``.

    >>> from dagnn import Dag
    >>> layer = MessagePassing(dim=4, edge_types=2)
    >>> layer(torch.randn(3, 4), Dag([(0, 2), (1, 2)]), edge_type=torch.tensor([0, 1])).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        dim: int,
        edge_types: int = 1,
        aggregate: Aggregate = "sum",
        direction: Direction = "both",
        *,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        check_aggregate(aggregate)
        check_direction(direction)
        self.dim = check_size("dim", dim)
        self.edge_types = check_size("edge_types", edge_types)
        self.aggregate = aggregate
        self.direction = direction
        self.activation = check_activation(activation)
        ways = 2 if direction == "both" else 1
        self.self_weight = nn.Parameter(torch.empty(dim, dim))
        self.edge_weight = nn.Parameter(torch.empty(ways, edge_types, dim, dim))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights uniform in +-1/sqrt(dim), as ``nn.Linear``; biases 0."""
        bound = 1 / math.sqrt(self.dim)
        nn.init.uniform_(self.self_weight, -bound, bound)
        nn.init.uniform_(self.edge_weight, -bound, bound)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, graph: Graph, edge_type: Tensor | None = None) -> Tensor:
        """New features ``[num_nodes, dim]``.

        Args:
            x: ``[num_nodes, dim]``, the dtype of the parameters.
            graph: a `Dag` or a `DagBatch`.
            edge_type: int64 ``[num_edges]``, in the order of ``graph.edges``; by default the edge
                attribute "type". Not needed when there is one type.

        Raises:
            DtypeError: another dtype.
            GraphError: another shape, a type out of range, or no types where they are needed.
        """
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, self.bias.dtype)
        kind = self._edge_types_of(graph, edge_type, x.device)

        source, target = edge_ends(graph, x.device)
        y = x @ self.self_weight + self.bias
        ways: list[Literal["up", "down"]] = ["up", "down"] if self.direction == "both" else [self.direction]
        for weight, way in zip(self.edge_weight, ways, strict=True):
            tail, head = (source, target) if way == "up" else (target, source)
            # The product is per node, not per edge: edges of the same source share it.
            message_of = (x @ weight).reshape(-1, self.dim)  # [edge_types * num_nodes, dim]
            messages = message_of.index_select(0, tail if kind is None else kind * graph.num_nodes + tail)
            y = y + aggregate(self.aggregate, messages, head, graph.num_nodes)
        return ACTIVATIONS[self.activation](y)

    def _edge_types_of(self, graph: Graph, edge_type: Tensor | None, device: torch.device) -> Tensor | None:
        """Types of the edges, checked; None when there is only one."""
        if self.edge_types == 1 and edge_type is None:
            return None
        given = graph.edge_attributes.get("type") if edge_type is None else edge_type
        if given is None:
            raise GraphError(
                f"edge_types={self.edge_types} needs the type of every edge: give edge_type=..., or give the Dag the "
                "edge attribute 'type'."
            )
        kind = torch.as_tensor(given)
        if kind.dtype != torch.int64:
            raise DtypeError(f"edge_type must be int64, got {kind.dtype}: convert it with .long().")
        if kind.shape != (graph.num_edges,):
            raise GraphError(
                f"edge_type must have the shape [num_edges] = [{graph.num_edges}], got {list(kind.shape)}."
            )
        wrong = (kind < 0) | (kind >= self.edge_types)
        if not torch.compiler.is_compiling() and wrong.any():
            edge = int(wrong.nonzero()[0])
            raise GraphError(
                f"edge_type[{edge}] is {int(kind[edge])}, but edge_types={self.edge_types} allows "
                f"0 .. {self.edge_types - 1}: raise edge_types, or correct the type."
            )
        return kind.to(device)
