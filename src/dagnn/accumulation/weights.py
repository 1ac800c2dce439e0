"""Ready-made weights of micro-batches, for ``windows(..., weight=...)``: what the usual mean losses divide by.

>>> import torch
>>> labels = torch.tensor([[5, 6, 7, -100], [8, 9, -100, -100]])
>>> int(causal_tokens({"labels": labels})), int(tokens(-100)((None, labels))), items(labels)
(3, 5, 2)
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dagnn.accumulation.items import count_items as items
from dagnn.errors import AccumulationError, ConfigError

__all__ = ["Term", "causal_tokens", "items", "terms", "tokens"]

# Up to which a loss may miss the mean of its parts, relative to them: rounding, or a loss that couples its items.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-4}
_COARSE = 5e-2
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
        ConfigError: ``batch`` holds no such labels, or ``ignore_index`` is not a whole number.
    """
    ignored = _ignored(ignore_index, "causal_tokens(batch, ignore_index=...)")
    labels = _labels(batch, "causal_tokens")
    if labels.ndim == 0:
        raise ConfigError(
            f"causal_tokens needs labels of the shape [items, positions], got a single number ({labels.item()})."
        )
    if labels.is_nested:
        return sum(_num_others(row[..., 1:], ignored) for row in labels.unbind())
    return _num_others(labels[..., 1:], ignored)


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
    ignored = _ignored(ignore_index, "tokens(ignore_index)")

    def count(batch: Any) -> int:
        labels = _labels(batch, "tokens")
        if labels.is_nested:
            return sum(_num_others(row, ignored) for row in labels.unbind())
        return _num_others(labels, ignored)

    return count


def _ignored(value: Any, call: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(
            f"{call} takes the label that is ignored, a whole number, got {type(value).__name__}: use "
            "weight=dagnn.weights.tokens(-100), also where none is."
        )
    return int(value)


def _num_others(labels: Tensor, ignored: int) -> int:
    """How many ``labels`` are not ``ignored``, which torch would wrap into their dtype: -100 is 156 in uint8."""
    range_ = torch.iinfo(labels.dtype)
    return int((labels != ignored).sum()) if range_.min <= ignored <= range_.max else labels.numel()


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
    if labels.layout is not torch.strided and not labels.is_nested:
        raise ConfigError(f"{name} counts dense labels, got the layout {labels.layout}: give labels.to_dense().")
    return labels


def _call(name: str) -> str:
    return "dagnn.weights.tokens(-100)" if name == "tokens" else "dagnn.weights.causal_tokens"


class Term(NamedTuple):
    """One mean or sum over the items of a micro-batch, as the graph of a loss holds it.

    Attributes:
        node: the autograd node that reduces.
        coefficient: what the loss multiplies it by.
        denominator: what the mean divided by; None for a sum that nothing divides.

    >>> import torch
    >>> loss = 0.5 * torch.nn.functional.mse_loss(torch.ones(4, 3, requires_grad=True), torch.zeros(4, 3))
    >>> [(term.coefficient, term.denominator) for term in terms(loss)]
    [(0.5, 12.0)]
    """

    node: Any
    coefficient: float
    denominator: float | None


def terms(loss: Tensor) -> list[Term]:
    """What ``loss`` divides by, read from its autograd graph: the means and sums that it is a linear combination of.

    So no table of losses is needed: ``cross_entropy`` has counted its valid targets, a mean knows its elements, and a
    sum over a mask is divided by a number. Read it before ``backward`` frees the graph.

    >>> import torch
    >>> logits, targets = torch.randn(4, 3, requires_grad=True), torch.tensor([0, -100, 2, 1])
    >>> [term.denominator for term in terms(torch.nn.functional.cross_entropy(logits, targets))]
    [3.0]

    Args:
        loss: one number with a graph.

    Returns:
        the terms, in the order of the graph; ``loss`` is the sum of each coefficient times its mean or sum.

    Raises:
        AccumulationError: the loss is no linear combination of means and sums over items (a product or a logarithm of
            means, as in the load-balancing loss of experts), or a custom function hides how it divides.
    """
    if not isinstance(loss, Tensor):
        raise AccumulationError(f"the loss must be a tensor to read what it divides by, got {type(loss).__name__}.")
    if loss.numel() != 1 or loss.grad_fn is None:
        raise AccumulationError(
            f"the loss must be one number with a graph to read what it divides by, got the shape {list(loss.shape)} "
            f"and {'no graph' if loss.grad_fn is None else 'a graph'}."
        )
    return list(_walk(loss.grad_fn, 1.0))


_FUSED = ("NllLoss", "MseLoss", "L1Loss", "HuberLoss", "BinaryCrossEntropy", "SoftMargin", "MultiMargin", "Multilabel")
_SAME = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1",
         "UnsqueezeBackward0", "CloneBackward0", "ToCopyBackward0", "AliasBackward0", "ExpandBackward0",
         "SqueezeBackward2"}  # fmt: skip
