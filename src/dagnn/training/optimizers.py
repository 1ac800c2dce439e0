"""Optimizers by name, and learning-rate schedules as functions of the step."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.errors import ConfigError
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
