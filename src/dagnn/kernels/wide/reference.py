"""A network of wide nodes by PyTorch's operators: any dtype and device, as many derivatives as you like."""

from typing import NamedTuple

import torch
from torch import Tensor

from dagnn.kernels.nodes import activation_of
from dagnn.kernels.wide.plan import EPSILON, LevelTable, WidePlan


class WideParameters(NamedTuple):
    """The tensors of a network, all of one dtype; see `WidePlan` for where each entry belongs.

    Attributes:
        weight: ``[weights]``.
        bias: ``[biases]``.
        scale, shift: ``[entries of norms]``; None without a norm.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None


class WideState(NamedTuple):
    """What a pass needs beside x and the parameters; nothing here gets a gradient.

    Attributes:
        mean, variance: running statistics ``[entries of norms]`` to normalise with; None: those of the batch.
        mask: ``[rows of the mask, B]``, the factors of dropout; None: no dropout.
    """

    mean: Tensor | None = None
    variance: Tensor | None = None
    mask: Tensor | None = None


class WideResult(NamedTuple):
    """What a pass computes.

    Attributes:
        values: ``[rows read, B]``.
        mean, variance: of the batch, ``[entries of norms]``, the variance biased; None where they were given, and
            without a batch norm. Without gradient.
    """

    values: Tensor
    mean: Tensor | None
    variance: Tensor | None


def run_wide(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """Values of the nodes that are read, for ``x [B, columns]``."""
    tables = plan.tables(x.device)
    bias = torch.cat([parameters.bias, parameters.bias.new_zeros(1)])
    mask = None if state.mask is None else torch.cat([state.mask, state.mask.new_ones(1, x.shape[0])])
    values, means, variances = [x.t()], list[Tensor](), list[Tensor]()
    for level in tables.levels:
        total = bias.index_select(0, level.bias).unsqueeze(1).expand(level.num_rows, x.shape[0])
        if len(level.weight):
            terms = parameters.weight.index_select(0, level.weight).unsqueeze(1) * level.gather.of(values)
            total = total.index_add(0, level.target, terms)
        value = _activated(level, total)
        if plan.normalise is not None and len(level.norm):
            value, mean, variance = _normalised(plan, level, value, parameters, state)
            means.append(mean)
            variances.append(variance)
        if mask is not None and level.drop is not None:
            value = value * mask.index_select(0, level.drop)
        if level.residual is not None:
            assert level.residual_target is not None and level.residual_factor is not None
            factor = level.residual_factor.to(value.dtype).unsqueeze(1)
            value = value.index_add(0, level.residual_target, factor * level.residual.of(values))
        values.append(value)
    read = tables.reads.of(values).index_select(0, tables.read_order) if len(plan.reads) else x.new_empty(0, x.shape[0])
    if plan.normalise != "batch" or state.mean is not None or not means:
        return WideResult(read, None, None)
    mean, variance = (
        torch.cat(each).detach().index_select(0, tables.norm_order).squeeze(1) for each in (means, variances)
    )
    return WideResult(read, mean, variance)


def _activated(level: LevelTable, total: Tensor) -> Tensor:
    if level.order is None:
        name, _ = level.activations[0] if level.activations else ("identity", None)
        return activation_of(name)(total)
    parts = [activation_of(name)(total.index_select(0, rows)) for name, rows in level.activations if rows is not None]
    return torch.cat(parts).index_select(0, level.order)


def _normalised(
    plan: WidePlan, level: LevelTable, value: Tensor, parameters: WideParameters, state: WideState
) -> tuple[Tensor, Tensor, Tensor]:
    """The values with the norm of those that have one; and their mean and variance, rows as there."""
    assert parameters.scale is not None and parameters.shift is not None
    own = value if level.normed is None else value.index_select(0, level.normed)
    if plan.normalise == "layer":
        mean, variance = _of_nodes(level, own)
    elif state.mean is not None and state.variance is not None:
        mean, variance = (each.index_select(0, level.norm).unsqueeze(1) for each in (state.mean, state.variance))
    else:
        mean = own.mean(1, keepdim=True)
        variance = (own - mean).square().mean(1, keepdim=True)
    scale, shift = (each.index_select(0, level.norm).unsqueeze(1) for each in (parameters.scale, parameters.shift))
    normed = (own - mean) * (variance + EPSILON).rsqrt() * scale + shift
    if level.normed is not None:
        assert level.rest is not None and level.norm_order is not None
        normed = torch.cat([normed, value.index_select(0, level.rest)]).index_select(0, level.norm_order)
    return normed, mean, variance


def _of_nodes(level: LevelTable, own: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the units of every node, repeated for its units: ``[rows, B]`` each."""
    width = level.width.to(own.dtype).unsqueeze(1)

    def mean_of(rows: Tensor) -> Tensor:
        total = rows.new_zeros(len(width), rows.shape[1]).index_add(0, level.node, rows)
        return (total / width).index_select(0, level.node)

    mean = mean_of(own)
    return mean, mean_of((own - mean).square())
