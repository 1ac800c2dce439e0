"""From the weights of micro-batches in a loop's steps to the causes.

Legend: ``c_j`` the weight that micro-batch j has in a step, ``K`` micro-batches per window. Right are the shares of the
window at hand, and 0 for all other micro-batches.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from dagnn.accumulation.check.causes import Cause, Kind, cause
from dagnn.accumulation.check.fit import close
from dagnn.accumulation.check.subject import Gradients


class Run(NamedTuple):
    """One run of a loop over one epoch of micro-batches."""

    sizes: list[int]
    windows: list[list[int]]  # micro-batches of each window that should be
    shares: list[list[float]]  # right weights of each window's micro-batches
    steps: list[list[float]]  # c_j of every step that was made
    rest: float  # largest relative part of a step that no weights explain
    left: list[float]  # c_j of what was still in .grad at the end
    gradients: list[Gradients]
    expected: list[Gradients]  # right gradient of each window
    silent: list[str]  # parameters without gradient
    tolerance: float
    low_precision: bool
    calls: list[list[Any]]  # the micro-batches that each call of the loop got

    @property
    def shown_window(self) -> int:
        """The window to show in the table: the last that was stepped."""
        return max(0, min(len(self.gradients), len(self.expected)) - 1)

    @property
    def shown(self) -> Gradients:
        """The gradient of the step for ``shown_window``."""
        return self.gradients[self.shown_window] if self.gradients else [None] * len(self.expected[0])


def diagnose_equal(run: Run, k: int, size: int) -> list[Cause]:
    """Causes that show with two windows of K equal micro-batches."""
    causes: list[Cause] = []
    steps, slack = run.steps, _slack(run)
    if not steps:
        return [cause(Kind.MISSING_STEP, f"the loop made no step in {len(run.sizes)} micro-batches.")]

    fresh = [steps[0]]
    for before, step in pairwise(steps):
        kept = [j for j in _support(before, slack) if abs(step[j] - before[j]) <= slack * max(map(abs, before))]
        if kept and kept == _support(before, slack):
            if not any(c.kind is Kind.NOT_ZEROED for c in causes):
                causes.append(
                    cause(
                        Kind.NOT_ZEROED, f"step 2 still holds the gradient of micro-batches {_numbers(kept)} of step 1."
                    )
                )
            step = [0.0 if j in kept else c for j, c in enumerate(step)]
        fresh.append(step)
    # A step that only repeats what was not zeroed adds nothing of its own.
    supports = [_support(step, slack) for step in fresh]

    if supports != run.windows:
        causes += _pattern_causes(run, supports, k)
        return causes
    ratios = [
        fresh[w][j] / s for w, window in enumerate(run.windows) for j, s in zip(window, run.shares[w], strict=True)
    ]
    ratio = ratios[0]
    if not close(ratios, [ratio] * len(ratios), slack):
        causes.append(
            cause(
                Kind.WRONG_DENOMINATOR,
                f"equal micro-batches count {_list(fresh[0][:k])} in the first step; right are {_list(run.shares[0])}.",
            )
        )
    elif not close([ratio], [1.0], slack):
        causes.append(_scale_cause(ratio, k, size, slack))
    return causes


def diagnose_ragged(run: Run) -> list[Cause]:
    """Causes that show with one window of micro-batches of unequal sizes."""
    if len(run.steps) != 1:
        return []
    (step,), (shares,), k = run.steps, run.shares, len(run.sizes)
    if close(step, shares, _slack(run)):
        return []
    if close(step, [1 / k] * k, _slack(run)):
        return [
            cause(
                Kind.MEAN_OF_MEANS,
                f"micro-batches of {_numbers(run.sizes)} items count {_list(step)}; right are {_list(shares)}.",
            )
        ]
    return [cause(Kind.WRONG_DENOMINATOR, f"micro-batches count {_list(step)}; right are {_list(shares)}.")]


def diagnose_tail(run: Run, k: int) -> list[Cause]:
    """Causes that show with a short last window."""
    slack, tail = _slack(run), run.windows[-1]
    supports = [_support(step, slack) for step in run.steps]
    if supports[: len(run.windows)] != run.windows:
        if not any(j in support for support in supports for j in tail):
            where = "is left in .grad and leaks into the next epoch" if _support(run.left, slack) else "is lost"
            return [
                cause(
                    Kind.LOST_REMAINDER,
                    f"the last {len(tail)} micro-batches of {len(run.sizes)} are never stepped: "
                    f"their gradient {where}.",
                )
            ]
        return [
            cause(
                Kind.EXTRA_STEP,
                f"steps were made of micro-batches {_groups(supports)}; right are {_groups(run.windows)}.",
            )
        ]
    step, shares = [run.steps[1][j] for j in tail], run.shares[1]
    if close(step, shares, slack):
        return []
    if close(step, [s * len(tail) / k for s in shares], slack):
        return [
            cause(
                Kind.SHORT_WINDOW,
                f"the last window has {len(tail)} micro-batches, but was divided by {k}: its "
                f"gradient is {k / len(tail):.3g} times too small.",
            )
        ]
    return [cause(Kind.WRONG_DENOMINATOR, f"the last window counts {_list(step)}; right are {_list(shares)}.")]


def _pattern_causes(run: Run, supports: list[list[int]], k: int) -> list[Cause]:
    """Steps that were made of other micro-batches than those of a window."""
    groups = _groups([support for support in supports if support])
    if not groups:
        return [cause(Kind.ZEROED_TOO_OFTEN, f"all {len(supports)} steps have no gradient: it was zeroed before them.")]
    lasts = [[window[-1]] for window in run.windows]
    if supports == lasts or supports == [[window[0]] for window in run.windows]:
        return [cause(Kind.ZEROED_TOO_OFTEN, f"each step has the gradient of one micro-batch only: {groups}.")]
    if len(supports) > len(run.windows):
        return [
            cause(
                Kind.EXTRA_STEP,
                f"{len(supports)} steps, of micro-batches {groups or 'none'}; right are "
                f"{len(run.windows)}, of {_groups(run.windows)}.",
            )
        ]
    if len(supports) < len(run.windows):
        return [
            cause(
                Kind.MISSING_STEP,
                f"{len(supports)} steps, of micro-batches {groups}; right are {len(run.windows)}, "
                f"of {_groups(run.windows)}.",
            )
        ]
    return [cause(Kind.EXTRA_STEP, f"steps of micro-batches {groups}; right are {_groups(run.windows)}.")]


def _scale_cause(ratio: float, k: int, size: int, slack: float) -> Cause:
    if close([ratio], [float(k)], slack):
        return cause(Kind.NOT_SCALED, f"the gradient is {k} times too large: losses are added, not averaged.")
    if close([ratio], [1.0 / k], slack):
        return cause(Kind.SCALED_TWICE, f"the gradient is {k} times too small: it was divided by {k} twice.")
    if close([ratio], [float(size)], slack) or close([ratio], [float(size * k)], slack):
        return cause(
            Kind.SUM_LOSS,
            f"the gradient is {ratio:.4g} times too large: the loss sums over the {size} items of a micro-batch.",
        )
    return cause(Kind.WRONG_SCALE, f"the gradient is {ratio:.4g} times that of the full batch.")


def _slack(run: Run) -> float:
    return 0.05 if run.low_precision else run.tolerance


def _support(step: Sequence[float], slack: float) -> list[int]:
    largest = max(map(abs, step), default=0.0)
    return [j for j, c in enumerate(step) if abs(c) > max(slack, 1e-3) * largest] if largest else []


def _groups(groups: Sequence[Sequence[int]]) -> str:
    return ", ".join("[" + _numbers(group) + "]" for group in groups)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _list(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)
