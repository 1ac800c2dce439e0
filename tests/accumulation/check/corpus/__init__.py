"""Training loops as projects write them, right and with planted mistakes: ``CASES``."""

from accumulation.check.corpus import (
    draws,
    epochs,
    frameworks,
    gradients,
    hidden,
    language,
    left_behind,
    objectives,
    optimizers,
    precision,
    projects,
    reinforcement,
    unusual,
    vision,
)
from accumulation.check.corpus.registry import CASES

__all__ = [
    "CASES",
    "draws",
    "epochs",
    "frameworks",
    "gradients",
    "hidden",
    "language",
    "left_behind",
    "objectives",
    "optimizers",
    "precision",
    "projects",
    "reinforcement",
    "unusual",
    "vision",
]
