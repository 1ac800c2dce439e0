"""Sums, means, maxima and softmax over groups of rows: all edges into a node, all nodes of a graph.

Every function takes ``values [n, ...]`` and ``segment`` int64 ``[n]``, which says for each row the
group (``0 .. num_segments - 1``) that it belongs to, in any order. An empty group gives 0, with a
finite gradient. Sums are taken in row order, so they repeat to the bit.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from dagnn.errors import ConfigError

Aggregate = Literal["sum", "mean", "max"]


def segment_sum(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Sum of every group: ``[num_segments, ...]``."""
    return values.new_zeros(num_segments, *values.shape[1:]).index_add(0, segment, values)


def segment_mean(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Mean of every group: ``[num_segments, ...]``."""
    count = segment_sum(torch.ones_like(segment), segment, num_segments).clamp(min=1).to(values.dtype)
    return segment_sum(values, segment, num_segments) / _column(count, values)


def segment_max(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Largest entry of every group, column by column: ``[num_segments, ...]``.

    The gradient goes to the winner; equal winners share it evenly, as in ``torch.amax``.
    """
    index = _column(segment, values).expand_as(values)
    empty = values.new_zeros(num_segments, *values.shape[1:])
    return empty.scatter_reduce(0, index, values, "amax", include_self=False)


def segment_softmax(logits: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """``exp(logit)`` over its group's sum, column by column: the shape of ``logits``."""
    with torch.no_grad():  # shifting a group by a constant changes nothing, so neither does its gradient
        highest = segment_max(logits, segment, num_segments)
    weight = (logits - highest.index_select(0, segment)).exp()
    return weight / segment_sum(weight, segment, num_segments).index_select(0, segment)


def aggregate(how: Aggregate, values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """`segment_sum`, `segment_mean` or `segment_max`, by name."""
    return {"sum": segment_sum, "mean": segment_mean, "max": segment_max}[how](values, segment, num_segments)


def check_aggregate(how: str) -> None:
    """Raise ConfigError unless ``how`` is one of ``"sum"``, ``"mean"``, ``"max"``."""
    if how not in get_args(Aggregate):
        raise ConfigError(f"aggregate must be one of sum, mean, max, got {how!r}.")


def _column(per_row: Tensor, values: Tensor) -> Tensor:
    """``[n]`` as ``[n, 1, 1, ...]``, to go with ``values [n, ...]``."""
    return per_row.view(-1, *[1] * (values.dim() - 1))
