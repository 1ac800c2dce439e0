"""`NetworkLevels`: a network prepared for the reference path, level by level."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dagnn.kernels.levels import LevelPlan, plan_levels


@dataclass(frozen=True, eq=False)
class ActivationGroups:
    """The rows of a level by activation: ``names[i]`` applies to ``rows[i]``.

    ``back`` is None when one activation serves the whole level in its own order; otherwise it
    undoes the grouping: int64, row of the level -> row of the joined groups.
    """

    names: tuple[str, ...]
    rows: tuple[Tensor, ...]
    back: Tensor | None

    def to(self, device: torch.device) -> "ActivationGroups":
        back = None if self.back is None else self.back.to(device)
        return ActivationGroups(self.names, tuple(rows.to(device) for rows in self.rows), back)


@dataclass(frozen=True, eq=False)
class NetworkLevels:
    """A DAG with inputs, outputs, biases and activations, ready to run.

    Nodes are numbered by level, and edges as the entries of the weight vector.

    Attributes:
        levels: the sweep over the edges.
        bias_slot: int64 ``[num_nodes]``, entry of the bias vector, or its length for no bias.
        level_zero: int64 ``[size of level 0]``, row of (inputs, then other sources).
        sources: int64, nodes of level 0 that are not inputs.
        activations: groups of every level; those of level 0 are of ``sources``.
        output_feed, output_rows: where the outputs lie, as one more level (see `LevelPlan.feeds`).
        output_back: int64 ``[outputs]``, output -> its row in that level.
        num_inputs: features expected.
    """

    levels: LevelPlan
    bias_slot: Tensor
    level_zero: Tensor
    sources: Tensor
    activations: tuple[ActivationGroups, ...]
    output_feed: tuple[tuple[int, int], ...]
    output_rows: Tensor
    output_back: Tensor
    num_inputs: int

    def to(self, device: torch.device) -> "NetworkLevels":
        """The same plan with its tensors on ``device``."""
        return NetworkLevels(
            self.levels.to(device),
            self.bias_slot.to(device),
            self.level_zero.to(device),
            self.sources.to(device),
            tuple(groups.to(device) for groups in self.activations),
            self.output_feed,
            self.output_rows.to(device),
            self.output_back.to(device),
            self.num_inputs,
        )


def plan_network_levels(
    edges: Tensor, levels: Tensor, inputs: Tensor, outputs: Tensor, bias_slot: Tensor, activation: Sequence[str]
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

    by_level = levels[outputs].argsort(stable=True)
    feed = torch.unique_consecutive(levels[outputs][by_level], return_counts=True)
    return NetworkLevels(
        levels=plan,
        bias_slot=bias_slot,
        level_zero=level_zero,
        sources=sources,
        activations=tuple(groups),
        output_feed=tuple(zip(feed[0].tolist(), feed[1].tolist(), strict=True)),
        output_rows=(outputs - first_node[levels[outputs]])[by_level],
        output_back=by_level.argsort(),
        num_inputs=len(inputs),
    )


def _activation_groups(names: Sequence[str]) -> ActivationGroups:
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(name, []).append(row)
    rows = tuple(torch.tensor(rows, device="cpu") for rows in rows_of.values())
    if len(rows) < 2:
        return ActivationGroups(tuple(rows_of), rows, None)
    return ActivationGroups(tuple(rows_of), rows, torch.cat(rows).argsort())
