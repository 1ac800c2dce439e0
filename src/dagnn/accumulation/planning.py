"""What is known of a window before it runs, over all processes."""

from typing import NamedTuple

from dagnn.accumulation.cutting import MicroBatch
from dagnn.accumulation.shares import Planned, Weights


class Plan(NamedTuple):
    """One process's part of the next window: sent to all others."""

    has_window: bool
    micro_batches: int
    totals: Weights | None  # None when the items of a micro-batch could not be counted
    declared: bool

    @classmethod
    def of(cls, micros: list[MicroBatch] | None, *, declared: bool) -> "Plan":
        """The plan of ``micros``; of None where this process has no batches left."""
        totals: Weights = {}
        for micro in micros or []:
            if micro.weights is None:
                return cls(True, len(micros or []), None, declared)
            for name, weight in micro.weights.items():
                totals[name] = totals.get(name, 0.0) + weight
        return cls(micros is not None, len(micros or []), totals, declared)


def join_plans(plans: list[Plan], micros: list[MicroBatch]) -> Planned | None:
    """The window over all processes, with this process's own ``micros``; None where items could not be counted."""
    totals: Weights = {}
    for plan in plans:
        if plan.totals is None:
            return None
        for name, weight in plan.totals.items():
            totals[name] = totals.get(name, 0.0) + weight
    return Planned([micro.weights or {} for micro in micros], totals, plans[0].declared)
