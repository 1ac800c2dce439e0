"""`SweepPlan`: a graph as the arrays that a compiled sweep walks along.

Nodes are sorted by (level, operator, slots). A *slot* is a place for operands: an ordered cell has one for every
position up to the highest that the node uses, other cells have one for all operands together; a node without operands
has none. Nodes with the same operator and number of slots are a *class*: they share a matrix product, and their rows
lie together in memory, so that the gradient of a weight is one product over all levels. A *block of nodes* is a run of
nodes of one class on one level: the unit of work, and of what waits for what.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagnn.errors import GraphError
from dagnn.graph.cached import cached_tensor_property
from dagnn.graph.edges import offsets_of, stable_order

Ints = NDArray[np.int64]

# Rows of a block: it reads the packs of the weight once for all of them. 24 to 96 measure alike.
BLOCK_ROWS = 48
BLOCK_FIELDS = ("first", "rows", "node_class", "local", "after", "after_back")
CLASS_FIELDS = ("rows", "slots", "operand_row", "gate_row", "operator")


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """A graph and a direction, ready for the compiled functions. Arrays are int32 unless noted.

    Attributes:
        nodes: ``[num_nodes]``, the node at each place of the sweep.
        first_slots: ``[num_nodes]``, the first slot of the node at each place; its slots are neighbours.
        in_offsets: int64 ``[num_slots + 1]``; slot s has the edges ``in_offsets[s] .. in_offsets[s + 1] - 1``, edges in
            an order of their own.
        in_sources: ``[num_edges]``, the node that each edge comes from.
        in_places: ``[num_edges]``, the place of that node.
        out_offsets: int64 ``[num_nodes + 1]``, for each place the edges out of its node, in ``out_slots`` and
            ``out_edges``.
        out_slots, out_edges: ``[num_edges]``, the slot that an edge goes to, and its number in the order above.
        blocks: int64 ``[num_blocks, 6]``, columns `BLOCK_FIELDS`: first place, rows, class, first row in its class, and
            how many blocks must be done before, on the way up and on the way back.
        classes: int64 ``[num_classes, 5]``, columns `CLASS_FIELDS`: rows, slots of each, rows times slots of the
            classes before (where its operands begin), the same for gates by `gates_of`, operator. Sorted by operator.
        levels: number of levels.
    """

    nodes: NDArray[np.int32]
    first_slots: NDArray[np.int32]
    in_offsets: Ints
    in_sources: NDArray[np.int32]
    in_places: NDArray[np.int32]
    out_offsets: Ints
    out_slots: NDArray[np.int32]
    out_edges: NDArray[np.int32]
    blocks: Ints
    classes: Ints
    levels: int

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @property
    def num_slots(self) -> int:
        return len(self.in_offsets) - 1

    @property
    def num_edges(self) -> int:
        return len(self.in_sources)

    @cached_property
    def max_slots(self) -> int:
        """The most slots of a node."""
        return int(self.classes[:, 1].max(initial=0))

    @cached_property
    def num_operators(self) -> int:
        """1 more than the highest operator."""
        return int(self.classes[:, 4].max(initial=-1)) + 1

    @cached_property
    def on_gpu(self) -> dict[torch.device, Any]:
        """The plan as Triton kernels read it, by device; filled by `dagnn.kernels.gpu`."""
        return {}

    @cached_tensor_property
    def node_index(self) -> torch.Tensor:
        """``nodes`` as int64."""
        return torch.from_numpy(self.nodes.astype(np.int64))

    def speedup(self, workers: int) -> float:
        """How many times faster so many workers can be at most: each level waits for the one before."""
        # Blocks of one level have one `after`, so that counting its values counts the blocks of every level.
        blocks_of_level = np.bincount(np.unique(self.blocks[:, 4], return_inverse=True)[1])
        return len(self.blocks) / max(1, int((-(-blocks_of_level // workers)).sum()))


def plan_sweep(
    source: Ints, target: Ints, level: Ints, position: Ints | None = None, operator: Ints | None = None
) -> SweepPlan:
    """The plan of a sweep over edges from ``source`` to ``target``.

    Args:
        source, target: ``[num_edges]``, nodes; every edge goes to a higher level.
        level: ``[num_nodes]``.
        position: ``[num_edges]``, at least 0: the slot of its target that an edge goes to. None for one slot for all.
        operator: ``[num_nodes]``, at least 0. None for the same for all.

    Raises:
        GraphError: an edge goes to no higher level, or one of its ends is no node: the graph has been written to.

    Cost: four sorts of integers.
    """
    num_nodes, num_edges = len(level), len(source)
    _check_levels(source, target, level)
    slots = np.zeros(num_nodes, dtype=np.int64)
    if position is None:
        slots[target] = 1
        position = np.zeros(num_edges, dtype=np.int64)
    else:
        np.maximum.at(slots, target, position + 1)
    most = int(slots.max(initial=0)) + 1
    if operator is None:
        operator = np.zeros(num_nodes, dtype=np.int64)
    operators = int(operator.max(initial=0)) + 1
    levels = int(level.max(initial=-1)) + 1

    # One integer for (level, operator, slots): a single stable sort by key, and equal keys are the blocks to be.
    key = (level * operators + operator) * most + slots
    nodes = stable_order(key, levels * operators * most)
    place = np.empty(num_nodes, dtype=np.int64)
    place[nodes] = np.arange(num_nodes)
    first_slots = offsets_of(slots[nodes])
    num_slots = int(first_slots[-1])

    slot = first_slots[place[target]] + position
    # Stable, here and below: the edges of a slot keep the user's order, so sums over them always have the same bits.
    in_order = stable_order(slot, num_slots)
    in_sources, in_slots = source[in_order], slot[in_order]
    in_places = place[in_sources]
    out_edges = stable_order(in_places, num_nodes)
    blocks, classes = _blocks_and_classes(key[nodes], operators * most, most)
    return SweepPlan(
        nodes.astype(np.int32),
        first_slots[:-1].astype(np.int32),
        offsets_of(np.bincount(in_slots, minlength=num_slots)),
        in_sources.astype(np.int32),
        in_places.astype(np.int32),
        offsets_of(np.bincount(in_places, minlength=num_nodes)),
        in_slots[out_edges].astype(np.int32),
        out_edges.astype(np.int32),
        blocks,
        classes,
        levels,
    )


def _check_levels(source: Ints, target: Ints, level: Ints) -> None:
    """Compiled code trusts a plan: through an edge against the levels it would read rows that nobody wrote yet."""
    ends = np.concatenate([source, target])
    is_sound = ends.min(initial=0) >= 0 and ends.max(initial=-1) < len(level) and level.min(initial=0) >= 0
    wrong = np.flatnonzero(level[source] >= level[target]) if is_sound else ends
    if is_sound and not len(wrong):
        return
    found = f"edges of nodes {ends.min(initial=0)} .. {ends.max(initial=0)} among {len(level)} nodes"
    if is_sound:
        u, v = source[wrong[0]], target[wrong[0]]
        found = f"an edge {u} -> {v} from level {level[u]} to level {level[v]}"
    raise GraphError(
        f"the edges of the graph do not go with its levels, got {found}: something wrote to its tensors after it was "
        "made. Graphs never change: make a new one."
    )


def _blocks_and_classes(key: Ints, classes_of_level: int, most: int) -> tuple[Ints, Ints]:
    """From the sorted keys: level times ``classes_of_level`` plus operator times ``most`` plus slots."""
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    sizes = np.diff(starts, append=len(key))
    level_of, class_of = np.divmod(key[starts], classes_of_level)
    names, class_of = np.unique(class_of, return_inverse=True)
    operator, slots = np.divmod(names, most)

    # Rows of a class in the order of the sweep: a running sum inside each class.
    by_class = np.lexsort((starts, class_of))
    before = offsets_of(sizes[by_class])
    rows = np.bincount(class_of, sizes, minlength=len(names)).astype(np.int64)
    local = np.empty_like(starts)
    local[by_class] = before[:-1] - offsets_of(rows)[:-1][class_of[by_class]]

    per_group = -(-sizes // BLOCK_ROWS)
    group = np.repeat(np.arange(len(starts)), per_group)
    within = (np.arange(len(group)) - (np.cumsum(per_group) - per_group)[group]) * BLOCK_ROWS
    block_level = level_of[group]
    blocks = np.stack(
        [
            starts[group] + within,
            np.minimum(sizes[group] - within, BLOCK_ROWS),
            class_of[group],
            local[group] + within,
            # Done before: all blocks of lower levels on the way up, all of higher levels on the way back. That is a
            # prefix of the order in which blocks are handed out, so that counting the finished ones suffices.
            np.searchsorted(block_level, block_level),
            len(group) - np.searchsorted(block_level, block_level, side="right"),
        ],
        axis=1,
    )
    operand_row = offsets_of(rows * slots)[:-1]
    classes = np.stack([rows, slots, operand_row, offsets_of(rows)[:-1], operator], axis=1)
    return np.ascontiguousarray(blocks, dtype=np.int64), np.ascontiguousarray(classes, dtype=np.int64)
