"""The norm of all gradients together, without overflow, and clipping by it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def total_norm(gradients: Sequence[Tensor], sum_over_ranks: Callable[[float], float] | None = None) -> float:
    """L2 norm over all elements of ``gradients``; inf or nan exactly when an element is.

    Gradients of 16 bits are squared in float32. Should float32 overflow on finite elements, the norm is computed again
    in float64: a norm of inf would turn every finite gradient into zero when clipped.

    Args:
        gradients: local tensors of any dtype and device, dense or sparse.
        sum_over_ranks: adds a number over the processes that each hold a part of the gradients.
    """
    dense = [values(gradient) for gradient in gradients]
    squared = sum(norm * norm for norm in _norms(dense, torch.float32))
    if not math.isfinite(squared) and all(bool(torch.isfinite(gradient).all()) for gradient in dense):
        squared = sum(norm * norm for norm in _norms(dense, torch.float64))
    return math.sqrt(squared if sum_over_ranks is None else sum_over_ranks(squared))


def clip_factor(norm: float, max_norm: float) -> float:
    """What gradients of norm ``norm`` are multiplied by, the same as ``torch.nn.utils.clip_grad_norm_`` does."""
    return min(1.0, max_norm / (norm + 1e-6))


def first_nonfinite(gradients: Sequence[tuple[str, Tensor]]) -> str | None:
    """Name of the first gradient with an element that is inf or nan."""
    for name, gradient in gradients:
        if not bool(torch.isfinite(values(gradient)).all()):
            return name
    return None


def values(gradient: Tensor) -> Tensor:
    """The elements of a gradient; of a sparse one those that are stored, duplicates summed."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def local_part(gradient: Tensor) -> Tensor:
    """This process's part of a gradient that is sharded over processes (a DTensor), else ``gradient``."""
    # By attribute, not by class: torch.distributed.tensor takes long to import and may be missing.
    to_local = getattr(gradient, "to_local", None)
    if to_local is None:
        return gradient
    local: Tensor = to_local()
    return local


def _norms(gradients: Sequence[Tensor], at_least: torch.dtype) -> list[float]:
    """Norms in ``at_least`` or the gradient's own dtype if that is wider, with one transfer per (device, dtype)."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient.detach())
    norms: list[float] = []
    for (_, dtype), members in groups.items():
        wide = torch.promote_types(dtype, at_least)
        norms += torch.stack(torch._foreach_norm(members, 2.0, wide)).tolist()
    return norms
