"""Structure that changes while a `DagNN` trains: which edges go or come, and where each parameter entry moves.

`DagNN.prune` and `DagNN.grow` call these functions in turn: choose the new Dag, lay out its parameters, move the old
values into them. `StructureChange` then moves the state of an optimizer in the same way.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple
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


@dataclass(frozen=True, eq=False)
class StructureChange:
    """How the parameters of a network moved when its edges changed. `DagNN.prune` and `DagNN.grow` return one.

    Attributes:
        edge_weight, bias: the parameters, as they are after the change.
        removed, added: numbers of edges.
        edge_from: int64 ``[num_edges]``, the entry of ``edge_weight`` that each entry was before; -1 for a new one.
        bias_from: int64 ``[num_biases]``, the same for ``bias``.

    >>> from dagnn.nn import DagNN
    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]))
    >>> change = net.grow([("a", "b2"), ("b2", "c")], nodes=["b2"])
    >>> change.removed, change.added, change.edge_from.tolist()
    (0, 2, [-1, 0, 1, -1])
    """

    edge_weight: torch.nn.Parameter
    bias: torch.nn.Parameter
    removed: int
    added: int
    edge_from: Tensor
    bias_from: Tensor
    _moves: "tuple[Move, ...]" = field(repr=False)
    _carried: "WeakSet[torch.optim.Optimizer]" = field(default_factory=WeakSet, repr=False)

    def carry_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the state of an optimizer along: momenta and moments of what stays, a fresh start for what is new.

        Call it after every change and before the next ``optimizer.step()``, in the order of the changes, for every
        optimizer that holds the network's parameters; a second call for the same optimizer does nothing. It moves every
        entry of a parameter's state that has the parameter's shape; others, such as the number of steps, stay. New
        entries begin as the optimizer begins: with zeros; in Rprop with the step size lr, in Adagrad with its initial
        value, in ASGD with the weight as its average. The history of L-BFGS mixes all parameters, so it is cleared.

        Raises:
            ConfigError: the optimizer does not hold the parameters, or its state does not fit them: an earlier change
                was not carried over, or the optimizer keeps its state in a form that is unknown here. Nothing has
                changed then.

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
            for parameter, moved_from, before in self._moves
            if id(parameter) in group_of
        ]
        if not ours:
            raise ConfigError(
                f"carry_over needs an optimizer of this network's parameters, got a {type(optimizer).__name__} that "
                "holds none of them: pass the one that was made with net.parameters()."
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.state.clear()
            optimizer._numel_cache = None  # L-BFGS counts the entries only once
        found = [
            (optimizer.state[parameter], name, _moved_state(value, name, parameter, moved_from, before, group))
            for parameter, moved_from, before, group in ours
            for name, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor) and (value.shape == (before,) or value.numel() > 1)
        ]
        for state, name, value in found:
            state[name] = value
        self._carried.add(optimizer)


def _moved_state(
    value: Tensor, name: str, parameter: Tensor, moved_from: Tensor, before: int, group: dict[str, Any]
) -> Tensor:
    """One entry of the optimizer's state, for the parameter as it is now."""
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


def kept_by_prune(weight: Tensor, threshold: float | None, fraction: float | None) -> Tensor:
    """Which edges stay: bool ``[num_edges]``; ConfigError unless just one of both bounds is given, in range."""
    given = [value for value in (threshold, fraction) if value is not None]
    if len(given) != 1 or not isinstance(given[0], Real | Tensor) or (isinstance(given[0], Tensor) and given[0].dim()):
        raise ConfigError(
            f"prune needs either threshold or fraction, got threshold={threshold!r} and fraction={fraction!r}: "
            "give one number."
        )
    if weight.is_meta:
        raise ConfigError(
            'prune needs weights with values, and these are on the device "meta": load or draw them first.'
        )
    size = weight.detach().abs().cpu()
    if fraction is None:
        assert threshold is not None
        if not threshold >= 0:
            raise ConfigError(f"threshold must be at least 0, got {threshold!r}: it is compared with |weight|.")
        return ~(size <= threshold)  # ~, so that a NaN weight stays: its size is unknown
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must lie between 0 and 1, got {fraction!r}: 0.9 removes 90 % of the edges.")
    kept = torch.ones_like(size, dtype=torch.bool)
    # 0.29 of 100 edges are 29, though 0.29 * 100 is 28.999999999999996.
    kept[size.argsort(stable=True)[: math.floor(fraction * len(size) + 1e-9)]] = False
    return kept


