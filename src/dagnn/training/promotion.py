"""Promotion: which stages of a curriculum are trained now, and when the next one opens."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagnn.errors import CheckpointError, ConfigError


class StagePromotion:
    """State machine over the stages of a curriculum, which are numbered.

    *Progressive*: training starts on the first stage. An evaluation passes when the newest stage's accuracy is at
    least ``threshold`` and at least ``minimum_steps`` optimizer steps were made on it; ``patience`` passes in a row
    open the next stage. An evaluation that does not pass starts the row again, and so does one whose accuracy is
    not a number. When the last stage passes, `finished` becomes True.

    *Mixed*: every stage is open from the start and nothing is promoted; `finished` stays False.

    Attributes:
        stages: all stages, in order.
        order, threshold, minimum_steps, patience: as given.

    >>> promotion = StagePromotion((1, 2, 3), threshold=0.9)
    >>> promotion.observe(step=100, accuracy_of={1: 0.95})
    True
    >>> promotion.stage, promotion.active
    (2, (1, 2))
    """

    def __init__(
        self,
        stages: Sequence[int],
        *,
        order: str = "progressive",
        threshold: float = 0.99,
        minimum_steps: int = 0,
        patience: int = 1,
    ) -> None:
        """Start on the first stage, or on all of them when ``order`` is "mixed".

        Raises:
            ConfigError: no stages, or another order than "mixed" and "progressive".
        """
        if not stages:
            raise ConfigError(f"stages = {list(stages)}: give at least one.")
        if order not in ("mixed", "progressive"):
            raise ConfigError(f"order = {order}: allowed is one of mixed, progressive.")
        self.stages = tuple(stages)
        self.order = order
        self.threshold = threshold
        self.minimum_steps = minimum_steps
        self.patience = patience
        self._num_open = len(self.stages) if order == "mixed" else 1
        self._since_step = 0
        self._passed = 0
        self._finished = False

    @property
    def active(self) -> tuple[int, ...]:
        """The open stages, oldest first."""
        return self.stages[: self._num_open]

    @property
    def stage(self) -> int:
        """The newest open stage."""
        return self.stages[self._num_open - 1]

    @property
    def finished(self) -> bool:
        """Whether the last stage has passed too (progressive only)."""
        return self._finished

    def observe(self, step: int, accuracy_of: Mapping[int, float]) -> bool:
        """Take one evaluation into account; True when it opened a stage.

        Args:
            step: optimizer steps made so far.
            accuracy_of: stage -> accuracy in 0 .. 1. Only the newest stage counts; without it the evaluation changes
                nothing.
        """
        if self.order == "mixed" or self._finished or self.stage not in accuracy_of:
            return False
        # `not >=`: a NaN accuracy is not a pass.
        if not accuracy_of[self.stage] >= self.threshold or step - self._since_step < self.minimum_steps:
            self._passed = 0
            return False
        self._passed += 1
        if self._passed < self.patience:
            return False

        self._passed = 0
        if self._num_open == len(self.stages):
            self._finished = True
            return False
        self._num_open += 1
        self._since_step = step
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        return {
            "levels": list(self.stages),  # the key of checkpoints that exist
            "order": self.order,
            "open": self._num_open,
            "since_step": self._since_step,
            "passed": self._passed,
            "finished": self._finished,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: the state belongs to other stages or another order.
        """
        if tuple(state["levels"]) != self.stages or state["order"] != self.order:
            raise CheckpointError(
                f"the checkpoint was promoted over stages {list(state['levels'])} ({state['order']}), this run has "
                f"{list(self.stages)} ({self.order}): use the run's own configuration."
            )
        self._num_open = int(state["open"])
        self._since_step = int(state["since_step"])
        self._passed = int(state["passed"])
        self._finished = bool(state["finished"])
