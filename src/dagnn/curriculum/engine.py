"""The exact engine as a local graph-rewriting system: normal forms, and the trace of every step on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dagnn.curriculum.expression import Expr, to_text
from dagnn.curriculum.rules import SIGNATURE, apply_rule
from dagnn.curriculum.terms import from_term, to_term
from dagnn.errors import ExpressionError
from dagnn.graph.rewriting.machine import Rewriter, RewritingMachine
from dagnn.graph.rewriting.window import ReplacementTokens, WindowTokens, encode_replacement, read_window

# Level 4 takes about 2,000 steps on average; the largest seen in 10,000 samples took 11,000.
MAX_STEPS = 200_000


class RuleEngine:
    """A `Rewriter` that answers windows by the rules of `dagnn.curriculum.rules`."""

    def rewrite(self, windows: Sequence[WindowTokens]) -> list[ReplacementTokens]:
        return [encode_replacement(apply_rule(read_window(window, SIGNATURE)), SIGNATURE) for window in windows]


@dataclass(frozen=True)
class RewriteStep:
    """One step of a trace.

    Attributes:
        window: what the step looked at, as tokens (see `read_window`).
        replacement: what it put there, as tokens.
        before, after: the sub-expression that was rewritten, and what it became.
    """

    window: WindowTokens
    replacement: ReplacementTokens
    before: Expr
    after: Expr

    def __str__(self) -> str:
        return f"{to_text(self.before)} -> {to_text(self.after)}"


Trace: TypeAlias = list[RewriteStep]


def normal_form(expression: Expr, level: int | None = None, *, budget: int = MAX_STEPS) -> Expr:
    """The expression rewritten until no rule applies.

    Args:
        expression: any expression of the language.
        level: a numeric level reads the expression as ``(approx ...)``.
        budget: rewrite steps.

    Raises:
        ExpressionError: no normal form within the budget.

    >>> normal_form(("derive", ("^", "x", 2), "x"))
    ('*', 2, 'x')
    """
    return trace(expression, level, budget=budget)[0]


def trace(
    expression: Expr, level: int | None = None, *, rewriter: Rewriter | None = None, budget: int = MAX_STEPS
) -> tuple[Expr, Trace]:
    """The normal form, and every step that led to it, innermost first.

    Args:
        expression: any expression of the language.
        level: a numeric level reads the expression as ``(approx ...)``.
        rewriter: who answers the windows; None is the exact engine. A trained `GraphRewriter` is another.
        budget: rewrite steps.

    Raises:
        ExpressionError: no normal form within the budget.
    """
    term, names = to_term(expression, level)
    machine = RewritingMachine(SIGNATURE, rewriter or RuleEngine(), eager=rewriter is None)
    result, steps = machine.trace(term, budget=budget)
    if result.tokens is None:
        raise ExpressionError(f"{to_text(expression)}: {result.stopped}.")
    replacement_of = {machine.window(w): machine.replacement(w) or () for w in range(machine.num_windows)}
    return from_term(result.tokens, names), [
        RewriteStep(
            step.window, replacement_of[step.window], from_term(step.before, names), from_term(step.after, names)
        )
        for step in steps
    ]
