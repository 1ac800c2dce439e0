"""`GraphTransformNet`: from a batch of labelled DAGs to a predicted graph for each."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError, GraphError, UntranslatedError
from dagnn.export.c_graph import CSource, Interface
from dagnn.graph import Dag
from dagnn.graph.edges import offsets_of
from dagnn.kernels.graph_plans import Direction, Graph, check_graph, edge_positions, graph_of_node, num_graphs
from dagnn.kernels.reference import Aggregate
from dagnn.nn.cells import AttentionCell, ChildSumTreeLSTMCell, GRUCell, TreeLSTMCell
from dagnn.nn.dag_sweep import DagSweep
from dagnn.nn.graph_export import ExportsOnGraph, array_of
from dagnn.nn.heads import GraphDecoder, GraphLogits, GraphPool, MultiHeadAttention, NodeAttention, PositionLayer
from dagnn.nn.learnable import LearnableModule, check_size
from dagnn.nn.message_passing import Embedding, MessagePassing

CellName = Literal["tree_lstm", "child_sum", "gru", "attention"]

_CELLS: dict[str, Callable[[int, int], LearnableModule]] = {
    "child_sum": lambda dim, max_children: ChildSumTreeLSTMCell(dim, dim),
    "tree_lstm": lambda dim, max_children: TreeLSTMCell(dim, dim, max_children),
    "gru": lambda dim, max_children: GRUCell(dim, dim),
    "attention": lambda dim, max_children: AttentionCell(dim, dim),
}


class GraphTransformNet(ExportsOnGraph):
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

    _inputs, _results = ("symbols",), GraphLogits._fields

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

    def _samples(self, graph: Graph, count: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        most = self.embedding.num_symbols
        return [torch.randint(most, (graph.num_nodes,), generator=generator, device="cpu") for _ in range(count)]

    def _as_c(self, source: CSource, graph: Graph) -> tuple[Interface, list[str], int]:
        return _Layers(self, source, graph).written()


class _Layers:
    """A `GraphTransformNet` as statements of C: calls of functions that know sizes at run time, with tables."""

    def __init__(self, net: GraphTransformNet, source: CSource, graph: Graph) -> None:
        self._net, self._source, self._graph = net, source, graph
        self._nodes, self._dim = graph.num_nodes, net.embedding.dim
        owner = graph_of_node(graph, torch.device("cpu")).numpy()
        assert (np.diff(owner) >= 0).all()
        self._sizes = np.bincount(owner, minlength=num_graphs(graph))
        self._lines: list[str] = []
        self._memory = 0
        self._labels = 0

    def written(self) -> tuple[Interface, list[str], int]:
        net, source, graph, nodes, d = self._net, self._source, self._graph, self._nodes, self._dim
        _check(net, GraphTransformNet, "forward", "encode")
        _check(net.embedding, type(net.embedding), "forward")
        _check(net.decoder, GraphDecoder, "forward")
        decoder = net.decoder
        most, labels = len(decoder.positions), decoder.label.out_features
        graphs, upper = len(self._sizes), source.name.upper()
        outputs = graphs * most * (1 + labels + most)
        self._embed(outputs)
        norms = iter(net.norms)
        for layer in net.messages:
            self._message(layer, next(norms))
        for sweep, join in zip(net.sweeps, net.joins, strict=True):
            self._sweep(sweep, join, next(norms))
        if net.attention is not None:
            self._attend(net.attention)
        self._norm(next(norms), "x_", "x_", nodes)
        self._decode(decoder)
        declared = [f"{source.number} *const x_ = work;"]
        interface = Interface(
            f"A network over {'a graph' if graphs == 1 else f'{graphs} graphs'} of {nodes} nodes and "
            f"{graph.num_edges} edges",
            "int32_t",
            nodes,
            outputs,
            f"x[v] is the symbol of node v < {upper}_NODES, below {upper}_SYMBOLS. With any other, all of y is NaN.",
            f"""y has logits. For a graph g < {upper}_GRAPHS, positions i, j < {upper}_POSITIONS, k < {upper}_LABELS:
     y[g * {upper}_POSITIONS + i]: position i is a node
     y[{upper}_AT_LABELS + (g * {upper}_POSITIONS + i) * {upper}_LABELS + k]: its label is k
     y[{upper}_AT_EDGES + (g * {upper}_POSITIONS + i) * {upper}_POSITIONS + j]: there is an edge from i to j""",
            {
                "NODES": nodes,
                "SYMBOLS": net.embedding.num_symbols,
                "GRAPHS": graphs,
                "POSITIONS": most,
                "LABELS": labels,
                "AT_LABELS": graphs * most,
                "AT_EDGES": graphs * most * (1 + labels),
            },
            graph.names if isinstance(graph, Dag) else None,
        )
        return interface, [*declared, *self._lines], nodes * d + self._memory

    # ---- stages ----

    def _embed(self, outputs: int) -> None:
        d, table = self._dim, self._numbers(self._net.embedding.weight)
        self._lines += [
            "size_t v;",
            f"for (v = 0; v < {self._nodes}; ++v) {{",
            f"    if (x[v] < 0 || x[v] >= {self._net.embedding.num_symbols}) {{",
            f"        for (v = 0; v < {outputs}; ++v) {{",
            "            y[v] = NAN;",
            "        }",
            "        return;",
            "    }",
            f"    memcpy(x_ + v * {d}, {table} + (size_t)x[v] * {d}, {d} * sizeof *x_);",
            "}",
        ]

    def _message(self, layer: Any, norm: nn.Module) -> None:
        _check(layer, MessagePassing, "forward")
        source, graph, nodes, d = self._source, self._graph, self._nodes, self._dim
        types, ways = layer.edge_types, ["up", "down"] if layer.direction == "both" else [layer.direction]
        out, messages = self._room(nodes * d, types * nodes * d)
        own = f"{self._numbers(layer.self_weight)}, {self._numbers(layer.bias)}"
        self._lines.append(f"{source.rows()}(x_, {own}, {out}, {nodes}, {d}, {d});")
        of_edges = self._net._edge_type(graph, torch.empty(0))
        kind = layer._edge_types_of(graph, of_edges, torch.device("cpu"))
        edges, of_type = graph.edges.cpu().numpy(), 0 if kind is None else kind.numpy()
        for weight, way in zip(layer.edge_weight, ways, strict=True):
            tail, head = edges.T if way == "up" else edges.T[::-1]
            order = head.argsort(kind="stable")
            name = self._numbers(weight)
            for number in range(types):
                self._lines.append(
                    f"for (v = 0; v < {nodes}; ++v) {{ {source.product()}(x_ + v * {d}, {name} + {number * d * d}, "
                    f"{messages} + ({number * nodes} + v) * {d}, {d}, {d}, {d}); }}"
                )
            ends, sources = offsets_of(np.bincount(head, minlength=nodes)), (of_type * nodes + tail)[order]
            function = source.aggregate(layer.aggregate, self._label(), ends, sources)
            self._lines.append(f"{function}({messages}, {out}, {d});")
        self._lines.append(f"{source.activation(layer.activation)}({out}, {nodes * d});")
        self._lines.append(f"{source.added()}(x_, {out}, x_, {nodes * d});")
        self._norm(norm, "x_", "x_", nodes)

    def _sweep(self, sweep: Any, join: nn.Module, norm: nn.Module) -> None:
        _check(sweep, DagSweep, "forward")
        out, joined, work = self._room(self._nodes * sweep.out_features, self._nodes * self._dim, 0)
        statements, needed = sweep.write_c(self._source, self._label(), self._graph, "x_", out, work)
        self._room(self._nodes * (sweep.out_features + self._dim), needed)
        self._lines += statements
        self._linear(join, out, joined, self._nodes)
        self._lines.append(f"{self._source.added()}(x_, {joined}, x_, {self._nodes * self._dim});")
        self._norm(norm, "x_", "x_", self._nodes)

    def _attend(self, module: Any) -> None:
        _check(module, NodeAttention, "forward")
        nodes, d, most = self._nodes, self._dim, int(self._sizes.max(initial=0))
        normed, query, memory, score = self._room(nodes * d, nodes * d, nodes * 2 * d, most)
        self._norm(module.norm, "x_", normed, nodes)
        parts = self._projected(module.attention, normed, query, nodes, normed, memory, nodes)
        ends = self._source.indices(f"{self._label()}_graphs", offsets_of(self._sizes))
        self._lines += [
            f"for (v = 0; v < {len(self._sizes)}; ++v) {{",
            f"    const size_t first = {ends}[v], rows = {ends}[v + 1] - first;",
            f"    {self._source.attention()}({query} + first * {d}, {memory} + first * {2 * d}, "
            f"{normed} + first * {d}, {score}, rows, rows, {d}, {parts});",
            "}",
        ]
        self._linear(module.attention.out, normed, query, nodes)
        self._lines.append(f"{self._source.added()}(x_, {query}, x_, {nodes * d});")

    def _decode(self, decoder: Any) -> None:
        """Graph after graph: in a loop over a table of their first nodes."""
        source, d, graphs = self._source, self._dim, len(self._sizes)
        _check(decoder.pool, GraphPool, "forward")
        most, rows = len(decoder.positions), int(self._sizes.max(initial=0)) + 1
        labels = decoder.label.out_features
        memory, at, normed, query, mixed, hidden, keys, score = self._room(
            rows * d, most * d, most * d, most * d, most * d, most * 2 * d, max(rows, most) * 2 * d, max(rows, most)
        )
        if decoder.pool.aggregate != "mean":
            raise ConfigError(
                f"C has a decoder that pools by the mean, and this one's pool is {decoder.pool.aggregate}."
            )
        ends = source.indices(f"{self._label()}_graphs", offsets_of(self._sizes))
        before, self._lines = self._lines, []
        self._lines += [
            f"const size_t first = {ends}[v], nodes = {ends}[v + 1] - first;",
            "size_t i, j;",
            f"{source.number} *const mean = {query};",
            f"for (j = 0; j < {d}; ++j) {{",
            "    mean[j] = 0;",
            "    for (i = first; i < first + nodes; ++i) {",
            f"        mean[j] = mean[j] + x_[i * {d} + j];",
            "    }",
            f"    mean[j] = mean[j] / ({source.number})(nodes > 0 ? nodes : 1);",
            "}",
        ]
        self._linear(decoder.pooled, "mean", memory, 1)
        self._lines += [
            f"memcpy({memory} + {d}, x_ + first * {d}, nodes * {d} * sizeof *x_);",
            f"memcpy({at}, {self._numbers(decoder.positions)}, {most * d} * sizeof *x_);",
        ]
        for layer in decoder.layers:
            _check(layer, PositionLayer, "forward")
            norms, (first, gelu, last) = layer.norms, layer.feed_forward
            for norm, module, rows_of, count in (
                (norms[0], layer.among_positions, normed, most),
                (norms[1], layer.to_memory, memory, "nodes + 1"),
            ):
                self._norm(norm, at, normed, most)
                parts = self._projected(module, normed, query, most, rows_of, keys, count)
                self._lines.append(
                    f"{source.attention()}({query}, {keys}, {mixed}, {score}, {most}, {count}, {d}, {parts});"
                )
                self._linear(module.out, mixed, query, most)
                self._lines.append(f"{source.added()}({at}, {query}, {at}, {most * d});")
            self._norm(norms[2], at, normed, most)
            _check(layer.feed_forward, nn.Sequential, "forward")
            width = self._linear(first, normed, hidden, most)
            _check(gelu, nn.GELU, "forward")
            if gelu.approximate != "none":
                raise ConfigError(f"C has the exact GELU, and the decoder's is approximate={gelu.approximate!r}.")
            self._lines.append(f"{source.activation('gelu')}({hidden}, {most * width});")
            self._linear(last, hidden, query, most)
            self._lines.append(f"{source.added()}({at}, {query}, {at}, {most * d});")
        self._norm(decoder.norm, at, normed, most)
        self._linear(decoder.existence, normed, f"y + v * {most}", most)
        self._linear(decoder.label, normed, f"y + {graphs * most} + v * {most * labels}", most)
        self._linear(decoder.edge_ends, normed, hidden, most)
        root = float(np.float64(d) ** 0.5)
        bias = self._numbers(decoder.edge_bias.reshape(1))
        self._lines += [
            f"for (i = 0; i < {most}; ++i) {{",
            f"    for (j = 0; j < {most}; ++j) {{",
            f"        const {source.number} *const tail = {hidden} + i * {2 * d};",
            f"        const {source.number} *const head = {hidden} + j * {2 * d} + {d};",
            f"        {source.number} sum = 0;",
            "        size_t k;",
            f"        for (k = 0; k < {d}; ++k) {{",
            f"            sum = {source.fma}(tail[k], head[k], sum);",
            "        }",
            f"        y[{graphs * most * (1 + labels)} + (v * {most} + i) * {most} + j] = "
            f"sum / {source.literal(root)} + {bias}[0];",
            "    }",
            "}",
        ]
        inner = [f"    {line}" for line in self._lines]
        self._lines = [*before, f"for (v = 0; v < {graphs}; ++v) {{", *inner, "}"]

    # ---- layers ----

    def _projected(
        self, module: Any, query: str, to_query: str, queries: int, memory: str, to_memory: str, rows: int | str
    ) -> str:
        """Queries, keys and values of an attention; its last arguments in C."""
        _check(module, MultiHeadAttention, "forward")
        self._linear(module.query, query, to_query, queries)
        self._linear(module.key_value, memory, to_memory, rows)
        return f"{module.heads}, {self._source.literal((module.dim / module.heads) ** 0.5)}"

    def _linear(self, module: Any, x: str, y: str, rows: int | str) -> int:
        _check(module, nn.Linear, "forward")
        outputs, inputs = module.weight.shape
        bias = torch.zeros(outputs, dtype=module.weight.dtype) if module.bias is None else module.bias
        names = f"{self._numbers(module.weight.t())}, {self._numbers(bias)}"
        self._lines.append(f"{self._source.rows()}({x}, {names}, {y}, {rows}, {inputs}, {outputs});")
        return int(outputs)

    def _norm(self, module: Any, x: str, y: str, rows: int) -> None:
        _check(module, nn.LayerNorm, "forward")
        names = f"{self._numbers(module.weight)}, {self._numbers(module.bias)}"
        epsilon = self._source.literal(module.eps)
        self._lines.append(f"{self._source.norm()}({x}, {names}, {y}, {rows}, {self._dim}, {epsilon});")

    def _room(self, *sizes: int) -> list[str]:
        """Memory behind the features of the nodes: stages use it one after another."""
        starts = [self._nodes * self._dim + sum(sizes[:k]) for k in range(len(sizes))]
        self._memory = max(self._memory, sum(sizes))
        return [f"(work + {start})" for start in starts]

    def _numbers(self, weight: Tensor) -> str:
        return self._source.numbers(self._label(), array_of(weight))

    def _label(self) -> str:
        self._labels += 1
        return f"l{self._labels}"


def _check(module: nn.Module, known: type[nn.Module], *methods: str) -> None:
    """Raise UntranslatedError unless a module runs the code of a class."""
    if any(getattr(type(module), method, None) is not getattr(known, method) for method in methods):
        raise UntranslatedError(f"C is written for {known.__name__}, and {type(module).__name__} runs other code.")
