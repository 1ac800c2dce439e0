"""Training loops as projects write them, right and with planted mistakes: ``CASES``."""

from accumulation.check.corpus import (
    frameworks,
    language,
    objectives,
    optimizers,
    precision,
    reinforcement,
    unusual,
    vision,
)
from accumulation.check.corpus.registry import CASES

__all__ = [
    "CASES",
    "frameworks",
    "language",
    "objectives",
    "optimizers",
    "precision",
    "reinforcement",
    "unusual",
    "vision",
]
