"""The exact engine as a local graph-rewriting system: normal forms, and the trace of every step on the way.

A rule sees one window, so it takes for granted that what it does not see has a value: ``(* 0 (/ 5 0))`` is 0 here, and
``(subst (/ x x) x 0)`` is 1. `dagnn.curriculum.exact.answer` refuses such inputs. What has a value, and no rule, stays
as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dagnn.curriculum.expression import Expr, check, shortened, to_text
from dagnn.curriculum.rules import SIGNATURE, apply_rule
from dagnn.curriculum.terms import from_term, to_term
from dagnn.errors import ExpressionError
from dagnn.graph.rewriting.machine import Rewriter, RewritingMachine, Rewritten
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
        before, after: the sub-expression that was rewritten, and what it became; None where that is longer than 4,096
            labels.
    """

    window: WindowTokens
    replacement: ReplacementTokens
    before: Expr | None
    after: Expr | None

    def __str__(self) -> str:
        before, after = ("..." if part is None else to_text(part) for part in (self.before, self.after))
        return f"{before} -> {after}"


Trace: TypeAlias = list[RewriteStep]


def normal_form(expression: Expr, level: int | None = None, *, budget: int = MAX_STEPS) -> Expr:
    """The expression rewritten until no rule applies.

    Args:
        expression: any expression of the language.
        level: a numeric level reads the expression as ``(approx ...)``.
        budget: rewrite steps.

    Raises:
        ConfigError: there is no such level.
        ExpressionError: no expression, one that the rules cannot write (see `to_term`), or no normal form within
            the budget.

    >>> normal_form(("derive", ("^", "x", 2), "x"))
    ('*', 2, 'x')
    """
    check(expression)
    term, names = to_term(expression, level)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    return _result(expression, machine.run([term], budget=budget)[0], names)


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
        ConfigError, ExpressionError: as `normal_form`.
    """
    check(expression)
    term, names = to_term(expression, level)
    machine = RewritingMachine(SIGNATURE, rewriter or RuleEngine(), eager=rewriter is None)
    result, steps = machine.trace(term, budget=budget)
    replacement_of = {machine.window(w): machine.replacement(w) or () for w in range(machine.num_windows)}

    def written(tokens: list[int]) -> Expr | None:
        return from_term(tokens, names) if tokens else None

    return _result(expression, result, names), [
        RewriteStep(step.window, replacement_of[step.window], written(step.before), written(step.after))
        for step in steps
    ]


def _result(expression: Expr, result: Rewritten, names: dict[str, str]) -> Expr:
    if result.tokens is None:
        raise ExpressionError(f"{shortened(to_text(expression))}: {result.stopped}.")
    return from_term(result.tokens, names)
