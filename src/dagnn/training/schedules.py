"""Learning-rate schedules: functions of the step, so that a resumed run cannot drift from its curve.

A schedule gives the *factor* on the base learning rate for the optimizer step with this number (the first
is 0); `ScheduledRates` applies it. With ``T = schedule.steps`` (by default
``max_steps``), ``W = warmup_steps``, ``S = step_size``, ``g = gamma``, ``f = final_fraction``:

    constant        1
    step            g ** (step // S)
    exponential     g ** step
    cosine          f + (1 - f) * (1 + cos(pi * min(step, T) / T)) / 2
    warmup          min(1, (step + 1) / W);  1 when W = 0
    warmup_cosine   (step + 1) / W below W, then the cosine from 1 at step W to f at step T
    plateau         g ** drops: a drop after more than `schedule.patience` evaluations in a row without a better monitor

The drops of a plateau are numbers of the training, saved with it; all other factors depend on the step alone.

Warm-up starts at 1 / W, not 0: a first step with learning rate 0 would be thrown away. Step W - 1 and step W
both have factor 1, so the two pieces meet without a kink.
Source: Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5 (the cosine, without restarts).
"""

import math
from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer

from dagnn.training.config import ScheduleConfig

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, num_steps: int, drops: Callable[[], int] = lambda: 0) -> Schedule:
    """The factor on the base learning rate as a function of the step, from 0.

    Args:
        num_steps: where a cosine ends.
        drops: of a plateau, so far.
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
