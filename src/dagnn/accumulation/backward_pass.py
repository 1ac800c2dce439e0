"""One backward pass from losses with given gradients, without what PyTorch asks anew each time."""

from collections.abc import Sequence

import torch
from torch import Tensor

# What torch.autograd.backward calls once it has checked its arguments. Those checks take about a fifth of the backward
# pass of a small model, and here there is nothing to check. It is not public: without it the public way is taken.
_run_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)


def run_backward(losses: Sequence[Tensor], gradients: Sequence[Tensor] | None, *, retain_graph: bool) -> None:
    """``torch.autograd.backward``; quicker for 0-dimensional ``losses`` with ``gradients`` that fit them."""
    if gradients is None or _run_engine is None or not all(map(_is_plain_number, losses)):
        torch.autograd.backward(losses, gradients, retain_graph=retain_graph)
        return
    _run_engine(tuple(losses), tuple(gradients), retain_graph, False, (), allow_unreachable=True, accumulate_grad=True)


def _is_plain_number(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and not tensor.ndim
