"""Exact mathematics on expressions: one file per subject, and ``answer`` in front of them all.

Each takes sums of 10,000 terms, and refuses what is nested deeper than Python recurses.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from dagnn.curriculum.exact import calculus as _calculus
from dagnn.curriculum.exact import evaluate as _evaluate
from dagnn.curriculum.exact import polynomial as _polynomial
from dagnn.curriculum.exact import precise as _precise
from dagnn.curriculum.exact import simplify as _simplify
from dagnn.curriculum.exact.answer import answer
from dagnn.curriculum.exact.answer import equivalent as _equivalent
from dagnn.errors import ExpressionError

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

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _shallow(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, refusing in words what is nested too deep for it."""

    @wraps(function)
    def refusing(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except RecursionError:
            raise ExpressionError("the expression is nested too deep: split it.") from None

    return refusing


antiderivative = _shallow(_calculus.antiderivative)
approximate = _shallow(_precise.approximate)
definite_integral = _shallow(_calculus.definite_integral)
derivative = _shallow(_calculus.derivative)
equivalent = _shallow(_equivalent)
evaluate = _shallow(_evaluate.evaluate)
rational_roots = _shallow(_polynomial.rational_roots)
simplify = _shallow(_simplify.simplify)
solve = _shallow(_polynomial.solve)
substitute = _shallow(_evaluate.substitute)
