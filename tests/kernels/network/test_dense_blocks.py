"""Which nodes form a dense block: full rectangles, and rectangles with few holes."""

import numpy as np
import pytest

from dagnn.graph import Dag
from dagnn.kernels.network import dense_blocks
from dagnn.kernels.network.dense_blocks import find_blocks


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dense_blocks, "MIN_EDGES", 6)
    monkeypatch.setattr(dense_blocks, "MIN_NODES", 2)


def blocks_of(edges: list[tuple[int, int]], num_nodes: int):
    dag = Dag(np.array(edges, dtype=np.int64).reshape(-1, 2), num_nodes)
    source = dag.edges[:, 0].numpy().astype(np.int32)
    return find_blocks(source, dag.csr_by_target.offsets.numpy(), dag.levels.numpy())


FULL = [(u, v) for v in range(3, 6) for u in range(3)]


def test_a_full_rectangle_is_a_view():
    (block,) = blocks_of(FULL, 6)
    assert (block.first, block.last, block.source_first, block.source_last) == (3, 6, 0, 3)
    assert (block.first_weight, block.num_edges, block.positions, block.shape) == (0, 9, None, (3, 3))


def test_a_rectangle_with_a_hole_says_where_its_weights_lie():
    (block,) = blocks_of([edge for edge in FULL if edge != (1, 4)], 6)
    assert block.positions.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_run_of_another_range_is_another_block():
    edges = FULL + [(u, v) for v in range(6, 9) for u in range(1, 3)]
    assert [(block.first, block.last, block.source_first) for block in blocks_of(edges, 9)] == [(3, 6, 0), (6, 9, 1)]


def test_the_blocks_of_two_layers_are_two():
    edges = FULL + [(u, v) for v in range(6, 9) for u in range(3, 6)]
    assert [(block.first, block.first_weight) for block in blocks_of(edges, 9)] == [(3, 0), (6, 9)]


def test_sparse_and_small_parts_are_none():
    assert blocks_of([(u, 10 + u) for u in range(10)], 20) == []
    assert blocks_of([(0, 2), (1, 2)], 3) == []
    assert blocks_of([], 3) == []
    assert blocks_of([], 0) == []
