"""A graph prepared level by level: `LevelPlan` for sweeps, `NetworkLevels` for a network with a weight per edge."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LevelPlan:
    """The order in which a sweep visits nodes and edges, and where each edge finds its source.

    Nodes are sorted by level, so a level is a run of ``node_order``. Edges are sorted by the level
    of their target, then by the level of their source: the edges into one level are a run of
    ``edge_order``, made of one shorter run per level that feeds it. A sweep then keeps one tensor
    per level and gathers from it; no level is ever copied into a growing whole (quadratic in the
    number of levels) or written in place (autograd would clone the whole per level).

    Attributes:
        node_order: int64 ``[num_nodes]``, the node at each position of the sweep.
        place: int64 ``[num_nodes]``, the position of each node in ``node_order``.
        edge_order: int64 ``[num_edges]``, the edge at each position of the sweep.
        target_in_level: int64 ``[num_edges]``, in sweep order: row of the edge's target among
            the nodes of its level. Not sorted.
        source_in_level: int64 ``[num_edges]``, the same for its source.
        nodes_per_level: the lengths of the runs of ``node_order``.
        edges_per_level: the lengths of the runs of ``edge_order``.
        feeds: for every level, ``(source level, number of edges)`` of each run of its edges.
    """

    node_order: Tensor
    place: Tensor
    edge_order: Tensor
    target_in_level: Tensor
    source_in_level: Tensor
    nodes_per_level: list[int]
    edges_per_level: list[int]
    feeds: tuple[tuple[tuple[int, int], ...], ...]

    def to(self, device: torch.device) -> "LevelPlan":
        """The same plan with its tensors on ``device``."""
        return replace(self, **_tensors_on(device, self))


def _tensors_on(device: torch.device, plan: Any) -> dict[str, Any]:
    """The fields of a plan that are tensors, on ``device``."""
    return {name: value.to(device) for name, value in vars(plan).items() if isinstance(value, Tensor)}


def plan_levels(edges: Tensor, levels: Tensor, rank: Tensor | None = None) -> LevelPlan:
    """Plan of a sweep over ``edges`` in the order of ``levels``.

    Args:
        edges: int64 ``[num_edges, 2]`` on the CPU, rows (source, target). For a sweep against the
            edges give the flipped rows and the heights.
        levels: int64 ``[num_nodes]``; every edge goes to a higher level and every level from 0 to
            the highest has a node.
        rank: int64 ``[num_nodes]``, order of the nodes inside a level; by default their number.

    Cost: O(num_nodes log num_nodes + num_edges log num_edges).

    >>> plan_levels(torch.tensor([[0, 1], [1, 2], [0, 2]]), torch.tensor([0, 1, 2])).feeds
    ((), ((0, 1),), ((0, 1), (1, 1)))
    """
    num_nodes = len(levels)
    rank = torch.arange(num_nodes, device=levels.device) if rank is None else rank
    node_order = _lexsort(levels, rank)
    level_sizes = torch.bincount(levels)
    first_node = level_sizes.cumsum(0) - level_sizes
    place = torch.empty_like(node_order).scatter_(0, node_order, torch.arange(num_nodes, device=levels.device))
    row_in_level = place - first_node[levels]

    source, target = edges.unbind(1)
    # By the level of the source inside a level: each feeding level is then one run, gathered by one index_select.
    edge_order = _lexsort(levels[target], levels[source], place[target], place[source])
    source, target = source[edge_order], target[edge_order]
    pairs, counts = torch.unique_consecutive(
        torch.stack([levels[target], levels[source]], 1), dim=0, return_counts=True
    )
    feeds: list[list[tuple[int, int]]] = [[] for _ in range(len(level_sizes))]
    for (target_level, source_level), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        feeds[target_level].append((source_level, count))

    return LevelPlan(
        node_order,
        place,
        edge_order,
        row_in_level[target],
        row_in_level[source],
        level_sizes.tolist(),
        [sum(count for _, count in feed) for feed in feeds],
        tuple(tuple(feed) for feed in feeds),
    )


def gather_sources(states: Sequence[Tensor], feed: tuple[tuple[int, int], ...], rows: Tensor) -> Tensor:
    """The source's value of every edge into one level, ``[edges, ...]``.

    Args:
        states: one ``[level size, ...]`` tensor per level so far.
        feed: the level's entry of ``LevelPlan.feeds``.
        rows: int64 ``[edges]``, the level's run of ``LevelPlan.source_in_level``.
    """
    # Never from the concatenation of all levels so far: that is quadratic in their number.
    if len(feed) == 1:
        return states[feed[0][0]].index_select(0, rows)
    sizes = [states[level].shape[0] for level, _ in feed]
    if torch.compiler.is_exporting() and len(feed) > 2 and sum(sizes) <= 16 * rows.shape[0]:
        # A program with an operator for every pair of levels takes a minute to trace; this copies little more.
        shift = [
            before for before, (_, count) in zip(accumulate([0, *sizes]), feed, strict=False) for _ in range(count)
        ]
        return torch.cat([states[level] for level, _ in feed]).index_select(0, rows + torch.tensor(shift))
    runs = torch.split(rows, [count for _, count in feed])
    return torch.cat([states[level].index_select(0, run) for (level, _), run in zip(feed, runs, strict=True)])


def _lexsort(*keys: Tensor) -> Tensor:
    """Order that sorts by the first key, then the second, ...: int64 ``[n]``."""
    # The last key first: each later sort is stable, so it keeps the order of the keys behind it.
    order = keys[-1].argsort(stable=True)
    for key in reversed(keys[:-1]):
        order = order[key[order].argsort(stable=True)]
    return order


@dataclass(frozen=True, eq=False)
class ActivationGroups:
    """The rows of a level by activation: ``names[i]`` applies to ``rows[i]``.

    ``back`` is None when one activation serves the whole level in its own order; otherwise it
    undoes the grouping: int64, row of the level -> row of the groups' concatenation.
    """

    names: tuple[str, ...]
    rows: tuple[Tensor, ...]
    back: Tensor | None

    def to(self, device: torch.device) -> "ActivationGroups":
        return replace(self, rows=tuple(rows.to(device) for rows in self.rows), **_tensors_on(device, self))


@dataclass(frozen=True, eq=False)
class AggregationGroup:
    """Nodes of a level that aggregate in one way over equally many edges.

    Attributes:
        kind: one of `dagnn.kernels.AGGREGATIONS`.
        shape: how many nodes there are, and how many edges each has, at least 1.
        edges: int64 ``[nodes * edges of each]``, their places among the edges of the level, node by node.
    """

    kind: str
    shape: tuple[int, int]
    edges: Tensor

    def to(self, device: torch.device) -> "AggregationGroup":
        return replace(self, **_tensors_on(device, self))


@dataclass(frozen=True, eq=False)
class Aggregations:
    """How the nodes of a network aggregate, where some do more than sum.

    Attributes:
        groups: of every level; none where all nodes of a level sum with a response of 1, and on level 0.
        back: of every level int64 ``[nodes]``, row of the level -> row of the groups' concatenation.
        response: float64 ``[num_nodes]``.
        of_nothing: float64 ``[sources]``, response times aggregate of the nodes of level 0 that are not inputs.
    """

    groups: tuple[tuple[AggregationGroup, ...], ...]
    back: tuple[Tensor, ...]
    response: Tensor
    of_nothing: Tensor

    def to(self, device: torch.device) -> "Aggregations":
        groups = tuple(tuple(group.to(device) for group in groups) for groups in self.groups)
        back = tuple(rows.to(device) for rows in self.back)
        return replace(self, groups=groups, back=back, **_tensors_on(device, self))


@dataclass(frozen=True, eq=False)
class NetworkLevels:
    """A DAG with inputs, outputs, biases and activations, ready to run.

    Nodes are numbered by level, and edges as the entries of the weight vector.

    Attributes:
        levels: the sweep over the edges.
        bias_index: int64 ``[num_nodes]``, index in the bias vector, or its length for no bias.
        level_zero: int64 ``[size of level 0]``, row of (inputs, then other sources).
        sources: int64, nodes of level 0 that are not inputs.
        activations: groups of every level; those of level 0 are of ``sources``.
        output_feed, output_rows: where the outputs lie, as one more level (see `LevelPlan.feeds`).
        output_back: int64 ``[outputs]``, output -> its row in that level.
        num_inputs: features expected.
        aggregations: None where every node is a plain sum.
    """

    levels: LevelPlan
    bias_index: Tensor
    level_zero: Tensor
    sources: Tensor
    activations: tuple[ActivationGroups, ...]
    output_feed: tuple[tuple[int, int], ...]
    output_rows: Tensor
    output_back: Tensor
    num_inputs: int
    aggregations: Aggregations | None = None

    def to(self, device: torch.device) -> "NetworkLevels":
        """The same plan with its tensors on ``device``."""
        return replace(
            self,
            levels=self.levels.to(device),
            activations=tuple(groups.to(device) for groups in self.activations),
            aggregations=None if self.aggregations is None else self.aggregations.to(device),
            **_tensors_on(device, self),
        )


def plan_network_levels(
    edges: Tensor,
    levels: Tensor,
    inputs: Tensor,
    outputs: Tensor,
    bias_index: Tensor,
    activation: Sequence[str],
    aggregation: Sequence[str],
    response: Tensor,
) -> NetworkLevels:
    """What the reference path needs of a network whose nodes are numbered by level; see `NetworkPlan`."""
    plan = plan_levels(edges, levels)
    first_node = torch.tensor([0, *plan.nodes_per_level], device=levels.device).cumsum(0)
    is_input = torch.zeros(len(levels), dtype=torch.bool, device=levels.device).index_fill_(0, inputs, True)
    sources = (~is_input[: first_node[1] if plan.nodes_per_level else 0]).nonzero().flatten()
    level_zero = torch.cat([inputs, sources]).argsort()

    groups = [_activation_groups([activation[v] for v in sources.tolist()])]
    for start, size in zip(first_node.tolist()[1:], plan.nodes_per_level[1:], strict=False):
        groups.append(_activation_groups(activation[start : start + size]))

    # The outputs as one more level: gathered from those that hold them, then put back into the user's order.
    by_level = levels[outputs].argsort(stable=True)
    feed = torch.unique_consecutive(levels[outputs][by_level], return_counts=True)
    return NetworkLevels(
        levels=plan,
        bias_index=bias_index,
        level_zero=level_zero,
        sources=sources,
        activations=tuple(groups),
        output_feed=tuple(zip(feed[0].tolist(), feed[1].tolist(), strict=True)),
        output_rows=(outputs - first_node[levels[outputs]])[by_level],
        output_back=by_level.argsort(),
        num_inputs=len(inputs),
        aggregations=_aggregations(plan, sources, aggregation, response),
    )


def _aggregations(
    plan: LevelPlan, sources: Tensor, aggregation: Sequence[str], response: Tensor
) -> Aggregations | None:
    """None where every node is a plain sum. Nodes are numbered by level."""
    is_plain = torch.tensor([kind == "sum" for kind in aggregation], dtype=torch.bool, device="cpu") & (response == 1)
    if is_plain.all():
        return None
    groups: list[tuple[AggregationGroup, ...]] = [()]
    back: list[Tensor] = [sources.new_zeros(0)]
    targets = torch.split(plan.target_in_level, plan.edges_per_level)
    first = plan.nodes_per_level[0]
    for target, size in zip(targets[1:], plan.nodes_per_level[1:], strict=True):
        nodes = slice(first, first + size)
        plain = bool(is_plain[nodes].all())
        of_level, rows = ([], []) if plain else _aggregation_groups(target, aggregation[nodes])
        groups.append(tuple(of_level))
        back.append(torch.cat(rows).argsort() if rows else sources.new_zeros(0))
        first += size
    of_nothing = [response[v].item() if aggregation[v] == "product" else 0.0 for v in sources.tolist()]
    return Aggregations(
        tuple(groups), tuple(back), response, torch.tensor(of_nothing, dtype=torch.float64, device="cpu")
    )


def _aggregation_groups(target: Tensor, kinds: Sequence[str]) -> tuple[list[AggregationGroup], list[Tensor]]:
    """The groups of a level whose edges lead to its rows ``target``, and the rows of each group."""
    degree = torch.bincount(target, minlength=len(kinds))
    by_target = target.argsort(stable=True)
    first = degree.cumsum(0) - degree
    rows_of: dict[tuple[str, int], list[int]] = {}
    for row, (kind, count) in enumerate(zip(kinds, degree.tolist(), strict=True)):
        rows_of.setdefault((kind, count), []).append(row)
    groups = []
    for (kind, count), rows in rows_of.items():
        places = first[torch.tensor(rows, device="cpu")].unsqueeze(1) + torch.arange(count, device="cpu")
        groups.append(AggregationGroup(kind, (len(rows), count), by_target[places.flatten()]))
    return groups, [torch.tensor(rows, device="cpu") for rows in rows_of.values()]


def _activation_groups(names: Sequence[str]) -> ActivationGroups:
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(name, []).append(row)
    rows = tuple(torch.tensor(rows, device="cpu") for rows in rows_of.values())
    if len(rows) < 2:  # one activation, or no node: the level's own order will do
        return ActivationGroups(tuple(rows_of), rows, None)
    return ActivationGroups(tuple(rows_of), rows, torch.cat(rows).argsort())
