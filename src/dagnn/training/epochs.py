"""Mean loss of every epoch, each item counted once, whatever the sizes of batches and windows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple


class Share(NamedTuple):
    """What one process has computed of one micro-batch.

    Attributes:
        epoch: that it belongs to; None where the source has no epochs.
        total: weight * mean loss.
        weight: its items.
        last: whether it was the last of its epoch.
        others: of losses with a denominator of their own, by its name: sum of weight * loss, and weight.
    """

    epoch: int | None
    total: float
    weight: float
    last: bool
    others: Mapping[str, tuple[float, float]] = MappingProxyType({})


@dataclass
class EpochMeans:
    """The epoch that is under way; its numbers belong into a checkpoint.

    Attributes:
        total: sum of weight * loss over the steps that were made.
        weight: of their items.
        others: both, of losses with a denominator of their own.
    """

    total: float = 0.0
    weight: float = 0.0
    others: dict[str, list[float]] = field(default_factory=dict)

    def add(self, shares: Sequence[Sequence[Share]], *, made: bool) -> list[dict[str, Any]]:
        """Take one window of all processes; the rows of the epochs that ended in it.

        Args:
            shares: of every process, its micro-batches in order; all have the same number.
            made: the step was made; a refused one ends epochs and counts for nothing.
        """
        rows = []
        for micro_batch in zip(*shares, strict=True):
            if micro_batch[0].epoch is None:
                continue
            if made:
                self.total += sum(share.total for share in micro_batch)
                self.weight += sum(share.weight for share in micro_batch)
                for name, (total, weight) in (each for share in micro_batch for each in share.others.items()):
                    before = self.others.get(name, [0.0, 0.0])
                    self.others[name] = [before[0] + total, before[1] + weight]
            if micro_batch[0].last:
                sums = [(self.total, self.weight), *self.others.values()]
                means = [total / weight for total, weight in sums if weight]
                mean = sum(means) if means else float("nan")
                rows.append({"epoch": micro_batch[0].epoch, "loss": mean, "weight": self.weight})
                self.total = self.weight = 0.0
                self.others = {}
        return rows

    def to_json(self) -> list[Any]:
        """The numbers; `from_json` takes them."""
        return [self.total, self.weight, *([self.others] if self.others else [])]

    @classmethod
    def from_json(cls, values: Iterable[Any]) -> "EpochMeans":
        """What `to_json` gave."""
        return cls(*values)
