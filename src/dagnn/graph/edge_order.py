"""The one order in which a Dag keeps its edges, and which edges may not stand beside each other in it."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph.attributes import Attributes
from dagnn.graph.checks import NameOf, first_true
from dagnn.graph.csr import stable_order


def canonical_order(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    num_nodes: int,
    edge_attributes: Attributes,
    name_of: NameOf,
) -> NDArray[np.int64] | None:
    """Indices that sort the edges by (target, source), or (target, position); None if they are sorted already.

    Raises:
        GraphError: an edge is repeated, two edges into a node have the same position, or a position is negative.
    """
    position = edge_attributes.get("position")
    if not isinstance(position, Tensor):
        order, repeats = _order(target, source, num_nodes)
        if repeats is not None:
            first, second = repeats
            raise GraphError(
                f"edges {first} and {second} are both {name_of(int(source[first]))} -> {name_of(int(target[first]))} "
                "(duplicate edge): drop one, or tell them apart by the edge attribute 'position'."
            )
        return order

    places = position.numpy()
    if places.size and places.min() < 0:
        edge = first_true(places < 0)
        raise GraphError(f"edge {edge} has the position {places[edge]}: the first operand has position 0.")
    order, repeats = _order(target, places, int(places.max(initial=0)) + 1)
    if repeats is not None:
        first, second = repeats
        ends = [f"{name_of(int(source[edge]))} -> {name_of(int(target[edge]))}" for edge in repeats]
        what = "the duplicate edges" if ends[0] == ends[1] else "the edges"
        raise GraphError(
            f"{what} {first} ({ends[0]}) and {second} ({ends[1]}) have the same position {places[first]}: give every "
            "edge into a node its own."
        )
    return order


def _order(
    major: NDArray[np.int64], minor: NDArray[np.int64], bound: int
) -> tuple[NDArray[np.int64] | None, tuple[int, int] | None]:
    """The order by (major, minor), and two edges that are alike in both."""
    if major.size and bound > (2**63 - 1) // (int(major.max()) + 1):
        order = np.lexsort((minor, major))
        alike = (np.diff(major[order]) == 0) & (np.diff(minor[order]) == 0)
    else:
        key = major * bound + minor
        if (key[1:] > key[:-1]).all():
            return None, None
        order = stable_order(key, int(key.max()) + 1)
        alike = np.diff(key[order]) == 0
    if alike.any():
        at = first_true(alike)
        first, second = sorted(order[at : at + 2].tolist())
        return order, (first, second)
    return order, None
