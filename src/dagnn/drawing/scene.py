"""What is drawn: nodes, edges and their numbers as plain arrays, and the part that fits into a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    Of the joins through hidden nodes, those are left out that a path through shown nodes already means.

    Raises:
        GraphError: ``top`` is less than 1 or no whole number.
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
