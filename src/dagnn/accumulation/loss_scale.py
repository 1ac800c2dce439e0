"""What losses are multiplied by before backward: their share of the window, times the loss scale."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dagnn.accumulation.losses import is_low_precision
from dagnn.accumulation.sums import Sums


class LossScale:
    """Scales the losses of one window, and keeps what could not be put into them.

    bfloat16 keeps 8 bits of ``w / N``, an error of up to 0.4 % on all of a micro-batch. So a single 16-bit loss is
    multiplied by a power of two, and the rest of the factor, between 1 and 2, is applied to the 32-bit sums.
    """

    def __init__(self, sums: Sums, scale: float) -> None:
        self._sums = sums
        self._scale = scale  # read once: one loss scale per window
        self._residual = 1.0
        self._seeds: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}

    def apply(self, losses: Sequence[Tensor], coefficients: Sequence[float]) -> tuple[list[Tensor], list[Tensor]]:
        """Where to begin the backward pass, and with which gradient: ``coefficient * scale`` for each loss, up to the
        factor that ``leftover`` still holds.

        The gradient is given and not multiplied onto the loss, which would be one more operation in both directions.
        """
        if self._sums.all_wide and len(losses) == 1 and is_low_precision(losses[0].dtype):
            mantissa, exponent = math.frexp(coefficients[0] * self._scale)
            rest = 2 * mantissa  # at least 1: the 16-bit gradients are never larger than they would be otherwise
            if rest != self._residual:
                self._sums.scale_(self._residual / rest)
                self._residual = rest
            coefficients, factor = [math.ldexp(1.0, exponent - 1)], 1.0
        else:
            factor = self._scale / self._residual
        roots = [loss.sum() if loss.ndim else loss for loss in losses]
        return roots, [self._seed(root, c * factor) for root, c in zip(roots, coefficients, strict=True)]

    def _seed(self, root: Tensor, value: float) -> Tensor:
        """The number as a tensor like the loss; most micro-batches of a window share one."""
        key = (value, root.dtype, root.device)
        seed = self._seeds.get(key)
        if seed is None:
            seed = self._seeds[key] = torch.full((), value, dtype=root.dtype, device=root.device)
        return seed

    @property
    def leftover(self) -> float:
        """What the sums of this process are still to be multiplied by, before they are joined."""
        return self._residual / self._scale

    def state(self) -> dict[str, float]:
        """What a window that is half done needs of it."""
        return {"scale": self._scale, "residual": self._residual}

    @classmethod
    def from_state(cls, sums: Sums, state: dict[str, float]) -> "LossScale":
        """Inverse of ``state``."""
        loss_scale = cls(sums, state["scale"])
        loss_scale._residual = state["residual"]
        return loss_scale
