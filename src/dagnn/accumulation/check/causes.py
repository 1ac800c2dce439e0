"""Causes of wrong steps: by the weights of micro-batches, and by other comparisons.

``explain`` is about a loop that is called again and again; ``judge`` is about one gradient.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import inf

import torch
from torch import Tensor

from dagnn.accumulation.check.arithmetic import close, ratio_of, relative_error, total_norm
from dagnn.accumulation.check.diagnosis import Weights, fit_finite, scale_cause
from dagnn.accumulation.check.layouts import SMALL, Examined, Layout, Loop, split_by
from dagnn.accumulation.check.recording import steps_of
from dagnn.accumulation.check.report import Cause, Kind, Report, cause, make_report
from dagnn.accumulation.check.report import coupled as coupled_cause
from dagnn.accumulation.check.subject import Gradients, Subject
from dagnn.errors import AccumulationError, ConfigError

# These causes mean nothing for a step that is no combination of gradients.
_ABOUT_WEIGHTS = {
    Kind.WRONG_DENOMINATOR,
    Kind.WRONG_SCALE,
    Kind.SUM_LOSS,
    Kind.NOT_SCALED,
    Kind.SCALED_TWICE,
    Kind.COUPLED,
}

Diagnose = Callable[[Weights], list[Cause]]


def explain(
    loop: Loop, examined: Examined, weights: Callable[[list[int]], Weights], diagnose: Diagnose, *, k: int, size: int
) -> list[Cause]:
    """Why the steps in ``examined`` are wrong.

    Args:
        weights: the weights in the gradients of some of the parameters, by their places in ``examined.held``.
        diagnose: the causes that weights reveal.

    Raises:
        ConfigError: the gradients of the micro-batches depend linearly on each other.
    """
    alive = [*range(len(examined.held))]
    if any(_nonzero(gradient) for step in examined.steps for gradient in step):
        alive = [place for place in alive if not _is_silent(examined, place)]
    imaginary = [place for place in alive if _lost_imaginary(examined, place)]
    if imaginary:
        names = ", ".join(loop.subject.names[examined.held[place]] for place in imaginary[:5])
        return [
            cause(Kind.IMAGINARY, f"the steps of {names} have no imaginary part; the full batch's gradient has one.")
        ]

    found = weights(alive)
    if not found.explained and examined.steps and len(examined.steps) != len(examined.expected):
        return [_by_number(loop, examined)]
    if found.explained or not examined.steps:
        causes = diagnose(found) or ([coupled_cause()] if found.coupled else [])
        if examined.linear or not all(c.kind in _ABOUT_WEIGHTS for c in causes):
            return causes
    changed = examined.steps and len(examined.steps) == len(examined.expected) and loop.comes_in(examined)
    if not examined.linear and changed:
        return [_changed_cause(examined)]
    if by_scale := _by_scale(loop, examined, alive, k=k, size=size):
        return by_scale
    for wrong in _wrong_parts(loop, examined, alive):
        elements = sum(loop.subject.parameters[examined.held[place]].numel() for place in wrong)
        if elements < 2 * len(examined.pieces):
            continue  # so few that some weights explain anything
        try:
            found = weights(wrong)
        except ConfigError:
            continue
        causes = diagnose(found) if found.explained else []
        if causes:
            names = ", ".join(loop.subject.names[examined.held[place]] for place in wrong[:5])
            return [c._replace(explanation=f"{names}: {c.explanation}") for c in causes]
    if _is_right(loop, examined, 0) and len(examined.steps) > 1:
        text = "the first step is right, the next is not: .grad still holds something that is not of this window."
        return [cause(Kind.NOT_ZEROED, text)]
    if changed and (examined.stale or examined.zeroed or not _adds(loop, examined)):
        return [_changed_cause(examined)]
    return _by_whole_windows(loop, examined, k=k, size=size, coupled=found.coupled)


def _changed_cause(examined: Examined) -> Cause:
    """The cause if backward passes give the right gradient, and the step is not their sum."""
    if examined.stale:
        return cause(Kind.NOT_ZEROED, "backward passes of a window add to the gradient that the last step used.")
    if examined.zeroed:
        return cause(
            Kind.ZEROED_TOO_OFTEN, "the loop takes gradients out of .grad before the step that should use them."
        )
    text = "the step is not the sum of the backward passes: the loop changes gradients before the window is complete."
    return cause(Kind.CLIP_PER_MICRO_BATCH, text)


def _by_number(loop: Loop, examined: Examined) -> Cause:
    """The cause if there are too many or too few steps, and no weights explain them."""
    steps, windows = len(examined.steps), len(examined.expected)
    if steps > windows:
        return cause(Kind.EXTRA_STEP, f"{steps} steps; right are {windows}.")
    if all(_is_right(loop, examined, step) for step in range(steps)):
        return cause(
            Kind.LOST_REMAINDER, f"the first {steps} steps are right, but {windows - steps} more should follow."
        )
    return cause(Kind.MISSING_STEP, f"{steps} steps; right are {windows}.")


def _by_scale(loop: Loop, examined: Examined, alive: list[int], *, k: int, size: int) -> list[Cause]:
    """The cause if each step is a multiple of what it should be."""
    slack = loop.slack
    found = [
        ratio_of([s[i] for i in alive], [e[i] for i in alive])
        for s, e in zip(examined.steps, examined.expected, strict=True)
    ]
    ratios = [ratio for ratio, _ in found]
    if max(rest for _, rest in found) > slack or not all(ratios):
        return []
    if close(ratios, ratios[:1] * len(ratios), slack):
        return [scale_cause(ratios[0], k, size, slack)]
    length = len(examined.layout.windows[-1])
    if close(ratios, [1.0] * (len(ratios) - 1) + [length / k], slack):
        return [cause(Kind.SHORT_WINDOW, f"the last window has {length} micro-batches, but the loop divides by {k}.")]
    return [
        cause(Kind.WRONG_DENOMINATOR, f"the steps are {', '.join(f'{r:.3g}' for r in ratios)} times what is right.")
    ]


def silent_causes(subject: Subject, found: list[Examined]) -> list[Cause]:
    """Parameters that the loss uses, but that never get a gradient in the loop, or one of zeros."""
    unused: list[str] = []
    zero: list[str] = []
    for examined in found:
        if any(_nonzero(gradient) for step in [*examined.steps, examined.left] for gradient in step):
            for place in filter(partial(_is_silent, examined), range(len(examined.held))):
                came = [gradients[place] for gradients in [*examined.incoming, examined.incoming_left]]
                # Backward passes that reach a parameter, and give it zeros, took a part of the loss times 0.
                reached = any(g is not None for g in came) and not any(map(_nonzero, came))
                (zero if reached else unused).append(subject.names[examined.held[place]])
    causes = []
    if unused:
        text = f"the loop gives no gradient to {', '.join(unused[:5])}; the full batch does."
        causes.append(cause(Kind.UNUSED_PARAMETER, text))
    if zero:
        text = f"backward passes give {', '.join(zero[:5])} a gradient of 0; that of the full batch is not 0."
        causes.append(cause(Kind.OTHER_LOSS, text))
    return causes


def _by_whole_windows(loop: Loop, examined: Examined, *, k: int, size: int, coupled: bool) -> list[Cause]:
    """The cause by windows that hold copies of the whole window, in which coupled items make no difference."""
    layout = Layout.of([size] * (2 * k), k)
    both = loop.compare_with_whole_windows(layout, SMALL)
    ours, whole = (steps_of(groups, examined.held) for groups in both)
    if layout != examined.layout or len(ours) != 2 or len(whole) != 2:
        return [coupled_cause()] if layout == examined.layout else []
    slack = loop.slack
    ratio, rest = ratio_of(whole[0], examined.expected[0])
    if rest <= slack and abs(ratio - 1) > slack:
        return [scale_cause(ratio, k, size, slack)]
    if rest <= slack and coupled:
        return [coupled_cause()]
    if relative_error(ours[0], whole[0]) > slack:
        backwards = steps_of(loop.groups(layout, SMALL, backwards=True), examined.held) or ours
        if relative_error(backwards[0], ours[0]) > slack:
            text = "the step depends on the order of the micro-batches: not all have the same loss."
            return [cause(Kind.OTHER_LOSS, text)]
        if coupled:
            return [coupled_cause()]
        if not _additive(loop, layout, ours[0], examined.held):
            if not _mixes(loop, examined.held, k):
                return [coupled_cause()]
            text = "the step depends on which items share a micro-batch, loss_fn does not: a denominator is wrong."
            return [cause(Kind.WRONG_DENOMINATOR, text)]
    elif k > 1:
        _, wholes = loop.compare_with_whole_windows(Layout.of([size] * (k + 1), k), SMALL)
        alone = steps_of(wholes, examined.held)
        right = loop.gradients_of(loop.pieces(Layout.of([size] * (k + 1), k)))[-1]
        if len(alone) == 2 and relative_error(alone[1], [right[i] for i in examined.held]) <= slack:
            text = f"the loop does not divide a part of the loss: one micro-batch gives the right step, {k} do not."
            return [cause(Kind.NOT_SCALED, text)]
    return [cause(Kind.OTHER_LOSS, "even for one whole batch the loop takes another gradient than that of loss_fn.")]


def _additive(loop: Loop, layout: Layout, step: Gradients, held: list[int]) -> bool:
    """Whether it makes no difference to a step which items of a window share a micro-batch."""
    try:
        dealt = steps_of(loop.dealt(layout), held)
    except AccumulationError:
        return False
    return bool(dealt) and relative_error(dealt[0], step) <= loop.slack


def _mixes(loop: Loop, held: list[int], k: int) -> bool:
    """Whether the loop's step from two items is a mixture of those from each alone, as with another denominator."""
    items, parameters = split_by(loop.subject.batch, [1] * 6), [loop.subject.parameters[i] for i in held]
    for i, (one, other) in enumerate(pairwise(items)):
        both = split_by(loop.subject.batch, [i, 2])[1] if i else split_by(loop.subject.batch, [2])[0]
        try:
            steps = steps_of(loop.of_copies([one, other, both], k), held)
            if len(steps) == 3 and all(0 < total_norm(step) < inf for step in steps):
                return fit_finite(steps[:2], steps[2], parameters)[1] <= 10 * loop.slack
        except (AccumulationError, ConfigError):
            continue
    return False


