"""Structure that changes while a `DagNN` trains: edges removed and added, and what belongs to those that stay."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag
from dagnn.graph.attributes import take
from dagnn.graph.edges import check_num_nodes, stable_order
from dagnn.graph.names import checked_names
from dagnn.nn.dag_nn.parameters import ParameterLayout

if TYPE_CHECKING:
    from dagnn.nn.dag_nn.network import DagNN


@dataclass(frozen=True, eq=False)
class StructureChange:
    """How the parameters of a network moved when its edges changed. `DagNN.prune` and `DagNN.grow` return one.

    Attributes:
        removed, added: numbers of edges.
        edge_from: int64 ``[num_edges]``, the entry of ``edge_weight`` that each entry was before; -1 for a new one.
        bias_from: int64 ``[num_biases]``, the same for ``bias``.
    """

    edge_weight: torch.nn.Parameter
    bias: torch.nn.Parameter
    removed: int
    added: int
    edge_from: Tensor
    bias_from: Tensor
    _shape_before: tuple[int, int]
    _carried: "WeakSet[torch.optim.Optimizer]" = field(default_factory=WeakSet, repr=False)

    def carry_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the state of an optimizer along: momenta and moments of what stays, a fresh start for what is new.

        Call it once after every change and before the next ``optimizer.step()``, in the order of the changes, for every
        optimizer that holds the network's parameters. Every entry of a parameter's state that has the parameter's shape
        is moved; others, such as the number of steps, stay. New entries begin as the optimizer begins: with zeros; in
        Rprop with the step size lr, in Adagrad with its initial value, in ASGD with the weight as its average. L-BFGS,
        whose history mixes all parameters, starts anew.

        Raises:
            ConfigError: the optimizer does not hold the parameters, or its state does not fit them: a change before was
                not carried over, or it is kept in a way that is unknown here. Nothing has changed then.

        >>> from dagnn.nn import DagNN
        >>> net = DagNN(Dag([("a", "c"), ("b", "c")]))
        >>> optimizer = torch.optim.Adam(net.parameters())
        >>> net.edge_weight.sum().backward(); optimizer.step()
        >>> net.prune(fraction=0.5).carry_over(optimizer)
        >>> state = optimizer.state[net.edge_weight]
        >>> state["exp_avg"].shape
        torch.Size([1])
        """
        if optimizer in self._carried:
            return
        group_of = {id(held): group for group in optimizer.param_groups for held in group["params"]}
        ours = [
            (parameter, moved_from, before, group_of[id(parameter)])
            for parameter, moved_from, before in (
                (self.edge_weight, self.edge_from, self._shape_before[0]),
                (self.bias, self.bias_from, self._shape_before[1]),
            )
            if id(parameter) in group_of
        ]
        if not ours:
            raise ConfigError("carry_over needs an optimizer of this network's parameters, got one of others.")
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.state.clear()
            optimizer._numel_cache = None  # it counts once
        found = [
            (optimizer.state[parameter], name, _carried(value, name, parameter, moved_from, before, group))
            for parameter, moved_from, before, group in ours
            for name, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor) and (value.shape == (before,) or value.numel() > 1)
        ]
        for state, name, value in found:
            state[name] = value
        self._carried.add(optimizer)


def _carried(
    value: Tensor, name: str, parameter: Tensor, moved_from: Tensor, before: int, group: dict[str, Any]
) -> Tensor:
    """An entry of the optimizer's state for the parameter as it is now."""
    if value.shape != (before,):
        raise ConfigError(
            f"the optimizer's {name} has the shape {list(value.shape)}, but the parameter had {before} entries before "
            "this change: carry over every change, in order, or make a new optimizer."
        )
    fresh: float | Tensor = 0.0
    if name == "step_size":  # of Rprop
        fresh = float(group["lr"])
    elif name == "sum":  # of Adagrad
        fresh = float(group.get("initial_accumulator_value", 0.0))
    elif name == "ax":  # of ASGD
        fresh = parameter.detach().to(value)
    new = (moved_from < 0).to(value.device)
    return torch.where(new, fresh, moved(value, moved_from)).to(value.dtype)


def moved(values: Tensor, moved_from: Tensor) -> Tensor:
    """``values[moved_from]``, and 0 where that is -1."""
    moved_from = moved_from.to(values.device)
    if not len(values):
        return values.new_zeros(len(moved_from))
    return values.index_select(0, moved_from.clamp(min=0)).masked_fill_(moved_from < 0, 0)


