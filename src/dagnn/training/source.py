"""Where training gets its micro-batches: an endless series with a position that can be saved."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

Index = TypeVar("Index")
Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)


@runtime_checkable
class BatchSource(Protocol[Batch_co]):
    """An endless series of micro-batches. `dagnn.data.BatchIterator` is one (of item indices).

    The series after `load_state_dict` must be the one after `state_dict`, bit for bit: that, and nothing else,
    is what the trainer needs of it for an exact resume. The state must be JSON values.

    With several processes each has its own source; ``next_batch`` gives this process's share of a micro-batch (it may
    be empty), and the state is the same in all of them. A source with an attribute ``epoch`` (of the next batch, from
    0) gets the mean loss of every epoch in the metrics; one with a method ``close`` is told when a training ends.
    """

    def next_batch(self) -> Batch_co: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class MappedSource:
    """A source whose batches go through a function, such as indices to tensors.

    >>> from dagnn.data import BatchIterator
    >>> source = MappedSource(BatchIterator([1, 1, 1], batch_size=2, seed=0), lambda indices: indices.tolist())
    >>> sorted(source.next_batch() + source.next_batch())
    [0, 1, 2]
    """

    def __init__(self, source: BatchSource[Any], function: Callable[[Any], Any]) -> None:
        """``function`` must depend on the batch alone: it has no state that is saved."""
        self._source = source
        self._function = function

    def next_batch(self) -> Any:
        """The next batch of the source, through the function."""
        return self._function(self._source.next_batch())

    @property
    def epoch(self) -> int | None:
        """The source's; None where it has none."""
        return getattr(self._source, "epoch", None)

    def close(self) -> None:
        """The source's, where it has one."""
        getattr(self._source, "close", lambda: None)()

    def state_dict(self) -> Mapping[str, Any]:
        """The source's."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The source's."""
        self._source.load_state_dict(state)
