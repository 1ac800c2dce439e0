"""Level promotion: which curriculum levels are trained now, and when the next one opens."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagnn.errors import CheckpointError, ConfigError
from dagnn.training.config import CurriculumConfig


class LevelPromotion:
    """State machine over the levels of a curriculum.

    *Progressive*: training starts on the first level. An evaluation counts as passed when the newest level's
    accuracy is at least ``threshold`` and at least ``minimum_steps`` optimizer steps were made on it;
    ``patience`` passed evaluations in a row open the next level. An evaluation that is not passed starts the
    row again, and so does one whose accuracy is not a number. The last level, passed, sets `finished`.

    *Mixed*: every level is open from the start and nothing is promoted; `finished` stays False.

    Attributes:
        levels: all levels, in order.
        level: the newest open level.
    """

    def __init__(
        self,
        levels: Sequence[int],
        *,
        order: str = "progressive",
        threshold: float = 0.99,
        minimum_steps: int = 0,
        patience: int = 1,
    ) -> None:
        """Start on the first level, or on all of them when ``order`` is "mixed".

        Raises:
            ConfigError: no levels, or another order than "mixed" and "progressive".
        """
        if not levels:
            raise ConfigError("levels is empty: give at least one.")
        if order not in ("mixed", "progressive"):
            raise ConfigError(f"order = {order}: allowed is one of mixed, progressive.")
        self.levels = tuple(levels)
        self.order = order
        self.threshold = threshold
        self.minimum_steps = minimum_steps
        self.patience = patience
        self._num_open = len(self.levels) if order == "mixed" else 1
        self._since_step = 0
        self._passed = 0
        self._finished = False

    @classmethod
    def from_config(cls, config: CurriculumConfig) -> "LevelPromotion":
        """The promotion rule of a training configuration."""
        return cls(
            config.levels,
            order=config.order,
            threshold=config.threshold,
            minimum_steps=config.minimum_steps,
            patience=config.patience,
        )

    @property
    def active(self) -> tuple[int, ...]:
        """The open levels, oldest first."""
        return self.levels[: self._num_open]

    @property
    def level(self) -> int:
        """The newest open level."""
        return self.levels[self._num_open - 1]

    @property
    def finished(self) -> bool:
        """Whether the last level was passed too (progressive only)."""
        return self._finished

    def observe(self, step: int, accuracy_of: Mapping[int, float]) -> bool:
        """Take one evaluation into account; True when it opened a level.

        Args:
            step: optimizer steps made so far.
            accuracy_of: level -> accuracy in 0 .. 1. Only the newest level is looked at; when it is missing
                the evaluation says nothing about promotion and changes nothing.
        """
        if self.order == "mixed" or self._finished or self.level not in accuracy_of:
            return False
        # `not >=`: a NaN accuracy is not a pass.
        if not accuracy_of[self.level] >= self.threshold or step - self._since_step < self.minimum_steps:
            self._passed = 0
            return False
        self._passed += 1
        if self._passed < self.patience:
            return False

        self._passed = 0
        if self._num_open == len(self.levels):
            self._finished = True
            return False
        self._num_open += 1
        self._since_step = step
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        return {
            "levels": list(self.levels),
            "order": self.order,
            "open": self._num_open,
            "since_step": self._since_step,
            "passed": self._passed,
            "finished": self._finished,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: the state belongs to other levels or another order.
        """
        if tuple(state["levels"]) != self.levels or state["order"] != self.order:
            raise CheckpointError(
                f"the checkpoint was promoted over levels {list(state['levels'])} ({state['order']}), this run has "
                f"{list(self.levels)} ({self.order}): use the run's own configuration."
            )
        self._num_open = int(state["open"])
        self._since_step = int(state["since_step"])
        self._passed = int(state["passed"])
        self._finished = bool(state["finished"])
