"""Networks for programs without Python: `Program`, what a network computes as plain arrays, and a file per format."""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import ConfigError
from dagnn.graph.edges import offsets_of
from dagnn.graph.levels import peel

__all__ = ["Program"]


@dataclass(frozen=True, eq=False)
class Program:
    """A `DagNN` with its weights, without the nodes that no output reads.

    Nodes are numbered so that every node comes after those it reads, level by level.

    Attributes:
        offsets: int64 ``[num_nodes + 1]``: the edges into node v are ``offsets[v] .. offsets[v + 1] - 1``.
        sources: int64 ``[num_edges]``, the node at the beginning of every edge, rising within a node.
        weight: ``[num_edges]``, float32 or float64.
        bias: ``[num_nodes]`` of that dtype; 0 for a node without one.
        activation: of every node: a name, or a formula as `dagnn.kernels.nodes.activation_text` writes it.
        aggregation: its name, of every node.
        response: float64 ``[num_nodes]``, the factor of every node's aggregate.
        levels: int64 ``[num_nodes]``, not decreasing.
        inputs: int64 ``[num_inputs]``, the node of every column of x; -1 for a column that no output depends on.
        outputs: int64 ``[num_outputs]``, the node of every column of y.
        input_names, output_names: of these columns.

    >>> from dagnn import Dag, DagNN
    >>> program = DagNN(Dag([("a", "c"), ("b", "c"), ("b", "unread")], outputs=["c"])).program()
    >>> program.num_nodes, program.num_edges, program.activation
    (3, 2, ('identity', 'identity', 'identity'))
    """

    offsets: NDArray[np.int64]
    sources: NDArray[np.int64]
    weight: NDArray[np.floating]
    bias: NDArray[np.floating]
    activation: tuple[str, ...]
    aggregation: tuple[str, ...]
    response: NDArray[np.float64]
    levels: NDArray[np.int64]
    inputs: NDArray[np.int64]
    outputs: NDArray[np.int64]
    input_names: tuple[Hashable, ...]
    output_names: tuple[Hashable, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.bias)

    @property
    def num_edges(self) -> int:
        return len(self.weight)

    @property
    def double(self) -> bool:
        """Whether it computes in float64."""
        return self.weight.dtype == np.float64

    @property
    def is_plain(self) -> NDArray[np.bool_]:
        """bool ``[num_nodes]``: the nodes whose aggregate is a sum without a factor, or of nothing and so 0."""
        kind, degree = np.array(self.aggregation, dtype=np.str_), np.diff(self.offsets)
        is_sum = (kind == "sum") & (self.response == 1)
        found: NDArray[np.bool_] = is_sum | ((degree == 0) & (kind != "product")) | self.is_input
        return found

    @property
    def is_input(self) -> NDArray[np.bool_]:
        """bool ``[num_nodes]``."""
        found = np.zeros(self.num_nodes, dtype=bool)
        found[self.inputs[self.inputs >= 0]] = True
        return found

    @classmethod
    def of_network(
        cls,
        edges: NDArray[np.int64],
        weight: NDArray[np.floating],
        bias: NDArray[np.floating],
        activation: Sequence[str],
        aggregation: Sequence[str],
        response: Sequence[float],
        levels: NDArray[np.int64],
        inputs: NDArray[np.int64],
        outputs: NDArray[np.int64],
        input_names: tuple[Hashable, ...],
        output_names: tuple[Hashable, ...],
    ) -> "Program":
        """The program of a whole network.

        Args:
            edges: ``[num_edges, 2]`` (source, target), sorted by (target, source).
            weight: of every edge.
            bias: of every node; 0 where it has none.
            activation, aggregation, response, levels: of every node; ``levels`` do not decrease.
            inputs, outputs: nodes, column by column.

        Raises:
            ConfigError: a weight or bias that an output reads is NaN or infinite.
        """
        num_nodes = len(levels)
        offsets = offsets_of(np.bincount(edges[:, 1], minlength=num_nodes))
        waiting = np.bincount(edges[:, 0], minlength=num_nodes)
        waiting[outputs] += 1  # an edge that no peeling removes
        live = peel(offsets, np.ascontiguousarray(edges[:, 0]), waiting) < 0
        place = np.where(live, np.cumsum(live) - 1, -1)
        kept = live[edges[:, 1]]
        sources, targets = place[edges[kept, 0]], place[edges[kept, 1]]
        found = cls(
            offsets_of(np.bincount(targets, minlength=int(live.sum()))),
            sources,
            weight[kept],
            bias[live],
            tuple(itertools.compress(activation, live)),
            tuple(itertools.compress(aggregation, live)),
            np.asarray(response, dtype=np.float64)[live],
            levels[live],
            place[inputs],
            place[outputs],
            input_names,
            output_names,
        )
        for kind, values in (("weights", found.weight), ("biases", found.bias)):
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise ConfigError(
                    f"{len(bad)} of the {kind} that the outputs depend on are NaN or infinite, first {values[bad[0]]}: "
                    "load a network that was trained without them, or set them with set_weights and set_biases."
                )
        return found
