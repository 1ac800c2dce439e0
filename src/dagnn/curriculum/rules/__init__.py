"""The exact engine's rewrite rules, by subject: every rule sees one neighbourhood and answers with its replacement."""

from dagnn.curriculum.rules import algebra, elementary, numbers, rationals
from dagnn.curriculum.rules import algebra as equation
from dagnn.curriculum.rules import calculus as derivative
from dagnn.curriculum.rules import calculus as integral
from dagnn.curriculum.rules import calculus as substitution
from dagnn.curriculum.rules import elementary as fixed_point
from dagnn.curriculum.rules import elementary as rounding
from dagnn.curriculum.rules import numbers as digits
from dagnn.curriculum.rules import rationals as division
from dagnn.curriculum.rules.numbers import LABELS, apply_rule
from dagnn.rewriting.system import Signature

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
