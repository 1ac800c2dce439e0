"""The plain-PyTorch sweeps and activations: the oracle of the tests and the path for every device."""

from collections.abc import Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.kernels.autograd import is_recorded
from dagnn.kernels.emit.expressions import NODE, SLOT
from dagnn.kernels.level_plans import ActivationGroups, LevelPlan, NetworkLevels, gather_sources
from dagnn.kernels.nodes import AGGREGATIONS, activation_of
from dagnn.kernels.sweep.cell_plan import CellPlan, Step

Aggregate = Literal["sum", "mean", "max"]


def segment_sum(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Sum of every group: ``[num_segments, ...]``."""
    return values.new_zeros(num_segments, *values.shape[1:]).index_add(0, segment, values)


def segment_mean(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Mean of every group: ``[num_segments, ...]``."""
    # Counted in integers: float16 counts only to 2048. An empty group is 0 / 1.
    count = segment_sum(torch.ones_like(segment), segment, num_segments).clamp(min=1).to(values.dtype)
    return segment_sum(values, segment, num_segments) / _column(count, values)


def segment_max(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Largest entry of every group, column by column: ``[num_segments, ...]``.

    The gradient goes to the winner; equal winners share it evenly, as in ``torch.amax``.
    """
    index = _column(segment, values).expand_as(values)
    # include_self=False: the zeros are what empty groups keep, and never compete with negative values.
    empty = values.new_zeros(num_segments, *values.shape[1:])
    return empty.scatter_reduce(0, index, values, "amax", include_self=False)


def segment_softmax(logits: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """``exp(logit)`` over its group's sum, column by column: the shape of ``logits``."""
    with torch.no_grad():  # shifting a group by a constant changes nothing, so neither does its gradient
        highest = segment_max(logits, segment, num_segments)
    weight = (logits - highest.index_select(0, segment)).exp()
    return weight / segment_sum(weight, segment, num_segments).index_select(0, segment)


def aggregate(kind: Aggregate, values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """`segment_sum`, `segment_mean` or `segment_max`, by name."""
    return {"sum": segment_sum, "mean": segment_mean, "max": segment_max}[kind](values, segment, num_segments)


def check_aggregate(kind: str) -> None:
    """Raise ConfigError unless ``kind`` is one of ``"sum"``, ``"mean"``, ``"max"``."""
    if kind not in get_args(Aggregate):
        raise ConfigError(f"aggregate must be one of sum, mean, max, got {kind!r}.")


def _column(per_row: Tensor, values: Tensor) -> Tensor:
    """``[n]`` as ``[n, 1, 1, ...]``, to go with ``values [n, ...]``."""
    return per_row.view(-1, *[1] * (values.dim() - 1))


States = tuple[Tensor, ...]


def cell_step(
    plan: CellPlan,
    projected: Tensor,
    states: States,
    target: Tensor,
    position: Tensor,
    weights: Sequence[Tensor],
    slots: int,
    operator: Tensor | None = None,
) -> States:
    """The new states of a level, by the formula of a cell.

    Args:
        projected: ``[n, features * hidden]``.
        states, target: as for a `Cell`.
        position: ``0 .. slots - 1``; of no meaning where there is one slot.
        weights: as in `dagnn.kernels.ProjectedCell`.
        slots: a node has at most so many; operands in one slot are summed.
    """
    rows = _Rows(len(projected), target, position if slots > 1 else torch.zeros_like(position), slots)
    hidden, rest = states[0].shape[1], list(weights)
    state_weight = rest.pop(0) if plan.aggregates else None
    known: dict[str, Tensor] = {f"source {name}": state for name, state in zip(plan.states, states, strict=True)}
    known |= _named("feature", plan.features, projected.view(len(projected), -1, hidden).unbind(1))
    if plan.each is not None:
        known[f"each {plan.each}"] = states[0] @ rest.pop(0)
    if plan.has_attention:
        known["attention None"] = segment_softmax(states[0] @ rest.pop(), rows.slot, rows.count).unsqueeze(1)
    known |= _named("vector", plan.vectors, [one.unsqueeze(0) for one in rest])

    values: dict[int, Tensor] = {}
    _compute(plan.first_steps, values, known, rows, projected)
    if state_weight is not None:
        columns = len(plan.columns)
        if len(target):
            operands = torch.stack([values[place] for place in plan.aggregate_places], 1).flatten(1)
            product = _product(rows.padded(operands), state_weight, operator).view(len(projected), -1, hidden)
        else:
            product = projected.new_zeros(len(projected), state_weight.shape[-1] // hidden, hidden)
        known |= _named("column", plan.columns, product[:, :columns].unbind(1))
        if plan.slot_columns:
            by_slot = product[:, columns:].reshape(len(projected) * slots, -1, hidden)
            by_slot = by_slot if rows.kept is None else by_slot.index_select(0, rows.kept)
            known |= _named("column by slot", plan.slot_columns, by_slot.unbind(1))
    _compute(plan.second_steps, values, known, rows, projected)
    # A state that depends on nothing of the node is the same for all of them.
    new = [values[place].expand(len(projected), hidden) for place in plan.new_places]
    if not len(target) and is_recorded():
        # Which parameters have a gradient depends on the formula alone: where this graph has no operands for them, it
        # is zeros, as of a layer of PyTorch's for a batch of no rows. With None, processes that train together on
        # different graphs would wait for each other.
        for one, is_reached in zip((projected, *weights), plan.reached, strict=True):
            if is_reached and one.requires_grad:
                new[0] = new[0] + one.flatten()[:0].sum()
    return tuple(new)


class _Rows:
    """Which rows belong to which: the slots of a level's nodes, and the edges into them.

    Only slots that exist have a row: what is undefined for one that does not, as 0 / 0, would make every gradient NaN.
    A program that is traced cannot have as many rows as its data say, and tensors on "meta" say nothing: there every
    node has all slots, and `summed` leaves out those that do not exist.
    """

    def __init__(self, nodes: int, target: Tensor, position: Tensor, slots: int) -> None:
        self.nodes, self._slots, place = nodes, slots, target * slots + position
        used = target.new_zeros(nodes).scatter_reduce(0, target, position + 1, "amax")
        exists = (torch.arange(slots, device=target.device) < used.unsqueeze(1)).flatten()
        if torch.compiler.is_compiling() or type(exists) is not Tensor or exists.is_meta:
            self.kept, self._exists, self.slot, self.count = None, exists.unsqueeze(1), place, nodes * slots
            self.node = torch.arange(nodes, device=target.device).repeat_interleave(slots)
        else:
            self.kept = exists.nonzero().flatten()
            self.slot, self.count = (exists.cumsum(0) - 1).index_select(0, place), len(self.kept)
            self.node = self.kept // slots

    def padded(self, values: Tensor) -> Tensor:
        """``[slots that exist, width]`` as ``[nodes, slots * width]``, 0 where there is none."""
        if self.kept is not None:
            values = values.new_zeros(self.nodes * self._slots, values.shape[1]).index_copy(0, self.kept, values)
        return values.view(self.nodes, -1)

    def summed(self, values: Tensor, level: int) -> Tensor:
        """Summed up to the level, from the one below."""
        if level == SLOT:
            return segment_sum(values, self.slot, self.count)
        if self.kept is None:
            values = torch.where(self._exists, values, 0)
        return segment_sum(values, self.node, self.nodes)

    def at_level(self, values: Tensor, level: int, to: int) -> Tensor:
        """Values of a level, repeated for the rows of one below."""
        for below, index in ((NODE, self.node), (SLOT, self.slot)):
            if level <= below < to and len(values) != 1:
                values = values.index_select(0, index)
        return values


def _named(op: str, names: Sequence[str], values: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{op} {name}": value for name, value in zip(names, values, strict=True)}


def _compute(
    steps: Sequence[Step], values: dict[int, Tensor], known: dict[str, Tensor], rows: _Rows, like: Tensor
) -> None:
    for step in steps:
        args = [values[place] for place in step.args]
        if step.op == "over":
            value = rows.summed(args[0], step.level)
        elif step.op == "largest":
            value = segment_max(args[0], rows.slot, rows.count)
        elif step.op == "share":
            count = segment_sum(torch.ones_like(rows.slot), rows.slot, rows.count).clamp(min=1)
            value = count.to(like.dtype).reciprocal().unsqueeze(1)
        elif step.op == "number":
            value = like.new_full((1, 1), step.detail)
        elif args:
            levels = zip(args, step.arg_levels, strict=True)
            value = step.detail(*(rows.at_level(arg, level, step.level) for arg, level in levels))
        else:
            value = known[f"{step.op}{' by slot' * (step.op == 'column' and step.level == SLOT)} {step.detail}"]
        values[step.place] = value


def _product(rows: Tensor, weight: Tensor, operator: Tensor | None) -> Tensor:
    """``rows @ weight``, or ``rows[v] @ weight[operator[v]]``: one product for every operator that occurs."""
    if operator is None or not len(rows):
        return rows @ (weight if operator is None else weight[0])
    if (
        torch.compiler.is_compiling()
    ):  # how many nodes each operator has is data, which a traced program cannot branch on
        return torch.bmm(rows.unsqueeze(1), weight.index_select(0, operator)).squeeze(1)
    # A batched product would copy one matrix for every node; sorted, each operator is one product.
    order = operator.argsort(stable=True)
    counts = torch.bincount(operator, minlength=len(weight)).tolist()
    parts = torch.split(rows.index_select(0, order), counts)
    products = [part @ weight[k] for k, part in enumerate(parts) if len(part)]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return torch.cat(products).index_select(0, back)


def run_network(plan: NetworkLevels, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """``value[v] = act(b_v + r_v * aggregate over u -> v of w_uv value[u])``, level by level, ``[B, outputs]``.

    The response r_v is 1 and the aggregate a sum, where the plan, on the device of ``x``, says nothing else. The other
    arguments are those of `dagnn.kernels.run_network`.
    """
    levels, batch = plan.levels, x.shape[0]  # not len(x), which torch.export and torch.jit.trace record as a constant
    weights = torch.split(edge_weight.index_select(0, levels.edge_order).unsqueeze(1), levels.edges_per_level)
    source_rows = torch.split(levels.source_in_level, levels.edges_per_level)
    target_rows = torch.split(levels.target_in_level, levels.edges_per_level)
    # One zero behind the biases: nodes without a bias read it, and need no branch or mask. And nothing of the weights:
    # where no edge leads to an output, their gradient is zeros, as the compiled path gives it.
    bias_of_node = torch.cat([bias, edge_weight[:0], bias.new_zeros(1)]).index_select(0, plan.bias_index).unsqueeze(1)

    of_sources = bias_of_node.index_select(0, plan.sources)
    aggregations = plan.aggregations
    if aggregations is not None:
        of_sources = of_sources + aggregations.of_nothing.to(x.dtype).unsqueeze(1)
        responses = torch.split(aggregations.response.to(x.dtype).unsqueeze(1), levels.nodes_per_level)
    sources = _activate(of_sources, plan.activations[0]).expand(-1, batch)
    values = [torch.cat([x.t(), sources]).index_select(0, plan.level_zero)]
    biases = torch.split(bias_of_node, levels.nodes_per_level)
    for level in range(1, len(levels.nodes_per_level)):
        messages = gather_sources(values, levels.feeds[level], source_rows[level]) * weights[level]
        if aggregations is None or not aggregations.groups[level]:
            z = biases[level].expand(-1, batch).index_add(0, target_rows[level], messages)
        else:
            parts = [
                AGGREGATIONS[group.kind](messages.index_select(0, group.edges).view(*group.shape, batch))
                for group in aggregations.groups[level]
            ]
            z = biases[level] + responses[level] * torch.cat(parts).index_select(0, aggregations.back[level])
        values.append(_activate(z, plan.activations[level]))

    # Values are [nodes, B] inside: a level gathers whole rows. Outputs are turned once, at the end.
    outputs = gather_sources(values, plan.output_feed, plan.output_rows)
    return outputs.index_select(0, plan.output_back).t().contiguous()


def _activate(x: Tensor, groups: ActivationGroups) -> Tensor:
    """The activations of one level's rows."""
    if groups.back is None:  # one activation for the whole level, in its own order
        return activation_of(groups.names[0])(x) if groups.names else x
    parts = [activation_of(name)(x.index_select(0, rows)) for name, rows in zip(groups.names, groups.rows, strict=True)]
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

    >>> class Sum:
    ...     state_sizes = (2,)
    ...
    ...     def __call__(self, features, states, target, position):
    ...         return (features.index_add(0, target, states[0]),)
    >>> Sum()(torch.ones(1, 2), (torch.ones(3, 2),), torch.zeros(3, dtype=torch.int64), torch.arange(3))
    (tensor([[4., 4.]]),)
    """

    state_sizes: tuple[int, ...]

    def __call__(
        self, features: Tensor, states: tuple[Tensor, ...], target: Tensor, position: Tensor
    ) -> tuple[Tensor, ...]: ...


def run_sweep(
    plan: LevelPlan, features: Tensor, position: Tensor, cell: Cell, operator: Tensor | None = None
) -> Tensor:
    """Output ``[num_nodes, cell.state_sizes[0]]`` of every node after a sweep of ``cell`` in the order of ``plan``.

    Args:
        plan: the edges, on the device of ``features``.
        features: float ``[num_nodes, in_features]``.
        position: int64 ``[num_edges]``.
        operator: int64 ``[num_nodes]``, for a cell with weights for every operator, which gets it as fifth argument.
    """
    features_of_level = torch.split(features.index_select(0, plan.node_order), plan.nodes_per_level)
    position_of_level = torch.split(position.index_select(0, plan.edge_order), plan.edges_per_level)
    source_rows = torch.split(plan.source_in_level, plan.edges_per_level)
    target_rows = torch.split(plan.target_in_level, plan.edges_per_level)
    operators = (
        None if operator is None else torch.split(operator.index_select(0, plan.node_order), plan.nodes_per_level)
    )
    # states[i][level]: the i-th state tensor of the level's nodes. A tensor for each level, since autograd would copy
    # all nodes for every write into one tensor.
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
        return features.sum() * features.new_zeros(
            0, cell.state_sizes[0]
        )  # no nodes: empty, but still in the autograd graph of the features
    return torch.cat(states[0]).index_select(0, plan.place)
