"""What the check in float64 could not see: what the model's own precision, and casts of the loop, do to gradients."""

import torch

from dagnn.accumulation.check.causes import Cause, Kind, cause
from dagnn.accumulation.check.layouts import Layout, Loop
from dagnn.accumulation.check.report import relative_error
from dagnn.accumulation.check.subject import Subject
from dagnn.errors import DagnnError

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
