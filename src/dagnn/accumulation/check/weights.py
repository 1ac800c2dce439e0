"""What a loop did, as weights: each step, and what led to it, as a combination of the micro-batches' gradients."""

from collections.abc import Sequence
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.check.fit import Basis, flatten
from dagnn.accumulation.check.layouts import Examined
from dagnn.accumulation.check.subject import Gradients


class Weights(NamedTuple):
    """``c_j`` of every micro-batch j of one epoch.

    Attributes:
        sizes, windows: of the layout.
        shares: right weights of each window's micro-batches; those by their numbers of items if ``coupled``.
        coupled: no weights make the gradient of a window from those of its micro-batches.
        steps: of every step.
        incoming: of what backward passes gave between steps.
        left, incoming_left: of what was still in .grad, and of what came, after the last step.
        rest: the largest relative part of a step that no weights explain.
        tolerance: for comparing weights.
    """

    sizes: list[int]
    windows: list[list[int]]
    shares: list[list[float]]
    coupled: bool
    steps: list[list[float]]
    incoming: list[list[float]]
    left: list[float]
    incoming_left: list[float]
    rest: float
    tolerance: float

    @property
    def explained(self) -> bool:
        return self.rest <= self.tolerance


def weights_of(
    examined: Examined,
    parts: Sequence[Gradients],
    parameters: Sequence[Tensor],
    indices: Sequence[int],
    *,
    tolerance: float,
) -> Weights:
    """The weights in the gradients of some of the parameters.

    Args:
        parts: the gradient of each micro-batch, of all parameters that are held.
        parameters: all that are held.
        indices: which of them to look at.
        tolerance: relative error of gradients that counts as none.

    Raises:
        ConfigError: the gradients of micro-batches cannot be told apart.
    """

    def only(gradients: Gradients) -> Gradients:
        return [gradients[i] for i in indices]

    looked_at = [parameters[i] for i in indices]
    columns = [only(part) for part in parts]
    sizes, windows = examined.layout
    slack = max(1e-5, 4 * tolerance)
    shares, coupled = [], False
    for window, gradient in zip(windows, examined.expected, strict=True):
        inside = [columns[j] for j in window]
        found, rest = fit_finite(inside, only(gradient), looked_at)
        if rest > slack or leaves_out(found, inside, looked_at):
            coupled = True
            found = [sizes[j] / sum(sizes[i] for i in window) for j in window]
        shares.append(found)
    steps = [fit_finite(columns, only(step), looked_at) for step in examined.steps]
    return Weights(
        sizes,
        windows,
        shares,
        coupled,
        [found for found, _ in steps],
        [fit_finite(columns, only(gradient), looked_at)[0] for gradient in examined.incoming],
        fit_finite(columns, only(examined.left), looked_at)[0],
        fit_finite(columns, only(examined.incoming_left), looked_at)[0],
        max((rest for _, rest in steps), default=0.0),
        slack,
    )


def fit_finite(parts: Sequence[Gradients], full: Gradients, parameters: Sequence[Tensor]) -> tuple[list[float], float]:
    """Coefficients of ``parts`` in ``full``, 0 for a part that is not finite, and the relative rest.

    Raises:
        ConfigError: the parts cannot be told apart.
    """
    # A micro-batch in which nothing counts has a gradient of nan or zero: it can have no weight.
    finite = [i for i, part in enumerate(parts) if 0 < _norm(part, parameters) < inf]
    size = _norm(full, parameters)
    if not finite or not isfinite(size):
        return [0.0] * len(parts), 0.0 if size == 0 else 1.0
    found, rest = Basis([parts[i] for i in finite], parameters).coefficients(full)
    coefficients = [0.0] * len(parts)
    for index, value in zip(finite, found, strict=True):
        coefficients[index] = value
    return coefficients, rest


def leaves_out(shares: Sequence[float], parts: Sequence[Gradients], parameters: Sequence[Tensor]) -> bool:
    """A part with a gradient has no positive share of the whole: no denominator does that, only a choice of items."""
    norms = [_norm(part, parameters) for part in parts]
    largest = max(map(abs, shares), default=0.0)
    return any(0 < norm < inf and share <= 1e-6 * largest for share, norm in zip(shares, norms, strict=True))


def _norm(gradients: Gradients, parameters: Sequence[Tensor]) -> float:
    return float(torch.linalg.vector_norm(flatten(gradients, parameters)))
