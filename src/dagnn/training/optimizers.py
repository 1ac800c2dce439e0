"""Optimizers by name, learning-rate schedules as functions of the step, and averages of weights."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.errors import ConfigError, RunError
from dagnn.training.config import OptimizerConfig, ScheduleConfig

_FUSED_ON = ("cpu", "cuda")


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer over the trainable parameters of ``model``, with their names in its groups; else a ConfigError.

    A checkpoint stores optimizer state by these names, so a model whose parameters come in another order
    resumes with the right moments.
    """
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError(
            f"there is nothing to train: {type(model).__name__} has no parameter that requires a gradient. Call "
            "requires_grad_(True) on those that should learn, before Trainer."
        )
    lr, decay = config.lr, config.weight_decay
    fused = True if all(_may_be_fused(parameter) for _, parameter in parameters) else None  # None: PyTorch chooses
    makers: dict[str, Callable[[], Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=decay),
        "adam": lambda: torch.optim.Adam(parameters, lr=lr, betas=config.betas, weight_decay=decay, fused=fused),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=lr, betas=config.betas, weight_decay=decay, fused=fused),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=lr, momentum=config.momentum, weight_decay=decay),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=lr, weight_decay=decay),
    }
    return makers[config.name]()


def _may_be_fused(parameter: nn.Parameter) -> bool:
    """Whether one call may update it with all others: a quarter of the time for a small network, on any threads the
    same bits.

    It walks along the memory of weight, gradient and moments without a look at strides (torch 2.13). Moments that come
    back from a checkpoint are contiguous; a weight that is not would get another one's, or write to its neighbours.
    """
    return parameter.is_floating_point() and parameter.is_contiguous() and parameter.device.type in _FUSED_ON


Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, num_steps: int, drops: Callable[[], int] = lambda: 0) -> Schedule:
    """The factor on the base learning rate as a function of the step, from 0.

    A cosine ends at ``num_steps``; ``drops`` gives those of a plateau so far.
    """
    schedules: dict[str, Schedule] = {
        "constant": lambda step: 1.0,
        "step": lambda step: config.gamma ** (step // config.step_size),
        "exponential": lambda step: config.gamma**step,
        "cosine": lambda step: cosine(step, num_steps, config.final_fraction),
        "warmup": lambda step: warmup(step, config.warmup_steps),
        "plateau": lambda step: config.gamma ** drops(),
        "warmup_cosine": lambda step: warmup_cosine(step, num_steps, config.warmup_steps, config.final_fraction),
    }
    return schedules[config.name]


def cosine(step: int, num_steps: int, final_fraction: float) -> float:
    """Half a cosine from 1 at step 0 to ``final_fraction`` at ``num_steps``, and constant after it."""
    progress = min(step, num_steps) / num_steps
    return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup(step: int, warmup_steps: int) -> float:
    """Linear from ``1 / warmup_steps`` at step 0 to 1 at the last warm-up step, and 1 after it."""
    return (step + 1) / warmup_steps if step < warmup_steps else 1.0


def warmup_cosine(step: int, num_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """`warmup` below ``warmup_steps``, then `cosine` over the ``num_steps - warmup_steps`` that are left."""
    if step < warmup_steps:
        return warmup(step, warmup_steps)
    return cosine(step - warmup_steps, num_steps - warmup_steps, final_fraction)


class ScheduledRates:
    """Sets the learning rates of an optimizer to base rate * schedule(step).

    As PyTorch's LambdaLR, whose bookkeeping and wrapper around ``optimizer.step`` took a fiftieth of a training step of
    1.3 ms. The base rates are the groups' ``initial_lr`` where a checkpoint has left one, else their ``lr``.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, step: int = 0) -> None:
        """The next update uses ``schedule(step)``."""
        self._optimizer, self._schedule, self._step = optimizer, schedule, step
        self.set()

    def step(self) -> None:
        """After an update."""
        self._step += 1
        self.set()

    def set(self) -> None:
        """The rates of the next update, again: groups may have been added."""
        factor = self._schedule(self._step)
        for group in self._optimizer.param_groups:
            if "initial_lr" not in group:  # groups may be added
                group["initial_lr"] = float(group["lr"])
            rate = float(group["initial_lr"]) * factor
            if isinstance(group["lr"], Tensor):  # a compiled or captured step reads this very tensor
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


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
