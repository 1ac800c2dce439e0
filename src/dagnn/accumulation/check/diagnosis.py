"""Write the steps of a loop as weighted sums of micro-batches' gradients, and read causes from the weights."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.check.arithmetic import close, widened
from dagnn.accumulation.check.layouts import Examined
from dagnn.accumulation.check.report import Cause, Kind, cause
from dagnn.accumulation.check.subject import Gradients
from dagnn.errors import ConfigError


class Weights(NamedTuple):
    """Weights ``c_j`` of the micro-batches j of one epoch in gradients ``sum_j c_j g_j``.

    Attributes:
        sizes: of the layout.
        windows: of the layout, without the micro-batches that have no gradient: of items that all are ignored.
        lengths: how many micro-batches each window has in all.
        shares: right weights of each window's micro-batches; their shares of the items if ``coupled``.
        coupled: no weights make the gradient of a window from those of its micro-batches.
        steps: weights in each step.
        incoming: weights in the sum of the backward passes before each step.
        left, incoming_left: weights in .grad, and in the sum of the backward passes, after the last step.
        rest: the largest part of a step that no weights explain, relative to the step.
        tolerance: for comparing weights.
    """

    sizes: list[int]
    windows: list[list[int]]
    lengths: list[int]
    shares: list[list[float]]
    coupled: bool
    steps: list[list[float]]
    incoming: list[list[float]]
    left: list[float]
    incoming_left: list[float]
    rest: float
    tolerance: float

    @property
    def explained(self) -> bool:
        return self.rest <= self.tolerance


def weights_of(
    examined: Examined,
    parts: Sequence[Gradients],
    parameters: Sequence[Tensor],
    indices: Sequence[int],
    *,
    tolerance: float,
) -> Weights:
    """The weights in the gradients of some of the parameters that ``examined`` holds; errors as of `fit_finite`.

    Args:
        parts: the gradient of each micro-batch, for all parameters that ``examined`` holds.
        parameters: all of these.
        indices: which of them to use.
        tolerance: relative error of gradients that counts as none.
    """

    def only(gradients: Gradients) -> Gradients:
        return [gradients[i] for i in indices]

    used = [parameters[i] for i in indices]
    columns = [only(part) for part in parts]
    sizes, windows = examined.layout
    slack = max(1e-5, 4 * tolerance)
    # No step can show whether such a micro-batch was in it, and no loop is wrong for that.
    telling = [[j for j in window if 0 < _norm(columns[j], used) < inf] for window in windows]
    shares, coupled = [], False
    for window, gradient in zip(telling, examined.expected, strict=True):
        inside = [columns[j] for j in window]
        found, rest = fit_finite(inside, only(gradient), used)
        if rest > slack or leaves_out(found, inside, used) or fall_short(found):
            coupled = True
            found = [sizes[j] / sum(sizes[i] for i in window) for j in window]
        shares.append(found)
    steps = [fit_finite(columns, only(step), used) for step in examined.steps]
    return Weights(
        sizes,
        telling,
        [len(window) for window in windows],
        shares,
        coupled,
        [found for found, _ in steps],
        [fit_finite(columns, only(gradient), used)[0] for gradient in examined.incoming],
        fit_finite(columns, only(examined.left), used)[0],
        fit_finite(columns, only(examined.incoming_left), used)[0],
        max((rest for _, rest in steps), default=0.0),
        slack,
    )


def fit_finite(parts: Sequence[Gradients], full: Gradients, parameters: Sequence[Tensor]) -> tuple[list[float], float]:
    """Coefficients of ``parts`` in ``full``, 0 where not finite, and the relative rest.

    ConfigError where the gradients of the micro-batches depend linearly on each other.
    """
    # A micro-batch without a valid item has a gradient of nan or zero: it can have no weight.
    finite = [i for i, part in enumerate(parts) if 0 < _norm(part, parameters) < inf]
    size = _norm(full, parameters)
    if not finite or not isfinite(size):
        return [0.0] * len(parts), 0.0 if size == 0 else 1.0
    found, rest = _fit([parts[i] for i in finite], full, parameters)
    coefficients = [0.0] * len(parts)
    for index, value in zip(finite, found, strict=True):
        coefficients[index] = value
    return coefficients, rest


def _fit(parts: Sequence[Gradients], full: Gradients, parameters: Sequence[Tensor]) -> tuple[list[float], float]:
    """The ``c_j`` that fit ``full = sum_j c_j g_j`` best, ``g_j`` in ``parts``, and the relative rest."""
    columns = torch.stack([_flat(part, parameters) for part in parts], dim=1)
    scale = torch.linalg.vector_norm(columns, dim=0).clamp_min(1e-300)
    q, r = torch.linalg.qr(columns / scale)
    if columns.shape[0] < columns.shape[1] or float(r.diagonal().abs().min()) < 1e-6:
        raise ConfigError(
            f"the gradients of {columns.shape[1]} micro-batches cannot be told apart in {columns.shape[0]} "
            "parameters: check with a model of more parameters, or a batch of more varied items."
        )
    target = _flat(full, parameters)
    projected = q.T @ target
    found: list[float] = (torch.linalg.solve_triangular(r, projected[:, None], upper=True)[:, 0] / scale).tolist()
    rest = torch.linalg.vector_norm(target - q @ projected)
    return found, float(rest / torch.linalg.vector_norm(target).clamp_min(1e-300))


def leaves_out(shares: Sequence[float], parts: Sequence[Gradients], parameters: Sequence[Tensor]) -> bool:
    """Whether a part with a gradient has no positive share: no denominator does that, only a choice of items."""
    norms = [_norm(part, parameters) for part in parts]
    largest = max(map(abs, shares), default=0.0)
    return any(0 < norm < inf and share <= 1e-6 * largest for share, norm in zip(shares, norms, strict=True))


def fall_short(shares: Sequence[float]) -> bool:
    """Whether shares differ and add up to less than 1: those of a root of a mean do, whose parts have smaller ones.

    What a loss divides by adds up over the parts, or is a little more where it has a constant.
    """
    return bool(shares) and sum(shares) < 1 - 1e-3 and not close(shares, [shares[0]] * len(shares), 1e-3)


def _norm(gradients: Gradients, parameters: Sequence[Tensor]) -> float:
    return float(torch.linalg.vector_norm(_flat(gradients, parameters)))


def _flat(gradients: Gradients, parameters: Sequence[Tensor]) -> Tensor:
    """All elements as float64 ``[elements]``, complex ones as two; zeros for a parameter without gradient."""
    wide = [
        widened(torch.zeros_like(p) if g is None else g + torch.zeros_like(p))
        for g, p in zip(gradients, parameters, strict=True)
    ]
    return torch.cat([(torch.view_as_real(g) if g.is_complex() else g).flatten().cpu() for g in wide])


def diagnose_equal(found: Weights, k: int, size: int) -> list[Cause]:
    """Causes that show in two windows of K equal micro-batches."""
    if not found.steps:
        return [_no_step(found)]
    causes: list[Cause] = []
    fresh, stale = _without_stale(found)
    if stale:
        causes.append(stale)
    supports = [_support(step, found.tolerance) for step in fresh]

    if supports != found.windows:
        return causes + _pattern_causes(found, supports)
    ratios = [fresh[w][j] / s for w, js in enumerate(found.windows) for j, s in zip(js, found.shares[w], strict=True)]
    if not close(ratios, [ratios[0]] * len(ratios), found.tolerance):
        totals = [fresh[w][window[0]] / found.shares[w][0] for w, window in enumerate(found.windows)]
        constant = [totals[w] for w, window in enumerate(found.windows) for _ in window]
        if close(ratios, constant, found.tolerance) and _are_counts(totals, k):
            text = f"the first two steps are {_list(totals[:2])} times too large: sums that are never divided."
            return [*causes, cause(Kind.SUM_LOSS, text)]
        counted = [c for w, js in enumerate(found.windows) for c in (fresh[w][j] for j in js)]
        if k > 1 and close(counted, [1.0] * len(counted), found.tolerance):
            text = (
                f"each micro-batch counts 1, where {_list(found.shares[0])} are right: losses are added, not averaged."
            )
            return [*causes, cause(Kind.NOT_SCALED, text)]
        came = [
            found.incoming[w][j] / s
            for w, js in enumerate(found.windows)
            for j, s in zip(js, found.shares[w], strict=True)
        ]
        if close(came, [1.0] * len(came), found.tolerance):
            text = "backward passes give the right gradient, but the loop changes it before the window is complete."
            return [*causes, cause(Kind.CLIP_PER_MICRO_BATCH, text)]
        causes.append(
            cause(
                Kind.WRONG_DENOMINATOR,
                f"equal micro-batches count {_list(fresh[0][:k])} in the first step; right are "
                f"{_list(found.shares[0])}.",
            )
        )
    elif not close(ratios[:1], [1.0], found.tolerance):
        causes.append(scale_cause(ratios[0], k, size, found.tolerance))
    return causes


def diagnose_ragged(found: Weights, k: int) -> list[Cause]:
    """Causes that show in micro-batches of unequal sizes, in a loop that is right with equal ones."""
    ratios = [
        step[j] / share
        for window, shares, step in zip(found.windows, found.shares, found.steps, strict=False)
        for j, share in zip(window, shares, strict=True)
    ]
    if ratios and close(ratios, ratios[:1] * len(ratios), 1e-3 * abs(ratios[0] - 1)):
        # One factor everywhere is no denominator: so small a one that equal micro-batches hid it in the tolerance.
        return [scale_cause(ratios[0], k, found.sizes[0], found.tolerance)]
    for window, shares, step in zip(found.windows, found.shares, found.steps, strict=False):
        counted = [step[j] for j in window]
        if close(counted, shares, found.tolerance):
            continue
        if k > 1 and close(counted, [1 / k] * len(counted), found.tolerance):
            sizes = _numbers([found.sizes[j] for j in window])
            text = f"micro-batches of {sizes} items count {_list(counted)}; right are {_list(shares)}."
            return [cause(Kind.MEAN_OF_MEANS, text)]
        return [cause(Kind.WRONG_DENOMINATOR, f"micro-batches count {_list(counted)}; right are {_list(shares)}.")]
    return []


def diagnose_tail(found: Weights, k: int) -> list[Cause]:
    """Causes that show in a short last window, in a loop that is right without one."""
    slack, tail, length = found.tolerance, found.windows[-1], found.lengths[-1]
    if not tail:
        return []
    supports = [_support(step, slack) for step in found.steps]
    whose = f"the last {length} of {len(found.sizes)} micro-batches"
    if supports != found.windows:
        lost = [j for j in tail if not any(j in support for support in supports)]
        if lost == tail:
            where = "is left in .grad and leaks into the next epoch" if _support(found.left, slack) else "is lost"
            return [cause(Kind.LOST_REMAINDER, f"no step uses {whose}: their gradient {where}.")]
        if len(supports) == len(found.windows) and supports[:-1] == found.windows[:-1]:
            return _pattern_causes(found, supports)
        text = f"the steps use micro-batches {_groups(supports)}; right are {_groups(found.windows)}."
        return [cause(Kind.EXTRA_STEP if len(supports) >= len(found.windows) else Kind.MISSING_STEP, text)]
    step, shares = [found.steps[-1][j] for j in tail], found.shares[-1]
    if close(step, shares, slack):
        before = [found.steps[0][j] / s for j, s in zip(found.windows[0], found.shares[0], strict=True)]
        if len(found.windows) == 1 or close(before, [1.0] * len(before), slack):
            return []
        text = f"before {whose}, a full window counts {_list(before)} times what is right: only the tail is short."
        return [cause(Kind.WRONG_SCALE, text)]
    if close(step, [s * length / k for s in shares], slack):
        times = f"{k / length:.3g} times too small"
        return [cause(Kind.SHORT_WINDOW, f"{whose} make a window, but were divided by {k}: its gradient is {times}.")]
    if length > 1 and close(step, [1 / length] * len(step), slack):
        text = f"{whose}, of {_numbers([found.sizes[j] for j in tail])} items, count {_list(step)}; right are "
        return [cause(Kind.MEAN_OF_MEANS, f"{text}{_list(shares)}.")]
    ratios = [c / s for c, s in zip(step, shares, strict=True)]
    if close(ratios, ratios[:1] * len(ratios), slack):
        text = f"{whose} make a window whose gradient is {ratios[0]:.4g} times what it should be."
        if close(ratios[:1], [float(length)], slack) and length > 1:
            return [cause(Kind.NOT_SCALED, text)]
        if _are_counts(ratios[:1], length):
            return [cause(Kind.SUM_LOSS, text)]
        return [cause(Kind.WRONG_DENOMINATOR, text)]
    return [cause(Kind.WRONG_DENOMINATOR, f"{whose} count {_list(step)}; right are {_list(shares)}.")]


def _no_step(found: Weights) -> Cause:
    """The cause if a loop made no step at all."""
    if not _support(found.incoming_left, found.tolerance):
        text = "no backward pass gave these parameters a gradient, and the loop made no step."
        return cause(Kind.MISSING_BACKWARD, text)
    return cause(Kind.MISSING_STEP, f"the loop made no step in {len(found.sizes)} micro-batches.")


def scale_cause(ratio: float, k: int, size: int, slack: float) -> Cause:
    """The cause if every micro-batch counts ``ratio`` times what it should."""
    if close([ratio], [float(k)], slack) and k > 1:
        return cause(Kind.NOT_SCALED, f"the gradient is {k} times too large: losses are added, not averaged.")
    if close([ratio], [1.0 / k], slack) and k > 1:
        return cause(Kind.SCALED_TWICE, f"the gradient is {k} times too small: the loop divides by {k} twice.")
    if close([ratio], [float(size)], slack) or close([ratio], [float(size * k)], slack):
        return cause(
            Kind.SUM_LOSS,
            f"the gradient is {ratio:.4g} times too large: the loss sums over the {size} items of a micro-batch.",
        )
    return cause(Kind.WRONG_SCALE, f"the gradient is {factor(ratio)} times that of the full batch.")


def factor(ratio: float) -> str:
    """``ratio`` with as many digits as tell it from 1."""
    return f"{ratio:.4g}" if abs(ratio - 1) >= 1e-3 else f"{ratio:.9g}"


def _without_stale(found: Weights) -> tuple[list[list[float]], Cause | None]:
    """The steps without micro-batches of earlier windows that an earlier step used, and the cause if there are any."""
    window_of = {j: w for w, window in enumerate(found.windows) for j in window}
    fresh, why = [found.steps[0]], None
    for before, step in pairwise(found.steps):
        used, now = _support(before, found.tolerance), _support(step, found.tolerance)
        latest = max((window_of[j] for j in now), default=0)
        kept = [j for j in now if j in used and window_of[j] < latest]
        if kept and why is None:
            number = len(fresh) + 1
            why = cause(
                Kind.NOT_ZEROED,
                f"step {number} still holds the gradient of micro-batches {_numbers(kept)} of an earlier step.",
            )
        fresh.append([0.0 if j in kept else c for j, c in enumerate(step)])
    return fresh, why


def _pattern_causes(found: Weights, supports: list[list[int]]) -> list[Cause]:
    """Causes of steps that use other micro-batches than those of a window."""
    came = [_support(gradient, found.tolerance) for gradient in found.incoming]
    windows, groups = found.windows, _groups([support for support in supports if support])
    if not any(came) and not any(supports):
        text = (
            f"all {len(supports)} steps have no gradient: no backward pass reached the model that the loop was given, "
            "a copy; nothing is seen of a model from outside."
        )
        return [cause(Kind.MISSING_BACKWARD, text)]
    inside = all(set(support) <= set(window) for support, window in zip(supports, windows, strict=False))
    if len(supports) == len(windows) and inside:
        if all(set(window) <= set(gave) for window, gave in zip(windows, came, strict=True)):
            text = f"the steps use micro-batches {groups or 'none'}; the loop zeroes the gradients of the others first."
            return [cause(Kind.ZEROED_TOO_OFTEN, text)]
        text = f"backward passes reach micro-batches {groups or 'none'} only; right are {_groups(windows)}."
        return [cause(Kind.MISSING_BACKWARD, text)]
    text = (
        f"{len(supports)} steps, of micro-batches {groups or 'none'}; right are {len(windows)}, of {_groups(windows)}."
    )
    if len(supports) >= len(windows):
        return [cause(Kind.EXTRA_STEP, text)]
    return [cause(Kind.MISSING_STEP, text)]


def _are_counts(ratios: Sequence[float], k: int) -> bool:
    """Whether the ratios are numbers of items or tokens, or those divided by the number of micro-batches."""
    return any(
        all(r > 1.5 and abs(r * times - round(r * times)) < 1e-4 * r * times for r in ratios) for times in (1, k)
    )


def _support(step: Sequence[float], slack: float) -> list[int]:
    """The micro-batches with a weight."""
    largest = max(map(abs, step), default=0.0)
    return [j for j, c in enumerate(step) if abs(c) > max(slack, 1e-3) * largest] if largest else []


def _groups(groups: Sequence[Sequence[int]]) -> str:
    return ", ".join("[" + _numbers(group) + "]" for group in groups[:8]) + (", ..." if len(groups) > 8 else "")


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:12])) + (", ..." if len(numbers) > 12 else "")


def _list(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers[:12]) + (", ..." if len(numbers) > 12 else "")
