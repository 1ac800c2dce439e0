"""What a module needs to know about a `Dag` or `DagBatch` on one device, worked out once per graph."""

import weakref
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.graph.cached import constant, ordinary_tensors
from dagnn.kernels.level_plans import LevelPlan, plan_levels
from dagnn.kernels.sweep.plan import SweepPlan, plan_sweep

Graph = Dag | DagBatch
Direction = Literal["up", "down", "both"]


def check_direction(direction: str) -> None:
    """Raise ConfigError unless ``direction`` is one of ``"up"``, ``"down"``, ``"both"``."""
    if direction not in get_args(Direction):
        raise ConfigError(
            f"direction must be 'up' (along the edges), 'down' (against them) or 'both', got {direction!r}."
        )


@constant
def sweep_plan(graph: Graph, direction: Literal["up", "down"], device: torch.device) -> LevelPlan:
    """The sweep along the edges (``"up"``: operands before operators), or against them."""

    def plan() -> LevelPlan:
        edges = graph.edges.cpu()
        if direction == "up":
            return plan_levels(edges, graph.levels.cpu())
        return plan_levels(edges.flip(1), graph.heights.cpu())  # against the edges, heights are the levels

    on_cpu: LevelPlan = _remembered(graph, (direction, "cpu"), plan)
    if device.type == "cpu":
        return on_cpu
    on_device: LevelPlan = _remembered(graph, (direction, device), lambda: on_cpu.to(device))
    return on_device


def compiled_plan(graph: Graph, direction: Literal["up", "down"], *, by_position: bool, by_operator: bool) -> SweepPlan:
    """The same sweep for the compiled path.

    Args:
        by_position: the cell distinguishes the positions of operands; see `edge_positions`.
        by_operator: the cell distinguishes the operators of nodes; see `node_operators`.
    """

    def plan() -> SweepPlan:
        source, target = np.ascontiguousarray(graph.edges.cpu().numpy().T)
        level = graph.levels
        if direction == "down":
            source, target, level = target, source, graph.heights
        cpu = torch.device("cpu")
        position = edge_positions(graph, cpu).to(torch.int64).numpy() if by_position else None
        operator = node_operators(graph, cpu).numpy() if by_operator else None
        return plan_sweep(source, target, level.cpu().numpy(), position, operator)

    result: SweepPlan = _remembered(graph, (direction, "compiled", by_position, by_operator), plan)
    return result


@constant
def node_operators(graph: Graph, device: torch.device) -> Tensor:
    """int64 ``[num_nodes]``: the node attribute "operator"; GraphError where there are no whole numbers."""

    def operators() -> Tensor:
        given = graph.node_attributes.get("operator")
        if given is None:
            raise GraphError(
                "a cell with weights for every operator needs to know them: give the graph the node attribute "
                f"'operator', int64 [num_nodes]. It has {sorted(graph.node_attributes) or 'none'}."
            )
        try:
            operator = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            bad = next((value for value in given if not isinstance(value, int)), given)
            raise GraphError(
                f"the node attribute 'operator' must be whole numbers, got {bad!r}: number the operators 0, 1, 2, ..."
            ) from None
        if operator.is_floating_point() or operator.shape != (graph.num_nodes,):
            raise GraphError(
                f"the node attribute 'operator' must be int64 [num_nodes] = [{graph.num_nodes}], got "
                f"{str(operator.dtype).removeprefix('torch.')} {list(operator.shape)}."
            )
        return operator.to(device, torch.int64)

    result: Tensor = _remembered(graph, ("operator", device), operators)
    return result


@constant
def operator_bounds(graph: Graph) -> tuple[int, int]:
    """The lowest and the highest of `node_operators`; (0, 0) without nodes."""
    bounds: tuple[int, int] = _remembered(
        graph, "operators", lambda: _bounds(node_operators(graph, torch.device("cpu")))
    )
    return bounds


@constant
def position_bounds(graph: Graph) -> tuple[int, int] | None:
    """The lowest and the highest of `edge_positions`, (0, 0) without edges; None where they are no whole numbers."""

    def bounds() -> tuple[int, int] | None:
        position = edge_positions(graph, torch.device("cpu"))
        return None if position.is_floating_point() or position.dim() != 1 else _bounds(position)

    result: tuple[int, int] | None = _remembered(graph, "positions", bounds)
    return result


