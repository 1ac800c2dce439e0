"""Checks on the losses that users hand to backward."""

from typing import Any

import torch
from torch import Tensor

from dagnn.accumulation.notices import warn
from dagnn.accumulation.shares import SINGLE, Reduction
from dagnn.errors import AccumulationError, ConfigError


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


def check_differentiable(name: str, loss: Tensor) -> None:
    """Raise when ``loss`` has no graph to go back through."""
    if not loss.requires_grad:
        raise AccumulationError(
            f"{_called(name)} does not depend on a parameter that requires a gradient: was it computed under "
            "torch.no_grad() or detached? Use window.drop() for a micro-batch without a loss."
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


def is_low_precision(dtype: torch.dtype) -> bool:
    """16-bit floating point."""
    return dtype in (torch.float16, torch.bfloat16)
