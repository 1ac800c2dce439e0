"""The settings of the contestants in the curriculum comparison.

docs/benchmarks/curriculum.md lists those that were tried.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.curriculum_expressions import training_samples
from benchmarks.curriculum_rivals import AnswersTransformer, Rival, Settings
from benchmarks.curriculum_scratchpad import NeighbourhoodTransformer, ScratchpadTransformer
from benchmarks.curriculum_tree import TreeRival

SETTINGS: Mapping[str, Settings] = {
    "A": Settings(lr=2e-3, batch=32),
    "A2": Settings(lr=2e-3, batch=32, options={"pairs": 24}),
    "A3": Settings(lr=2e-3, batch=64),
    "B": Settings(lr=2e-3, batch=32),
}
# What ours and its variants are given beside the defaults of `dagnn train`.
OUR_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "C": {},
    "C2": {"model.backbone": "graph"},
    "C3": {"loss.objective": "ged"},
}


def rival_of(name: str, seed: int, sizes: Mapping[int, int] | None = None) -> Rival:
    """A rival at its settings, not trained yet.

    Args:
        name: a key of `SETTINGS`.
        seed: of its weights and of the training expressions.
        sizes: level -> training expressions; None: as many as `dagnn train` traces.
    """
    if name == "A3":
        return NeighbourhoodTransformer(SETTINGS[name], seed, sizes=sizes)
    kinds = {"A": AnswersTransformer, "A2": ScratchpadTransformer, "B": TreeRival}
    return kinds[name](SETTINGS[name], seed, training_samples(seed, sizes))
