"""Mean loss of every epoch, each item counted once, whatever the sizes of batches and windows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Share(NamedTuple):
    """What one process has computed of one micro-batch.

    Attributes:
        epoch: that it belongs to; None where the source has no epochs.
        total: weight * mean loss.
        weight: its items.
        last: whether it was the last of its epoch.
    """

    epoch: int | None
    total: float
    weight: float
    last: bool


@dataclass
class EpochMeans:
    """The epoch that is under way; its numbers belong into a checkpoint.

    Attributes:
        total: sum of weight * loss over the steps that were made.
        weight: of their items.
    """

    total: float = 0.0
    weight: float = 0.0

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
            if micro_batch[0].last:
                mean = self.total / self.weight if self.weight else float("nan")
                rows.append({"epoch": micro_batch[0].epoch, "loss": mean, "weight": self.weight})
                self.total = self.weight = 0.0
        return rows

    def to_json(self) -> list[float]:
        """The numbers; `from_json` takes them."""
        return [self.total, self.weight]

    @classmethod
    def from_json(cls, values: Iterable[float]) -> "EpochMeans":
        """What `to_json` gave."""
        return cls(*values)
