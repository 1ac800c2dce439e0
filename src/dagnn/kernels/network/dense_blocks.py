"""Which parts of a network are so dense that a matrix product beats the sparse passes.

Edges are sorted by (target, source). If consecutive nodes have the same, unbroken range of sources, their weights are a
matrix already: a view of the weight vector. And weights that fill a large share of a matrix are cheaper to spread out
in one than to visit one by one.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Break-even of a masked 512 x 512 level at B=256, forward and backward: 38 % filled (masked / sparse: 1.14 at 30 %,
# 0.81 at 50 %).
MIN_FILLED = 0.38
# A matrix product through PyTorch costs some microseconds whatever its size.
MIN_EDGES = 2048
MIN_NODES = 4


@dataclass(frozen=True)
class Block:
    """Nodes ``first .. last - 1`` get all their edges from nodes ``source_first .. source_last - 1``.

    Attributes:
        first_weight: index of the first of their weights; the others follow.
        num_edges: how many weights there are.
        positions: None where they fill the matrix ``[last - first, source_last - source_first]`` row by row; otherwise
            int64 ``[num_edges]``, where in the matrix each weight goes, counted row by row.
    """

    first: int
    last: int
    source_first: int
    source_last: int
    first_weight: int
    num_edges: int
    positions: NDArray[np.int64] | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.last - self.first, self.source_last - self.source_first


def find_blocks(
    source: NDArray[np.int32],
    in_offsets: NDArray[np.int64],
    levels: NDArray[np.int64],
    is_sum: NDArray[np.bool_] | None = None,
) -> list[Block]:
    """The dense blocks, in the order of their nodes; nodes are numbered by level.

    Args:
        source: ``[num_edges]``, sources in the order of the edges by (target, source).
        in_offsets: ``[num_nodes + 1]``.
        levels: ``[num_nodes]``, not decreasing.
        is_sum: ``[num_nodes]``, the nodes that a product can compute; by default all.
    """
    num_nodes = len(levels)
    degree = np.diff(in_offsets)
    has_edges = degree > 0
    low, high = np.full(num_nodes, -1), np.full(num_nodes, -1)
    low[has_edges] = source[in_offsets[:-1][has_edges]]
    high[has_edges] = source[in_offsets[1:][has_edges] - 1] + 1
    # Full blocks begin where the range of sources changes, has a gap, or a new level begins: nodes of one level never
    # feed each other, so that a block is one product.
    is_full = has_edges & (high - low == degree) & (True if is_sum is None else is_sum)
    same = (low[1:] == low[:-1]) & (high[1:] == high[:-1]) & is_full[1:] & is_full[:-1] & (levels[1:] == levels[:-1])
    bounds = np.concatenate([[0], np.flatnonzero(~same) + 1, [num_nodes]]) if num_nodes else np.zeros(1, np.int64)
    start, stop = bounds[:-1], bounds[1:]
    is_block = (stop - start >= MIN_NODES) & (in_offsets[stop] - in_offsets[start] >= MIN_EDGES) & is_full[start]
    full = list(zip(start[is_block].tolist(), stop[is_block].tolist(), strict=True))
    blocks = [_block(first, last, source, in_offsets, low, high) for first, last in full]
    taken = np.zeros(num_nodes, dtype=bool) if is_sum is None else ~is_sum
    for first, last in full:
        taken[first:last] = True
    blocks += _masked(source, in_offsets, levels, low, high, taken)
    return sorted(blocks, key=lambda block: block.first)


def _masked(
    source: NDArray[np.int32],
    in_offsets: NDArray[np.int64],
    levels: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    taken: NDArray[np.bool_],
) -> list[Block]:
    """Runs of nodes of one level, outside the full blocks, whose edges fill enough of the range of their sources."""
    change = (levels[1:] != levels[:-1]) | (taken[1:] != taken[:-1])
    bounds = np.concatenate([[0], np.flatnonzero(change) + 1, [len(levels)]]) if len(levels) else np.zeros(1, np.int64)
    blocks = []
    for first, last in pairwise(bounds.tolist()):
        num_edges = int(in_offsets[last] - in_offsets[first])
        if taken[first] or last - first < MIN_NODES or num_edges < MIN_EDGES:
            continue
        connected = low[first:last] >= 0
        span = int(high[first:last].max() - low[first:last][connected].min())
        if num_edges >= MIN_FILLED * (last - first) * span:
            blocks.append(_block(first, last, source, in_offsets, low, high))
    return blocks


def _block(
    first: int,
    last: int,
    source: NDArray[np.int32],
    in_offsets: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> Block:
    connected = low[first:last] >= 0
    source_first = int(low[first:last][connected].min())
    source_last = int(high[first:last].max())
    start, end = int(in_offsets[first]), int(in_offsets[last])
    positions = None
    if end - start < (last - first) * (source_last - source_first):
        row = np.repeat(np.arange(last - first), np.diff(in_offsets[first : last + 1]))
        positions = row * (source_last - source_first) + (source[start:end] - source_first)
    return Block(first, last, source_first, source_last, start, end - start, positions)
