"""`DagSweep`: a recursive cell, node after node in topological order, all graphs of a batch at once."""

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.export.c_graph import CSource, Interface
from dagnn.export.c_sweep import write_sweep
from dagnn.graph import Dag
from dagnn.kernels.graph_plans import Direction, Graph, check_direction, check_graph, operator_bounds, position_bounds
from dagnn.nn.cells import FormulaCell
from dagnn.nn.cells.gated import GatedCell
from dagnn.nn.graph_export import ExportsOnGraph, swept_cell
from dagnn.nn.learnable import check_operators, check_rows, check_tensor

_OURS = (FormulaCell, GatedCell)


class DagSweep(ExportsOnGraph):
    """Runs a cell over every node, after the nodes that it depends on.

    ``"up"`` goes along the edges: in an expression graph from the leaves to the root, so that a node
    depends on its operands. ``"down"`` goes against the edges: a node depends on those that use it.
    ``"both"`` does each with weights of its own and concatenates the results.

    Cells: `TreeLSTMCell` (ordered operands), `ChildSumTreeLSTMCell`, `GRUCell`, `AttentionCell`, a
    `FormulaCell` of yours, which is compiled as they are, `DiscreteCell` (each node one of k symbols), or any
    module that fits `dagnn.kernels.Cell`::

        class Sum(nn.Module):
            state_sizes = (8,)                      # one state tensor, 8 wide

            def forward(self, features, states, target, position):
                message = torch.zeros_like(features).index_add(0, target, states[0])
                return (features + message.tanh(),)

    Args:
        cell: the cell; of the upward sweep if there are two.
        direction: ``"up"``, ``"down"`` or ``"both"``.
        down_cell: the downward cell for ``"both"``; by default a copy of ``cell`` with newly drawn
            parameters.

    Raises:
        ConfigError: an unknown direction, something that is no cell, ``down_cell`` without
            ``"both"``.

    Shapes: x ``[num_nodes, in_features]`` of the parameters' dtype and a `Dag` or `DagBatch` ->
    ``[num_nodes, out_features]``; for ``"both"`` the upward columns come first.

    >>> from dagnn import Dag, DagBatch
    >>> from dagnn.nn import Embedding, TreeLSTMCell
    >>> batch = DagBatch.from_dags([Dag([(0, 2), (1, 2)]), Dag([(0, 1)])])
    >>> sweep = DagSweep(TreeLSTMCell(in_features=4, hidden=8), "both")
    >>> symbols = torch.tensor([3, 3, 1, 0, 2])
    >>> sweep(Embedding(num_symbols=5, dim=4)(symbols), batch).shape
    torch.Size([5, 16])
    """

    def __init__(self, cell: nn.Module, direction: Direction = "up", *, down_cell: nn.Module | None = None) -> None:
        super().__init__()
        check_direction(direction)
        if down_cell is not None and direction != "both":
            raise ConfigError(f"down_cell is for direction='both', got direction={direction!r}: drop one of them.")
        self.direction = direction
        self.cells = nn.ModuleDict()
        if direction == "both":
            self.cells["up"] = cell
            self.cells["down"] = _fresh_copy(cell) if down_cell is None else down_cell
        else:
            self.cells[direction] = cell
        self.out_features = sum(_checked(cell).state_sizes[0] for cell in self.cells.values())

    def forward(self, x: Tensor, graph: Graph, rows: Tensor | None = None) -> Tensor:
        """Outputs ``[num_nodes, out_features]`` for the features ``x [num_nodes, in_features]``.

        Args:
            x: of the dtype of the cell's parameters.
            graph: a `Dag` or a `DagBatch`.
            rows: int64 ``[num_nodes]``. With it ``x`` is a table ``[num_rows, in_features]``, and the
                features of node v are ``x[rows[v]]``. ``sweep(embedding.weight, graph, symbols)``
                multiplies the cell's feature weights once per symbol, not once per node.

        Raises:
            DtypeError: ``x`` is no dense tensor of that dtype, or ``rows`` is not int64.
            GraphError: ``x`` or ``rows`` has another shape, or a row, a position or an operator is
                out of range.
        """
        check_graph(graph)
        check_tensor("x", x)
        if rows is not None:
            _check_rows_of_table(rows, graph, len(x) if x.dim() else 0)
        cells: dict[Literal["up", "down"], kernels.Cell] = {}
        for way, module in self.cells.items():
            cell = _checked(module)
            width = getattr(module, "in_features", x.shape[-1] if x.dim() else 0)
            like = next((p.dtype for p in module.parameters()), x.dtype)
            num_rows = graph.num_nodes if rows is None else (len(x) if x.dim() else 0)
            check_rows("x", x, num_rows, width, like)
            if getattr(cell, "operators", None) is not None:
                check_operators(*operator_bounds(graph), cell.operators)  # type: ignore[attr-defined]
            if torch.compiler.is_compiling() and isinstance(cell, FormulaCell):
                cell.check_positions(*(position_bounds(graph) or (0, 0)))
            cells["up" if way == "up" else "down"] = cell
        by_level = [way for way, module in self.cells.items() if not _is_ours(module)]
        outputs = kernels.run_sweeps(graph, cells, x, rows, by_level=by_level)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def write_c(self, source: CSource, label: str, graph: Graph, x: str, y: str, work: str) -> tuple[list[str], int]:
        """Adds its cells to a C source; the statements of a sweep, and how many numbers of memory it needs.

        Args:
            label: the beginning of names.
            x, y, work: the names of arrays in these statements.
        """
        statements, most, before = list[str](), 0, 0
        for way, cell in self.cells.items():
            direction: Literal["up", "down"] = "up" if way == "up" else "down"
            name, needed = write_sweep(source, label + way, swept_cell(cell, graph, direction), self.out_features)
            statements.append(f"{name}({x}, {y} + {before}, {work});")
            most, before = max(most, needed), before + _checked(cell).state_sizes[0]
        return statements, most

    def _samples(self, graph: Graph, count: int) -> list[Tensor]:
        cell = next(iter(self.cells.values()))
        width, like = getattr(cell, "in_features", None), next(self.parameters())
        if width is None:
            raise ConfigError(
                f"{type(cell).__name__} does not say how wide its features are: give it an attribute in_features."
            )
        generator = torch.Generator().manual_seed(0)
        shape = (graph.num_nodes, width)
        return [torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu") for _ in range(count)]

    def _as_c(self, source: CSource, graph: Graph) -> tuple[Interface, list[str], int]:
        cell: Any = next(iter(self.cells.values()))
        upper, nodes, width = source.name.upper(), graph.num_nodes, int(cell.in_features)
        body, work = self.write_c(source, "", graph, "x", "y", "work")
        interface = Interface(
            f"Sweeps over a graph of {nodes} nodes and {graph.num_edges} edges",
            source.number,
            nodes * width,
            nodes * self.out_features,
            f"x[v * {upper}_FEATURES + k] is feature k of node v < {upper}_NODES.",
            f"y[v * {upper}_RESULTS + k] is output k of node v.",
            {"NODES": nodes, "FEATURES": width, "RESULTS": self.out_features},
            graph.names if isinstance(graph, Dag) else None,
        )
        return interface, body if work else [*body, "(void)work;"], work


def _is_ours(cell: nn.Module) -> bool:
    """Whether calling the cell runs our own forward and nothing else, so that compiled code may replace it."""
    if not isinstance(cell, FormulaCell) or cell.plan.reason is not None:
        return False
    if not any(type(cell).forward is ours.forward for ours in _OURS):
        return False
    if isinstance(cell, GatedCell):  # its gru may have been replaced
        gru = cell.gru
        if type(gru).forward is not nn.GRUCell.forward or not gru.bias:
            return False
    if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    return not any(
        "forward" in vars(part)  # overridden for this object alone, as accelerate does
        or part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in cell.modules()
    )


def _check_rows_of_table(rows: Tensor, graph: Graph, length: int) -> None:
    if rows.dtype != torch.int64:
        raise DtypeError(f"rows must be torch.int64, got {rows.dtype}: convert it with .long().")
    if rows.shape != (graph.num_nodes,):
        raise GraphError(
            f"rows must have the shape [num_nodes] = [{graph.num_nodes}], got {list(rows.shape)}: one for each node."
        )
    if rows.device.type == "cpu" and len(rows) and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in rows.aminmax())
        if low < 0 or high >= length:
            raise GraphError(
                f"rows has {low if low < 0 else high}, but x has {length} rows: use 0 .. {length - 1}, or give x more."
            )


def _checked(cell: nn.Module) -> kernels.Cell:
    sizes = getattr(cell, "state_sizes", None)
    # Not isinstance: in Python 3.11 asking a protocol took a tenth of a step over one small graph.
    if not callable(cell) or not isinstance(sizes, tuple) or not sizes:
        raise ConfigError(
            f"{type(cell).__name__} is no cell: a cell has state_sizes, a tuple of widths, got {sizes!r}, and "
            "forward(features, states, target, position); see dagnn.kernels.Cell."
        )
    return cell  # type: ignore[return-value]


def _fresh_copy(cell: nn.Module) -> nn.Module:
    """A copy of ``cell`` with newly drawn parameters; modules without reset_parameters keep the copied values."""
    fresh = copy.deepcopy(cell)
    for module in fresh.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return fresh
