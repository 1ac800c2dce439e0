"""Averages of weights over the steps (EMA), which evaluation and checkpoints use."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dagnn.errors import RunError


class WeightAverage:
    """Averaged copies of the floating-point and complex parameters of a model.

    After update number t (from 1), ``average += (1 - d_t) * (weights - average)`` with
    ``d_t = min(decay, t / (t + 10))``: early on the average spans about the last tenth of the steps made, so
    that the random first weights are soon forgotten. Buffers are not averaged.

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the rising decay as in
    TensorFlow's ExponentialMovingAverage(num_updates), with t / (t + 10) for (1 + t) / (10 + t).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start at the model's present weights. ``decay``: 0 to below 1."""
        self._model = model
        self._weights = _weights_of(model)
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
        """Inside, the model has the averaged weights; outside, bit for bit its own again.

        RunError where its parameters were replaced since.
        """
        for name, weight in _weights_of(self._model).items():
            if self._weights.get(name) is not weight:
                raise RunError(
                    f"the parameter {name} was replaced while its average was kept: train with ema_decay = 0, or make "
                    "a new trainer after a change of structure."
                )
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

    def saved(self) -> dict[str, Tensor]:
        """The tensors of the model's state dict that averaging alters, averaged: what a checkpoint keeps.

        Laid over the state dict they are the averaged model: a tied weight has its average under each of its names,
        and what a module derives from its weights when it is saved is derived from the averages.
        """
        own = self._model.state_dict()
        alike = self.names_alike()
        if alike == self._weights.keys() and _holds_its_tensors(self._model, own):
            return self.state_dict()
        with self.applied():
            averaged = {name: _cloned(value) for name, value in self._model.state_dict().items()}
        return {
            name: value
            for name, value in averaged.items()
            if isinstance(value, Tensor) and (name in alike or not _same(value, own[name]))
        }

    def names_alike(self) -> set[str]:
        """The names under which the model's state dict has memory of an averaged weight."""
        memory = {weight.untyped_storage().data_ptr() for weight in self._weights.values() if weight.numel()}
        return {
            name
            for name, value in self._model.state_dict().items()
            if isinstance(value, Tensor)
            and (
                name in self._weights
                or (value.layout is torch.strided and value.numel() and value.untyped_storage().data_ptr() in memory)
            )
        }

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Put the averages where `saved` found them. The model's own state is in between another and comes back."""
        own = {name: _cloned(value) for name, value in self._model.state_dict().items()}
        try:
            self._model.load_state_dict({**own, **saved})
            _copy(self._weights, self._averages)
        finally:
            self._model.load_state_dict(own)


def _weights_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.is_floating_point() or each.is_complex()}


def _holds_its_tensors(model: nn.Module, state: Mapping[str, Any]) -> bool:
    """Whether the state dict is parameters and buffers by their own names, and nothing made when it is saved."""
    held = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    return all(
        name in held and value.data_ptr() == held[name].data_ptr()
        for name, value in state.items()
        if isinstance(value, Tensor) and value.layout is torch.strided
    )


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(value: Tensor, other: Tensor) -> bool:
    return value.shape == other.shape and torch.equal(value, other)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
