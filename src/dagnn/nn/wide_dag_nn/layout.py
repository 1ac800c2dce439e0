"""What each node of a `WideDagNN` is, and where its parameters are.

`NodeSettings`: width, activation, norm, dropout and head of every node; read, checked, written down. `WideLayout`:
which entries belong to which edge, node or head, and the plan of the kernels.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag
from dagnn.graph.edges import offsets_of
from dagnn.kernels.nodes import activation_text, second_moment
from dagnn.kernels.wide.plan import Normalise, WidePlan, ranges
from dagnn.nn.dag_nn.parameters import ParameterLayout, node_activations
from dagnn.nn.learnable import check_size

_NORMS = ("batch", "layer")


@dataclass(frozen=True)
class NodeSettings:
    """One entry for every node of the Dag, in its order.

    Attributes:
        width: units.
        activation: text, as `dagnn.kernels.nodes.activation_text` writes it.
        normed, residual: whether it has a norm; whether its sources' values are passed on.
        dropout: the probability that it is 0 in a sample.
        head: outputs of its head; 0 for none.
    """

    width: list[int]
    activation: list[str]
    normed: list[bool]
    residual: list[bool]
    dropout: list[float]
    head: list[int]

    def more(self, count: int, *, width: int, activation: str, normed: bool) -> "NodeSettings":
        """With ``count`` more nodes, which pass sources on if others do, and have no dropout and no head."""
        return NodeSettings(
            self.width + [width] * count,
            self.activation + [activation] * count,
            self.normed + [normed] * count,
            self.residual + [any(self.residual)] * count,
            self.dropout + [0.0] * count,
            self.head + [0] * count,
        )

    def document(self) -> dict[str, list[Any]]:
        """For JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def read(document: Mapping[str, Any], num_nodes: int) -> "NodeSettings":
        """What `document` wrote, checked; ConfigError for anything else."""
        kinds = {"width": int, "activation": str, "normed": bool, "residual": bool, "dropout": float, "head": int}
        for name, kind in kinds.items():
            values = document.get(name)
            fits = isinstance(values, list) and len(values) == num_nodes
            if not fits or not all(type(value) is kind for value in values or ()):
                raise ConfigError(f"{name} must list a {kind.__name__} for each of {num_nodes} nodes.")
        made = NodeSettings(**{name: list(document[name]) for name in kinds})
        for text in set(made.activation):
            activation_text(text)
        if min(made.width, default=1) < 1 or min(made.head, default=0) < 0:
            raise ConfigError("widths must be at least 1, and outputs of heads at least 0.")
        for rate in set(made.dropout):
            check_rate(rate, "dropout")
        return made


def read_settings(
    dag: Dag,
    *,
    width: int | Sequence[int] | Mapping[Hashable, int],
    activation: Any,
    output_activation: Any,
    normalise: str | None,
    dropout: float | Mapping[Hashable, float],
    residual: bool,
    heads: int | Collection[Hashable] | Mapping[Hashable, int] | None,
) -> NodeSettings:
    """The settings of every node from the arguments of `WideDagNN`.

    Raises:
        ConfigError: a value out of range, a list of another length; a layer norm of a node with one unit.
        GraphError: an unknown node, or one twice; a head on an input.
    """
    if normalise not in (None, *_NORMS):
        raise ConfigError(f"normalise must be 'batch', 'layer' or None, got {normalise!r}.")
    if not isinstance(residual, bool):
        raise ConfigError(f"residual must be True or False, got {residual!r}.")
    inputs = set(dag.inputs.tolist())
    head = _heads(dag, heads, inputs)
    # An output that nothing reads but the user: no norm, no dropout, and one unit unless told.
    final = {
        node for node in dag.outputs[dag.out_degree[dag.outputs] == 0].tolist() if node not in inputs and not head[node]
    }
    hidden = [node not in inputs and node not in final for node in range(dag.num_nodes)]
    widths = _widths(dag, width, hidden)
    # An output with a head is a hidden node: its activation is that of the others.
    headed = [node for node in dag.outputs.tolist() if head[node]]
    activations = node_activations(dag, activation, output_activation, headed)
    if normalise == "layer":
        single = [node for node in range(dag.num_nodes) if hidden[node] and widths[node] == 1]
        if single:
            raise ConfigError(
                f"a layer norm of one unit is always 0, and the node {dag.name_of(single[0])!r} has one "
                f"({len(single)} nodes in all): give it more, or choose normalise='batch'."
            )
    return NodeSettings(
        widths,
        activations,
        [normalise is not None and is_hidden for is_hidden in hidden],
        [residual and is_hidden for is_hidden in hidden],
        _rates(dag, dropout, hidden, inputs),
        head,
    )


