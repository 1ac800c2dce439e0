"""Training configuration: every setting with its default and its range, from file, environment and flags."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagnn.errors import ConfigError
from dagnn.training.settings import (
    above,
    at_least,
    build,
    convert,
    flatten,
    one_of,
    refuse,
    setting,
    settings_of,
    toml_text,
    unknown_key,
    within,
)

NUM_LEVELS = 7
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad")
SCHEDULES = ("constant", "step", "exponential", "cosine", "warmup", "warmup_cosine", "plateau")
_MAX_FILE_CHARACTERS = 1 << 20
_WARMUP_SCHEDULES = ("warmup", "warmup_cosine")


def _for_each_level(what: str, smallest: float) -> dict[str, Any]:
    return {
        "allowed": f"{NUM_LEVELS} {what} of at least {smallest}, the first for level 1, or one for all levels",
        "accepts": lambda value: len(value) in (1, NUM_LEVELS) and min(value) >= smallest,
    }


@dataclass(frozen=True)
class CurriculumConfig:
    """What is trained on: levels, how they are mixed, and when the next one opens."""

    levels: tuple[int, ...] = setting(
        (1, 2, 3, 4, 5, 6, 7),
        "levels to train on",
        allowed=f"distinct levels from 1 to {NUM_LEVELS}, in rising order",
        accepts=lambda value: (
            len(value) > 0 and list(value) == sorted(set(value)) and set(value) <= set(range(1, NUM_LEVELS + 1))
        ),
    )
    preset: str = setting("full", "size of the numbers in the expressions", **one_of("full", "small"))
    order: str = setting("mixed", "all levels from the start, or one after another", **one_of("mixed", "progressive"))
    level_weights: tuple[float, ...] = setting(
        (1.0,), "share of each level in a mixed batch, before normalising", **_for_each_level("numbers", 0.0)
    )
    samples: tuple[int, ...] = setting(
        (30_000, 12_000, 24_000, 4_000, 40_000, 12_000, 12_000),
        "expressions traced per level",
        **_for_each_level("whole numbers", 1),
    )
    threshold: float = setting(0.99, "accuracy on the newest level that promotes", **within(0.0, 1.0))
    minimum_steps: int = setting(200, "optimizer steps on a level before promotion", **at_least(0))
    patience: int = setting(1, "evaluations in a row at the threshold before promotion", **at_least(1))
    own_runs: int = setting(
        0,
        "training expressions per level that the network runs at each evaluation, beside the traced windows; windows "
        "that it gets wrong are drawn more often; 0: none",
        **at_least(0),
    )
    held_out_windows: float = setting(
        0.0,
        "share of all distinct windows that is kept from training, to be asked at the end",
        allowed="a number from 0 to below 1",
        accepts=lambda value: 0 <= value < 1,
    )

    def samples_of(self, level: int) -> int:
        """Expressions traced for this level, 1 .. 7."""
        return self.samples[level - 1] if len(self.samples) > 1 else self.samples[0]

    def weight_of(self, level: int) -> float:
        """Share of this level, 1 .. 7, before normalising."""
        return self.level_weights[level - 1] if len(self.level_weights) > 1 else self.level_weights[0]


@dataclass(frozen=True)
class ModelConfig:
    """Kind and size of the network."""

    backbone: str = setting(
        "features", "how windows are read: as sets of features, or as graphs", **one_of("features", "graph")
    )
    graph_dim: int = setting(128, "features of the nodes, where windows are read as graphs", **at_least(1))
    width: int = setting(512, "features of the residual blocks", **at_least(1))
    blocks: int = setting(2, "residual blocks", **at_least(1))
    slot_width: int = setting(64, "features of each output slot", **at_least(1))
    num_slots: int = setting(32, "nodes of the largest replacement", **at_least(1))


@dataclass(frozen=True)
class LossConfig:
    """Edit cost between the predicted and the target graph: alpha * node + beta * edge + gamma * clique."""

    alpha: float = setting(1.0, "weight of the node terms", **at_least(0.0))
    beta: float = setting(1.0, "weight of the edge terms", **at_least(0.0))
    gamma: float = setting(0.0, "weight of the clique terms", **at_least(0.0))
    alignment: str = setting("order", "given by the decoder's order, or searched", **one_of("order", "searched"))
    objective: str = setting(
        "edit", "edit cost over labels and copies, or GedLoss over whole graphs", **one_of("edit", "ged")
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer; settings that the chosen one does not have are left alone."""

    name: str = setting("adamw", "optimizer", **one_of(*OPTIMIZERS))
    lr: float = setting(1e-3, "base learning rate, before the schedule", **above(0.0))
    momentum: float = setting(
        0.9, "momentum of sgd and rmsprop", allowed="a number from 0 to below 1", accepts=lambda value: 0 <= value < 1
    )
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
    when_right: bool = setting(
        False,
        "end with the evaluation that finds no training window wrong",
        allowed="true or false",
        accepts=lambda value: True,
    )


