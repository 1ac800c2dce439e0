"""The exact engine's rewrite rules, by subject: a rule sees one neighbourhood and returns its replacement."""

from dagnn.curriculum.rules import algebra, elementary, numbers
from dagnn.curriculum.rules.numbers import LABELS, apply_rule
from dagnn.rewriting.system import Signature

__all__ = ["SIGNATURE", "SUBJECTS", "apply_rule"]

# Importing a file declares its labels and rules.
SUBJECTS = (numbers, algebra, elementary)

SIGNATURE = Signature(
    labels=tuple(LABELS[name] for name in sorted(LABELS)),
    opaque=frozenset(numbers.NUMBERS),
    tags=numbers.TAGS,
    tagged=frozenset((*numbers.NUMBERS, *numbers.TAG_CHILD)),
    tag_child=numbers.TAG_CHILD,
)
