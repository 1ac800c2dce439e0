"""What is drawn and where: nodes, edges and their numbers as plain arrays, the part that fits, and coordinates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import GraphError

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """A DAG with columns of numbers, NaN where a node or edge has none.

    Attributes:
        names: of the nodes, as they are printed.
        levels: int64 ``[num_nodes]``.
        edges: int64 ``[num_edges, 2]``, (source, target), each pair once.
        is_input, is_output: bool ``[num_nodes]``.
        of_nodes: what a number means -> float64 ``[num_nodes]``.
        of_edges: what a number means -> float64 ``[num_edges]``.
        notes: sentences that belong below the picture.
        texts: what a text of every node means, such as "activation" -> the texts.
    """

    names: Sequence[str]
    levels: NDArray[np.int64]
    edges: NDArray[np.int64]
    is_input: NDArray[np.bool_]
    is_output: NDArray[np.bool_]
    of_nodes: Mapping[str, Numbers] = field(default_factory=dict)
    of_edges: Mapping[str, Numbers] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Part(NamedTuple):
    """The part of a scene that is shown.

    Attributes:
        nodes: int64, the nodes shown, ascending.
        edges: int64, the numbers of the edges between them.
        detours: (source, target) of shown nodes that only paths through hidden ones join, by number in the scene.
        levels: int64, of the nodes shown, without gaps.
    """

    nodes: NDArray[np.int64]
    edges: NDArray[np.int64]
    detours: list[tuple[int, int]]
    levels: NDArray[np.int64]


def strengths(scene: Scene) -> Numbers:
    """How important every node is: float64 ``[num_nodes]``, for the order only.

    The absolute value of its first number; without any, the sum of the absolute numbers of its edges; without those,
    the number of its edges. What has no finite number comes last.
    """
    for values in scene.of_nodes.values():
        return np.where(np.isfinite(values), np.abs(values), -1.0)
    amounts = np.ones(len(scene.edges))
    for values in scene.of_edges.values():
        amounts = np.where(np.isfinite(values), np.abs(values), 0.0)
        break
    total = np.zeros(len(scene.names))
    np.add.at(total, scene.edges[:, 0], amounts)
    np.add.at(total, scene.edges[:, 1], amounts)
    return total


def part_of(scene: Scene, top: int | None) -> Part:
    """The ``top`` most important nodes with what connects them; all nodes where ``top`` is None.

    Of the joins through hidden nodes, those are left out that a path through shown nodes already means. GraphError for
    a ``top`` that is less than 1 or no whole number.
    """
    count = len(scene.names)
    if top is not None and (isinstance(top, bool) or not isinstance(top, int | np.integer) or top < 1):
        raise GraphError(f"top must be a whole number of at least 1, or None for all nodes, got {top!r}.")
    if top is None or top >= count:
        nodes, edges = np.arange(count), np.arange(len(scene.edges))
        detours = []
    else:
        # Stable: of equally important nodes the first ones are shown.
        nodes = np.sort(np.argsort(-strengths(scene), kind="stable")[:top])
        is_shown = np.zeros(count, dtype=bool)
        is_shown[nodes] = True
        edges = np.flatnonzero(is_shown[scene.edges].all(axis=1))
        detours = _detours(scene, nodes, is_shown)
    _, levels = np.unique(scene.levels[nodes], return_inverse=True)
    return Part(nodes, edges, detours, levels.reshape(-1).astype(np.int64))


def _detours(scene: Scene, nodes: NDArray[np.int64], is_shown: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Pairs of shown nodes joined through hidden ones, and by no path that has a shown node between.

    A set of shown nodes is one integer, a bit for each.
    """
    bit = {node: 1 << place for place, node in enumerate(nodes.tolist())}
    nodes_of = nodes.tolist()
    parents: list[list[int]] = [[] for _ in scene.names]
    for source, target in scene.edges.tolist():
        parents[target].append(source)
    arriving: list[int] = [0] * len(scene.names)  # the shown nodes from which a path of hidden nodes leads here
    above: dict[int, int] = {}  # shown node -> all shown nodes before it
    found = []
    shown = is_shown.tolist()
    for node in np.argsort(scene.levels, kind="stable").tolist():
        direct = hidden = 0
        for parent in parents[node]:
            if shown[parent]:
                direct |= bit[parent]
            else:
                hidden |= arriving[parent]
        if not shown[node]:
            arriving[node] = direct | hidden
            continue
        near = direct | hidden
        before = 0
        for place in _bits(near):
            before |= above[nodes_of[place]]
        above[node] = before | near
        found += [(nodes_of[place], node) for place in _bits(hidden & ~direct & ~before)]
    return found


def _bits(number: int) -> list[int]:
    """The places of the bits that are set, ascending."""
    places = []
    while number:
        lowest = number & -number
        places.append(lowest.bit_length() - 1)
        number ^= lowest
    return places


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
