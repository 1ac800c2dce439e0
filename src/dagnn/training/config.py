"""Configuration of a training by `Trainer`: every setting with its default and its range.

What a job of ours adds (what it trains on, the network) is in a class derived from `TrainingConfig`, such as
`dagnn.curriculum.CurriculumConfig`.
"""

from dataclasses import dataclass
from typing import TypeVar

from dagnn.training.settings import Settings, above, at_least, below_one, one_of, setting, within

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad")
SCHEDULES = ("constant", "step", "exponential", "cosine", "warmup", "warmup_cosine", "plateau")
_WARMUP_SCHEDULES = ("warmup", "warmup_cosine")


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer; settings that the chosen one does not have are left alone."""

    name: str = setting("adamw", "optimizer", **one_of(*OPTIMIZERS))
    lr: float = setting(1e-3, "base learning rate, before the schedule", **above(0.0))
    momentum: float = setting(0.9, "momentum of sgd and rmsprop", **below_one())
    betas: tuple[float, float] = setting(
        (0.9, 0.98),
        "running averages of adam and adamw",
        allowed="two numbers from 0 to below 1",
        accepts=lambda value: all(0 <= beta < 1 for beta in value),
    )
    weight_decay: float = setting(0.01, "weight decay (adam: L2 penalty)", **at_least(0.0))


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate as a pure function of the step; formulas in `dagnn.training.optimizers`."""

    name: str = setting("warmup_cosine", "schedule", **one_of(*SCHEDULES))
    warmup_steps: int = setting(100, "steps of warmup and warmup_cosine", **at_least(0))
    step_size: int = setting(1000, "steps between two drops of step", **at_least(1))
    gamma: float = setting(
        0.5,
        "factor of step and plateau (each drop) and exponential (each step)",
        allowed="a number above 0, at most 1",
        accepts=lambda value: 0 < value <= 1,
    )
    final_fraction: float = setting(0.01, "lr at the end of a cosine, as a part of the base", **within(0.0, 1.0))
    steps: int = setting(0, "step at which a cosine ends; 0: max_steps", **at_least(0))
    patience: int = setting(
        5, "evaluations in a row without a better monitor that a plateau lets pass; the next one drops", **at_least(0)
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written and which stay."""

    save_every: int = setting(500, "optimizer steps between two checkpoints; 0: only at the end", **at_least(0))
    keep_last: int = setting(3, "newest checkpoints to keep", **at_least(1))
    keep_best: int = setting(1, "best checkpoints to keep beside them", **at_least(0))


@dataclass(frozen=True)
class EarlyStoppingConfig:
    """When training ends before `max_steps`: the monitor no longer gets better."""

    patience: int = setting(0, "evaluations in a row without a better monitor that end it; 0: never", **at_least(0))
    min_delta: float = setting(0.0, "how much better counts as better", **at_least(0.0))


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """Every setting of a training run, checked.

    A *step* is an optimizer step, everywhere. Sections are nested, so keys, flags and TOML tables agree:
    ``config.optimizer.lr``, ``--optimizer.lr``, ``[optimizer] lr``, ``DAGNN_OPTIMIZER_LR``.

    Raises:
        ConfigError: a value is of the wrong type or out of range; all such values in one message.

    >>> TrainingConfig(batch_size=0)
    Traceback (most recent call last):
    dagnn.errors.ConfigError: batch_size = 0: allowed is a whole number of at least 1.
    """

    seed: int = setting(0, "seed of everything random", **within(0, 2**32 - 1))
    run_directory: str = setting(
        "runs/curriculum", "where the run is kept", allowed="a path", accepts=lambda value: value.strip() != ""
    )
    threads: int = setting(0, "threads of torch; 0: its own choice", **at_least(0))
    max_steps: int = setting(3000, "optimizer steps in all", **at_least(1))
    batch_size: int = setting(512, "examples per optimizer step", **at_least(1))
    micro_batches: int = setting(2, "parts in which an optimizer step is computed", **at_least(1))
    max_norm: float = setting(1.0, "gradients are clipped to this norm; 0: never", **at_least(0.0))
    ema_decay: float = setting(0.999, "moving average of the weights, used by evaluation; 0: none", **below_one())
    precision: str = setting(
        "float32",
        "the forward pass of training: as the model is, or in bfloat16 where torch.autocast says so",
        **one_of("float32", "bfloat16"),
    )
    compile: bool = setting(
        False,
        "whether loss and model go through torch.compile: minutes to begin, then faster; needs a C++ compiler",
        allowed="true or false",
        accepts=lambda value: True,
    )
    profile_steps: int = setting(0, "optimizer steps to profile, into profile.json; --profile: 20", **at_least(0))
    non_finite: str = setting("skip", "after a refused step (loss or gradient not finite)", **one_of("skip", "stop"))
    eval_every: int = setting(500, "optimizer steps between two evaluations; 0: never", **at_least(0))
    monitor: str = setting(
        "accuracy", "metric that ranks checkpoints", allowed="the name of a metric", accepts=lambda value: value != ""
    )
    monitor_mode: str = setting("max", "whether a larger or a smaller monitor is better", **one_of("max", "min"))
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()

    @property
    def micro_batch_size(self) -> int:
        """Examples in one micro-batch."""
        return self.batch_size // self.micro_batches

    @property
    def schedule_steps(self) -> int:
        """Steps that a cosine spans."""
        return self.schedule.steps or self.max_steps

    def contradictions(self) -> list[str]:
        found = []
        if self.batch_size % self.micro_batches:
            found.append(
                f"micro_batches = {self.micro_batches}: allowed is a divisor of batch_size = {self.batch_size}."
            )
        if self.schedule.name in _WARMUP_SCHEDULES and self.schedule.warmup_steps >= self.schedule_steps:
            found.append(
                f"schedule.warmup_steps = {self.schedule.warmup_steps}: allowed is less than "
                f"{'schedule.steps' if self.schedule.steps else 'max_steps'} = {self.schedule_steps}."
            )
        if not self.eval_every:
            found += [
                f"eval_every = 0: allowed is at least 1 with {key} (nothing to wait for)."
                for key, waits in self.waiting().items()
                if waits
            ]
        return found

    def waiting(self) -> dict[str, object]:
        """Settings that wait for an evaluation, each with what is true where it does."""
        return {
            "early_stopping.patience": self.early_stopping.patience,
            "schedule.name = plateau": self.schedule.name == "plateau",
        }


Config = TypeVar("Config", bound=TrainingConfig)
