"""The training set of a rewriter: windows on disk, batches of them drawn by weight, and what a batch costs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dagnn._version import __version__
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.algebra import COMMUTATIVE
from dagnn.curriculum.traces import WindowSet, is_held_out
from dagnn.data import BatchIterator
from dagnn.errors import CheckpointError, RunError
from dagnn.files import replace_file
from dagnn.ged import GedLoss
from dagnn.ged.targets import GraphTargets
from dagnn.rewriting import ReplacementTokens, WindowTokens
from dagnn.rewriting.network import GraphRewriter
from dagnn.rewriting.objective import parent_slots, target_orders
from dagnn.training.config import LossConfig, TrainingConfig

# A window counts by the root of how often it came. Cut at 60 the few very frequent windows of derivatives drowned
# among 110,000 rare ones, and level 5 stayed below 70 % (research prototype); the root alone is balanced.
_LARGEST_COUNT = 10_000
# Of each batch, in the progressive order: half from the newest level, half from all earlier ones.
_NEWEST_SHARE = 0.5
_WINDOWS_AT_ONCE = 4096


class WindowBatch(NamedTuple):
    """What `GraphRewriter.loss` takes.

    Attributes:
        rows: int64 ``[batch, features]``.
        targets: int64 ``[batch, orders, slots]``; one order unless the alignment is searched.
    """

    rows: Tensor
    targets: Tensor


class Mistake(NamedTuple):
    """A window that the network rewrote otherwise than the engine.

    Attributes:
        level: of the expression where it was met.
        replacement: the engine's.
    """

    level: int
    window: WindowTokens
    replacement: ReplacementTokens


class WindowSource:
    """An endless series of window batches.

    Its state is one integer and the open levels, and what it was taught by `learn_from`.

    Attributes:
        rows, targets: every window, encoded; `WindowBatch` of the whole set.
    """

    def __init__(
        self, windows: WindowSet, model: GraphRewriter, config: TrainingConfig, *, rank: int = 0, num_ranks: int = 1
    ) -> None:
        """Encodes all windows; nothing is drawn until `open_levels` was called.

        Args:
            windows: of all levels of the run. Those that ``config.curriculum.held_out_windows`` keeps from training
                are never drawn.
            model: whose features and slots they are encoded for.
            config: batch size, seed, level weights and order.
            rank, num_ranks: of every batch, this process's share of as many.
        """
        self._model = model
        self._config = config
        self._rank, self._num_ranks = rank, num_ranks
        self.rows, self.targets = self._encoded(windows.windows, windows.replacements)
        share = config.curriculum.held_out_windows
        self._is_trained = np.array([not is_held_out(window, share) for window in windows.windows])
        self._level_of_item = windows.first_level
        self._first_weights = self._level_weights(self._level_of_item) * self._is_trained
        self._first_weights *= np.sqrt(np.minimum(windows.counts.sum(1), _LARGEST_COUNT))
        self._windows, self._replacements = windows.windows, windows.replacements
        self._item_of = {window: item for item, window in enumerate(windows.windows)}
        self._mistakes: list[Mistake] = []
        self._weights = self._first_weights
        self._levels: tuple[int, ...] = ()
        self._batches: BatchIterator | None = None

    def open_levels(self, levels: Sequence[int]) -> None:
        """Draws from these levels from now on, from the beginning of their own series."""
        self._levels = tuple(levels)
        closed = {int(level): 0.0 for level in np.unique(self._level_of_item) if level not in levels}
        newest = {}
        if self._config.curriculum.order == "progressive" and len(levels) > 1:
            newest = {levels[-1]: _NEWEST_SHARE}
        # What was learned since begins a series of its own too: the draws so far must not come again.
        lessons = (len(self._mistakes),) if self._mistakes else ()
        self._batches = BatchIterator(
            self._level_of_item,
            batch_size=self._config.micro_batch_size,
            seed=(self._config.seed, len(levels), *lessons),
            item_weights=self._weights,
            level_shares={**closed, **newest},
            rank=self._rank,
            world_size=self._num_ranks,
        )

    def learn_from(self, mistakes: Iterable[Mistake]) -> int:
        """Draws these windows more often from now on, those too that are new; returns how many are new.

        A window that is held out stays so. A mistake made again counts again.
        """
        before = len(self._item_of)
        taken = [each for each in mistakes if self._may_learn(each)]
        if taken:
            self._take(taken)
            self.open_levels(self._levels)
        return len(self._item_of) - before

    def windows_of(self, levels: Sequence[int]) -> Tensor:
        """Items to be trained on that come first at one of these levels: int64 ``[n]``."""
        return torch.from_numpy(np.flatnonzero(np.isin(self._level_of_item, levels) & self._is_trained))

    def wrong_windows(self, model: GraphRewriter, levels: Sequence[int]) -> list[Mistake]:
        """The traced windows of `windows_of` whose replacement is not exactly right; call it in eval mode."""
        wrong: list[int] = []
        for items in torch.split(self.windows_of(levels), _WINDOWS_AT_ONCE):
            targets = self.targets[items]
            num_slots = int((targets >= 0).any(0).any(0).sum())
            targets = targets[..., :num_slots]
            predicted = model(self.rows[items], num_slots).argmax(-1)[:, None]
            right_orders = ((predicted == targets) | (targets < 0)).all(2)
            wrong += items[~right_orders.any(1)].tolist()
        return [Mistake(int(self._level_of_item[i]), self._windows[i], self._replacements[i]) for i in wrong]

    def next_batch(self) -> WindowBatch:
        items = torch.from_numpy(self._opened().next_batch())
        return WindowBatch(self.rows[items], self.targets[items])

    def state_dict(self) -> Mapping[str, Any]:
        mistakes = [[level, list(window), list(replacement)] for level, window, replacement in self._mistakes]
        return {**self._opened().state_dict(), **({"mistakes": mistakes} if mistakes else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        mistakes = mistakes_of(state)
        if mistakes != self._mistakes:
            if mistakes[: len(self._mistakes)] != self._mistakes:
                self._forget()
            self._take(mistakes[len(self._mistakes) :])
            self.open_levels(self._levels)
        self._opened().load_state_dict(state)

    def _may_learn(self, mistake: Mistake) -> bool:
        return not is_held_out(mistake.window, self._config.curriculum.held_out_windows)

    def _take(self, mistakes: Sequence[Mistake]) -> None:
        # The first that names a window gives its level, whether they come one by one or, in a resume, all together.
        first = {each.window: each for each in reversed(mistakes) if each.window not in self._item_of}
        new = [each for each in mistakes if first.get(each.window) is each]
        if new:
            rows, targets = self._encoded([each.window for each in new], [each.replacement for each in new])
            self.rows = _stacked(self.rows, rows, lambda part: torch.zeros_like(part[:, :1]))
            self.targets = _stacked(self.targets, targets, lambda part: part[:, :1])
            levels = np.array([each.level for each in new], np.int64)
            self._windows = [*self._windows, *(each.window for each in new)]
            self._replacements = [*self._replacements, *(each.replacement for each in new)]
            self._item_of |= {each.window: len(self._item_of) + i for i, each in enumerate(new)}
            self._level_of_item = np.append(self._level_of_item, levels)
            self._is_trained = np.append(self._is_trained, np.ones(len(new), bool))
            self._weights = np.append(self._weights, np.zeros(len(new)))
        self._weights = self._weights.copy()
        for each in mistakes:
            # Half as much again and that of nine sights more: a rare window is seen soon, a frequent one not too often.
            item = self._item_of[each.window]
            self._weights[item] = 1.5 * self._weights[item] + 3 * self._level_weights(self._level_of_item[item])
        self._mistakes = [*self._mistakes, *mistakes]

    def _forget(self) -> None:
        count = len(self._first_weights)
        self._windows, self._replacements = self._windows[:count], self._replacements[:count]
        self._item_of = {window: item for window, item in self._item_of.items() if item < count}
        self.rows, self.targets = self.rows[:count], self.targets[:count]
        self._level_of_item, self._is_trained = self._level_of_item[:count], self._is_trained[:count]
        self._weights, self._mistakes = self._first_weights, []

    def _level_weights(self, levels: Any) -> Any:
        return np.vectorize(self._config.curriculum.weight_of, otypes=[float])(levels)

    def _encoded(
        self, windows: Sequence[WindowTokens], replacements: Sequence[ReplacementTokens]
    ) -> tuple[Tensor, Tensor]:
        model = self._model
        rows = model.encode(windows)
        # Most windows are far shorter than the longest allowed one.
        columns = (rows > 0).any(0).nonzero().flatten().tolist()
        rows = rows[:, : max(columns, default=0) + 1].contiguous()
        targets = model.features.encode_targets(windows, replacements, model.num_slots)
        if self._config.loss.alignment == "searched":
            unordered = [model.signature.id_of[name] for name in COMMUTATIVE]
            return rows, target_orders(targets, model.arity, unordered)
        return rows, targets[:, None]

    def _opened(self) -> BatchIterator:
        assert self._batches is not None, "open_levels was not called"
        return self._batches


def mistakes_of(state: Mapping[str, Any]) -> list[Mistake]:
    """The mistakes that a saved `WindowSource` had learned from.

    Raises:
        CheckpointError: it holds something else.
    """
    try:
        return [
            Mistake(int(level), tuple(map(int, window)), tuple(map(int, replacement)))
            for level, window, replacement in state.get("mistakes", [])
        ]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the saved data order holds no windows: {error}.") from error


def _stacked(above: Tensor, below: Tensor, filling: Callable[[Tensor], Tensor]) -> Tensor:
    """Both as one tensor; the narrower of them filled up in dimension 1."""
    width = max(above.shape[1], below.shape[1])
    return torch.cat([torch.cat([part, *[filling(part)] * (width - part.shape[1])], 1) for part in (above, below)])


FILE_NAME = "windows.safetensors"


@dataclass(frozen=True)
class Cost:
    """What collecting the windows took.

    Attributes:
        seconds: wall-clock time.
        cpu_seconds: CPU time of all processes together.
    """

    seconds: float
    cpu_seconds: float


def write_windows(directory: Path, windows: WindowSet, cost: Cost) -> None:
    """Keeps the windows in a run's directory, replacing what was there in one step. Raises RunError."""
    tokens, offsets = _joined(windows.windows)
    replacements, replacement_offsets = _joined(windows.replacements)
    arrays: dict[str, NDArray[Any]] = {
        "counts": windows.counts,
        "levels": np.array(windows.levels, np.int64),
        "windows": tokens,
        "window_offsets": offsets,
        "replacements": replacements,
        "replacement_offsets": replacement_offsets,
    }
    told = {"cost": json.dumps([cost.seconds, cost.cpu_seconds]), "labels": _labels()}
    path = directory / FILE_NAME
    try:
        replace_file(path, safetensors.numpy.save(arrays, metadata=told))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def read_windows(directory: Path) -> tuple[WindowSet, Cost] | None:
    """The windows of a run; None when there are none, or none that this version can use."""
    path = directory / FILE_NAME
    try:
        with safe_open(path, "numpy") as file:
            told = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if told.get("labels") != _labels():
            return None
        seconds, cpu_seconds = json.loads(told["cost"])
        windows = WindowSet(
            _parted(arrays["windows"], arrays["window_offsets"]),
            _parted(arrays["replacements"], arrays["replacement_offsets"]),
            arrays["counts"],
            tuple(arrays["levels"].tolist()),
        )
    except (OSError, SafetensorError, KeyError, ValueError):
        # Windows are a pure function of the configuration: collecting them again gives the same ones.
        return None
    return windows, Cost(seconds, cpu_seconds)


