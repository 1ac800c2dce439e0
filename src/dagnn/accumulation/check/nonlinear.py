"""Clipping found by its effect: gradients made very large must still give a multiple of the window's gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dagnn.accumulation.check.subject import Gradients


def clips_micro_batches(
    small: Sequence[Gradients], large: Sequence[Gradients], small_scale: float, large_scale: float, *, tolerance: float
) -> bool:
    """True when clipping acts on parts of a window.

    Args:
        small: recorded steps where clipping could not act, divided by ``small_scale``.
        large: the same steps where it had to, divided by ``large_scale``. Clipping the whole window by norm only
            shortens them; clipping it by value cuts each element at the same bound. All else was done to parts.
    """
    for before, after in zip(small, large, strict=False):
        a, b = _flat(before), _flat(after) * large_scale
        norm_a, norm_b = torch.linalg.vector_norm(a), torch.linalg.vector_norm(b)
        if not float(norm_a) or not float(norm_b):
            continue
        if float(torch.linalg.vector_norm(a / norm_a - b / norm_b)) <= tolerance:
            continue
        bound = float(b.abs().max())
        by_value = (a * large_scale).clamp(-bound, bound)
        if float(torch.linalg.vector_norm(by_value - b)) > tolerance * float(norm_b):
            return True
    return False


def _flat(gradients: Gradients) -> Tensor:
    parts = [g.double().flatten() for g in gradients if g is not None]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
