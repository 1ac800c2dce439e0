"""Graph edit distance as an evaluation metric, accumulated over batches and ranks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dagnn.errors import ConfigError, GraphError
from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.distance import DEFAULT_BUDGET, checked_limits, graph_edit_distance
from dagnn.ged.labelled import Graph


@dataclass(frozen=True)
class GedSummary:
    """What `GedMetric` has seen.

    Attributes:
        mean_lower, mean_upper: bounds of the mean distance; NaN if there were no pairs.
        proved: share of pairs whose distance is exact, 0 .. 1.
        exact_match: share of pairs at distance 0: predictions that are right.
        pairs: how many.
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

    >>> from dagnn.graph import Dag
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
        """Add everything that ``other`` has seen.

        Raises:
            ConfigError: the two compare with different options.
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
