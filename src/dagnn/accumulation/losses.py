"""Checks on the losses that users hand to backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dagnn.accumulation.notices import warn
from dagnn.accumulation.shares import SINGLE, Reduction
from dagnn.errors import AccumulationError, ConfigError

LOW_PRECISION = frozenset((torch.float16, torch.bfloat16))


def check_loss(name: str, loss: Any, reduction: Reduction) -> None:
    """Raise unless ``loss`` is a tensor of the shape that ``reduction`` says."""
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"{_called(name)} must be a tensor, got {type(loss).__name__}: pass the loss itself, not loss.item()."
        )
    if loss.ndim and reduction != "none":
        if loss.numel() == 1:
            raise AccumulationError(
                f"{_called(name)} must be 0-dimensional, got the shape {list(loss.shape)}: pass loss.squeeze(), or "
                "reduction='none' if it holds one loss per item."
            )
        raise AccumulationError(
            f"{_called(name)} must be one number for reduction={reduction!r}, got the shape {list(loss.shape)}: pass "
            "its mean, or reduction='none' with one loss per item."
        )


def refuse_detached(name: str, parameters: Sequence[Tensor]) -> None:
    """Raise for a loss that has no graph to go back through to any of ``parameters``."""
    check_trainable(parameters)
    raise AccumulationError(
        f"{_called(name)} does not depend on a parameter that requires a gradient: was it computed under "
        "torch.no_grad() or detached? Use window.drop() for a micro-batch without a loss."
    )


def reported_loss(loss: Tensor) -> Tensor:
    """``loss`` as one number without a graph; losses per item are summed in float32 at least."""
    detached = loss.detach()
    return detached.sum(dtype=torch.promote_types(loss.dtype, torch.float32)) if loss.ndim else detached


def check_trainable(parameters: Sequence[Tensor]) -> None:
    """Raise when none of ``parameters`` requires a gradient."""
    if not any(parameter.requires_grad for parameter in parameters):
        raise AccumulationError(
            "there is nothing to train: no parameter requires a gradient. Call requires_grad_(True) on those that "
            "should learn, before the window."
        )


def warn_if_divided(loss: Tensor, micro_batches: int, reduction: Reduction) -> None:
    """Warn about ``loss / micro_batches``, the division of a hand-written loop, which would be done twice."""
    node = loss.grad_fn
    if reduction != "mean" or micro_batches < 2 or node is None:
        return
    kind = type(node).__name__
    if kind not in ("DivBackward0", "MulBackward0"):
        return
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.ndim or other.requires_grad:
        return
    divisor = float(other) if kind == "DivBackward0" else 1.0 / float(other) if float(other) else 0.0
    before = node.next_functions[0][0]
    # A sum divided by a number is a mean written by hand, whose number happens to be that of the micro-batches.
    if abs(divisor - micro_batches) < 1e-9 and before is not None and "Sum" not in type(before).__name__:
        warn(
            f"the loss was divided by {micro_batches}, the number of micro-batches in the window, before backward, "
            "which divides by the window's weight itself: pass the plain mean loss, or the gradient is "
            f"{micro_batches} times too small."
        )


def _called(name: str) -> str:
    return "loss" if name == SINGLE else f"loss {name!r}"


def holds_float16(loss: Tensor) -> bool:
    """True if the graph of ``loss`` sends a float16 gradient anywhere, as float16 autocast does.

    What is float16 between parameters of 32 bits was cast on the way, or is inside a function of the user's own: only
    there the dtype is looked at, which takes most of the time.
    """
    nodes, seen = [loss.grad_fn], {loss.grad_fn}
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            continue
        casts = kind == "ToCopyBackward0" or not kind[-1].isdigit()  # PyTorch's own nodes are numbered
        if casts and any(getattr(p, "dtype", None) == torch.float16 for p in getattr(node, "_input_metadata", ())):
            return True
        for parent, _ in node.next_functions:
            if parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return False
