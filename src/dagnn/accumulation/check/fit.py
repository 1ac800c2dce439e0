"""Which combination of micro-batch gradients a gradient is: the coefficients tell what a loop did."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dagnn.accumulation.check.arithmetic import widened
from dagnn.errors import ConfigError


class Basis:
    """Gradients of single micro-batches, to write other gradients in.

    Legend: ``g_j`` gradient of micro-batch j, ``c_j`` its coefficient in ``R = sum_j c_j g_j``.

    Raises:
        ConfigError: the ``g_j`` depend on each other, so that coefficients would not be unique.
    """

    def __init__(self, gradients: Sequence[Sequence[Tensor | None]], parameters: Sequence[Tensor]) -> None:
        columns = torch.stack([flatten(gradient, parameters) for gradient in gradients], dim=1)
        self._parameters = parameters
        self._scale = torch.linalg.vector_norm(columns, dim=0).clamp_min(1e-300)
        self._q, self._r = torch.linalg.qr(columns / self._scale)
        diagonal = self._r.diagonal().abs()
        if columns.shape[0] < columns.shape[1] or float(diagonal.min()) < 1e-6:
            raise ConfigError(
                f"the gradients of {columns.shape[1]} micro-batches cannot be told apart in {columns.shape[0]} "
                "parameters: check with a model of more parameters, or a batch of more varied items."
            )

    def coefficients(self, gradient: Sequence[Tensor | None]) -> tuple[list[float], float]:
        """The best ``c_j``, and the size of what no combination explains, relative to the gradient."""
        target = flatten(gradient, self._parameters)
        projected = self._q.T @ target
        found = torch.linalg.solve_triangular(self._r, projected[:, None], upper=True)[:, 0] / self._scale
        rest = torch.linalg.vector_norm(target - self._q @ projected)
        coefficients: list[float] = found.tolist()
        return coefficients, float(rest / torch.linalg.vector_norm(target).clamp_min(1e-300))


def flatten(gradient: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """All elements as float64 ``[elements]``, complex ones as two; zeros for a parameter without gradient."""
    return torch.cat(
        [
            _real(torch.zeros_like(p) if g is None else g + torch.zeros_like(p))
            for g, p in zip(gradient, parameters, strict=True)
        ]
    )


def _real(tensor: Tensor) -> Tensor:
    tensor = widened(tensor)
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten().cpu()


def combine(gradients: Sequence[Sequence[Tensor | None]], coefficients: Sequence[float]) -> list[Tensor | None]:
    """``sum_j c_j g_j``, parameter by parameter; None where no ``g_j`` has a gradient."""
    result: list[Tensor | None] = []
    for parts in zip(*gradients, strict=True):
        terms = [c * widened(g) for c, g in zip(coefficients, parts, strict=True) if g is not None and c]
        result.append(torch.stack(terms).sum(dim=0) if terms else None)
    return result


def close(actual: Sequence[float], expected: Sequence[float], tolerance: float) -> bool:
    """Equal up to ``tolerance``, relative to the largest expected value."""
    scale = max((abs(e) for e in expected), default=0.0) or 1.0
    return all(abs(a - e) <= tolerance * scale for a, e in zip(actual, expected, strict=True))