_REDUCTIONS = {"MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1"}
# Between a reduction and the items: what works element by element or only gives other names to elements.
_ELEMENTWISE = _SAME | {"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1", "AddBackward0", "SubBackward0",
                        "NegBackward0", "PowBackward0", "LogBackward0", "ExpBackward0", "SqrtBackward0",
                        "ClampMinBackward0", "ClampBackward0", "PermuteBackward0", "TBackward0"}  # fmt: skip
_DEPTH = 12  # nodes below a reduction that are looked at for another one


def _walk(node: Any, coefficient: float) -> Iterator[Term]:
    name = node.name()
    parents = [parent for parent, _ in node.next_functions]
    if name in _SAME:
        yield from _walk(parents[0], coefficient)
    elif name == "NegBackward0":
        yield from _walk(parents[0], -coefficient)
    elif name in ("AddBackward0", "SubBackward0"):
        sign = -1.0 if name == "SubBackward0" else 1.0
        for parent, factor in zip(parents, (1.0, sign * float(node._saved_alpha)), strict=False):
            if parent is not None:
                yield from _walk(parent, coefficient * factor)
    elif name in ("MulBackward0", "MulBackward1"):
        parent, factor = _constant_factor(node, parents)
        yield from _walk(parent, coefficient * factor)
    elif name in ("DivBackward0", "DivBackward1"):
        yield from _divided(node, parents, coefficient)
    elif name in ("MeanBackward0", "SumBackward0") and _stacked_numbers(node, parents[0]):
        share = coefficient / node._saved_self_sym_numel if name == "MeanBackward0" else coefficient
        for parent, _ in parents[0].next_functions:
            if parent is not None:
                yield from _walk(parent, share)
    else:
        yield Term(node, coefficient, _denominator(node, name))


def _divided(node: Any, parents: list[Any], coefficient: float) -> Iterator[Term]:
    if len(parents) > 1 and parents[1] is not None:
        _refuse(node, "divides by something that has a gradient")
    divisor = _number(node._saved_other, node)
    below = list(_walk(parents[0], 1.0))
    if divisor == 0.0:
        # A mean over nothing, which is nan: it has no weight, and must not reach the gradients.
        yield Term(node, coefficient, 0.0)
    elif all(term.denominator is None for term in below):
        # Sums divided by a number are a mean written by hand, and the number is what counts.
        yield Term(node, coefficient, divisor)
    else:
        yield from (Term(t.node, t.coefficient * coefficient / divisor, t.denominator) for t in below)


def _constant_factor(node: Any, parents: list[Any]) -> tuple[Any, float]:
    if node.name() == "MulBackward1":
        return parents[0], float(node._saved_other)
    first, second = (*parents, None)[:2]
    if first is not None and second is not None:
        _refuse(node, "multiplies two things that have gradients")
    constant = node._saved_other if first is not None else node._saved_self
    return (first if first is not None else second), _number(constant, node)


def _number(value: Any, node: Any) -> float:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            _refuse(node, f"combines the loss with a tensor of shape {list(value.shape)}")
        return float(value)
    if value is None:
        _refuse(node, "keeps no value that can be read")
    return float(value)


def _stacked_numbers(node: Any, parent: Any) -> bool:
    """Whether this mean or sum runs over several losses that were stacked, not over items."""
    if parent is None or parent.name() not in ("StackBackward0", "CatBackward0"):
        return False
    return bool(math.prod(node._saved_self_sym_sizes) == len(parent.next_functions))


def _denominator(node: Any, name: str) -> float | None:
    if name.startswith(_FUSED) or name.startswith("Smooth"):
        if node._saved_reduction == 2:
            return None
        if node._saved_reduction != 1:
            _refuse(node, "gives one loss per item")
        return float(node._saved_total_weight if name.startswith("NllLoss") else node._saved_self.numel())
    if name in _REDUCTIONS:
        inner = _inner_reduction(node)
        if inner is not None:
            _refuse(inner, "reduces over items before the loss does, so that the loss of an item depends on others")
        return float(math.prod(node._saved_self_sym_sizes)) if name.startswith("Mean") else None
    _refuse(node, "is no mean or sum of PyTorch's")