def kept_by_prune(net: "DagNN", threshold: float | None, fraction: float | None) -> Tensor:
    """Which edges stay: bool ``[num_edges]``, by slot.

    Raises:
        ConfigError: not exactly one of ``threshold`` and ``fraction``, or one out of range.
    """
    given = [value for value in (threshold, fraction) if value is not None]
    if len(given) != 1 or not isinstance(given[0], Real | Tensor) or (isinstance(given[0], Tensor) and given[0].dim()):
        raise ConfigError(
            f"prune needs either threshold or fraction, got threshold={threshold!r} and fraction={fraction!r}: "
            "give one number."
        )
    if net.edge_weight.is_meta:
        raise ConfigError(
            'prune needs weights with values, and these are on the device "meta": load or draw them first.'
        )
    size = net.edge_weight.detach().abs().cpu()
    if fraction is None:
        assert threshold is not None
        if not threshold >= 0:
            raise ConfigError(f"threshold must be at least 0, got {threshold!r}: it is compared with |weight|.")
        return ~(size <= threshold)  # a NaN weight stays: nobody knows how small it is
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must lie between 0 and 1, got {fraction!r}: 0.9 removes 90 % of the edges.")
    kept = torch.ones_like(size, dtype=torch.bool)
    # 0.29 of 100 edges are 29, though 0.29 * 100 is 28.999999999999996.
    kept[size.argsort(stable=True)[: math.floor(fraction * len(size) + 1e-9)]] = False
    return kept


def check_outputs_stay_connected(net: "DagNN", kept: Tensor) -> None:
    """Raise GraphError if an output that some input reaches now is reached by none over the edges ``kept``."""
    layout = net._layout
    lost = reached(layout, torch.ones_like(kept)) & ~reached(layout, kept)
    cut_off = [place for place in layout.outputs.tolist() if lost[place]]
    if cut_off:
        name = layout.dag.name_of(int(layout.node_at[cut_off[0]]))
        raise GraphError(
            f"pruning {int((~kept).sum())} of {len(kept)} edges would cut the output {name!r} off from every input "
            f"({len(cut_off)} of {len(layout.outputs)} outputs in all): prune less, or pass allow_disconnected=True."
        )


def reached(layout: ParameterLayout, kept: Tensor) -> NDArray[np.bool_]:
    """Which nodes some input reaches over the edges ``kept``: ``[num_nodes]``, by place."""
    source, target = layout.edges[kept].numpy().T
    marked = np.zeros(layout.dag.num_nodes, dtype=bool)
    marked[layout.inputs.numpy()] = True
    # Edges are sorted by the place of their target, so by its level: one step per level.
    levels = layout.levels.numpy()[target]
    bounds = np.flatnonzero(np.diff(levels, prepend=-1, append=-1)) if len(levels) else np.zeros(0, np.int64)
    for start, stop in pairwise(bounds):
        marked[target[start:stop][marked[source[start:stop]]]] = True
    return marked


def without(net: "DagNN", kept: Tensor) -> Dag:
    """The net's Dag with the edges of the slots ``kept`` only; all nodes stay."""
    dag, layout = net.dag, net._layout
    chosen = np.sort(layout.edge_at[kept].numpy())
    return Dag(
        dag.edges.numpy()[chosen],
        dag.num_nodes,
        inputs=dag.inputs,
        outputs=dag.outputs,
        names=dag.names,
        node_attributes=dag.node_attributes,
        edge_attributes=take(dag.edge_attributes, chosen),
    )


