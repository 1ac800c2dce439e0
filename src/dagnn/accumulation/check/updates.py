"""Causes in what a loop should do once per window: clip, unscale, move the learning rate."""

from collections.abc import Sequence

from dagnn.accumulation.check.arithmetic import relative_error, total_norm
from dagnn.accumulation.check.layouts import LARGE, SMALL, Layout, Loop
from dagnn.accumulation.check.recording import Group
from dagnn.accumulation.check.report import Cause, Kind, cause
from dagnn.accumulation.check.subject import Gradients
from dagnn.errors import AccumulationError

_OTHER_SCALE = 2.0**-8  # any power of two that keeps float32 exact


def update_causes(loop: Loop, layout: Layout, causes: Sequence[Cause], *, tail: bool) -> list[Cause]:
    """Causes in what the loop does to whole windows, unless ``causes`` say that it steps at the wrong places.

    Args:
        tail: the loop should step in a short last window too.
    """
    if any(c.kind not in _STEPS_IN_ORDER for c in causes):
        return []
    found = _schedule_causes(loop, layout)
    try:
        if loop.first.scaled and not _same(
            loop.groups(layout, LARGE), loop.groups(layout, LARGE, _OTHER_SCALE), loop.slack
        ):
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


def unscaling_cause(loop: Loop, layout: Layout) -> Cause | None:
    """The cause if even small steps depend on the scale of a ``GradScaler``."""
    if not loop.first.scaled:
        return None
    one, other = loop.groups(layout, SMALL), loop.groups(layout, SMALL, _OTHER_SCALE)
    if _same(one, other, loop.slack):
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
    if _same(ours, wholes, loop.slack):
        return False
    if _same(*loop.compare_with_whole_windows(layout, SMALL), loop.slack):
        return True
    # A window cannot be filled with copies of itself (its loss couples items): a clipped one is shorter at least.
    plain = loop.groups(layout, SMALL)
    return not all(_is_shorter(a, b) for a, b in zip(ours, plain, strict=False))


def _differs_in_tails(loop: Loop, k: int) -> bool:
    """Whether a last window of one micro-batch gets another step than a full one with the same gradient."""
    if k == 1:
        return False

    def differ(lengths: list[int], scale: float) -> bool:
        steps = [group.steps for group in loop.same_window(lengths, k, scale) if len(group.steps) == len(lengths)]
        return any(relative_error(second, first) > loop.slack for first, second in steps)

    # Two full windows may differ too, where clipping remembers earlier norms.
    return differ([k, 1], LARGE) and not differ([k, k], LARGE) and not differ([k, 1], SMALL)


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


def _same(a: Sequence[Group], b: Sequence[Group], slack: float) -> bool:
    """Whether all steps are the same. Groups with different numbers of steps count as the same."""
    steps: list[tuple[Gradients, Gradients]] = []
    for one, other in zip(a, b, strict=False):
        if one.held == other.held and len(one.steps) == len(other.steps):
            steps += zip(one.steps, other.steps, strict=True)
    return all(relative_error(one, other) <= slack for one, other in steps)
