"""Configuration of the curriculum's training: a `TrainingConfig`, the levels, the network and its loss."""

from dataclasses import dataclass
from typing import Any

from dagnn.training.config import EarlyStoppingConfig, TrainingConfig
from dagnn.training.counters import StagePromotion
from dagnn.training.settings import at_least, below_one, one_of, setting, within

NUM_LEVELS = 7


def _for_each_level(what: str, smallest: float) -> dict[str, Any]:
    return {
        "allowed": f"{NUM_LEVELS} {what} of at least {smallest}, the first for level 1, or one for all levels",
        "accepts": lambda value: len(value) in (1, NUM_LEVELS) and min(value) >= smallest,
    }


@dataclass(frozen=True)
class LevelsConfig:
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
        "training expressions per level that the network runs at each evaluation, beside the traced neighbourhoods; "
        "those that it gets wrong are drawn more often; 0: none",
        **at_least(0),
    )
    certify: bool = setting(
        True,
        "train on every neighbourhood that inputs of levels 1, 2, 3, 5 and 7 can lead to, and end with the certificate "
        "of those of them that are trained",
        allowed="true or false",
        accepts=lambda value: True,
    )
    held_out_windows: float = setting(
        0.0, "share of all distinct neighbourhoods that is kept from training, to be asked at the end", **below_one()
    )

    def promotion(self) -> StagePromotion:
        """The promotion rule of these settings; its stages are the levels."""
        return StagePromotion(
            self.levels,
            order=self.order,
            threshold=self.threshold,
            minimum_steps=self.minimum_steps,
            patience=self.patience,
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
        "features", "how neighbourhoods are read: as sets of features, or as graphs", **one_of("features", "graph")
    )
    graph_dim: int = setting(128, "features of the nodes, where neighbourhoods are read as graphs", **at_least(1))
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
class WindowStoppingConfig(EarlyStoppingConfig):
    """When training ends before `max_steps`: the monitor no longer gets better, or every neighbourhood is right."""

    when_right: bool = setting(
        False,
        "end with the evaluation that finds no training neighbourhood wrong",
        allowed="true or false",
        accepts=lambda value: True,
    )


@dataclass(frozen=True)
class CurriculumConfig(TrainingConfig):
    """Every setting of `dagnn train`, checked.

    Keys, flags, TOML tables and environment variables agree, as in `TrainingConfig`: ``config.curriculum.levels``,
    ``--curriculum.levels``, ``[curriculum] levels``, ``DAGNN_CURRICULUM_LEVELS``.

    Raises:
        ConfigError: a value is of the wrong type or out of range; all such values in one message.

    >>> CurriculumConfig(eval_samples=0)
    Traceback (most recent call last):
    dagnn.errors.ConfigError: eval_samples = 0: allowed is a whole number of at least 1.
    """

    warm_start: str = setting(
        "", "run or checkpoint whose network to begin with; empty: none", allowed="a path", accepts=lambda value: True
    )
    test_samples: int = setting(500, "test expressions per level in the final evaluation", **at_least(1))
    eval_samples: int = setting(60, "expressions per level in an evaluation", **at_least(1))
    curriculum: LevelsConfig = LevelsConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    early_stopping: WindowStoppingConfig = WindowStoppingConfig()

    def contradictions(self) -> list[str]:
        found = super().contradictions()
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
        return found

    def waiting(self) -> dict[str, object]:
        return {
            **super().waiting(),
            "early_stopping.when_right": self.early_stopping.when_right,
            "curriculum.own_runs": self.curriculum.own_runs,
        }
