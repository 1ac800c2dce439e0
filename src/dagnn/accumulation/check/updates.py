"""Causes in what a loop does to whole windows: clipping, loss scale, learning rate; and what only later ones show."""

from collections.abc import Sequence

from dagnn.accumulation.check.arithmetic import norm_of, ratio_of, relative_error, total_norm
from dagnn.accumulation.check.diagnosis import scale_cause
from dagnn.accumulation.check.layouts import FADING, LARGE, SMALL, Layout, Loop
from dagnn.accumulation.check.recording import Group, steps_of
from dagnn.accumulation.check.report import Cause, Kind, cause
from dagnn.accumulation.check.subject import Gradients
from dagnn.errors import AccumulationError

_OTHER_SCALE = 2.0**-8  # any power of two that keeps float32 exact


def update_causes(loop: Loop, layout: Layout, causes: Sequence[Cause], *, tail: bool) -> list[Cause]:
    """Causes in what the loop does to windows, unless it steps elsewhere; in a short last one too where ``tail``."""
    if any(c.kind not in _STEPS_IN_ORDER for c in causes):
        return []
    found = _schedule_causes(loop, layout)
    try:
        if loop.first.scaled and not _same(loop, loop.groups(layout, LARGE), loop.groups(layout, LARGE, _OTHER_SCALE)):
            text = "with large gradients the step depends on the loss scale: what is clipped is still scaled."
            return [*found, cause(Kind.CLIP_BEFORE_UNSCALE, text)]
        if _acts_on_parts(loop, layout):
            text = "with large gradients the step is not that of the window: parts of it were clipped, not the whole."
            found.append(cause(Kind.CLIP_PER_MICRO_BATCH, text))
        elif tail and not causes and _differs_in_tails(loop, len(layout.windows[0])):
            text = "with large gradients a short last window makes another step than a full one of the same gradient."
            found.append(cause(Kind.TAIL_NOT_CLIPPED, text))
    except AccumulationError:
        pass  # the loop refuses such gradients
    return found


def moved_causes(loop: Loop, layout: Layout) -> list[Cause]:
    """The cause if parameters move between the micro-batches of a window, and it is not as with the whole window.

    A loop that climbs along the gradient of a whole window, or adds noise and takes it away, makes the same steps.
    """
    if not loop.moved or _same(loop, *loop.compare_with_whole_windows(layout, 1.0, held=False)):
        return []
    text = "parameters change between the micro-batches of one window, by hand and not by a step of an optimizer."
    return [cause(Kind.MOVED, text)]


def unscaling_cause(loop: Loop, layout: Layout) -> Cause | None:
    """The cause if even small steps depend on the scale of a ``GradScaler``."""
    if not loop.first.scaled:
        return None
    one, other = loop.groups(layout, SMALL), loop.groups(layout, SMALL, _OTHER_SCALE)
    if _same(loop, one, other):
        return None
    return cause(Kind.NOT_UNSCALED, "the step depends on the loss scale: it is unscaled too seldom or too often.")


_STEPS_IN_ORDER = {
    Kind.NOT_SCALED,
    Kind.SCALED_TWICE,
    Kind.WRONG_SCALE,
    Kind.SUM_LOSS,
    Kind.MEAN_OF_MEANS,
    Kind.SHORT_WINDOW,
    Kind.LOST_REMAINDER,
}


def _schedule_causes(loop: Loop, layout: Layout) -> list[Cause]:
    first, steps = loop.first, max((len(group.steps) for group in loop.first.groups), default=0)
    if first.scheduler_steps > steps:
        text = f"scheduler.step() ran {first.scheduler_steps} times in {steps} optimizer steps."
        return [cause(Kind.SCHEDULE_PER_MICRO_BATCH, text)]
    if not first.rate_moves:
        return []
    # A rate set by how much of the epoch is done may move in between: then it depends on the epoch's length.
    k = len(layout.windows[0])
    try:
        shorter = loop.rates(Layout.of(layout.sizes[: k + 1], k))
    except AccumulationError:  # the loop takes whole windows only
        shorter = []
    if shorter and first.rates and abs(shorter[0] - first.rates[0]) > 1e-9 * abs(first.rates[0]):
        return []
    return [cause(Kind.SCHEDULE_PER_MICRO_BATCH, "the learning rate moves between the micro-batches of one window.")]


def _acts_on_parts(loop: Loop, layout: Layout) -> bool:
    """Whether micro-batches give another step than the whole window, with gradients so large that clipping acts."""
    for scale in (LARGE, 1.0):
        ours, wholes = loop.compare_with_whole_windows(layout, scale)
        if all(len(group.steps) == len(layout.windows) for group in ours):
            break  # else the loop leaves such large gradients out
    if _same(loop, ours, wholes):
        return False
    if _same(loop, *loop.compare_with_whole_windows(layout, SMALL)):
        return True
    # A window cannot be filled with copies of itself (its loss couples items): a clipped one is shorter at least.
    plain = loop.groups(layout, SMALL)
    return not all(_is_shorter(a, b) for a, b in zip(ours, plain, strict=False))