def _adds(loop: Loop, examined: Examined) -> bool:
    """Whether the loop adds to gradients something that does not come from a loss."""
    added = steps_of(loop.groups(examined.layout, 0.0), examined.held)
    return any(_nonzero(gradient) for step in added for gradient in step)


def _wrong_parts(loop: Loop, examined: Examined, alive: list[int]) -> list[list[int]]:
    """Places of parameters whose steps are wrong: all of them, unless none is right, then each alone."""
    wrong = [
        place
        for place in alive
        if any(
            relative_error([s[place]], [e[place]]) > 10 * loop.tolerance
            for s, e in zip(examined.steps, examined.expected, strict=True)
        )
    ]
    return ([wrong] if wrong and len(wrong) < len(alive) else []) + [[place] for place in wrong[:20]]


def _is_right(loop: Loop, examined: Examined, window: int) -> bool:
    return relative_error(examined.steps[window], examined.expected[window]) <= loop.tolerance


def _is_silent(examined: Examined, place: int) -> bool:
    everything = [*examined.steps, examined.left]
    return any(_nonzero(e[place]) for e in examined.expected) and not any(_nonzero(step[place]) for step in everything)


def _lost_imaginary(examined: Examined, place: int) -> bool:
    def imaginary(gradients: list[Gradients]) -> bool:
        return any(g[place] is not None and g[place].is_complex() and _nonzero(g[place].imag) for g in gradients)  # type: ignore[union-attr]

    return imaginary(examined.expected) and not imaginary(examined.steps)


