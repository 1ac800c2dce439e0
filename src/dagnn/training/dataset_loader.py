"""Batches of a dataset, loaded by worker processes: the same bytes whatever their number, and exact on resume."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from dagnn.data import BatchIterator
from dagnn.errors import ConfigError
from dagnn.training.rng import seed_everything, untouched_rng

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
            # Its own: DataLoader draws from it, and would else draw from the training's.
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
    """Ctrl-C and torchrun signal the whole group: a worker that ended by it would take the step at hand with it.

    Workers end with the trainer all the same: it ends them, and where it was killed they notice within seconds.
    """
    os.setpgid(0, 0)
