"""`DagSweep`: a recursive cell, node after node in topological order, all graphs of a batch at once."""

import copy

import torch
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import ConfigError
from dagnn.kernels.graph_plans import Direction, Graph, check_direction, check_graph, edge_positions, sweep_plan
from dagnn.nn.checks import check_rows
from dagnn.nn.learnable import LearnableModule


class DagSweep(LearnableModule):
    """Runs a cell over every node, after the nodes that it depends on.

    ``"up"`` goes along the edges (in an expression graph from the leaves to the root: a node hears
    its operands); ``"down"`` goes against them (a node hears those that use it); ``"both"`` does
    each with weights of its own and joins the results.

    Cells: `TreeLSTMCell` (ordered operands), `ChildSumTreeLSTMCell`, `GRUCell`, `AttentionCell`, or
    any module of yours that fits `dagnn.kernels.Cell`::

        class Sum(nn.Module):
            state_sizes = (8,)                      # one state tensor, 8 wide

            def forward(self, features, states, target, position):
                heard = torch.zeros_like(features).index_add(0, target, states[0])
                return (features + heard.tanh(),)

    Args:
        cell: the cell; of the upward sweep if there are two.
        direction: ``"up"``, ``"down"`` or ``"both"``.
        down_cell: the downward cell for ``"both"``; by default a copy of ``cell`` with parameters
            drawn anew.

    Raises:
        ConfigError: an unknown direction, something that is no cell, ``down_cell`` without
            ``"both"``.

    Shapes: x ``[num_nodes, in_features]`` and a `Dag` or `DagBatch` -> ``[num_nodes, out_features]``;
    for ``"both"`` the upward columns come first.
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
            self.cells["down"] = _drawn_anew(cell) if down_cell is None else down_cell
        else:
            self.cells[direction] = cell
        self.out_features = sum(_checked(cell).state_sizes[0] for cell in self.cells.values())

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Outputs ``[num_nodes, out_features]`` for the features ``x [num_nodes, in_features]``.

        Raises:
            DtypeError, GraphError: ``x`` does not fit the graph or the cell; what the cell raises.
        """
        check_graph(graph)
        position = edge_positions(graph, x.device)
        outputs = []
        for way, module in self.cells.items():
            cell = _checked(module)
            width = getattr(module, "in_features", x.shape[-1] if x.dim() else 0)
            like = next((p.dtype for p in module.parameters()), x.dtype)
            check_rows("x", x, graph.num_nodes, width, like)
            plan = sweep_plan(graph, "up" if way == "up" else "down", x.device)
            outputs.append(kernels.run_sweep(plan, x, position, cell))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _checked(cell: nn.Module) -> kernels.Cell:
    sizes = getattr(cell, "state_sizes", None)
    if not isinstance(cell, kernels.Cell) or not isinstance(sizes, tuple) or not sizes:
        raise ConfigError(
            f"{type(cell).__name__} is no cell: a cell has state_sizes, a tuple of widths, and "
            "forward(features, states, target, position); see dagnn.kernels.Cell."
        )
    return cell


def _drawn_anew(cell: nn.Module) -> nn.Module:
    """A copy of ``cell`` with parameters of its own; modules without reset_parameters keep the copied values."""
    fresh = copy.deepcopy(cell)
    for module in fresh.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return fresh