def check_outputs_stay_connected(layout: ParameterLayout, kept: Tensor) -> None:
    """Raise GraphError if some output has a path from an input now, but none over the edges ``kept``."""
    lost = _reached(layout, torch.ones_like(kept)) & ~_reached(layout, kept)
    cut_off = [place for place in layout.outputs.tolist() if lost[place]]
    if cut_off:
        name = layout.dag.name_of(int(layout.node_at[cut_off[0]]))
        raise GraphError(
            f"pruning {int((~kept).sum())} of {len(kept)} edges would cut the output {name!r} off from every input "
            f"({len(cut_off)} of {len(layout.outputs)} outputs in all): prune less, or pass allow_disconnected=True."
        )


def _reached(layout: ParameterLayout, kept: Tensor) -> NDArray[np.bool_]:
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


def without(layout: ParameterLayout, kept: Tensor) -> Dag:
    """The Dag of ``layout`` with only the edges ``kept``, a mask over its weights; all nodes stay."""
    dag = layout.dag
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
    dag: Dag, edges: Iterable[tuple[Hashable, Hashable]] | Tensor, nodes: Sequence[Hashable] | int
) -> tuple[Dag, NDArray[np.int64]]:
    """``dag`` with more nodes and edges; and the new edges as node indices, int64 ``[num_new, 2]``.

    Raises:
        GraphError: an unknown or a repeated name, an edge that is there, attributes that new nodes or edges would lack.
        CycleError: the new edges close a cycle; the message names it.
    """
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


def new_weights(weight: object, edges: object, count: int, like: Tensor) -> Tensor:
    """The weights of ``count`` new edges: one number or ``[count]``, of the dtype and on the device of ``like``.

    ConfigError for no real numbers, another number of them, or too large ones for the dtype; for ``edges`` without an
    order in which a list of weights could be matched to them.
    """
    try:
        is_typed = isinstance(weight, Tensor | np.ndarray | np.generic)
        device = weight.device if isinstance(weight, Tensor) else "cpu"  # not the default device, which may be "meta"
        given = torch.as_tensor(weight, dtype=None if is_typed else torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"weight must be a number or {count} numbers, got {weight!r}.") from error
    if given.is_complex() or given.dtype == torch.bool:
        raise ConfigError(f"weight must be a number or {count} numbers, real ones, got {weight!r}.")
    if given.dim() > 1 or (given.dim() == 1 and len(given) != count):
        raise ConfigError(f"weight must be a number or {count} numbers, got the shape {list(given.shape)}.")
    values = given.detach().to(like)
    if not like.is_meta and bool((values.isinf() & ~given.isinf().to(values.device)).any()):
        raise ConfigError(f"weight is too large for {like.dtype}, got {weight!r}: give smaller numbers.")
    if isinstance(edges, Mapping) or (values.dim() and isinstance(edges, set | frozenset)):
        raise ConfigError(
            f"edges must be a list, in the order of weight=[...], got a {type(edges).__name__}: list them."
        )
    return values


def changed_layout(old: ParameterLayout, dag: Dag, *, all_biased: bool) -> tuple[ParameterLayout, Tensor, Tensor]:
    """The layout for ``dag``, whose first nodes are those of the old Dag; and as in `StructureChange` ``edge_from`` and
    ``bias_from``. ``all_biased``: every node that is not an input has a bias, also a new one.
    """
    # A bias never goes: a source that gets its first edge keeps its bias.
    has_bias = torch.full((dag.num_nodes,), all_biased)
    has_bias[old.node_at[old.has_bias]] = True
    by_name = old.by_name if dag.num_nodes == old.dag.num_nodes else None
    layout = ParameterLayout(dag, True if all_biased else has_bias, by_name)
    return layout, *_entries_before(old, layout)


