"""What belongs to an update once per window (clipping, unscaling, the schedule), and what float64 cannot see."""

from collections.abc import Sequence

import torch

from dagnn.accumulation.check.layouts import LARGE, SMALL, Layout, Loop
from dagnn.accumulation.check.recording import Group
from dagnn.accumulation.check.report import Cause, Kind, cause, relative_error, total_norm
from dagnn.accumulation.check.subject import Gradients, Subject
from dagnn.errors import AccumulationError, DagnnError

_OTHER_SCALE = 2.0**-8  # any power of two that keeps float32 exact


def update_causes(loop: Loop, layout: Layout, causes: Sequence[Cause], *, tail: bool) -> list[Cause]:
    """Causes in what the loop does to whole windows, where ``causes`` leave their steps in order.

    Args:
        tail: the loop should step in a short last window too.
    """
    if any(c.kind not in _STEPS_IN_ORDER for c in causes):
        return []
    found = _schedule_causes(loop, layout)
    try:
        if loop.first.scaled and not _same(
            loop.groups(layout, LARGE), loop.groups(layout, LARGE, _OTHER_SCALE), _slack(loop)
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
        pass  # a loop that refuses such gradients
    return found


def unscaling_cause(loop: Loop, layout: Layout) -> Cause | None:
    """The cause when even small steps depend on the scale of a ``GradScaler``."""
    if not loop.first.scaled:
        return None
    one, other = loop.groups(layout, SMALL), loop.groups(layout, SMALL, _OTHER_SCALE)
    if _same(one, other, _slack(loop)):
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
    """With gradients so large that clipping acts, micro-batches give another step than the whole window."""
    for scale in (LARGE, 1.0):
        ours, wholes = loop.compare_with_whole_windows(layout, scale)
        if all(len(group.steps) == len(layout.windows) for group in ours):
            break  # else the loop leaves such large gradients out
    if _same(ours, wholes, _slack(loop)):
        return False
    if _same(*loop.compare_with_whole_windows(layout, SMALL), _slack(loop)):
        return True
    # A window cannot be filled with copies of itself (its loss couples items): a clipped one is shorter at least.
    plain = loop.groups(layout, SMALL)
    return not all(_is_shorter(a, b) for a, b in zip(ours, plain, strict=False))


def _differs_in_tails(loop: Loop, k: int) -> bool:
    """A last window of one micro-batch is treated otherwise than a full one with the same gradient."""
    if k == 1:
        return False

    def differ(lengths: list[int], scale: float) -> bool:
        steps = [group.steps for group in loop.same_window(lengths, k, scale) if len(group.steps) == len(lengths)]
        return any(relative_error(second, first) > _slack(loop) for first, second in steps)

    # Two full windows may differ too, where clipping remembers earlier norms.
    return differ([k, 1], LARGE) and not differ([k, k], LARGE) and not differ([k, 1], SMALL)


def _is_shorter(group: Group, plain: Group) -> bool:
    """Every parameter's step is a multiple of what it is without clipping."""
    for step, before in zip(group.steps, plain.steps, strict=False):
        for a, b in zip(step, before, strict=True):
            if a is None or b is None:
                continue
            norms = total_norm([a]), total_norm([b])
            if all(norms) and relative_error([a / norms[0]], [b / norms[1]]) > 1e-5:
                return False
    return True


def _same(a: Sequence[Group], b: Sequence[Group], slack: float) -> bool:
    """All steps are the same; groups that differ in their number cannot be compared and count as the same."""
    steps: list[tuple[Gradients, Gradients]] = []
    for one, other in zip(a, b, strict=False):
        if one.held == other.held and len(one.steps) == len(other.steps):
            steps += zip(one.steps, other.steps, strict=True)
    return all(relative_error(one, other) <= slack for one, other in steps)


def _slack(loop: Loop) -> float:
    return max(1e-6, 10 * loop.tolerance)


_NARROW = (torch.float16, torch.bfloat16)


def precision_cause(loop: Loop, layout: Layout) -> Cause | str | None:
    """Run the loop in the model's own precision too: a cause if much is lost there, else a note if it is low."""
    subject = loop.subject
    if subject.dtype is subject.own_dtype:
        return None
    name = _name(subject.own_dtype)
    try:
        own = subject.in_own_precision()
        own_loop = loop.on(own)
        ours, exact = own_loop.groups(layout, 1.0), loop.groups(layout, 1.0)
        steps = [(a, e) for a, e in zip(ours, exact, strict=True) if a.held == e.held and len(a.steps) == len(e.steps)]
        of_loop = max(relative_error(s, t) for a, e in steps for s, t in zip(a.steps, e.steps, strict=True))
        pairs = zip(own_loop.wholes(layout), loop.wholes(layout), strict=True)
        of_batch = max(relative_error(own.gradient(a), subject.gradient(e)) for a, e in pairs)
    except (DagnnError, RuntimeError, ValueError):
        return f"compared in float64; the loop could not be compared in the model's own {name}."
    numbers = f"in {name} itself its steps are off by {of_loop:.1e}, and those of the full batch by {of_batch:.1e}"
    if of_loop > max(1e-4, 10 * of_batch):
        return cause(Kind.LOW_PRECISION, f"{numbers}: the loop computes or sums gradients in 16 bits.")
    if subject.own_dtype not in _NARROW:
        return None
    advice = ": sum gradients in float32" if of_loop > 2 * of_batch else ""
    return f"compared in float64; {numbers}{advice}."


def notes_on_precision(subject: Subject) -> list[str]:
    """What the arithmetic of the check hides."""
    if subject.dtype is not torch.float64:
        why = f"the loss or the loop cannot run in float64, so it was compared in {_name(subject.dtype)}"
    elif subject.narrowest is not torch.float64:
        why = f"something is computed in {_name(subject.narrowest)}"
    elif subject.avoided:
        return [f"casts to {', '.join(sorted(map(_name, subject.avoided)))} were kept in float64."]
    else:
        return []
    return [f"{why}: differences below {subject.tolerance:.0e} of the gradient cannot be seen."]


def own_precision_note(subject: Subject) -> list[str]:
    """How much the gradient of the full batch is off in the model's own precision, where that is a low one."""
    if subject.own_dtype not in _NARROW or subject.dtype is not torch.float64:
        return []
    try:
        error = relative_error(subject.in_own_precision().gradient(), subject.gradient())
    except (DagnnError, RuntimeError):
        return []
    return [
        f"compared in float64; in {_name(subject.own_dtype)} itself the full batch's gradient is off by {error:.1e}, "
        "and sums of many micro-batches lose more: sum them in float32."
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
