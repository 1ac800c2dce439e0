"""Ready-made weights of micro-batches, for ``windows(..., weight=...)``: what the usual mean losses divide by.

>>> import torch
>>> labels = torch.tensor([[5, 6, 7, -100], [8, 9, -100, -100]])
>>> int(causal_tokens({"labels": labels})), int(tokens(-100)((None, labels))), items(labels)
(3, 5, 2)
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dagnn.accumulation.items import count_items as items
from dagnn.errors import ConfigError

__all__ = ["causal_tokens", "items", "tokens"]

_SHAPES = "a mapping or object with 'labels', a pair (inputs, labels), or the labels themselves"


def causal_tokens(batch: Any, *, ignore_index: int = -100) -> int:
    """Number of labels that a causal language model predicts: those after the first position that are not ignored.

    Such a model predicts each token from those before it, so its loss compares the outputs at positions 0 .. T-2 with
    the labels at 1 .. T-1: the label at position 0 is never counted. Use ``tokens`` where the labels of the batch are
    shifted already.

    >>> import torch
    >>> causal_tokens({"labels": torch.tensor([[5, 6, 7, -100], [8, 9, -100, -100]])})
    3

    Args:
        batch: a mapping or object with ``labels``, a pair ``(inputs, labels)``, or the labels: a tensor of integers
            ``[items, positions]`` or a nested one.
        ignore_index: the label that the loss leaves out.

    Raises:
        ConfigError: ``batch`` holds no such labels.
    """
    labels = _labels(batch, "causal_tokens")
    if labels.ndim == 0:
        raise ConfigError(
            f"causal_tokens needs labels of the shape [items, positions], got a single number ({labels.item()})."
        )
    if labels.is_nested:
        return sum(int((row[..., 1:] != ignore_index).sum()) for row in labels.unbind())
    return int((labels[..., 1:] != ignore_index).sum())


def tokens(ignore_index: int = -100) -> Callable[[Any], int]:
    """A weight that counts the labels that are not ``ignore_index``: what ``cross_entropy`` divides by.

    >>> import torch
    >>> tokens(-100)((None, torch.tensor([[5, 6, 7, -100], [8, 9, -100, -100]])))
    5

    Args:
        ignore_index: the label that the loss leaves out.

    Returns:
        a function of a batch (see ``causal_tokens`` for its shapes), for ``windows(weight=dagnn.weights.tokens(0))``.

    Raises:
        ConfigError: ``ignore_index`` is not a whole number; later, a batch holds no labels.
    """
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise ConfigError(
            f"tokens(ignore_index) takes the label that is ignored and returns the weight, got "
            f"{type(ignore_index).__name__}: use weight=dagnn.weights.tokens(-100)."
        )

    def count(batch: Any) -> int:
        labels = _labels(batch, "tokens")
        if labels.is_nested:
            return sum(int((row != ignore_index).sum()) for row in labels.unbind())
        return int((labels != ignore_index).sum())

    return count


def _labels(batch: Any, name: str) -> Tensor:
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            raise ConfigError(
                f"{name} looks for 'labels' in a mapping, which has {', '.join(map(str, batch)) or 'no keys'}: rename "
                f"them, or give a function of the batch, such as lambda b: {_call(name)}(b['targets'])."
            )
        labels = batch["labels"]
    elif isinstance(batch, Tensor):
        labels = batch
    elif isinstance(batch, (tuple, list)) and not hasattr(batch, "labels"):
        if len(batch) != 2:
            raise ConfigError(
                f"{name} takes {_SHAPES}; got {len(batch)} parts: give a function of the batch that picks the labels, "
                f"such as lambda b: {_call(name)}(b[2])."
            )
        labels = batch[1]
    else:
        labels = getattr(batch, "labels", None)
    if not isinstance(labels, Tensor):
        raise ConfigError(
            f"{name} takes {_SHAPES}, as a tensor; got {type(batch).__name__}"
            f"{'' if labels is None else ' with labels of type ' + type(labels).__name__}."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ConfigError(f"{name} counts labels that are whole numbers (class indices), got {labels.dtype}.")
    return labels


def _call(name: str) -> str:
    return "dagnn.weights.tokens(-100)" if name == "tokens" else "dagnn.weights.causal_tokens"
