"""Layouts: edges go up, nothing overlaps, long edges have lanes."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagnn.drawing.scene import GAP, LANE, layered
from dagnn.graph.levels import topological_levels


def laid_out(edges, widths, **options):
    levels = topological_levels(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2), len(widths))
    return layered(edges, widths, levels.tolist(), **options)


@st.composite
def graphs(draw):
    count = draw(st.integers(0, 9))
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return edges, draw(st.lists(st.floats(0.4, 2.0), min_size=count, max_size=count))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_edges_go_up_and_nothing_overlaps(graph):
    edges, widths = graph
    found = laid_out(edges, widths)

    assert len(found.place) == len(widths) and set(found.bends) == set(edges)
    rows = {}
    for (x, y), width in zip(found.place, widths, strict=True):
        rows.setdefault(y, []).append((x, width))
    for (source, target), bends in found.bends.items():
        low, high = found.place[source][1], found.place[target][1]
        assert [y for _, y in bends] == [low + 1 + i for i in range(int(high - low) - 1)] and low < high
        for x, y in bends:
            rows[y].append((x, LANE))
    for row in rows.values():
        row.sort()
        assert all(q - p >= (v + w) / 2 + GAP - 1e-9 for (p, v), (q, w) in pairwise(row))
        assert row[0][0] - row[0][1] / 2 >= -1e-9 and row[-1][0] + row[-1][1] / 2 <= found.width + 1e-9
    assert found.height == max((y for _, y in found.place), default=0)


def test_a_chain_is_straight():
    assert laid_out([(0, 1), (1, 2)], [0.5, 1.0, 0.5]).place == [(0.5, 0), (0.5, 1), (0.5, 2)]


def test_neighbours_are_untangled():
    place = laid_out([(0, 3), (1, 2)], [0.5] * 4).place

    assert (place[0][0] < place[1][0]) == (place[3][0] < place[2][0])