def with_more(
    net: "DagNN", edges: Iterable[tuple[Hashable, Hashable]] | Tensor, nodes: Sequence[Hashable] | int
) -> tuple[Dag, NDArray[np.int64]]:
    """The net's Dag with more nodes and edges; and the new edges as node indices ``[num_new, 2]``.

    Raises:
        GraphError: an unknown or a repeated name, an edge that is there, attributes that new parts would lack.
        CycleError: the new edges close a cycle; the message names it.
    """
    dag = net.dag
    num_nodes, names = _more_nodes(dag, nodes)
    if dag.edge_attributes or (dag.node_attributes and num_nodes > dag.num_nodes):
        kind, attributes = ("edge", dag.edge_attributes) if dag.edge_attributes else ("node", dag.node_attributes)
        raise GraphError(
            f"the Dag has the {kind} attribute {next(iter(attributes))!r}, which the new {kind}s would lack: "
            "build the network on a Dag without it."
        )
    new = Dag(np.empty((0, 2), np.int64), num_nodes, names=names)._nodes.ends_of(edges, "edges")
    grown = Dag(
        np.concatenate([dag.edges.numpy(), new]),
        num_nodes,
        inputs=dag.inputs,
        outputs=dag.outputs,
        names=names,
        node_attributes=dag.node_attributes,
    )
    return grown, new


def new_weights(weight: object, count: int, like: Tensor) -> Tensor:
    """One number, or ``count`` numbers, of the dtype and on the device of ``like``."""
    try:
        is_typed = isinstance(weight, Tensor | np.ndarray | np.generic)
        given = torch.as_tensor(weight, dtype=None if is_typed else torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"weight must be a number or {count} numbers, got {weight!r}.") from error
    if given.is_complex() or given.dtype == torch.bool:
        raise ConfigError(f"weight must be a number or {count} numbers, real ones, got {weight!r}.")
    if given.dim() > 1 or (given.dim() == 1 and len(given) != count):
        raise ConfigError(f"weight must be a number or {count} numbers, got the shape {list(given.shape)}.")
    values = given.detach().to(like)
    if not like.is_meta and bool((values.isinf() & ~given.isinf().to(values.device)).any()):
        raise ConfigError(f"weight is too large for {like.dtype}, got {weight!r}: give smaller numbers.")
    return values


def _more_nodes(dag: Dag, nodes: Sequence[Hashable] | int) -> tuple[int, tuple[Hashable, ...] | None]:
    is_number = isinstance(nodes, int | np.integer)
    if dag.names is None:
        if is_number:
            return dag.num_nodes + check_num_nodes(nodes, "nodes"), None
        if not checked_names(nodes, "nodes"):
            return dag.num_nodes, None
        raise GraphError(f"the nodes of this Dag have no names, got nodes={nodes!r}: give the number of new nodes.")
    if is_number:
        raise GraphError(f"the nodes of this Dag have names, got nodes={nodes}: list the names of the new nodes.")
    names = (*dag.names, *checked_names(nodes, "nodes"))
    return len(names), names


def slots_before(old: ParameterLayout, new: ParameterLayout) -> tuple[Tensor, Tensor]:
    """For every edge and for every bias of ``new`` its slot in ``old``, or -1. Nodes keep their indices."""
    count = new.dag.num_nodes
    # By rows of the Dags: those are sorted in both, so that each search ends close to the one before.
    old_keys, new_keys = (layout.dag.edges.numpy() @ np.array([1, count]) for layout in (old, new))
    order = None
    if (old_keys[1:] < old_keys[:-1]).any():  # by position, not by source
        order = stable_order(old_keys, count * count)
        old_keys = old_keys[order]
    row = np.minimum(np.searchsorted(old_keys, new_keys), max(0, len(old_keys) - 1))
    found = old_keys[row] == new_keys if len(old_keys) else np.zeros(len(new_keys), dtype=bool)
    slot_of_row = np.empty_like(old_keys)
    slot_of_row[old.edge_at.numpy()] = np.arange(len(old_keys))
    before = np.full(len(new_keys), -1)
    before[found] = slot_of_row[row[found] if order is None else order[row[found]]]
    edge_from = before[new.edge_at.numpy()]

    bias_at = torch.full((count,), -1)
    bias_at[old.node_at[old.has_bias]] = torch.arange(old.num_biases)
    return torch.from_numpy(edge_from), bias_at[new.node_at[new.has_bias]]


def replace_values(parameter: torch.nn.Parameter, values: Tensor, moved_from: Tensor) -> None:
    """Give a parameter other values, of another length, and its gradient along; it stays the same object."""
    grad = None if parameter.grad is None else moved(parameter.grad, moved_from)
    parameter.grad = None
    # A graph that is still alive holds the node that accumulates into this parameter, with its old shape. PyTorch
    # makes a new one only when the type changes: so it does, for a moment.
    parameter.data = parameter.data.to(torch.float16)
    parameter.data = values
    parameter.grad = grad
