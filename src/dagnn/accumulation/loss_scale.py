"""What losses are multiplied by before backward: their share of the window, times the loss scale."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from dagnn.accumulation.losses import LOW_PRECISION, holds_float16
from dagnn.accumulation.sums import Sums


class LossScale:
    """Scales the losses of one window, and keeps what must not be put into them.

    A share ``w / N`` cannot go into 16 bits: bfloat16 would round it by up to 0.4 %, and in float16 gradients of
    2^-15 vanish when 1,024 micro-batches divide them beforehand. So where 16 bits are on the way, the backward pass
    starts from 1 (from a power of two with a loss scaler), and the sums of 32 bits or more take the rest of the factor.
    """

    def __init__(self, sums: Sums, scale: float, *, may_rescale: bool) -> None:
        self._sums = sums
        self._scale = scale  # read once: one loss scale per window
        self._may_rescale = may_rescale and sums.rescalable
        self._low: bool | None = True if sums.narrow_parameters else None  # None until a loss was looked into
        self._residual = 1.0
        self._seeds: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}

    def passes(
        self, losses: Sequence[Tensor], coefficients: Sequence[float]
    ) -> Iterable[tuple[list[Tensor], list[Tensor], bool]]:
        """Where to begin each backward pass, with which gradients, and whether it is the last: one pass, but for
        several 16-bit losses with different shares.

        The gradients are ``coefficient * scale``, up to the factor that ``leftover`` still holds. They are given and
        not multiplied onto the loss, which would be one more operation in both directions.
        """
        roots = [loss.sum() if loss.ndim else loss for loss in losses]
        if not (self._may_rescale and (self._low or self._is_low(losses))):
            factor = self._scale / self._residual
            return ((roots, [self._seed(root, c * factor) for root, c in zip(roots, coefficients, strict=True)], True),)
        return self._low_passes(roots, coefficients)

    def _low_passes(
        self, roots: Sequence[Tensor], coefficients: Sequence[float]
    ) -> Iterator[tuple[list[Tensor], list[Tensor], bool]]:
        top = max(coefficients)
        groups: dict[float, list[tuple[Tensor, float]]] = {}
        for root, coefficient in zip(roots, coefficients, strict=True):
            exact = root.dtype not in LOW_PRECISION or math.frexp(coefficient / top)[0] == 0.5
            groups.setdefault(top if exact else coefficient, []).append((root, coefficient))
        for number, (unit, members) in enumerate(groups.items(), start=1):
            start = 1.0 if self._scale == 1.0 else math.ldexp(1.0, math.frexp(unit * self._scale)[1] - 1)
            self._rescale(unit * self._scale / start)
            seeds = [self._seed(root, coefficient / unit * start) for root, coefficient in members]
            yield [root for root, _ in members], seeds, number == len(groups)

    @property
    def leftover(self) -> float:
        """What the sums of this process are still to be multiplied by, before they are joined."""
        return self._residual / self._scale

    def state(self) -> dict[str, float]:
        """What a window that is half done needs of it."""
        return {"scale": self._scale, "residual": self._residual}

    def load_state(self, state: dict[str, float]) -> None:
        """Inverse of ``state``."""
        self._scale, self._residual = state["scale"], state["residual"]

    def _is_low(self, losses: Sequence[Tensor]) -> bool:
        for loss in losses:
            if loss.dtype in LOW_PRECISION:
                return True
        if self._low is None:
            # A loss scaler guards what float16 layers send back; without one, only the graph shows that there are any.
            self._low = self._scale == 1.0 and any(map(holds_float16, losses))
        return self._low

    def _rescale(self, residual: float) -> None:
        if residual != self._residual:
            self._sums.scale_(self._residual / residual)
            self._residual = residual

    def _seed(self, root: Tensor, value: float) -> Tensor:
        """The number as a tensor like the loss; most micro-batches of a window share one."""
        key = (value, root.dtype, root.device)
        seed = self._seeds.get(key)
        if seed is None:
            seed = self._seeds[key] = torch.full((), value, dtype=root.dtype, device=root.device)
        return seed
