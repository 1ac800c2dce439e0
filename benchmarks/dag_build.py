"""Building a Dag of a million edges, levels included, takes at most a second, and is faster than NetworkX.

NetworkX gets the same edges as a list of pairs, the form it reads fastest, and does the same work: the graph, and
the generations of its nodes. It is measured at 100,000 edges; a million would take it half a minute a round.
"""

import sys
from collections.abc import Iterable

import networkx
import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Case, main
from dagnn.graph import Dag

NODES_PER_EDGE = 0.25


def random_edges(num_edges: int, num_nodes: int, reach: int, seed: int = 0) -> Tensor:
    """Distinct edges u -> v with u < v <= u + reach, shuffled: int64 ``[num_edges, 2]``.

    A small reach makes a deep graph (a path of many levels), a reach of ``num_nodes`` a shallow one. Node numbers are
    shuffled too, so that their order gives no hint of the levels.
    """
    generator = np.random.default_rng(seed)
    keys = np.empty(0, np.int64)
    while len(keys) < num_edges:
        source = generator.integers(0, num_nodes - 1, num_edges)
        target = np.minimum(source + generator.integers(1, reach + 1, num_edges), num_nodes - 1)
        keys = np.unique(np.concatenate([keys, source * num_nodes + target]))
    keys = generator.permutation(keys)[:num_edges]
    number_of = generator.permutation(num_nodes)
    return torch.from_numpy(number_of[np.stack([keys // num_nodes, keys % num_nodes], axis=1)])


def networkx_levels(pairs: list[tuple[int, int]], num_nodes: int) -> list[list[int]]:
    """Nodes by level, from NetworkX."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(pairs)
    return list(networkx.topological_generations(graph))


def against_networkx(num_edges: int, name: str, reach: int) -> Case:
    """The same graph built by both."""
    num_nodes = int(num_edges * NODES_PER_EDGE)
    edges = random_edges(num_edges, num_nodes, min(reach, num_nodes))
    pairs = [(u, v) for u, v in edges.tolist()]

    def check() -> None:
        levels = Dag(edges, num_nodes).levels
        for level, nodes in enumerate(networkx_levels(pairs, num_nodes)):
            assert (levels[nodes] == level).all(), f"level {level} of {num_nodes} nodes"

    return Case(
        f"{num_edges:,} edges, {name}",
        ours=lambda: Dag(edges, num_nodes),
        peers={"NetworkX": lambda: networkx_levels(pairs, num_nodes)},
        required=1.0,
        check=check,
    )


def within_a_second(num_edges: int, name: str, reach: int) -> Case:
    """A large graph against the clock."""
    num_nodes = int(num_edges * NODES_PER_EDGE)
    edges = random_edges(num_edges, num_nodes, min(reach, num_nodes))
    return Case(f"{num_edges:,} edges, {name}", ours=lambda: Dag(edges, num_nodes), limits={"1 second": 1.0})


def cases(quick: bool) -> Iterable[Case]:
    """A shallow and a deep graph of each size."""
    for name, reach in (("shallow", sys.maxsize), ("deep", 12)):
        yield against_networkx(10_000 if quick else 100_000, name, reach)
        yield within_a_second(1_000_000, name, reach)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