def _labels() -> str:
    """What the tokens mean, and the version whose rules made them: of another one they are traced anew."""
    shown = " ".join(f"{each.name}/{each.arity}/{each.window_depth}" for each in SIGNATURE.shown)
    return f"{__version__} {shown}"


def _joined(sequences: list[tuple[int, ...]]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    return np.fromiter((token for sequence in sequences for token in sequence), np.int16, int(offsets[-1])), offsets


def _parted(tokens: NDArray[np.int16], offsets: NDArray[np.int64]) -> list[tuple[int, ...]]:
    flat, ends = tokens.tolist(), offsets.tolist()
    return [tuple(flat[first:last]) for first, last in pairwise(ends)]


def window_objective(config: LossConfig) -> Callable[[GraphRewriter, WindowBatch], Tensor]:
    """The objective of these settings: mean over a batch, 0 for an empty one."""
    alpha, beta, gamma = config.alpha, config.beta, config.gamma
    if config.objective == "edit":
        return lambda network, batch: network.loss(batch.rows, batch.targets, alpha=alpha, beta=beta, gamma=gamma)

    # Slots are read in preorder, so slot i stands for node i of the target.
    ged_loss = GedLoss(alpha, beta, gamma, alignment="order")

    def objective(network: GraphRewriter, batch: WindowBatch) -> Tensor:
        if not len(batch.rows):
            return network.loss(batch.rows, batch.targets)
        target = replacement_graphs(batch.targets[:, 0], network.arity)
        cost: Tensor = ged_loss(*network.predict_graphs(batch.rows, target.exists.shape[1]), target)
        return cost

    return objective


def replacement_graphs(targets: Tensor, arity: Tensor) -> GraphTargets:
    """Replacements as graphs: a node for every slot in use, an edge from every operand to its operator.

    Args:
        targets: int64 ``[batch, slots]``, -1 behind the end of a replacement (see `WindowFeatures`).
        arity: int64 ``[labels]``.
    """
    targets = targets[:, : int((targets >= 0).any(0).sum())]
    parent = parent_slots(targets, arity)
    adjacency = torch.zeros(*targets.shape, targets.shape[1], dtype=torch.bool, device=targets.device)
    window, operand = (parent >= 0).nonzero().unbind(1)
    adjacency[window, operand, parent[window, operand]] = True
    return GraphTargets(targets >= 0, adjacency, targets.clamp(min=0))
