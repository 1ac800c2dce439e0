"""The parameters of a `WideDagNN`: which entries belong to which edge, node or head, and the plan of its kernels."""

from collections.abc import Hashable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.edges import offsets_of
from dagnn.kernels.nodes import second_moment
from dagnn.kernels.wide.plan import Normalise, WidePlan, ranges
from dagnn.nn.dag_nn.parameters import ParameterLayout
from dagnn.nn.wide_dag_nn.settings import NodeSettings


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