def _inner_reduction(node: Any) -> Any:
    """A reduction over the first dimension below ``node``, with nothing but elementwise operations between; or None."""
    waiting, seen = [(parent, 0) for parent, _ in node.next_functions], set()
    while waiting:
        at, depth = waiting.pop()
        if at is None or at in seen or depth > _DEPTH:
            continue
        seen.add(at)
        name = at.name()
        if name in _REDUCTIONS:
            sizes = at._saved_self_sym_sizes
            dims = getattr(at, "_saved_dim", None)
            over_items = dims is None or not dims or any(d in (0, 2**64 - len(sizes), -len(sizes)) for d in dims)
            if over_items and len(sizes) and sizes[0] > 1:
                return at
        elif name in _ELEMENTWISE:
            waiting += [(parent, depth + 1) for parent, _ in at.next_functions]
    return None


def _refuse(node: Any, why: str) -> NoReturn:
    raise AccumulationError(
        f"what the loss divides by cannot be read from its graph: {node.name()} {why}. Say it yourself with "
        "weight=..., a function of the micro-batch; a loss that depends on the items together (contrastive losses, "
        "load balancing of experts) needs coupled=True, an option of ExactTrainer, ExactAccumulation and "
        "dagnn.accumulate."
    )


class TermValues(TorchFunctionMode):
    """Keeps every result of one element, by the autograd node that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.of_node: dict[Any, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == 1 and result.grad_fn is not None:
            self.of_node[result.grad_fn] = result
        return result

    def valued(self, found: list[Term]) -> Iterator[tuple[Term, Tensor]]:
        """Each of ``found`` with its number; terms that one function made together (label smoothing) as one term."""
        rest = {id(term.node): term for term in found}
        for term in found:
            if id(term.node) not in rest:
                continue
            if term.node in self.of_node:
                yield rest.pop(id(term.node)), self.of_node[term.node].reshape(())
                continue
            number, inner = min(self._above(term), key=lambda pair: len(pair[1]), default=(None, []))
            members = [rest.pop(id(each.node), None) for each in inner]
            if number is None or None in members or len({each.denominator for each in inner}) > 1:
                raise AccumulationError(
                    "the loss has several denominators inside one function, which cannot be taken apart: give "
                    "weight=..., a function of the micro-batch."
                )
            own = next(each for each in inner if each.node is term.node)
            yield term._replace(coefficient=term.coefficient / own.coefficient), number.reshape(())

    def _above(self, term: Term) -> Iterator[tuple[Tensor, list[Term]]]:
        for number in self.of_node.values():
            with contextlib.suppress(AccumulationError):
                inner = terms(number)
                if any(each.node is term.node for each in inner):
                    yield number, inner


def check_additive(term: Term, whole: Tensor, pieces: list[tuple[Term, Tensor]]) -> bool:
    """Whether both items count in this term; raises where it is not the mean of theirs."""
    counts = [piece.denominator for piece, _ in pieces]
    values = [float(value.detach()) for _, value in pieces]
    if term.denominator is None:
        expected, total = sum(values), None
    else:
        total = sum(count or 0.0 for count in counts)
        shares = [(count or 0.0) / total if total else 0.0 for count in counts]
        expected = sum(share * value for share, value in zip(shares, values, strict=True) if share)
    if total == 0.0:
        return False
    allowed = _ROUNDING.get(whole.dtype, _COARSE) * max(1e-3, *(abs(v) for v in values if math.isfinite(v)))
    same_total = total is None or abs(total - (term.denominator or 0.0)) <= 1e-6 * total
    if not same_total or not abs(float(whole.detach()) - expected) <= allowed:
        divisors = f"divided by {term.denominator if total is not None else 'nothing'} and {counts}"
        raise AccumulationError(
            f"the loss of two items together is {float(whole.detach()):.6g}, but those of each give {expected:.6g} "
            f"({divisors}): the loss of an item depends on the other items, or a sum is divided by a constant. No "
            "shares of micro-batches make the gradient of a coupled loss: give coupled=True, which runs the window as "
            "one batch. Otherwise give weight=..., a function of the micro-batch that returns what its mean loss "
            "divides by."
        )
    return all(count is None or count > 0 for count in counts)