def check_rate(given: object, argument: str) -> float:
    """``given`` as a probability below 1; ConfigError if it is none."""
    if isinstance(given, Real) and not isinstance(given, bool) and 0 <= float(given) < 1:
        return float(given)
    raise ConfigError(f"{argument} must be at least 0 and below 1, got {given!r}: it is the share that is dropped.")


def _widths(dag: Dag, given: Any, hidden: Sequence[bool]) -> list[int]:
    if isinstance(given, Mapping):
        chosen = _by_node(dag, given, "width")
        return [
            check_size(f"width[{dag.name_of(node)!r}]", chosen[node]) if node in chosen else 1
            for node in range(dag.num_nodes)
        ]
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str):
        levels, count = dag.levels.tolist(), int(dag.levels.max()) + 1 if dag.num_nodes else 0
        if len(given) != count:
            raise ConfigError(f"width lists {len(given)} numbers, expected one for each of {count} levels.")
        listed = [check_size(f"width[{level}]", one) for level, one in enumerate(given)]
        return [listed[level] for level in levels]
    one = check_size("width", given)
    return [one if is_hidden else 1 for is_hidden in hidden]


def _rates(dag: Dag, given: Any, hidden: Sequence[bool], inputs: set[int]) -> list[float]:
    if not isinstance(given, Mapping):
        rate = check_rate(given, "dropout")
        return [rate if is_hidden else 0.0 for is_hidden in hidden]
    rates = [0.0] * dag.num_nodes
    for node, rate in _by_node(dag, given, "dropout").items():
        if node in inputs:
            raise GraphError(
                f"dropout names the input {dag.name_of(node)!r}, whose value is given: drop it in x, or leave it out."
            )
        rates[node] = check_rate(rate, f"dropout[{dag.name_of(node)!r}]")
    return rates


def _heads(dag: Dag, given: Any, inputs: set[int]) -> list[int]:
    if given is None:
        return [0] * dag.num_nodes
    if isinstance(given, Integral):
        outputs = check_size("heads", given)
        return [0 if node in inputs else outputs for node in range(dag.num_nodes)]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(
            f"heads must be a number of outputs for every node, a list of nodes, or a dict by node name, got {given!r}."
        )
    chosen = _by_node(dag, given if isinstance(given, Mapping) else dict.fromkeys(given, 1), "heads")
    counts = [0] * dag.num_nodes
    for node, outputs in chosen.items():
        if node in inputs:
            raise GraphError(f"heads names the input {dag.name_of(node)!r}: a head reads a node that is computed.")
        counts[node] = check_size(f"heads[{dag.name_of(node)!r}]", outputs)
    return counts


def _by_node(dag: Dag, given: Mapping[Hashable, Any], argument: str) -> dict[int, Any]:
    chosen = dict[int, Any]()
    for name, value in given.items():
        node = dag.index_of(name)
        if node in chosen:
            raise GraphError(f"{argument} has the node {dag.name_of(node)!r} twice, the second time as {name!r}.")
        chosen[node] = value
    return chosen


