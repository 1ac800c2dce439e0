"""The exact engine's rewrite rules, by subject: every rule sees one window and answers with its replacement."""

from dagnn.curriculum.rules import (
    algebra,
    derivative,
    digits,
    division,
    elementary,
    equation,
    fixed_point,
    integral,
    numbers,
    rationals,
    rounding,
    substitution,
)
from dagnn.curriculum.rules.registry import LABELS, apply_rule
from dagnn.graph.rewriting.signature import Signature

__all__ = ["SIGNATURE", "SUBJECTS", "apply_rule"]

# Importing a file declares its labels and rules.
SUBJECTS = (
    numbers,
    digits,
    division,
    rationals,
    algebra,
    substitution,
    derivative,
    integral,
    equation,
    fixed_point,
    elementary,
    rounding,
)

SIGNATURE = Signature(
    labels=tuple(LABELS[name] for name in sorted(LABELS)),
    opaque=frozenset(numbers.NUMBERS),
    tags=numbers.TAGS,
    tagged=frozenset(numbers.NUMBERS),
)
