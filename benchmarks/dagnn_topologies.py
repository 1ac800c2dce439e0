"""The graphs that DagNN is measured on: layered, random, deep, local, and an MLP; the same in every run."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph import Dag

MLP_SIZES = (784, 256, 128, 10)


def layered(num_nodes: int = 1_000, num_edges: int = 20_000, levels: int = 10, skip: float = 0.2) -> Dag:
    """Equal layers, edges from the layer before, and a share of them from any earlier one."""
    generator = np.random.default_rng(0)
    width = num_nodes // levels
    level_of = np.repeat(np.arange(levels), width)
    targets = generator.integers(width, num_nodes, num_edges)
    before = level_of[targets] - 1
    skips = (generator.random(num_edges) < skip) & (before > 0)
    source_level = np.where(skips, (generator.random(num_edges) * before).astype(np.int64), before)
    return _dag(source_level * width + generator.integers(0, width, num_edges), targets, num_nodes)


def random(num_nodes: int = 10_000, num_edges: int = 200_000, levels: int = 50) -> Dag:
    """One edge from the level before, all others from anywhere earlier: the worst locality."""
    return _levelled(num_nodes, num_edges, levels, window=levels)


def deep(num_nodes: int = 5_000, num_edges: int = 15_000, levels: int = 2_000) -> Dag:
    """Two or three nodes a level, edges from the ten levels before."""
    return _levelled(num_nodes, num_edges, levels, window=10)


def local(num_edges: int) -> Dag:
    """20 edges into a node, from the level before: 50 levels whatever the size."""
    return _levelled(num_edges // 20, num_edges, 50, window=1)


def mlp(sizes: tuple[int, ...] = MLP_SIZES) -> Dag:
    """Every node of a layer with every node of the next."""
    start = np.concatenate([[0], np.cumsum(sizes)])
    parts = [
        np.stack(np.meshgrid(np.arange(a, b), np.arange(b, c), indexing="ij"), axis=-1).reshape(-1, 2)
        for a, b, c in zip(start, start[1:], start[2:], strict=False)
    ]
    return Dag(torch.from_numpy(np.concatenate(parts)), int(start[-1]))


def _levelled(num_nodes: int, num_edges: int, levels: int, window: int) -> Dag:
    generator = np.random.default_rng(0)
    level_of = np.sort(np.concatenate([np.arange(levels), generator.integers(0, levels, num_nodes - levels)]))
    start = np.searchsorted(level_of, np.arange(levels + 1))
    inner = np.arange(start[1], num_nodes)
    extra = generator.integers(start[1], num_nodes, max(0, num_edges - len(inner)))
    targets = np.concatenate([inner, extra])
    high = start[level_of[targets]]
    # The first edge of every node comes from the level before, so that the levels are as planned.
    low = np.where(
        np.arange(len(targets)) < len(inner),
        start[level_of[targets] - 1],
        start[np.maximum(0, level_of[targets] - window)],
    )
    return _dag(low + (generator.random(len(targets)) * (high - low)).astype(np.int64), targets, num_nodes)


def _dag(source: NDArray[np.int64], target: NDArray[np.int64], num_nodes: int) -> Dag:
    keys = np.unique(target * num_nodes + source)
    edges: Tensor = torch.from_numpy(np.stack([keys % num_nodes, keys // num_nodes], axis=1))
    return Dag(edges, num_nodes)
