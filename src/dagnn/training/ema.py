"""Exponential moving average of a model's weights: smoother than the last step, used for evaluation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averaged copies of the floating-point parameters of a model.

    After update number t (from 1), ``average += (1 - d_t) * (weights - average)`` with
    ``d_t = min(decay, t / (t + 10))``: early on the average spans about the last tenth of the steps made, so
    that the random first weights are soon forgotten. Buffers are not averaged.

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the rising decay as in
    TensorFlow's ExponentialMovingAverage(num_updates), with t / (t + 10) for (1 + t) / (10 + t).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start at the model's present weights. ``decay``: 0 to below 1."""
        self._weights = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
        self._averages = {name: each.detach().clone() for name, each in self._weights.items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after optimizer step number ``step`` (from 1) into the average."""
        decay = min(self._decay, step / (step + 10))
        averages: list[Tensor] = list(self._averages.values())
        weights: list[Tensor] = list(self._weights.values())
        if averages:
            torch._foreach_lerp_(averages, weights, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; outside, bit for bit its own again."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        try:
            _copy(self._averages, self._weights)
            yield
        finally:
            _copy(own, self._weights)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name (not copies)."""
        return dict(self._averages)

    def load_state_dict(self, averages: Mapping[str, Tensor]) -> None:
        """Put the averages where `state_dict` found them; names and shapes must be the model's."""
        _copy(averages, self._averages)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