@dataclass(frozen=True)
class TrainingConfig:
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
    warm_start: str = setting(
        "", "run or checkpoint whose network to begin with; empty: none", allowed="a path", accepts=lambda value: True
    )
    threads: int = setting(0, "threads of torch; 0: its own choice", **at_least(0))
    max_steps: int = setting(3000, "optimizer steps in all", **at_least(1))
    batch_size: int = setting(512, "examples per optimizer step", **at_least(1))
    micro_batches: int = setting(2, "parts in which an optimizer step is computed", **at_least(1))
    max_norm: float = setting(1.0, "gradients are clipped to this norm; 0: never", **at_least(0.0))
    ema_decay: float = setting(
        0.999,
        "moving average of the weights, used by evaluation; 0: none",
        allowed="a number from 0 to below 1",
        accepts=lambda value: 0 <= value < 1,
    )
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
    test_samples: int = setting(500, "test expressions per level in the final evaluation", **at_least(1))
    eval_samples: int = setting(60, "expressions per level in an evaluation", **at_least(1))
    monitor: str = setting(
        "accuracy", "metric that ranks checkpoints", allowed="the name of a metric", accepts=lambda value: value != ""
    )
    monitor_mode: str = setting("max", "whether a larger or a smaller monitor is better", **one_of("max", "min"))
    curriculum: CurriculumConfig = CurriculumConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()

    def __post_init__(self) -> None:
        problems = []
        for key, value in flatten(self).items():
            try:
                converted = convert(_SETTINGS[key], value)
            except ValueError as error:
                problems.append(str(error))
            else:
                section, _, name = key.rpartition(".")
                # In its own type (a list is a tuple now, 1 is 1.0): equal settings write equal TOML.
                object.__setattr__(getattr(self, section) if section else self, name, converted)
        refuse(problems or self._contradictions())

    @property
    def micro_batch_size(self) -> int:
        """Examples in one micro-batch."""
        return self.batch_size // self.micro_batches

    @property
    def schedule_steps(self) -> int:
        """Steps that a cosine spans."""
        return self.schedule.steps or self.max_steps

    @classmethod
    def resolve(
        cls,
        file: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> "TrainingConfig":
        """The configuration by precedence: flags, then environment, then file, then defaults.

        Args:
            file: TOML.
            environment: searched for ``DAGNN_<KEY>``; None reads ``os.environ``. A ``DAGNN_`` name that is no
                setting is refused when it looks like one misspelt, and left alone otherwise (``DAGNN_KERNELS``).
            flags: dotted key -> value, as text or typed.

        Raises:
            ConfigError: unreadable file; unknown keys (with a suggestion) and wrong values, all at once.
        """
        return _built(cls.given(file, environment=environment, flags=flags))

    @classmethod
    def given(
        cls,
        file: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What was said about settings, by dotted key, without defaults; arguments and errors as of `resolve`."""
        problems: list[str] = []
        values: dict[str, Any] = {}
        if file is not None:
            values |= _from_table(_read_toml(Path(file)), f"file {file}", problems)
        values |= _from_environment(os.environ if environment is None else environment, problems)
        values |= _typed(flags or {}, "", problems)
        refuse(problems)
        return values

    @classmethod
    def from_toml(cls, text: str) -> "TrainingConfig":
        """The configuration in this text; what it leaves out has its default. Raises ConfigError."""
        problems: list[str] = []
        values = _from_table(_parse_toml(text, "the text"), "", problems)
        refuse(problems)
        return _built(values)

    def to_toml(self) -> str:
        """Every setting as TOML; `from_toml` gives an equal configuration."""
        return toml_text(flatten(self))

    def changed(self, flags: Mapping[str, Any]) -> "TrainingConfig":
        """A copy with these settings, by dotted key: ``config.changed({"optimizer.lr": 1e-4})``."""
        problems: list[str] = []
        values = flatten(self) | _typed(flags, "", problems)
        refuse(problems)
        return _built(values)

    def differences(self, other: "TrainingConfig") -> dict[str, tuple[Any, Any]]:
        """Settings that differ: dotted key -> (mine, theirs)."""
        theirs = flatten(other)
        return {key: (value, theirs[key]) for key, value in flatten(self).items() if value != theirs[key]}

    def _contradictions(self) -> list[str]:
        """Settings that are fine alone and not together."""
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
        if not any(self.curriculum.weight_of(level) > 0 for level in self.curriculum.levels):
            found.append(
                f"curriculum.level_weights = {list(self.curriculum.level_weights)}: allowed is at least one weight "
                f"above 0 among the levels {list(self.curriculum.levels)}."
            )
        if self.curriculum.order == "progressive" and not self.eval_every:
            found.append(
                "eval_every = 0: allowed is at least 1 when curriculum.order = progressive (nothing promotes)."
            )
        if self.loss.objective == "ged" and self.loss.alignment == "searched":
            found.append(
                "loss.alignment = searched: allowed is order with loss.objective = ged (slots are in preorder)."
            )
        waits = {
            "early_stopping.patience": self.early_stopping.patience,
            "early_stopping.when_right": self.early_stopping.when_right,
            "curriculum.own_runs": self.curriculum.own_runs,
            "schedule.name = plateau": self.schedule.name == "plateau",
        }
        found += [
            f"eval_every = 0: allowed is at least 1 with {key} (nothing to wait for)."
            for key, value in waits.items()
            if value and not self.eval_every
        ]
        return found


_SETTINGS = settings_of(TrainingConfig)


def training_settings() -> dict[str, Any]:
    """Every setting of `TrainingConfig` by dotted key, in order: type, default, range, help (for flags)."""
    return dict(_SETTINGS)


def _built(values: Mapping[str, Any]) -> TrainingConfig:
    config = build(TrainingConfig, values)
    assert isinstance(config, TrainingConfig)
    return config


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}.") from error
    if len(text) > _MAX_FILE_CHARACTERS:
        raise ConfigError(f"the configuration file {path} has more than {_MAX_FILE_CHARACTERS:,} characters.")
    return _parse_toml(text, str(path))


def _parse_toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{origin} is not TOML of ours: its values are nested too deeply.") from None
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        raise ConfigError(f"{origin} is not TOML: {error}.") from error


def _from_table(table: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, Any]:
    """Values of a TOML table. Text stays text there: ``lr = "1e-3"`` in quotes is refused, not parsed."""
    given = _dotted(table)
    for key, value in list(given.items()):
        wanted = _SETTINGS.get(key)
        if wanted is not None and wanted.type is not str and isinstance(value, str):
            del given[key]
            problems.append(_told(f'{key} = "{value}": allowed is {wanted.allowed}, without quotes.', origin))
    return _typed(given, origin, problems)


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, Mapping) and name not in _SETTINGS:
            found |= _dotted(value, name + ".")
        else:
            found[name] = value
    return found


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    names = {each.environment_name: key for key, each in _SETTINGS.items()}
    given = {}
    for name, text in environment.items():
        if name in names:
            given[names[name]] = text
        elif name.startswith("DAGNN_"):
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.9)
            if nearest:
                problems.append(f"unknown environment variable {name}: did you mean {nearest[0]}?")
    return _typed(given, "environment", problems)


def _typed(given: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, Any]:
    """The given values in the settings' types; what is wrong goes to ``problems``."""
    values = {}
    for key, value in given.items():
        try:
            if key not in _SETTINGS:
                raise ValueError(unknown_key(key, _SETTINGS))
            values[key] = convert(_SETTINGS[key], value)
        except ValueError as error:
            problems.append(_told(str(error), origin))
    return values


def _told(problem: str, origin: str) -> str:
    return f"{problem} [{origin}]" if origin else problem
