"""Loaders: endless series of micro-batches with a saved position, from any iterable or from a dataset by workers."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from dagnn.accumulation.items import tensors_in
from dagnn.accumulation.random_states import generators_in, seed_everything, seed_generator, state_of, untouched_rng
from dagnn.data import BatchIterator
from dagnn.errors import CheckpointError, ConfigError, RunError, warn
from dagnn.training.run.values import is_dense, tensor_bytes

Index = TypeVar("Index")
Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)


@runtime_checkable
class BatchLoader(Protocol[Batch_co]):
    """An endless series of micro-batches. `dagnn.data.BatchIterator` is one (of item indices).

    The series after `load_state_dict` must equal the one after `state_dict`, bit for bit: the trainer needs nothing
    else for an exact resume. The state holds numbers, text, arrays, tensors, and containers of those.

    With several processes each has its own loader; ``next_batch`` gives this process's share of a micro-batch (it may
    be empty), and the state is the same in all of them. A loader with an attribute ``epoch`` (of the next batch, from
    0) gets the mean loss of every epoch in the metrics. The trainer calls its method ``close``, if it has one, at the
    end of a training.

    >>> from dagnn.data import BatchIterator
    >>> loader: BatchLoader = BatchIterator([1, 1], batch_size=2, seed=0)
    >>> sorted(loader.next_batch().tolist())
    [0, 1]
    """

    def next_batch(self) -> Batch_co: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class MappedLoader:
    """A loader whose batches go through a function, such as indices to tensors.

    >>> from dagnn.data import BatchIterator
    >>> loader = MappedLoader(BatchIterator([1, 1, 1], batch_size=2, seed=0), lambda indices: indices.tolist())
    >>> sorted(loader.next_batch() + loader.next_batch())
    [0, 1, 2]
    """

    def __init__(self, loader: BatchLoader[Any], function: Callable[[Any], Any]) -> None:
        """``function`` must depend on the batch alone: it has no state that is saved."""
        self._loader = loader
        self._function = function

    def next_batch(self) -> Any:
        """The next batch of the loader, through the function."""
        return self._function(self._loader.next_batch())

    @property
    def epoch(self) -> int | None:
        """The loader's; None where it has none."""
        return getattr(self._loader, "epoch", None)

    def close(self) -> None:
        """The loader's, where it has one."""
        getattr(self._loader, "close", lambda: None)()

    def state_dict(self) -> Mapping[str, Any]:
        """The loader's."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The loader's."""
        self._loader.load_state_dict(state)


_METHODS = ("next_batch", "state_dict", "load_state_dict")


