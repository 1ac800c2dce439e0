"""Exact mathematics on expressions: one file per subject, and ``answer`` in front of them all."""

from dagnn.curriculum.exact.answer import answer
from dagnn.curriculum.exact.derivative import derivative
from dagnn.curriculum.exact.equation import rational_roots, solve
from dagnn.curriculum.exact.equivalence import equivalent
from dagnn.curriculum.exact.evaluate import evaluate
from dagnn.curriculum.exact.integral import antiderivative, definite_integral
from dagnn.curriculum.exact.precise import approximate
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.exact.substitute import substitute

__all__ = [
    "answer",
    "antiderivative",
    "approximate",
    "definite_integral",
    "derivative",
    "equivalent",
    "evaluate",
    "rational_roots",
    "simplify",
    "solve",
    "substitute",
]