class WideLayout:
    """The order of the parameters. Like `ParameterLayout`, it depends on names, not on the order of declaration.

    ``edge_weight``: the block of every edge, in the order of `ParameterLayout`; then of every head, in the order of
    places, the block that reads its node and, with a ``head_activation``, that of its second layer. A block is stored
    as the transpose of its matrix. ``bias``: of every node that has one; then of every head, in the same way.
    ``scale`` and ``shift``: of every node with a norm, by place.

    Attributes:
        edges: the layout of edges and biases as if every node had one unit.
        width, head: int64 ``[num_nodes]``, by place.
        edge_first, bias_first: where the block of every edge begins, and the biases of every node that has some; with
            the end of the last.
        norm_first: int64 ``[num_nodes + 1]``, by place; as many entries as units, or none.
        head_weight_first, head_bias_first: where those of every node with a head begin, by place.
    """

    def __init__(self, edges: ParameterLayout, nodes: NodeSettings, head_activation: str | None) -> None:
        self.edges, self.nodes, self.head_activation = edges, nodes, head_activation
        node_at = edges.node_at.numpy()
        self.width, self.head = (np.array(each, np.int64)[node_at] for each in (nodes.width, nodes.head))
        self.normed = np.array(nodes.normed, bool)[node_at]
        source, target = edges.edges.numpy().T
        has_bias = edges.has_bias.numpy()
        self.edge_first = offsets_of(self.width[source] * self.width[target])
        self.bias_first = offsets_of(self.width[has_bias])
        self.norm_first = offsets_of(np.where(self.normed, self.width, 0))
        second = head_activation is not None
        self.head_weight_first = offsets_of(self.head * (self.width + second * self.head)) + self.edge_first[-1]
        self.head_bias_first = offsets_of(self.head * (1 + second)) + self.bias_first[-1]

    @property
    def num_weights(self) -> int:
        return int(self.head_weight_first[-1])

    @property
    def num_biases(self) -> int:
        return int(self.head_bias_first[-1])

    @property
    def num_norms(self) -> int:
        return int(self.norm_first[-1])

    @cached_property
    def with_head(self) -> NDArray[np.int64]:
        """Places of the nodes that have one."""
        return np.flatnonzero(self.head)

    @cached_property
    def head_names(self) -> dict[Hashable, int]:
        """The names of these nodes, in their order, with their index among them."""
        nodes = self.edges.node_at[torch.from_numpy(self.with_head)].tolist()
        return {self.edges.dag.name_of(node): index for index, node in enumerate(nodes)}

    def block(self, values: Tensor, edge: int) -> Tensor:
        """The block of an edge, ``[width of its target, width of its source]``: a view of ``values [weights]``."""
        source, target = self.edges.edges[edge].tolist()
        first, stop = self.edge_first[edge : edge + 2].tolist()
        return values[first:stop].view(int(self.width[source]), int(self.width[target])).t()

    def blocks(self, values: Tensor) -> dict[tuple[Hashable, Hashable], Tensor]:
        return {name: self.block(values, edge) for edge, name in enumerate(self.edges.edge_names())}

    def of_units(self, values: Tensor) -> dict[Hashable, Tensor]:
        """The biases of every node that has some, or their gradients: views."""
        bounds = self.bias_first.tolist()
        names = self.edges.bias_names()
        return {name: values[bounds[k] : bounds[k + 1]] for k, name in enumerate(names)}

    # ---- what kernels run ----

    def plan(self, normalise: Normalise | None) -> WidePlan:
        """The plan of the network; heads are nodes of it."""
        return _Builder(self, normalise).plan()

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Largest absolute value at the start, of every weight and bias; see `WideDagNN.reset_parameters`."""
        source, target = self.edges.edges.numpy().T
        names = [self.nodes.activation[node] for node in self.edges.node_at.tolist()]
        moment = np.array([second_moment(name) for name in names], dtype=np.float64)
        moment[self.edges.inputs.numpy()] = 1.0
        moment[self.normed] = 1.0
        units = np.bincount(target, self.width[source], len(self.width))  # into every node
        of_edges = np.repeat(1 / (units[target] * moment[source]), np.diff(self.edge_first))
        heads = [of_edges]
        for place in self.with_head.tolist():
            outputs, width = int(self.head[place]), int(self.width[place])
            heads.append(np.full(outputs * width, 1 / (width * moment[place])))
            if self.head_activation is not None:
                heads.append(np.full(outputs**2, 1 / (outputs * second_moment(self.head_activation))))
        is_source = (self.edges.in_degree == 0).numpy()[self.edges.has_bias.numpy()]
        bias = np.zeros(self.num_biases)
        bias[: self.bias_first[-1]] = np.repeat(3**0.5 * is_source, np.diff(self.bias_first))
        return np.sqrt(3 * np.concatenate(heads)), bias


class _Builder:
    """Numbers the nodes of the plan: inputs in the order of x, then levels; a head is one level behind its node."""

    def __init__(self, layout: WideLayout, normalise: Normalise | None) -> None:
        self.layout, self.normalise = layout, normalise
        edges, place = layout.edges, layout.with_head
        depth = 1 + (layout.head_activation is not None)
        levels = edges.levels.numpy()
        # Nodes of the Dag by place, then first and second layers of the heads.
        self.level = np.concatenate([levels, *(levels[place] + 1 + k for k in range(depth))])
        self.of_head = [np.arange(len(place)) + len(levels) + k * len(place) for k in range(depth)]
        first = np.full(len(self.level), len(edges.inputs))
        first[edges.inputs.numpy()] = np.arange(len(edges.inputs))
        self.order = np.lexsort((self.level, first))  # stable: by place within a level
        self.number = np.empty_like(self.order)
        self.number[self.order] = np.arange(len(self.order))

    def plan(self) -> WidePlan:
        layout, edges, heads = self.layout, self.layout.edges, self.of_head
        place, outputs = layout.with_head, layout.head[layout.with_head]
        count, total = len(layout.width), len(self.level)
        width = np.concatenate([layout.width, *(outputs for _ in heads)])

        source, target = edges.edges.numpy().T
        source = np.concatenate([source, place, *heads[:-1]])
        target = np.concatenate([target, *heads])
        source, target = self.number[source], self.number[target]
        by_target = np.argsort(target, kind="stable")  # edges into a node stay in the order of their weights

        weight_first, bias_first = np.zeros(total, np.int64), np.full(total, -1)
        into = edges.edges.numpy()[:, 1]
        first_edge = np.searchsorted(into, np.arange(count))
        weight_first[:count] = layout.edge_first[np.minimum(first_edge, len(into))]
        bias_first[:count][edges.has_bias.numpy()] = layout.bias_first[:-1]
        for layer, nodes in enumerate(heads):
            weight_first[nodes] = layout.head_weight_first[place] + layer * outputs * layout.width[place]
            bias_first[nodes] = layout.head_bias_first[place] + layer * outputs

        def of_nodes(values: NDArray[np.generic], otherwise: object) -> NDArray[np.generic]:
            """Values by place, and one for all heads, as the plan numbers nodes."""
            full = np.full(total, otherwise, dtype=values.dtype)
            full[:count] = values
            return full[self.order]

        node_at = edges.node_at.tolist()
        activations = [layout.nodes.activation[node] for node in node_at] + ["identity"] * (total - count)
        if layout.head_activation is not None:
            activations[count : count + len(place)] = [layout.head_activation] * len(place)
        drops = np.array(layout.nodes.dropout)[node_at] > 0
        drop_row = np.where(drops, np.cumsum(drops) - 1, -1)
        results = np.where(layout.head > 0, -1, np.arange(count))
        results[place] = heads[-1]
        outputs_of = results[edges.outputs.numpy()]
        reads = np.concatenate([heads[-1], np.unique(outputs_of[outputs_of < count])])
        return WidePlan(
            widths=width[self.order],
            levels=self.level[self.order],
            num_inputs=len(edges.inputs),
            sources=source[by_target],
            in_offsets=offsets_of(np.bincount(target, minlength=total)),
            weight_first=weight_first[self.order],
            bias_first=bias_first[self.order],
            norm_first=of_nodes(np.where(layout.normed, layout.norm_first[:-1], -1), -1).astype(np.int64),
            drop_row=of_nodes(drop_row, -1).astype(np.int64),
            has_residual=of_nodes(np.array(layout.nodes.residual, bool)[node_at], False).astype(bool),
            activations=[activations[node] for node in self.order.tolist()],
            reads=self.number[reads],
            normalise=self.normalise if layout.num_norms else None,
            sizes=(layout.num_weights, layout.num_biases, layout.num_norms, int(drops.sum())),
        )


def output_columns(layout: WideLayout) -> NDArray[np.int64]:
    """Which results are the columns of y, int64 ``[columns]``.

    Results are those of `WidePlan.reads`: of all heads by place, then of outputs without a head, by place.
    """
    outputs, width = layout.edges.outputs.numpy(), np.where(layout.head > 0, layout.head, layout.width)
    plain = np.unique(outputs[layout.head[outputs] == 0])
    read = np.concatenate([layout.with_head, plain])
    first = np.zeros(len(width), np.int64)
    first[read] = offsets_of(width[read])[:-1]
    return ranges(first[outputs], width[outputs])


def entries_before(old: WideLayout, new: WideLayout, edge_from: Tensor, bias_from: Tensor) -> tuple[Tensor, ...]:
    """Entry by entry what each weight, bias and entry of a norm was before: int64; -1 for a new one.

    Args:
        new: its first nodes are those of ``old``.
        edge_from, bias_from: the same of whole edges and biased nodes.
    """
    count = old.edges.dag.num_nodes
    node = new.edges.node_at.numpy()
    place_before = np.where(node < count, old.edges.place_of.numpy()[np.minimum(node, count - 1)], -1)
    # Heads may change places, for levels may change; all of them stay.
    heads = np.searchsorted(old.with_head, place_before[new.with_head])
    weights, biases = old.head_weight_first[old.with_head], old.head_bias_first[old.with_head]
    sizes = [np.diff(each)[old.with_head] for each in (old.head_weight_first, old.head_bias_first)]
    return tuple(
        torch.from_numpy(np.concatenate(parts))
        for parts in (
            [
                _entries(edge_from.numpy(), old.edge_first[:-1], np.diff(new.edge_first)),
                _entries(heads, weights, sizes[0][heads]),
            ],
            [
                _entries(bias_from.numpy(), old.bias_first[:-1], np.diff(new.bias_first)),
                _entries(heads, biases, sizes[1][heads]),
            ],
            [_entries(place_before, old.norm_first[:-1], np.diff(new.norm_first))],
        )
    )


def _entries(before: NDArray[np.int64], first: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entry by entry what ``before`` says of whole blocks.

    Args:
        before: of every block its number before; -1 for a new one.
        first: where each block began before.
        length: entries of each block, as many now as before.
    """
    start = first[np.maximum(before, 0)] if len(first) else np.zeros(len(before), np.int64)
    return np.where(np.repeat(before, length) < 0, -1, ranges(start, length))
