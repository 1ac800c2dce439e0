"""The plain-PyTorch sweeps: the oracle of the tests and the path for every device.

Only out-of-place tensor operations, so autograd differentiates them as often as you like and
``torch.func`` may transform them. Values are node-major, ``[nodes of a level, batch]``: an edge
then moves one contiguous row.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dagnn.kernels.activations import ACTIVATIONS
from dagnn.kernels.levels import LevelPlan, gather_sources
from dagnn.kernels.network_levels import ActivationGroups, NetworkLevels


def run_network(plan: NetworkLevels, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """``value[v] = act(sum over u -> v of w_uv value[u] + b_v)``, level by level.

    Args:
        plan: the DAG, on the device of ``x``.
        x: float ``[B, inputs]``.
        edge_weight: ``[num_edges]``, the dtype of ``x``.
        bias: ``[num_biases]``, the dtype of ``x``.

    Returns:
        ``[B, outputs]``, contiguous.
    """
    levels, batch = plan.levels, x.shape[0]  # not len(x), which torch.export and torch.jit.trace take for a constant
    weights = torch.split(edge_weight.index_select(0, levels.edge_order).unsqueeze(1), levels.edges_per_level)
    source_rows = torch.split(levels.source_in_level, levels.edges_per_level)
    target_rows = torch.split(levels.target_in_level, levels.edges_per_level)
    bias_of_node = torch.cat([bias, bias.new_zeros(1)]).index_select(0, plan.bias_slot).unsqueeze(1)

    sources = _activate(bias_of_node.index_select(0, plan.sources), plan.activations[0]).expand(-1, batch)
    values = [torch.cat([x.t(), sources]).index_select(0, plan.level_zero)]
    biases = torch.split(bias_of_node, levels.nodes_per_level)
    for level in range(1, len(levels.nodes_per_level)):
        messages = gather_sources(values, levels.feeds[level], source_rows[level]) * weights[level]
        summed = biases[level].expand(-1, batch).index_add(0, target_rows[level], messages)
        values.append(_activate(summed, plan.activations[level]))

    outputs = gather_sources(values, plan.output_feed, plan.output_rows)
    return outputs.index_select(0, plan.output_back).t().contiguous()


def _activate(x: Tensor, groups: ActivationGroups) -> Tensor:
    """The activations of one level's rows."""
    if groups.back is None:
        return ACTIVATIONS[groups.names[0]](x) if groups.names else x
    parts = [ACTIVATIONS[name](x.index_select(0, rows)) for name, rows in zip(groups.names, groups.rows, strict=True)]
    return torch.cat(parts).index_select(0, groups.back)


@runtime_checkable
class Cell(Protocol):
    """What a sweep calls once per level: the states of its nodes from those they depend on.

    ``state_sizes`` are the widths of the state tensors; the first one is the output of the node.

    Called with
        features: ``[n, in_features]``, the level's nodes.
        states: one ``[e, width]`` tensor per entry of ``state_sizes``: for each edge into the
            level the state of its source. ``e`` is 0 on the first level.
        target: int64 ``[e]``, the row in ``features`` that the edge goes to; in any order.
        position: int64 ``[e]``, which operand of the target the source is.
        operator: int64 ``[n]``, which operator a node is; only for a cell with an attribute
            ``operators`` that is not None, the number of them.
    and returns one ``[n, width]`` tensor per entry of ``state_sizes``. A node's state may depend on
    its own features and edges only.
    """

    state_sizes: tuple[int, ...]

    def __call__(
        self, features: Tensor, states: tuple[Tensor, ...], target: Tensor, position: Tensor
    ) -> tuple[Tensor, ...]: ...


def run_sweep(
    plan: LevelPlan, features: Tensor, position: Tensor, cell: Cell, operator: Tensor | None = None
) -> Tensor:
    """Output of every node after a sweep of ``cell`` in the order of ``plan``.

    Args:
        plan: the edges, on the device of ``features``.
        features: float ``[num_nodes, in_features]``.
        position: int64 ``[num_edges]``.
        operator: int64 ``[num_nodes]``, for a cell with weights for every operator: its fifth argument.

    Returns:
        ``[num_nodes, cell.state_sizes[0]]``.
    """
    features_of_level = torch.split(features.index_select(0, plan.node_order), plan.nodes_per_level)
    position_of_level = torch.split(position.index_select(0, plan.edge_order), plan.edges_per_level)
    source_rows = torch.split(plan.source_in_level, plan.edges_per_level)
    target_rows = torch.split(plan.target_in_level, plan.edges_per_level)
    operators = (
        None if operator is None else torch.split(operator.index_select(0, plan.node_order), plan.nodes_per_level)
    )
    # states[i][level]: the i-th state tensor of the level's nodes.
    states: list[list[Tensor]] = [[] for _ in cell.state_sizes]

    for level, feed in enumerate(plan.feeds):
        if feed:
            gathered = tuple(gather_sources(state, feed, source_rows[level]) for state in states)
        else:
            gathered = tuple(features.new_zeros(0, width) for width in cell.state_sizes)
        inputs = (features_of_level[level], gathered, target_rows[level], position_of_level[level])
        new = cell(*inputs) if operators is None else cell(*inputs, operators[level])  # type: ignore[call-arg]
        for state, values in zip(states, new, strict=True):
            state.append(values)

    if not states[0]:
        return features.sum() * features.new_zeros(0, cell.state_sizes[0])  # in the autograd graph of the features
    return torch.cat(states[0]).index_select(0, plan.place)