def _differs_in_tails(loop: Loop, k: int) -> bool:
    """Whether a last window of some length gets another step than a full one with the same gradient."""

    def differ(length: int, scale: float) -> bool:
        for group in loop.same_window([k, length], k, scale):
            if len(group.steps) == 2 and _distance(loop, group.held, *group.steps) > loop.slack:
                return True
        return False

    lengths = tail_lengths(k)
    # Two full windows may differ too, where clipping remembers earlier norms.
    return any(differ(n, LARGE) and not differ(n, SMALL) for n in lengths) and not differ(k, LARGE)


def tail_lengths(k: int) -> list[int]:
    """Lengths of a short last window to try: all of them, or some where ``k`` is large."""
    return list(range(1, k)) if k <= 8 else [1, k // 2, k - 1]


def _is_shorter(group: Group, plain: Group) -> bool:
    """Whether every parameter's step is a multiple of what it is without clipping."""
    for step, before in zip(group.steps, plain.steps, strict=False):
        for a, b in zip(step, before, strict=True):
            if a is None or b is None:
                continue
            norms = total_norm([a]), total_norm([b])
            if all(norms) and relative_error([a / norms[0]], [b / norms[1]]) > 1e-5:
                return False
    return True


def _same(loop: Loop, a: Sequence[Group], b: Sequence[Group]) -> bool:
    """Whether all steps are the same. Groups with different numbers of steps count as the same."""
    for one, other in zip(a, b, strict=False):
        if one.held == other.held and len(one.steps) == len(other.steps):
            pairs = zip(one.steps, other.steps, strict=True)
            if any(_distance(loop, one.held, *pair) > loop.slack for pair in pairs):
                return False
    return True


def _distance(loop: Loop, held: list[int], step: Gradients, other: Gradients) -> float:
    """The relative error of ``step``, every parameter as large in ``other`` as its gradient of the full batch.

    Where only some parameters are clipped, large gradients of the rest would else hide them.
    """
    factors = [
        loop.sizes[i] / norm if loop.sizes[i] and (norm := norm_of(gradient)) else 1.0
        for i, gradient in zip(held, other, strict=True)
    ]
    even = ([None if g is None else g * f for g, f in zip(each, factors, strict=True)] for each in (step, other))
    return relative_error(*even)


def later_causes(loop: Loop, layout: Layout) -> list[Cause]:
    """The cause of a wrong step after the two windows of ``layout``, which come again and again.

    Only for a loop that steps with the bare gradient in the first two: what it adds by itself may well change.
    """
    times = 3 if len(layout.sizes) <= 16 else 2
    expected = [loop.subject.gradient(whole) for whole in loop.wholes(layout)] * times
    try:
        found = loop.again(layout, times)
        for group in found.groups:
            right = [[gradients[i] for i in group.held] for gradients in expected]
            errors = [relative_error(a, e) for a, e in zip(group.steps, right, strict=False)]
            wrong = next((i for i, error in enumerate(errors) if not error <= loop.slack), None)
            if wrong is None or wrong < 2:
                continue
            # A loop that clips by earlier norms is right; norms that only fall show it.
            falling = [loop.again(layout, times, scale=scale, fading=FADING) for scale in (SMALL, 1.0)]
            steps = [steps_of(recording.groups, group.held)[wrong : wrong + 1] for recording in falling]
            if all(not step or relative_error(step[0], right[wrong]) > loop.slack for step in steps):
                return [_later_cause(loop, layout, group, wrong, right, stale=found.stale)]
    except AccumulationError:
        pass  # the loop takes no longer epochs
    return []


def _later_cause(loop: Loop, layout: Layout, group: Group, wrong: int, right: list[Gradients], *, stale: bool) -> Cause:
    before = f"the first {wrong} steps are right, step {wrong + 1} is not"
    k, step = len(layout.windows[0]), group.steps[wrong]
    ratio, rest = ratio_of(step, right[wrong])
    if rest <= loop.slack and ratio and not stale:
        found = scale_cause(ratio, k, layout.sizes[0], loop.slack)
        return found._replace(explanation=f"{before}: {found.explanation}")
    if stale:
        return cause(Kind.NOT_ZEROED, f"{before}: it still holds the gradient of an earlier one.")
    came = relative_error(group.incoming[wrong], right[wrong]) <= loop.slack
    if came:
        return cause(Kind.ZEROED_TOO_OFTEN, f"{before}: backward passes gave its gradient, but .grad does not hold it.")
    text = f"{before}: backward passes since the step before do not give its gradient."
    return cause(Kind.MISSING_BACKWARD if total_norm(step) <= total_norm(right[wrong]) else Kind.EXTRA_STEP, text)
