"""Graph edit distances of many pairs."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.ged.assignment import INFINITE
from dagnn.ged.costs import UNIT_COSTS, EditCosts
from dagnn.ged.distance import DEFAULT_BUDGET, SMALL, STARTS, check_limits, solve
from dagnn.ged.labelled import Graph, check_comparable, read_graph
from dagnn.ged.tables import build_tables


@dataclass(frozen=True)
class GedMatrix:
    """Bounds of the distance from every graph to every other: entry [i, j] is for turning graph i into graph j.

    Attributes:
        lower, upper: float64 ``[n, m]``, ``lower <= distance <= upper``.
        proved: bool ``[n, m]``, where they meet.
        search_nodes: int64 ``[n, m]``; 0 where an entry was not searched but is known from another.
    """

    lower: Tensor
    upper: Tensor
    proved: Tensor
    search_nodes: Tensor


def ged_matrix(
    graphs: Iterable[Graph],
    other: Iterable[Graph] | None = None,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    workers: int | None = None,
    directed: bool | None = None,
    node_label: str = "label",
    edge_label: str = "label",
) -> GedMatrix:
    """Distances from all ``graphs`` to all ``other`` graphs, or among ``graphs`` themselves.

    Args:
        graphs: n graphs; other: m graphs, by default the same. All directed or all undirected, all labelled or none.
        budget: search nodes per pair.
        workers: threads; by default one for each core that this process may use. The result does not depend on it.
        The rest as in `graph_edit_distance`.

    Raises:
        ConfigError: ``workers`` below 1, and as in `graph_edit_distance`.
        GraphError, DtypeError: as there.

    Cost: among the same graphs, and if b -> a costs as much as a -> b, half of the pairs are searched.
    """
    check_limits(budget, None, None)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}: at least 1 thread must do the work.")
    rows = list(graphs)
    columns = rows if other is None else list(other)
    names = [f"graphs[{i}]" for i in range(len(rows))]
    names += [] if other is None else [f"other[{j}]" for j in range(len(columns))]
    read = [
        read_graph(graph, name, directed=directed, node_label=node_label, edge_label=edge_label)
        for graph, name in zip(rows if other is None else [*rows, *columns], names, strict=True)
    ]
    check_comparable(read, names, node_label, edge_label)
    tables = build_tables(read, UNIT_COSTS if costs is None else costs)
    mirrored = other is None and tables.symmetric
    shift = 0 if other is None else len(rows)

    shape = (len(rows), len(columns))
    lower, upper = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    nodes = np.zeros(shape, dtype=np.int64)

    def fill(i: int) -> None:
        for j in range(i if mirrored else 0, len(columns)):
            size = max(read[i].num_nodes, read[shift + j].num_nodes)
            starts = STARTS if size > SMALL else 0
            found = solve(tables, i, shift + j, limit=INFINITE, starts=starts, budget=budget)
            lower[i, j], upper[i, j], nodes[i, j] = found.lower, found.upper, found.search_nodes
            if mirrored:
                lower[j, i], upper[j, i] = lower[i, j], upper[i, j]

    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        for done in [pool.submit(fill, i) for i in range(len(rows))]:
            done.result()
    return GedMatrix(
        lower=torch.from_numpy(lower * float(tables.unit)),
        upper=torch.from_numpy(upper * float(tables.unit)),
        proved=torch.from_numpy(lower == upper),
        search_nodes=torch.from_numpy(nodes),
    )
