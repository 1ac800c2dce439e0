"""Coordinates for drawing a DAG: a line per level, nodes near their neighbours, and a lane for every long edge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

LANE = 0.25  # width that a long edge takes up on each level that it crosses
GAP = 0.35  # between two neighbours on a level
SWEEPS = 12  # up and down, ordering each level by its neighbours


@dataclass(frozen=True)
class Layout:
    """Coordinates; one level is 1 high, and level 0 is at the bottom.

    Attributes:
        place: (x, y) of every node.
        bends: edge -> the points between its ends, one on every level that it crosses.
        width: nodes and bends are between x = 0 and this.
        height: the number of levels less one; 0 for an empty graph.
    """

    place: list[tuple[float, float]]
    bends: Mapping[tuple[int, int], list[tuple[float, float]]]
    width: float
    height: float


@dataclass
class _Places:
    """Nodes and the lanes of long edges, which are nodes too: ``below`` and ``above`` are one level apart."""

    width: list[float]
    level: list[int]
    gap: float
    x: list[float] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    above: list[list[int]] = field(default_factory=list)

    def add(self, width: float, level: int) -> int:
        self.width.append(width)
        self.level.append(level)
        self.below.append([])
        self.above.append([])
        return len(self.width) - 1


def layered(
    edges: Sequence[tuple[int, int]],
    widths: Sequence[float],
    levels: Sequence[int],
    *,
    lane: float = LANE,
    gap: float = GAP,
) -> Layout:
    """A layout of a DAG whose levels are known.

    Args:
        edges: (source, target), without repeats; every edge goes to a higher level.
        widths: the width of every node.
        levels: the level of every node, from 0.
        lane: the width of a long edge on each level that it crosses.
        gap: between two neighbours on a level.

    Source: Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981:
        levels, lanes, barycentres. Coordinates are the closest to the barycentres that keep the order and the gaps.
    """
    places = _Places([], [], gap)
    for width, level in zip(widths, levels, strict=True):
        places.add(width, level)
    lanes: dict[tuple[int, int], list[int]] = {}
    for source, target in edges:
        passed = range(places.level[source] + 1, places.level[target])
        lanes[source, target] = [places.add(lane, level) for level in passed]
        way = [source, *lanes[source, target], target]
        for low, high in pairwise(way):
            places.above[low].append(high)
            places.below[high].append(low)

    rows: list[list[int]] = [[] for _ in range(max(places.level, default=-1) + 1)]
    for place, level in enumerate(places.level):
        rows[level].append(place)
    places.x = [0.0] * len(places.width)
    for row in rows:
        _set_apart(places, row, places.x)
    for sweep in range(SWEEPS):
        up = sweep % 2 == 0
        for row in rows if up else rows[::-1]:
            near = places.below if up else places.above
            _move(places, row, [near[place] for place in row])
    for row in rows:
        _move(places, row, [places.below[place] + places.above[place] for place in row])

    left = min((x - width / 2 for x, width in zip(places.x, places.width, strict=True)), default=0.0)
    right = max((x + width / 2 for x, width in zip(places.x, places.width, strict=True)), default=0.0)
    return Layout(
        place=[(places.x[v] - left, float(places.level[v])) for v in range(len(widths))],
        bends={edge: [(places.x[p] - left, float(places.level[p])) for p in lane] for edge, lane in lanes.items()},
        width=right - left,
        height=float(max(len(rows) - 1, 0)),
    )


def _move(places: _Places, row: list[int], neighbours: list[list[int]]) -> None:
    """Sort a row, in place, by the mean of the neighbours' x, and give it the x closest to them."""
    wanted = list(places.x)
    for place, near in zip(row, neighbours, strict=True):
        if near:
            wanted[place] = sum(places.x[other] for other in near) / len(near)
    row.sort(key=wanted.__getitem__)
    _set_apart(places, row, wanted)


def _set_apart(places: _Places, row: list[int], wanted: Sequence[float]) -> None:
    """Set the x of a row, in its order and with its gaps, at the least sum of squared distances to ``wanted``.

    Subtract from each x the room that its predecessors need: what is left must not fall along the row. That is isotonic
    regression, whose solution is the means of blocks (Ayer et al. 1955).
    """
    room, rooms = 0.0, []
    for i, place in enumerate(row):
        if i:
            room += (places.width[row[i - 1]] + places.width[place]) / 2 + places.gap
        rooms.append(room)
    blocks: list[tuple[float, int]] = []  # mean, length
    for place, needed in zip(row, rooms, strict=True):
        mean, length = wanted[place] - needed, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, length = (mean * length + before * count) / (length + count), length + count
        blocks.append((mean, length))
    means = [mean for mean, length in blocks for _ in range(length)]
    for place, mean, needed in zip(row, means, rooms, strict=True):
        places.x[place] = mean + needed
