"""Cutting a stream of batches into windows, each fetched whole before it runs."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from dagnn.accumulation.fetched import Fetched
from dagnn.accumulation.items import as_parts, count_items, is_collated
from dagnn.accumulation.shares import SINGLE, Weights, check_weights
from dagnn.accumulation.splitting import split_batch
from dagnn.errors import AccumulationError, ConfigError

Tail = Literal["flush", "carry", "drop"]
WeightFn = Callable[[Any], Any]


class MicroBatch(NamedTuple):
    """One micro-batch and its weights; ``weights`` is None where its items could not be counted."""

    data: Any
    weights: Weights | None


class Cut(NamedTuple):
    """How to cut: exactly one of the first three is set."""

    micro_batches: int | None
    micro_batch_size: int | None
    max_weight: float | None
    weight: WeightFn | None
    tail: Tail

    def check(self) -> None:
        """Raise ConfigError for values that make no windows."""
        given = [
            name for name in ("micro_batches", "micro_batch_size", "max_weight") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ConfigError(
                "windows() needs exactly one of micro_batches=K (batches per window), micro_batch_size=n (every batch "
                f"is a window, cut into pieces of n items) and max_weight=w, got {' and '.join(given) or 'none'}."
            )
        value = getattr(self, given[0])
        whole = given[0] != "max_weight"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
            raise ConfigError(f"{given[0]} must be a positive {'whole ' if whole else ''}number, got {value!r}.")
        if self.tail not in ("flush", "carry", "drop"):
            raise ConfigError(
                "tail must be 'flush' (run a short last window), 'carry' (keep its micro-batches for the next call of "
                f"windows) or 'drop' (leave them out), got {self.tail!r}."
            )
        if self.weight is not None and not callable(self.weight):
            raise ConfigError(f"weight must be a function of a micro-batch, got {type(self.weight).__name__}.")


def cut_windows(loader: Iterable[Any], cut: Cut, carried: list[Any]) -> Iterator[list[MicroBatch]]:
    """Windows of ``loader``: each a list of micro-batches, complete unless it is the last.

    Args:
        loader: yields batches; read only as far as the window at hand.
        carried: batches left by an earlier call, run first. Filled again when ``tail`` is "carry".
    """
    collated = is_collated(loader)
    # Only what is fetched while others wait can be written over; a list is there already, a collated batch is new.
    look = cut.micro_batches != 1 and not collated and not isinstance(loader, (list, tuple))
    loader = itertools.chain(carried.copy(), loader)
    carried.clear()
    if cut.micro_batch_size is not None:
        for batch in loader:
            pieces = split_batch(as_parts(batch) if collated else batch, cut.micro_batch_size)
            yield [counted(micro, cut.weight, items=items) for micro, items in pieces]
        return

    window: list[MicroBatch] = []
    filled = 0.0
    fetched = Fetched()
    for batch in loader:
        if look:
            fetched.add(batch)
        micro = counted(batch, cut.weight, collated=collated)
        if cut.max_weight is not None:
            weight = _main_weight(micro)
            if window and filled + weight > cut.max_weight:
                fetched.end_window(keep_last=look)
                yield window
                window, filled = [], 0.0
            filled += weight
        window.append(micro)
        if len(window) == cut.micro_batches:
            fetched.end_window()
            yield window
            window = []
    fetched.end_window()
    if window and cut.tail == "flush":
        yield window
    elif cut.tail == "carry":
        carried.extend(micro.data for micro in window)


def counted(data: Any, weight: WeightFn | None, *, collated: bool = False, items: int | None = None) -> MicroBatch:
    """``data`` with its weights: from ``weight``, else the number of its items.

    Args:
        collated: ``default_collate`` made it, whose lists hold parts of one batch.
        items: that number, where it is known.
    """
    if weight is not None:
        return MicroBatch(data, check_weights(weight(data), "weight(micro_batch)"))
    if items is not None:
        return MicroBatch(data, {SINGLE: float(items)})
    try:
        return MicroBatch(data, {SINGLE: float(count_items(as_parts(data) if collated else data))})
    except AccumulationError:
        # Not an error yet: the weight may come with backward, which raises if it does not.
        return MicroBatch(data, None)


def _main_weight(micro: MicroBatch) -> float:
    if micro.weights is None:
        count_items(micro.data)  # raises, with the reason
        raise AssertionError
    return next(iter(micro.weights.values()))
