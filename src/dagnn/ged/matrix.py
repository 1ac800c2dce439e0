"""Graph edit distances of many pairs, and their mean as an evaluation metric over batches and ranks."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError, warn
from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.distance import DEFAULT_BUDGET, graph_edit_distance
from dagnn.ged.exact.limits import GLANCE, Watch, checked_limits, checked_workers
from dagnn.ged.exact.solve import as_float, find
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import Graph, read_graphs
from dagnn.graph import Dag, DagBatch

# Parts that the pairs are split into, for each thread: many, since some pairs take much longer than others.
SHARES = 64


@dataclass(frozen=True)
class GedMatrix:
    """Bounds of the distance from every graph to every other: entry [i, j] is for turning graph i into graph j.

    Attributes:
        lower, upper: float64 ``[n, m]``, ``lower <= distance <= upper``.
        proved: bool ``[n, m]``, where they are the same float.
        search_nodes: int64 ``[n, m]``; 0 where an entry was not searched, or is known from its mirror image.
        everything: float64 ``[n, m]``, the cost of deleting all of i and inserting all of j.

    >>> matrix = ged_matrix([Dag([(0, 1)]), Dag([(0, 1), (1, 2)])])
    >>> matrix.normalized
    tensor([[0.0000, 0.2500],
            [0.2500, 0.0000]], dtype=torch.float64)
    """

    lower: Tensor
    upper: Tensor
    proved: Tensor
    search_nodes: Tensor
    everything: Tensor

    @property
    def distance(self) -> Tensor:
        """``upper``; warns if some entries are not proved to be distances."""
        if not self.proved.all():
            warn(
                f"{int((~self.proved).sum())} of {self.proved.numel()} distances are not proved; using upper bounds. "
                "Raise budget or seconds to find them, or read lower and upper."
            )
        return self.upper

    @property
    def normalized(self) -> Tensor:
        """`distance` divided by ``everything``: float64 ``[n, m]``, 0 .. 1. One minus this is a similarity."""
        return torch.where(self.everything > 0, self.distance / self.everything, 0.0)


def ged_matrix(
    graphs: Iterable[Graph],
    other: Iterable[Graph] | None = None,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    workers: int | None = None,
    progress: bool | Callable[[int, int], object] = False,
    directed: bool | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
) -> GedMatrix:
    """Distances from all ``graphs`` to all ``other`` graphs, or among ``graphs`` themselves.

    Args:
        graphs: n graphs, all directed or all undirected, all labelled or none.
        other: m graphs of the same kind; by default ``graphs``.
        budget: search nodes per pair.
        seconds: for the whole matrix; returns the bounds known by then. A pair that was not reached has the bounds 0
            and the cost of deleting one graph and inserting the other.
        workers: threads; by default one for each core that this process may use. The result does not depend on it.
        progress: True shows a bar on stderr; a function is called as ``progress(pairs done, pairs in all)``.
        The rest as in `graph_edit_distance`.

    Raises:
        ConfigError: ``workers`` or ``progress`` is none of these; the rest as in `graph_edit_distance`.
        DtypeError: ``graphs`` or ``other`` is no list of graphs.
        GraphError: as in `graph_edit_distance`.

    Ctrl-C ends it within a second.

    Cost: without ``other``, and if b -> a costs as much as a -> b, it searches half of the pairs.

    >>> ged_matrix([Dag([(0, 1)]), Dag([(0, 1), (1, 2)])], [Dag([], 2)]).distance
    tensor([[1.],
            [3.]], dtype=torch.float64)
    """
    limits = checked_limits(budget, seconds)
    workers = checked_workers(workers)
    progress = check_progress(progress)
    watch = Watch(limits.seconds)
    costs = checked_costs(costs)
    rows = listed(graphs, "graphs")
    columns = rows if other is None else listed(other, "other")
    names = [f"graphs[{i}]" for i in range(len(rows))]
    names += [] if other is None else [f"other[{j}]" for j in range(len(columns))]
    read = read_graphs(
        rows if other is None else [*rows, *columns],
        names,
        directed=directed,
        node_label=node_label,
        edge_label=edge_label,
    )
    tables = build_tables(read, costs)
    mirrored = other is None and tables.symmetric
    shift = 0 if other is None else len(rows)

    shape = (len(rows), len(columns))
    deletions = [as_float(tables.true_everything(i, None)) for i in range(len(rows))]
    insertions = [as_float(tables.true_everything(None, shift + j)) for j in range(len(columns))]
    everything = np.add.outer(np.array(deletions), np.array(insertions)).reshape(shape)
    lower, upper = np.zeros(shape), everything.copy()
    proved, nodes = upper == 0, np.zeros(shape, dtype=np.int64)
    pairs = [(i, j) for i in range(len(rows)) for j in range(i if mirrored else 0, len(columns))]
    share = max(1, len(pairs) // (SHARES * workers))
    each = max(1, workers // max(1, len(pairs)))  # threads for one hard pair
    done: list[tuple[int, int]] = []  # threads append to it, which is one step

    def fill(start: int) -> None:
        for i, j in pairs[start : start + share]:
            if watch.over():
                return
            found = find(tables, i, shift + j, watch=watch, budget=limits.budget, workers=each)
            lower[i, j], upper[i, j], proved[i, j], _, nodes[i, j] = found
            if mirrored:
                lower[j, i], upper[j, i], proved[j, i] = lower[i, j], upper[i, j], proved[i, j]
            done.append((i, j))

    with closing(Report(progress, len(pairs), "pair")) as report:
        pool = ThreadPoolExecutor(workers)
        try:
            waiting = {pool.submit(fill, start) for start in range(0, len(pairs), share)}
            while waiting:
                ended, waiting = wait(waiting, timeout=GLANCE, return_when=FIRST_COMPLETED)
                watch.over()
                report.show(len(done))
                for future in ended:
                    future.result()
        except BaseException:
            watch.stop[0] = 1
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()
    return GedMatrix(
        lower=torch.from_numpy(lower),
        upper=torch.from_numpy(upper),
        proved=torch.from_numpy(proved),
        search_nodes=torch.from_numpy(nodes),
        everything=torch.from_numpy(everything),
    )


def check_progress(progress: Any) -> Any:
    """``progress``; ConfigError unless it is a bool or a function."""
    if not (progress is None or callable(progress) or isinstance(progress, bool)):
        raise ConfigError(f"progress is {progress!r}: give True, False or a function of two numbers.")
    return progress


def listed(graphs: Any, name: str) -> list[Graph]:
    """``graphs`` as a list; DtypeError, which calls them ``name``, if it is one graph or no list of them."""
    is_one = isinstance(graphs, Dag) or hasattr(graphs, "adjacency") or hasattr(graphs, "edge_index")
    if is_one and not isinstance(graphs, DagBatch) and not hasattr(graphs, "to_data_list"):
        raise DtypeError(f"{name} must be a list of graphs, got one {type(graphs).__name__}: write [graph].")
    if hasattr(graphs, "to_data_list") and not isinstance(graphs, DagBatch):
        graphs = graphs.to_data_list()
    try:
        return list(graphs)
    except TypeError:
        raise DtypeError(f"{name} must be a list of graphs, got {type(graphs).__name__}.") from None


class Report:
    """Shows progress on a bar, reports it to a function, or does neither."""

    def __init__(self, progress: bool | Callable[[int, int], object], total: int, unit: str) -> None:
        self._total, self._shown = total, -1
        self._report = progress if callable(progress) else None
        self._bar: Any = None
        if progress is True:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=unit, dynamic_ncols=True)

    def show(self, done: int) -> None:
        if done == self._shown:
            return
        if self._report is not None:
            self._report(done, self._total)
        if self._bar is not None:
            self._bar.update(done - max(self._shown, 0))
        self._shown = done

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@dataclass(frozen=True)
class GedSummary:
    """The summary of all pairs that a `GedMetric` has compared.

    Attributes:
        mean_lower, mean_upper: bounds of the mean distance.
        proved: share of pairs whose distance is exact, 0 .. 1.
        exact_match: share of pairs at distance 0, the right predictions, 0 .. 1.
        pairs: the number of pairs. Where it is 0, the others are NaN.

    >>> GedMetric().compute().pairs
    0
    """

    mean_lower: float
    mean_upper: float
    proved: float
    exact_match: float
    pairs: int


class GedMetric:
    """Mean graph edit distance between predicted and target graphs.

    Args:
        costs, budget, directed, node_label, edge_label: as in `graph_edit_distance`; ``a`` is the prediction.

    Raises:
        ConfigError: as in `graph_edit_distance`.

    >>> metric = GedMetric()
    >>> metric.update([Dag([(0, 1)]), Dag([], 2)], [Dag([(0, 1)]), Dag([(0, 1)])])
    >>> metric.compute()
    GedSummary(mean_lower=0.5, mean_upper=0.5, proved=1.0, exact_match=0.5, pairs=2)
    """

    def __init__(
        self,
        costs: EditCosts | None = None,
        *,
        budget: int = DEFAULT_BUDGET,
        directed: bool | None = None,
        node_label: str | None = "label",
        edge_label: str | None = "label",
    ) -> None:
        budget = checked_limits(budget).budget
        self._costs = checked_costs(costs)
        self._options: dict[str, Any] = {
            "budget": budget,
            "directed": directed,
            "node_label": node_label,
            "edge_label": edge_label,
        }
        # Sums of lower and upper bounds, proved pairs, exact matches, pairs.
        self._sums = torch.zeros(5, dtype=torch.float64)

    def update(self, predicted: Iterable[Graph], target: Iterable[Graph]) -> None:
        """Add pairs: lists of equal length, or `DagBatch` es.

        Raises:
            GraphError: different numbers of graphs; and as in `graph_edit_distance`. Nothing is added then.
        """
        left, right = list(predicted), list(target)
        if len(left) != len(right):
            raise GraphError(f"{len(left)} predicted graphs cannot be compared with {len(right)} targets, one to one.")
        results = [graph_edit_distance(a, b, self._costs, **self._options) for a, b in zip(left, right, strict=True)]
        for result in results:
            exact = result.upper == 0
            self._sums += torch.tensor([result.lower, result.upper, result.proved, exact, 1.0], dtype=torch.float64)

    def merge(self, other: "GedMetric") -> None:
        """Add all pairs of ``other``.

        Raises:
            ConfigError: the two have different options.
        """
        if other._options != self._options:
            raise ConfigError(f"metrics with different options cannot be merged: {self._options} and {other._options}.")
        self._sums += other._sums

    def compute(self, group: "dist.ProcessGroup | None" = None) -> GedSummary:
        """The summary of all ranks of ``group``: if torch.distributed is initialised, every rank must call this."""
        sums = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
            shared = sums.to(device)
            dist.all_reduce(shared, group=group)
            sums = shared.cpu()
        lower, upper, proved, exact, pairs = sums.tolist()
        count = pairs if pairs else float("nan")
        return GedSummary(lower / count, upper / count, proved / count, exact / count, int(pairs))

    def reset(self) -> None:
        """Forget all pairs."""
        self._sums.zero_()
