"""`collate`: makes batches of samples that hold Dags, for ``torch.utils.data.DataLoader(collate_fn=...)``."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from dagnn.errors import DtypeError, GraphError
from dagnn.graph.batch import DagBatch
from dagnn.graph.dag import Dag


def collate(samples: Sequence[Any]) -> Any:
    """One batch from samples: Dags become a `DagBatch`, ``default_collate`` of PyTorch does everything else.

    Args:
        samples: at least one; each a Dag, or a tuple, list or mapping with Dags anywhere inside, all of one structure.

    Returns:
        The structure of one sample, with batches in place of its entries.

    Raises:
        GraphError: no samples, samples of different structure, or Dags that cannot be in one batch.
        DtypeError: a sample with a `DagBatch` in it.

    >>> batch, targets = collate([(Dag([(0, 1)]), 3), (Dag([], 1), 4)])
    >>> batch.num_graphs, targets
    (2, tensor([3, 4]))
    """
    if not samples:
        raise GraphError("collate needs at least one sample, got none.")
    first = samples[0]
    if isinstance(first, Dag):
        return DagBatch.from_dags(samples)
    if isinstance(first, DagBatch):
        raise DtypeError("a sample holds a DagBatch, which is a batch already: give its graphs, list(batch).")
    if isinstance(first, Mapping):
        _check_same([sorted(map(str, sample)) for sample in samples], "keys")
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, list | tuple):
        _check_same([len(sample) for sample in samples], "length")
        parts = [collate(part) for part in zip(*samples, strict=True)]
        if isinstance(first, list):
            return parts
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return default_collate(list(samples))


def _check_same(facts: Sequence[Any], what: str) -> None:
    for i, fact in enumerate(facts):
        if fact != facts[0]:
            raise GraphError(f"sample {i} has the {what} {fact}, but sample 0 has {facts[0]}: give all the same.")