@constant
def edge_ends(graph: Graph, device: torch.device) -> tuple[Tensor, Tensor]:
    """Sources and targets: two contiguous int64 ``[num_edges]``, in the order of ``graph.edges``."""

    def ends() -> tuple[Tensor, Tensor]:
        source, target = graph.edges.to(device).t().contiguous().unbind(0)
        return source, target

    result: tuple[Tensor, Tensor] = _remembered(graph, ("ends", device), ends)
    return result


@constant
def edge_positions(graph: Graph, device: torch.device) -> Tensor:
    """int64 ``[num_edges]``: which operand of its target the source of an edge is.

    The edge attribute "position", or without one the rank of the edge among those into its target.
    """

    def positions() -> Tensor:
        given = graph.edge_attributes.get("position")
        if given is not None:
            return torch.as_tensor(given).to(device)
        target = graph.edges[:, 1].cpu()
        return _rank_in_group(target, torch.bincount(target, minlength=graph.num_nodes)).to(device)

    result: Tensor = _remembered(graph, ("position", device), positions)
    return result


@constant
def graph_of_node(graph: Graph, device: torch.device) -> Tensor:
    """int64 ``[num_nodes]``: the graph of the batch that a node belongs to; zeros for a single `Dag`."""

    def owners() -> Tensor:
        if isinstance(graph, Dag):
            return torch.zeros(graph.num_nodes, dtype=torch.int64, device=device)
        return graph.graph_of_node.to(device)

    result: Tensor = _remembered(graph, ("graph_of_node", device), owners)
    return result


@constant
def dense_places(graph: Graph, device: torch.device) -> tuple[Tensor, int]:
    """int64 ``[num_nodes]``, ``graph * width + rank in its graph``: where nodes lie in rows of equal width.

    The second result is ``width``, the nodes of the largest graph.
    """

    def places() -> tuple[Tensor, int]:
        owner = graph_of_node(graph, torch.device("cpu"))
        count = torch.bincount(owner, minlength=num_graphs(graph))
        width = int(count.max()) if len(count) else 0
        return (owner * width + _rank_in_group(owner, count)).to(device), width

    result: tuple[Tensor, int] = _remembered(graph, ("dense", device), places)
    return result


def num_graphs(graph: Graph) -> int:
    """Graphs in the batch; 1 for a single `Dag`."""
    return 1 if isinstance(graph, Dag) else len(graph)


def check_graph(graph: object) -> None:
    """Raise GraphError unless ``graph`` is a `Dag` or a `DagBatch`."""
    if not isinstance(graph, Dag | DagBatch):
        raise GraphError(
            f"graph must be a Dag or a DagBatch, got {type(graph).__name__}: build one with Dag(edges, ...) "
            "or DagBatch.from_dags([...])."
        )


def _bounds(numbers: Tensor) -> tuple[int, int]:
    if not len(numbers):
        return 0, 0
    low, high = numbers.aminmax()
    return int(low), int(high)


def _rank_in_group(group: Tensor, count: Tensor) -> Tensor:
    """For each entry how many before it have the same group: int64 ``[n]``; ``count`` is the size of every group."""
    # Stable: ranks follow the order of the entries, which is what makes the default positions reproducible.
    order = group.argsort(stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return rank - (count.cumsum(0) - count)[group]


# id(graph) -> (weak reference to the graph, its facts). By identity, not by content as a dict of graphs would do:
# comparing two large graphs costs more than many a plan.
_facts: dict[int, tuple["weakref.ref[Graph]", dict[Any, Any]]] = {}


def _remembered(graph: Graph, key: Any, make: Callable[[], Any]) -> Any:
    """``make()``, called once per graph object and key. Forgotten with the graph."""
    identity = id(graph)
    entry = _facts.get(identity)
    # The second test: the id of a graph that is gone may belong to a new one before `_forget` has run.
    if entry is None or entry[0]() is not graph:
        entry = (weakref.ref(graph, lambda gone: _forget(identity, gone)), {})
        _facts[identity] = entry
    facts = entry[1]
    if key not in facts:
        with ordinary_tensors():
            facts[key] = make()
    return facts[key]


def _forget(identity: int, gone: "weakref.ref[Graph]") -> None:
    # A new graph may live at the same address by now: drop the entry only if it is still the old one's.
    entry = _facts.get(identity)
    if entry is not None and entry[0] is gone:
        del _facts[identity]