class IterableLoader:
    """The batches of an iterable, epoch after epoch; each is one micro-batch.

    Its position is the epoch and the number of batches taken from it. A resume begins that epoch again and skips those
    batches, so the epoch must come again as it was. Therefore

    - draws for a batch (the order of a shuffling DataLoader, augmentation) come from a seed made of the training's
      seed, the epoch and the number of the batch;
    - a generator of torch, NumPy or Python that belongs to the iterable, its sampler, its batch sampler or its dataset,
      as an attribute or inside one (of a transform, say), is seeded again for every epoch, from its first state; and
      ``set_epoch`` is called where one of them has it;
    - no draw moves the generators of the training.

    What ``persistent_workers`` draw, and an order that comes from elsewhere, such as the file system, cannot be
    repeated. A warning reports a first batch that differs after a resume.

    Attributes:
        epoch: of the next batch, from 0; None where the length of an epoch is not known before its end.

    >>> loader = IterableLoader([[1, 2], [3]])
    >>> loader.next_batch(), loader.next_batch(), loader.epoch
    ([1, 2], [3], 1)
    >>> loader.state_dict()["epoch"], loader.next_batch()
    (1, [1, 2])
    """

    def __init__(self, batches: Iterable[Any], *, seed: int = 0, rank: int = 0) -> None:
        """Nothing is loaded before the first `next_batch`.

        Args:
            batches: is iterated once per epoch. One that can be iterated only once lasts until its end.
            seed: of the training.
            rank: of this process; the state is that of the first.
        """
        self._batches = batches
        self._seed = seed
        self._rank = rank
        self._once = iter(batches) if isinstance(batches, Iterator) else None
        self._taken = 0  # of an iterator that can be iterated once
        self._parts = list(_parts_of(batches))
        found = {id(each): each for part in self._parts for each in generators_in(part)}
        self._generators = [(each, _fingerprint(each)) for each in found.values()]
        self._length = _exact_length(batches)
        self._epoch, self._position = 0, 0
        self._iterator: Iterator[Any] | None = None
        self._first: str | None = None  # digest of the first batch of the epoch

    @property
    def epoch(self) -> int | None:
        return None if self._length is None else self._epoch

    @property
    def collate_fn(self) -> Any:
        """Of a DataLoader: it decides whether a list in a batch holds parts or items."""
        return getattr(self._batches, "collate_fn", None)

    def next_batch(self) -> Any:
        """The next batch; an epoch that ends is followed by the next one.

        Raises:
            RunError: an epoch has no batch, or an iterator that can be iterated only once has ended.
        """
        if self._iterator is None:
            self._begin()
        try:
            batch = self._drawn(self._position)
        except StopIteration:
            if self._once is not None or not self._position:
                raise RunError(
                    f"the loader, {type(self._batches).__name__}, is at its end, but training goes on: give something "
                    "that can be iterated again and has a batch, such as a DataLoader or a list."
                ) from None
            self._epoch, self._position, self._iterator = self._epoch + 1, 0, None
            return self.next_batch()
        self._position += 1
        if self._position == self._length:
            self._epoch, self._position, self._iterator, self._first = self._epoch + 1, 0, None, None
        return batch

    def state_dict(self) -> Mapping[str, Any]:
        """Epoch and position, and what identifies the loader: its length, and a digest of its first batch."""
        return {"epoch": self._epoch, "position": self._position, "length": self._length, "first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position: the next batch is loaded after those before it.

        Raises:
            CheckpointError: the loader has another number of batches.
            RunError: an iterator that can be iterated once is past it.
        """
        if state["length"] != self._length:
            raise CheckpointError(
                f"the checkpoint's loader has {state['length']} batches in an epoch, this one has {self._length}: use "
                "the same data and batch size."
            )
        if state == self.state_dict():
            return
        if self._once is not None and state["position"] < self._taken:
            raise RunError(
                f"the loader, {type(self._batches).__name__}, can be iterated once and cannot go back: give something "
                "that can be iterated again, such as a DataLoader or a list."
            )
        self._epoch, self._position, self._first = state["epoch"], state["position"], state["first"]
        self._iterator = None

    def close(self) -> None:
        """End the workers of a loader; the next batch starts new ones."""
        self._iterator = None

    def _begin(self) -> None:
        """Start the current epoch and skip the batches before the position."""
        for part in self._parts:
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self._epoch)
        for generator, mark in self._generators:
            seed_generator(generator, self._number(mark))
        with untouched_rng():
            seed_everything(self._number("epoch"))
            self._iterator = iter(self._batches) if self._once is None else self._once
        position, first = self._position, self._first
        for number in range(self._taken, position):
            try:
                self._drawn(number)
            except StopIteration:
                raise CheckpointError(
                    f"the checkpoint's loader had more than {position} batches in epoch {self._epoch}, this one has "
                    f"{number}: use the same data and batch size."
                ) from None
        if position and self._first != first and self._rank == 0:
            warn(
                f"the first batch of epoch {self._epoch} is another than before the stop: the loader does not give the "
                "same batches again, so this training will not equal one that was never stopped."
            )

    def _drawn(self, number: int) -> Any:
        assert self._iterator is not None
        with untouched_rng():
            seed_everything(self._number(number))
            batch = next(self._iterator)
        self._taken += self._once is not None
        if number == 0:
            self._first = _digest(batch)
        return batch

    def _number(self, what: int | str) -> int:
        """A seed for this purpose in this epoch."""
        name = hashlib.sha256(json.dumps([self._seed, self._epoch, what]).encode()).digest()
        return int.from_bytes(name[:4], "little")


def as_loader(given: BatchLoader[Any] | Iterable[Any], *, seed: int, rank: int) -> BatchLoader[Any]:
    """A loader as it is; another iterable as an `IterableLoader`. Raises ConfigError for all else."""
    if all(callable(getattr(given, name, None)) for name in _METHODS):
        return given  # type: ignore[return-value]
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | torch.Tensor):
        return IterableLoader(given, seed=seed, rank=rank)
    raise ConfigError(
        f"loader is a {type(given).__name__}: give a DataLoader, a list of batches or anything else that gives batches "
        "when it is iterated, or an object with next_batch, state_dict and load_state_dict (BatchLoader)."
    )


def _parts_of(batches: Any) -> Iterator[Any]:
    """A loader, its samplers and its dataset; for other iterables, these alone."""
    found = [batches, *(getattr(batches, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
    found.append(getattr(found[2], "sampler", None))
    for number, part in enumerate(found):
        if part is not None and not any(part is each for each in found[:number]):
            yield part


def _fingerprint(generator: Any) -> str:
    """A digest of the state in which the user passed it: other seeds give other orders."""
    state = state_of(generator)
    return hashlib.sha256(repr(state.tolist() if isinstance(state, torch.Tensor) else state).encode()).hexdigest()


def _exact_length(batches: Any) -> int | None:
    """Batches of every epoch, where they are certain."""
    certain = isinstance(batches, list | tuple) or (
        isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset)
    )
    try:
        return len(batches) if certain else None
    except TypeError:  # a batch sampler without a length
        return None


def _digest(batch: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_in(batch):
        digest.update(tensor_bytes(tensor) if is_dense(tensor) else str(tensor.shape).encode())
    return digest.hexdigest()[:16]


_Key = tuple[int, int, int]  # number of the batch, index of the item, how often the batch has had it before


class Items(Protocol):
    """A dataset with random access, such as torch.utils.data.Dataset."""

    def __getitem__(self, index: int, /) -> Any: ...


class DatasetLoader:
    """A loader of micro-batches that worker processes load ahead.

    Each item draws (augmentation) from a seed of its own, made of the seed, the number of the batch and the index of
    the item: other draws in every epoch, the same ones for any number of workers and after any resume. Neither
    loading nor collating touches the generators of the training.

    The position is that of ``order``; after a resume, batches that were loaded ahead are loaded again.

    >>> from dagnn.data import BatchIterator
    >>> squares = [torch.tensor(number * number) for number in range(4)]
    >>> loader = DatasetLoader(squares, BatchIterator([1] * 4, batch_size=2, seed=0))
    >>> sorted(loader.next_batch().tolist() + loader.next_batch().tolist())
    [0, 1, 4, 9]
    """

    def __init__(
        self,
        items: Items,
        order: BatchIterator,
        *,
        num_workers: int = 0,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        """Nothing is loaded before the first `next_batch`.

        Args:
            items: ``items[index]`` for the indices that ``order`` draws.
            order: which items form a batch; this process's share of it.
            num_workers: processes that load; 0 loads in this one.
            seed: of what the items draw.
            collate: makes a batch of a list of items.

        Raises:
            ConfigError: ``num_workers`` is negative.
        """
        if num_workers < 0:
            raise ConfigError(f"num_workers must be at least 0, got {num_workers}.")
        self._order = order
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(items, seed, collate),
            batch_sampler=_Keys(order),
            collate_fn=_as_it_is,
            num_workers=num_workers,
            worker_init_fn=_in_its_own_group if hasattr(os, "setpgid") else None,
            # Its own: DataLoader draws from it, and otherwise from the generator of the training.
            generator=torch.Generator(),
        )
        self._batches: Iterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """Of the next batch, from 0."""
        return self._order.epoch

    def next_batch(self) -> Any:
        """The next batch; never ends."""
        if self._batches is None:
            self._batches = iter(self._loader)
        batch = next(self._batches)
        self._order.seek(self._order.position + 1)
        return batch

    def state_dict(self) -> Mapping[str, Any]:
        """Of ``order``."""
        return self._order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; what was loaded ahead is dropped. Errors as of `BatchIterator.load_state_dict`."""
        self._order.load_state_dict(state)
        self.close()

    def close(self) -> None:
        """End the workers; the next batch starts new ones. `Trainer.fit` does so at its end."""
        # Not left to the garbage collector: in a cycle with its queues torch waits 5 seconds for each worker.
        self._batches = None


class _Keys:
    """What to load, from the position of ``order`` on, without moving it."""

    def __init__(self, order: BatchIterator) -> None:
        self._order = order

    def __iter__(self) -> Iterator[list[_Key]]:
        position = self._order.position
        while True:
            seen: Counter[int] = Counter()
            keys = []
            for index in self._order.batch(position).tolist():
                keys.append((position, index, seen[index]))
                seen[index] += 1
            yield keys
            position += 1


class _Seeded(Dataset[Any]):
    """The items by key, collated, every one loaded under a seed of its own."""

    def __init__(self, items: Items, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._items, self._seed, self._collate = items, seed, collate

    def __getitems__(self, keys: Sequence[_Key]) -> Any:
        loaded = []
        with untouched_rng():
            for key in keys:
                self._draw_from(key)
                loaded.append(self._items[key[1]])
            self._draw_from(keys[0][:1] if keys else ())
            return self._collate(loaded)

    def _draw_from(self, key: Sequence[int]) -> None:
        name = hashlib.sha256(json.dumps([self._seed, *key]).encode()).digest()
        seed_everything(int.from_bytes(name[:4], "little"))

    def __getitem__(self, key: _Key) -> Any:
        raise AssertionError("DataLoader fetches whole batches")


def _as_it_is(batch: Any) -> Any:
    return batch


def _in_its_own_group(worker: int) -> None:
    """Ctrl-C and torchrun signal the whole group: a worker that died of it would take the current step with it.

    Workers end with the trainer all the same: it ends them, and where it was killed they notice within seconds.
    """
    os.setpgid(0, 0)
