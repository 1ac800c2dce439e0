"""The training set of a rewriter: neighbourhoods with their replacements, on disk and as batches drawn by weight.

Neighbourhoods belong to numbered *stages*, such as the levels of a curriculum: a stage has a weight, and training
may open one stage after another.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dagnn import __version__
from dagnn.data import BatchIterator
from dagnn.errors import CheckpointError, RunError
from dagnn.files import replace_file
from dagnn.rewriting.features import target_orders
from dagnn.rewriting.network import GraphRewriter
from dagnn.rewriting.system import NeighbourhoodTokens, ReplacementTokens, Signature

FILE_NAME = "windows.safetensors"

# A neighbourhood counts by the root of how often it came. Cut at 60, the few very frequent ones drowned among 110,000
# rare ones, and one stage of seven stayed below 70 % (research prototype); the root alone is balanced.
_LARGEST_COUNT = 10_000
_NEIGHBOURHOODS_AT_ONCE = 4096
_PARTS = 1 << 32


@dataclass(frozen=True)
class NeighbourhoodSet:
    """Distinct neighbourhoods, in an order that depends on nothing but which neighbourhoods they are.

    Attributes:
        neighbourhoods, replacements: as tokens, see `dagnn.rewriting.system`.
        counts: int64 ``[num_neighbourhoods, num_stages]``, how often each neighbourhood came at each stage.
        stages: the stage of every column of `counts`.
    """

    neighbourhoods: list[NeighbourhoodTokens]
    replacements: list[ReplacementTokens]
    counts: NDArray[np.int64]
    stages: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.neighbourhoods)

    @property
    def first_stage(self) -> NDArray[np.int64]:
        """The lowest stage at which each neighbourhood came: int64 ``[num_neighbourhoods]``."""
        lowest: NDArray[np.int64] = np.array(self.stages, np.int64)[(self.counts > 0).argmax(1)]
        return lowest


def is_held_out(neighbourhood: NeighbourhoodTokens, share: float) -> bool:
    """Whether the neighbourhood is among this share of all neighbourhoods, 0 .. 1: a pure function of both."""
    digest = blake2b(np.array(neighbourhood, "<i2").tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < share * _PARTS


class NeighbourhoodBatch(NamedTuple):
    """What `GraphRewriter.loss` takes.

    Attributes:
        rows: int64 ``[batch, features]``.
        targets: int64 ``[batch, orders, slots]``; one order unless the alignment is searched.
    """

    rows: Tensor
    targets: Tensor


class Mistake(NamedTuple):
    """A neighbourhood that the network rewrote wrongly, the stage of the term where it was met, and what is right."""

    stage: int
    neighbourhood: NeighbourhoodTokens
    replacement: ReplacementTokens


class NeighbourhoodLoader:
    """An endless series of neighbourhood batches. ``rows`` and ``targets`` are a `NeighbourhoodBatch` of the whole set.

    Its state is one integer, the open stages, and the mistakes given to `learn_from`.
    """

    def __init__(
        self,
        collected: NeighbourhoodSet,
        model: GraphRewriter,
        *,
        batch_size: int,
        seed: int,
        stage_weights: Mapping[int, float],
        newest_share: float | None = None,
        held_out: float = 0.0,
        unordered: Collection[str] = (),
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        """Encodes all neighbourhoods; draws nothing until `open_stages` is called.

        Args:
            collected: the neighbourhoods of all stages of the run.
            model: whose features and slots they are encoded for.
            batch_size: neighbourhoods of a batch, of all processes together.
            seed: of the draws.
            stage_weights: stage -> weight of its neighbourhoods, before normalising; every stage has one.
            newest_share: share of each batch that the last of several open stages gets; None: what its weight says.
            held_out: share of all distinct neighbourhoods that is never drawn, see `is_held_out`.
            unordered: labels whose two operands may be exchanged in a replacement: every order is a target.
            rank, num_ranks: of every batch, this process's share of as many.
        """
        self._model = model
        self._batch_size, self._seed = batch_size, seed
        self._stage_weights, self._newest_share, self._held_out = stage_weights, newest_share, held_out
        self._unordered = [model.signature.id_of[name] for name in unordered]
        self._rank, self._num_ranks = rank, num_ranks
        self.rows, self.targets = self._encoded(collected.neighbourhoods, collected.replacements)
        self._is_trained = np.array(
            [not is_held_out(neighbourhood, held_out) for neighbourhood in collected.neighbourhoods]
        )
        self._stage_of_item = collected.first_stage
        self._first_weights = self._weights_of(self._stage_of_item) * self._is_trained
        self._first_weights *= np.sqrt(np.minimum(collected.counts.sum(1), _LARGEST_COUNT))
        self._neighbourhoods, self._replacements = collected.neighbourhoods, collected.replacements
        self._item_of = {neighbourhood: item for item, neighbourhood in enumerate(collected.neighbourhoods)}
        self._mistakes: list[Mistake] = []
        self._weights = self._first_weights
        self._stages: tuple[int, ...] = ()
        self._batches: BatchIterator | None = None

    def open_stages(self, stages: Sequence[int]) -> None:
        """Draws from these stages from now on, from the beginning of their own series."""
        self._stages = tuple(stages)
        closed = {int(stage): 0.0 for stage in np.unique(self._stage_of_item) if stage not in stages}
        newest = {}
        if self._newest_share is not None and len(stages) > 1:
            newest = {stages[-1]: self._newest_share}
        # New mistakes begin a series of their own too: the draws so far must not come again.
        lessons = (len(self._mistakes),) if self._mistakes else ()
        self._batches = BatchIterator(
            self._stage_of_item,
            batch_size=self._batch_size,
            seed=(self._seed, len(stages), *lessons),
            item_weights=self._weights,
            level_shares={**closed, **newest},
            rank=self._rank,
            world_size=self._num_ranks,
        )

    def learn_from(self, mistakes: Iterable[Mistake]) -> int:
        """Draws these neighbourhoods more often from now on; returns how many of them are new to the set.

        A neighbourhood that is held out stays so. A mistake made again counts again.
        """
        before = len(self._item_of)
        taken = [each for each in mistakes if not is_held_out(each.neighbourhood, self._held_out)]
        if taken:
            self._take(taken)
            self.open_stages(self._stages)
        return len(self._item_of) - before

    def neighbourhoods_of(self, stages: Sequence[int]) -> Tensor:
        """Items to be trained on that come first at one of these stages: int64 ``[n]``."""
        return torch.from_numpy(np.flatnonzero(np.isin(self._stage_of_item, stages) & self._is_trained))

    def items_of(self, mistakes: Iterable[Mistake]) -> Tensor:
        """The items of these neighbourhoods: int64 ``[n]``."""
        return torch.tensor([self._item_of[each.neighbourhood] for each in mistakes], dtype=torch.int64)

    def wrong_neighbourhoods(self, model: GraphRewriter, stages: Sequence[int]) -> list[Mistake]:
        """The traced neighbourhoods of `neighbourhoods_of` whose replacement is not exactly right; call it in eval
        mode."""
        wrong: list[int] = []
        for items in torch.split(self.neighbourhoods_of(stages), _NEIGHBOURHOODS_AT_ONCE):
            targets = self.targets[items]
            num_slots = int((targets >= 0).any(0).any(0).sum())
            targets = targets[..., :num_slots]
            predicted = model(self.rows[items], num_slots).argmax(-1)[:, None]
            right_orders = ((predicted == targets) | (targets < 0)).all(2)
            wrong += items[~right_orders.any(1)].tolist()
        return [Mistake(int(self._stage_of_item[i]), self._neighbourhoods[i], self._replacements[i]) for i in wrong]

    def next_batch(self) -> NeighbourhoodBatch:
        items = torch.from_numpy(self._opened().next_batch())
        return NeighbourhoodBatch(self.rows[items], self.targets[items])

    def state_dict(self) -> Mapping[str, Any]:
        mistakes = [
            [stage, list(neighbourhood), list(replacement)] for stage, neighbourhood, replacement in self._mistakes
        ]
        return {**self._opened().state_dict(), **({"mistakes": mistakes} if mistakes else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        mistakes = mistakes_of(state)
        if mistakes != self._mistakes:
            if mistakes[: len(self._mistakes)] != self._mistakes:
                self._forget()
            self._take(mistakes[len(self._mistakes) :])
            self.open_stages(self._stages)
        self._opened().load_state_dict(state)

    def _take(self, mistakes: Sequence[Mistake]) -> None:
        # The first that names a neighbourhood gives its stage, whether they come one by one or, in a resume, all
        # together.
        first = {each.neighbourhood: each for each in reversed(mistakes) if each.neighbourhood not in self._item_of}
        new = [each for each in mistakes if first.get(each.neighbourhood) is each]
        if new:
            rows, targets = self._encoded([each.neighbourhood for each in new], [each.replacement for each in new])
            self.rows = _stacked(self.rows, rows, lambda part: torch.zeros_like(part[:, :1]))
            self.targets = _stacked(self.targets, targets, lambda part: part[:, :1])
            stages = np.array([each.stage for each in new], np.int64)
            self._neighbourhoods = [*self._neighbourhoods, *(each.neighbourhood for each in new)]
            self._replacements = [*self._replacements, *(each.replacement for each in new)]
            self._item_of |= {each.neighbourhood: len(self._item_of) + i for i, each in enumerate(new)}
            self._stage_of_item = np.append(self._stage_of_item, stages)
            self._is_trained = np.append(self._is_trained, np.ones(len(new), bool))
            self._weights = np.append(self._weights, np.zeros(len(new)))
        self._weights = self._weights.copy()
        for each in mistakes:
            # Half as much again, plus the weight of nine occurrences: a rare one is drawn soon, a frequent one not too
            # often.
            item = self._item_of[each.neighbourhood]
            self._weights[item] = 1.5 * self._weights[item] + 3 * self._weights_of(self._stage_of_item[item])
        self._mistakes = [*self._mistakes, *mistakes]

    def _forget(self) -> None:
        count = len(self._first_weights)
        self._neighbourhoods, self._replacements = self._neighbourhoods[:count], self._replacements[:count]
        self._item_of = {neighbourhood: item for neighbourhood, item in self._item_of.items() if item < count}
        self.rows, self.targets = self.rows[:count], self.targets[:count]
        self._stage_of_item, self._is_trained = self._stage_of_item[:count], self._is_trained[:count]
        self._weights, self._mistakes = self._first_weights, []

    def _weights_of(self, stages: Any) -> Any:
        return np.vectorize(self._stage_weights.__getitem__, otypes=[float])(stages)

    def _encoded(
        self, neighbourhoods: Sequence[NeighbourhoodTokens], replacements: Sequence[ReplacementTokens]
    ) -> tuple[Tensor, Tensor]:
        model = self._model
        rows = model.encode(neighbourhoods)
        # Most neighbourhoods are far shorter than the longest allowed one.
        columns = (rows > 0).any(0).nonzero().flatten().tolist()
        rows = rows[:, : max(columns, default=0) + 1].contiguous()
        targets = model.features.encode_targets(neighbourhoods, replacements, model.num_slots)
        return rows, target_orders(targets, model.arity, self._unordered) if self._unordered else targets[:, None]

    def _opened(self) -> BatchIterator:
        assert self._batches is not None, "open_stages was not called"
        return self._batches


def mistakes_of(state: Mapping[str, Any]) -> list[Mistake]:
    """The mistakes that a saved `NeighbourhoodLoader` had learned from; CheckpointError if it holds something else."""
    try:
        return [
            Mistake(int(stage), tuple(map(int, neighbourhood)), tuple(map(int, replacement)))
            for stage, neighbourhood, replacement in state.get("mistakes", [])
        ]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the saved data order holds no neighbourhoods: {error}.") from error


def _stacked(above: Tensor, below: Tensor, filling: Callable[[Tensor], Tensor]) -> Tensor:
    """Both as one tensor; the narrower of them filled up in dimension 1."""
    width = max(above.shape[1], below.shape[1])
    return torch.cat([torch.cat([part, *[filling(part)] * (width - part.shape[1])], 1) for part in (above, below)])


@dataclass(frozen=True)
class Cost:
    """What collecting the neighbourhoods took.

    Attributes:
        seconds: wall-clock time.
        cpu_seconds: CPU time of all processes together.
    """

    seconds: float
    cpu_seconds: float


def write_neighbourhoods(directory: Path, collected: NeighbourhoodSet, cost: Cost, signature: Signature) -> None:
    """Writes a signature's neighbourhoods into a run's directory, in one step in place of the old; or a RunError."""
    tokens, offsets = _flat(collected.neighbourhoods)
    replacements, replacement_offsets = _flat(collected.replacements)
    arrays: dict[str, NDArray[Any]] = {
        "counts": collected.counts,
        "levels": np.array(collected.stages, np.int64),
        "windows": tokens,
        "window_offsets": offsets,
        "replacements": replacements,
        "replacement_offsets": replacement_offsets,
    }
    metadata = {"cost": json.dumps([cost.seconds, cost.cpu_seconds]), "labels": _labels(signature)}
    path = directory / FILE_NAME
    try:
        replace_file(path, safetensors.numpy.save(arrays, metadata=metadata))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def read_neighbourhoods(directory: Path, signature: Signature) -> tuple[NeighbourhoodSet, Cost] | None:
    """The neighbourhoods of a run; None when there are none, or none of this signature that this version can use."""
    path = directory / FILE_NAME
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("labels") != _labels(signature):
            return None
        seconds, cpu_seconds = json.loads(metadata["cost"])
        neighbourhoods = NeighbourhoodSet(
            _split(arrays["windows"], arrays["window_offsets"]),
            _split(arrays["replacements"], arrays["replacement_offsets"]),
            arrays["counts"],
            tuple(arrays["levels"].tolist()),
        )
    except (OSError, SafetensorError, KeyError, ValueError):
        # Neighbourhoods are a pure function of the settings: collecting them again gives the same ones.
        return None
    return neighbourhoods, Cost(seconds, cpu_seconds)


def _labels(signature: Signature) -> str:
    """What the tokens mean, and the version whose rules made them: another version collects them again."""
    shown = " ".join(f"{each.name}/{each.arity}/{each.neighbourhood_depth}" for each in signature.shown)
    return f"{__version__} {shown}"


def _flat(sequences: list[tuple[int, ...]]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    return np.fromiter((token for sequence in sequences for token in sequence), np.int16, int(offsets[-1])), offsets


def _split(tokens: NDArray[np.int16], offsets: NDArray[np.int64]) -> list[tuple[int, ...]]:
    flat, ends = tokens.tolist(), offsets.tolist()
    return [tuple(flat[first:last]) for first, last in pairwise(ends)]