def _entries_before(old: ParameterLayout, new: ParameterLayout) -> tuple[Tensor, Tensor]:
    """For every edge and for every bias of ``new`` its entry in ``old``, or -1. Nodes keep their indices."""
    count = new.dag.num_nodes
    # In the order of the rows of the Dags: both are sorted, so each search ends close to the one before.
    old_keys, new_keys = (layout.dag.edges.numpy() @ np.array([1, count]) for layout in (old, new))
    order = None
    if (old_keys[1:] < old_keys[:-1]).any():  # by position, not by source
        order = stable_order(old_keys, count * count)
        old_keys = old_keys[order]
    row = np.minimum(np.searchsorted(old_keys, new_keys), max(0, len(old_keys) - 1))
    found = old_keys[row] == new_keys if len(old_keys) else np.zeros(len(new_keys), dtype=bool)
    entry_of_row = np.empty_like(old_keys)
    entry_of_row[old.edge_at.numpy()] = np.arange(len(old_keys))
    before = np.full(len(new_keys), -1)
    before[found] = entry_of_row[row[found] if order is None else order[row[found]]]
    edge_from = before[new.edge_at.numpy()]

    bias_at = torch.full((count,), -1)
    bias_at[old.node_at[old.has_bias]] = torch.arange(old.num_biases)
    return torch.from_numpy(edge_from), bias_at[new.node_at[new.has_bias]]


def move_parameters(
    edge_weight: torch.nn.Parameter, bias: torch.nn.Parameter, edge_from: Tensor, bias_from: Tensor
) -> StructureChange:
    """Move the values and gradients of both parameters to their new entries; new entries are 0."""
    moves = moved_all([(edge_weight, edge_from), (bias, bias_from)])
    stayed = int((edge_from >= 0).sum())
    removed, added = moves[0].before - stayed, len(edge_from) - stayed
    return StructureChange(edge_weight, bias, removed, added, edge_from, bias_from, moves)


class Move(NamedTuple):
    """Where the entries of a parameter, ``before`` of them, have gone: ``moved_from`` as in `StructureChange`."""

    parameter: torch.nn.Parameter
    moved_from: Tensor
    before: int


def moved_all(moves: Sequence[tuple[torch.nn.Parameter, Tensor]]) -> tuple[Move, ...]:
    """Move values and gradients of parameters to their new entries; new entries are 0."""
    done = tuple(Move(parameter, origin, len(parameter)) for parameter, origin in moves)
    values = [moved(parameter.detach(), origin) for parameter, origin in moves]  # all, before any is replaced
    for (parameter, origin), value in zip(moves, values, strict=True):
        _replace_values(parameter, value, origin)
    return done


def moved(values: Tensor, moved_from: Tensor) -> Tensor:
    """``values[moved_from]``, and 0 where ``moved_from`` is -1."""
    moved_from = moved_from.to(values.device)
    if not len(values):
        return values.new_zeros(len(moved_from))
    return values.index_select(0, moved_from.clamp(min=0)).masked_fill_(moved_from < 0, 0)


def _replace_values(parameter: torch.nn.Parameter, values: Tensor, moved_from: Tensor) -> None:
    """Give a parameter and its gradient values of another length; the parameter stays the same object."""
    grad = None if parameter.grad is None else moved(parameter.grad, moved_from)
    parameter.grad = None
    # An autograd graph that is still alive holds the node that accumulates into this parameter, with its old shape.
    # PyTorch makes a new node only when the dtype changes, so the dtype changes for a moment.
    parameter.data = parameter.data.to(torch.float16)
    parameter.data = values
    parameter.grad = grad
