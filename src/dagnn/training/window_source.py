"""Batches of windows for the trainer: drawn by weight from the levels that are open."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dagnn.curriculum.rules.algebra import COMMUTATIVE
from dagnn.curriculum.traces import WindowSet
from dagnn.data import BatchIterator
from dagnn.nn import GraphRewriter
from dagnn.nn.rewriter_alignment import target_orders
from dagnn.training.config import TrainingConfig

# A window counts by the root of how often it came. Cut at 60 the few very frequent windows of derivatives drowned
# among 110,000 rare ones, and level 5 stayed below 70 % (research prototype); the root alone is balanced.
_LARGEST_COUNT = 10_000
# Of each batch, in the progressive order: half from the newest level, half from all earlier ones.
_NEWEST_SHARE = 0.5


class WindowBatch(NamedTuple):
    """What `GraphRewriter.loss` takes.

    Attributes:
        rows: int64 ``[batch, features]``.
        targets: int64 ``[batch, orders, slots]``; one order unless the alignment is searched.
    """

    rows: Tensor
    targets: Tensor


class WindowSource:
    """An endless series of window batches; its position is one integer and the open levels.

    Attributes:
        rows, targets: every window, encoded; `WindowBatch` of the whole set.
    """

    def __init__(
        self, windows: WindowSet, model: GraphRewriter, config: TrainingConfig, *, rank: int = 0, num_ranks: int = 1
    ) -> None:
        """Encodes all windows; nothing is drawn until `open_levels` was called.

        Args:
            windows: of all levels of the run.
            model: whose features and slots they are encoded for.
            config: batch size, seed, level weights and order.
            rank, num_ranks: of every batch, this process's share of as many.
        """
        rows = model.features.encode(windows.windows)
        # Most windows are far shorter than the longest allowed one.
        self.rows = rows[:, : max(1, int((rows > 0).any(0).sum()))].contiguous()
        targets = model.features.encode_targets(windows.windows, windows.replacements, model.num_slots)
        if config.loss.alignment == "searched":
            unordered = [model.signature.id_of[name] for name in COMMUTATIVE]
            self.targets = target_orders(targets, model.arity, unordered)
        else:
            self.targets = targets[:, None]
        self._config = config
        self._rank, self._num_ranks = rank, num_ranks
        self._level_of_item = windows.first_level
        level_weight = np.array([config.curriculum.weight_of(int(level)) for level in self._level_of_item])
        self._weights = level_weight * np.sqrt(np.minimum(windows.counts.sum(1), _LARGEST_COUNT))
        self._batches: BatchIterator | None = None

    def open_levels(self, levels: Sequence[int]) -> None:
        """Draws from these levels from now on, from the beginning of their own series."""
        closed = {int(level): 0.0 for level in np.unique(self._level_of_item) if level not in levels}
        newest = {}
        if self._config.curriculum.order == "progressive" and len(levels) > 1:
            newest = {levels[-1]: _NEWEST_SHARE}
        self._batches = BatchIterator(
            self._level_of_item,
            batch_size=self._config.micro_batch_size,
            seed=(self._config.seed, len(levels)),
            item_weights=self._weights,
            level_shares={**closed, **newest},
            rank=self._rank,
            world_size=self._num_ranks,
        )

    def windows_of(self, levels: Sequence[int]) -> Tensor:
        """Items that come first at one of these levels: int64 ``[n]``."""
        return torch.from_numpy(np.flatnonzero(np.isin(self._level_of_item, levels)))

    def next_batch(self) -> WindowBatch:
        items = torch.from_numpy(self._opened().next_batch())
        return WindowBatch(self.rows[items], self.targets[items])

    def state_dict(self) -> Mapping[str, Any]:
        return self._opened().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._opened().load_state_dict(state)

    def _opened(self) -> BatchIterator:
        assert self._batches is not None, "open_levels was not called"
        return self._batches