def _nonzero(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def judge(
    names: Sequence[str],
    parameters: Sequence[Tensor],
    actual: Gradients,
    expected: Gradients,
    parts: Sequence[Gradients],
    *,
    remedy: str,
    tolerance: float,
    coupled: bool = False,
) -> Report:
    """The verdict on a trainer's gradient, with the weights of its micro-batches as the cause.

    Args:
        names, parameters: those that require a gradient.
        actual: what the optimizer would step with, before clipping.
        expected: the gradient of the full batch.
        parts: that of the mean loss of each micro-batch.
        remedy: what to change, in one sentence.
        tolerance: relative error up to which gradients are equal.
        coupled: the loss of an item depends on others, where no weights of ``parts`` give ``expected``.
    """
    equal = relative_error(actual, expected) <= tolerance
    causes = [] if equal else [_weights_cause(parameters, actual, expected, parts, remedy, tolerance, coupled)]
    precision = next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)
    return make_report(causes, names, actual, expected, equal=equal, precision=precision)


def _weights_cause(
    parameters: Sequence[Tensor],
    actual: Gradients,
    expected: Gradients,
    parts: Sequence[Gradients],
    remedy: str,
    tolerance: float,
    coupled: bool,
) -> Cause:
    k, ratio = len(parts), ratio_of(actual, expected)[0]
    factor = f"{ratio:.4g} times that of the full batch"
    text = f"no weights of the {k} micro-batches make the gradient of the full batch, of which this one is about "
    other_loss = Cause(Kind.COUPLED, f"{text}{ratio:.4g} times: the loss of an item depends on the others.", remedy)
    loose = max(1e-6, 10 * tolerance)
    try:
        (found, rest), (right, right_rest) = (fit_finite(parts, each, parameters) for each in (actual, expected))
    except ConfigError:
        if coupled:  # a batch of one has no gradient
            return other_loss
        text = (
            f"the gradient is about {factor}; those of its {k} micro-batches are too much alike to tell their weights."
        )
        return Cause(Kind.WRONG_SCALE, text, remedy)
    if coupled and right_rest > loose:
        return other_loss
    if rest > loose:
        text = f"no weights of the {k} micro-batches explain the gradient, which is about {factor}: its loss has terms "
        return Cause(Kind.WRONG_DENOMINATOR, f"{text}that are divided by different counts.", remedy)
    shares = ", ".join(f"{share:.4g}" for share in found)
    if right_rest <= loose:
        shares += f"; right are {', '.join(f'{share:.4g}' for share in right)}"
    if close(found, [1.0] * k, loose):
        text = f"the mean losses of {k} micro-batches are added without a division: the gradient is {factor}."
        return Cause(Kind.NOT_SCALED, text, remedy)
    if close(found, [1.0 / k] * k, loose):
        text = f"all micro-batches have the same weight, whatever counts in them: their shares are {shares}."
        return Cause(Kind.MEAN_OF_MEANS, text, remedy)
    kind = Kind.WRONG_DENOMINATOR if abs(sum(found) - 1.0) <= loose else Kind.WRONG_SCALE
    return Cause(kind, f"the shares of the micro-batches are {shares}: the gradient is about {factor}.", remedy)
