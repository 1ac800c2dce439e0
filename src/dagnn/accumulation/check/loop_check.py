"""check_loop: whether a hand-written loop steps with the gradient of the full batch, and if not, why and where."""

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any, Literal

import torch
from torch import nn

from dagnn.accumulation.check.arithmetic import dtype_name, ratio_of, relative_error
from dagnn.accumulation.check.causes import explain, silent_causes
from dagnn.accumulation.check.diagnosis import (
    Weights,
    diagnose_equal,
    diagnose_ragged,
    diagnose_tail,
    factor,
    weights_of,
)
from dagnn.accumulation.check.layouts import Examined, Layout, Loop
from dagnn.accumulation.check.model_check import model_causes
from dagnn.accumulation.check.report import Cause, Kind, Report, cause, find_line, make_report
from dagnn.accumulation.check.subject import Gradients, LossFn, Subject, TrainStep, notes_on_precision, num_arguments
from dagnn.accumulation.check.updates import (
    later_causes,
    moved_causes,
    tail_lengths,
    unscaling_cause,
    update_causes,
)
from dagnn.accumulation.items import count_items
from dagnn.accumulation.random_states import RandomState
from dagnn.errors import AccumulationError, ConfigError, DagnnError


def check_loop(
    train_step: TrainStep,
    model: nn.Module,
    batch: Any,
    *,
    loss_fn: LossFn,
    micro_batches: int = 4,
    each_call: Literal["epoch", "window"] = "epoch",
    ragged: bool = True,
    tail: bool = True,
) -> Report:
    """Whether a loop over micro-batches steps with the gradient of the full batch, and if not, why and where.

    The check runs the loop a few times on a copy of the model. The loop may step with what it likes: the optimizer it
    gets, its own, several, a closure. What counts is the gradient that each step finds; after each step, parameters and
    buffers go back to their values, and before each run so does all else in the model, and every number that the loop
    keeps. A loop that is right is tried with other parameters near those given, too. From a wrong gradient the check
    computes the weight of every micro-batch in it, and from the weights the cause. The caller's model, buffers and
    random numbers do not change. Every item draws the same random numbers meanwhile, so dropout and noise do not count
    as a difference.

    Args:
        train_step: ``train_step(model, optimizer, micro_batches)``, your loop. ``model`` is the copy, ``optimizer`` a
            plain ``torch.optim.SGD``, ``micro_batches`` a list of batches. A loop with a fourth argument also gets a
            learning-rate scheduler. What it returns does not matter.
        model: any module that can be copied, with at least ``2 * micro_batches`` elements in its parameters.
        batch: tensors ``[items, ...]`` of any dtype, alone or in tuples, mappings and dataclasses; see ``accumulate``
            for what else can be split. At least ``4 * micro_batches`` items; 12 for ``micro_batches=2``.
        loss_fn: ``loss_fn(model, batch)`` returns the mean loss of a whole batch, a tensor of one element: what the
            loop should be equal to.
        micro_batches: number of micro-batches that the loop takes per step, its K. With 1, each step is one batch.
        each_call: what one call of ``train_step`` does: an ``"epoch"`` of several steps, or a ``"window"``, one step
            from all the micro-batches it gets.
        ragged: also try micro-batches of unequal sizes.
        tail: also try epochs whose last window is short, of every length from 1 to K - 1.

    Raises:
        ConfigError: ``micro_batches`` or ``each_call`` has another value, ``train_step`` takes other arguments, the
            batch has too few items, the model cannot be copied or has too few parameters, the loss is no single finite
            number or does not depend on the model, or the loop moves parameters without an optimizer of the model.
        AccumulationError: the loop raised.

    >>> import torch, dagnn
    >>> def train_step(model, optimizer, micro_batches):
    ...     for i, (inputs, targets) in enumerate(micro_batches):
    ...         torch.nn.functional.mse_loss(model(inputs), targets).backward()
    ...         if (i + 1) % 4 == 0:
    ...             optimizer.step()
    ...             optimizer.zero_grad()
    >>> model, batch = torch.nn.Linear(20, 1), (torch.randn(32, 20), torch.randn(32, 1))
    >>> loss_fn = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> report = dagnn.check_loop(train_step, model, batch, loss_fn=loss_fn, micro_batches=4)
    >>> print(*(cause.kind for cause in report.causes))
    not scaled
    """
    random_state, subject = RandomState.now(), None
    try:
        size = _size(batch, micro_batches, each_call, train_step)
        subject = Subject(model, loss_fn, batch)
        try:
            return _Checker(train_step, subject, micro_batches, size, each_call).check(ragged=ragged, tail=tail)
        except AccumulationError:
            if subject.dtype is not torch.float64:
                raise
            # The loop may need the model's own dtype: it holds a constant, or casts by hand.
            subject = subject.narrow()
            return _Checker(train_step, subject, micro_batches, size, each_call).check(ragged=ragged, tail=tail)
    finally:
        random_state.restore()
        if subject is not None:
            subject.generators.restore()
            subject.kept.restore()


def _size(batch: Any, micro_batches: int, each_call: str, train_step: TrainStep) -> int:
    """Items of a micro-batch: not 1 and not K, so that a sum over items is no sum over micro-batches."""
    if each_call not in ("epoch", "window"):
        raise ConfigError(f"each_call must be 'epoch' or 'window', got {each_call!r}.")
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, Integral) or micro_batches < 1:
        raise ConfigError(f"micro_batches must be a whole number of at least 1, got {micro_batches!r}.")
    num_arguments(train_step)
    num_items = count_items(batch)
    size = next((b for b in (3, 2) if b != micro_batches and 2 * micro_batches * b <= num_items), 0)
    if not size:
        raise ConfigError(
            f"the batch has {num_items} items, too few for two windows of {micro_batches} micro-batches with "
            f"several items each: give at least {2 * micro_batches * (3 if micro_batches == 2 else 2)}."
        )
    return size


_VAGUE = {Kind.OTHER_LOSS, Kind.COUPLED, Kind.CLIP_PER_MICRO_BATCH}


class _Checker:
    def __init__(self, train_step: TrainStep, subject: Subject, k: int, size: int, each_call: str) -> None:
        self._train_step, self._subject, self._k, self._size = train_step, subject, k, size
        subject.generators.look_in(train_step)
        subject.kept.look_in(train_step)
        self._loop = Loop(subject, train_step, by_window=each_call == "window")
        self._notes: list[str] = []
        self._shown: Examined | None = None

    def check(self, *, ragged: bool, tail: bool) -> Report:
        k, size, loop = self._k, self._size, self._loop
        of_model, equal = self._model_causes(), Layout.of([size] * (2 * k), k)
        examined = self._examine(equal)
        causes = self._missing(examined)
        causes += self._explained(examined, lambda weights: diagnose_equal(weights, k, size))
        causes = self._about_scale(causes, equal)
        if not causes and ragged:
            # One window of more items than usual and one of fewer, so that no constant is right for both.
            sizes = [size + (0 if j % 2 else 1 if start == 0 else -1) for start in (0, k) for j in range(k)]
            uneven = Layout.of(sizes, k)
            causes += self._explained(self._examine(uneven), lambda weights: diagnose_ragged(weights, k))
        if tail and all(c.kind is Kind.MEAN_OF_MEANS for c in causes):
            causes += self._tails(ragged=ragged and not causes)
        causes += [] if causes else self._elsewhere(equal)
        causes += update_causes(loop, equal, causes, tail=tail)
        for later in (later_causes, moved_causes):
            causes += [] if causes else later(loop, equal)
        if not causes and not of_model:
            causes += self._about_precision(equal)
        by_kind = {c.kind: c._replace(line=find_line(self._train_step, c.kind, loop.first.lines)) for c in causes[::-1]}
        return self._report([*of_model, *list(by_kind.values())[::-1]])

    def _examine(self, layout: Layout) -> list[Examined]:
        found = self._loop.examine(layout)
        for examined in found:
            worse = self._shown is None or self._loop.is_wrong(examined) > self._loop.is_wrong(self._shown)
            if worse:
                self._shown = examined
        return found

    def _model_causes(self) -> list[Cause]:
        causes, self._notes = model_causes(self._subject)
        dropped = [c for c in causes if c.kind is Kind.DROPOUT]
        self._notes += [
            f"{c.explanation} Each item and each pass got the same ones here: this does not count, nor is a mistake "
            "seen that shows only where they differ, as between two random passes or in a mask that the loss draws."
            for c in dropped
        ]
        return [c for c in causes if c.kind is not Kind.DROPOUT]

    def _missing(self, examined: list[Examined]) -> list[Cause]:
        """Parameters that never get a gradient, or whose optimizer never steps."""
        causes = silent_causes(self._subject, examined)
        idle = self._loop.first.unstepped
        if idle and any(one.steps for one in examined):
            names = ", ".join(self._subject.names[i] for i in idle[:5])
            causes.append(cause(Kind.MISSING_STEP, f"the loop makes an optimizer for {names}, but never steps it."))
        return causes

    def _explained(self, examined: list[Examined], diagnose: Callable[[Weights], list[Cause]]) -> list[Cause]:
        """The causes of wrong steps."""
        causes: list[Cause] = []
        for one in filter(self._loop.is_wrong, examined):
            parts = [[part[i] for i in one.held] for part in self._loop.gradients_of(one.pieces)]
            parameters = [self._subject.parameters[i] for i in one.held]
            weights = partial(weights_of, one, parts, parameters, tolerance=self._subject.tolerance)
            found = explain(self._loop, one, weights, diagnose, k=self._k, size=self._size)
            if found and all(c.kind in _VAGUE for c in found) and one.steps and not self._loop.comes_in(one):
                # The loop changes gradients, but what backward passes give is wrong already.
                came = one._replace(steps=one.incoming, linear=True)
                weights = partial(weights_of, came, parts, parameters, tolerance=self._subject.tolerance)
                found = explain(self._loop, came, weights, diagnose, k=self._k, size=self._size) or found
            causes += found
        return causes

    def _elsewhere(self, layout: Layout) -> list[Cause]:
        """Causes that show at other values of the parameters only."""
        try:
            with self._subject.elsewhere():
                if not all(g is None or g.isfinite().all() for g in self._subject.gradient()):
                    return []
                examined, shown = self._loop.examine(layout), self._shown
                causes = silent_causes(self._subject, examined)
                causes += self._explained(examined, lambda weights: diagnose_equal(weights, self._k, self._size))
                # A model that couples items only there (an embedding that is renormed) is no fault of the loop.
                causes = [c for c in causes if c.kind is not Kind.COUPLED]
                causes += [] if causes else moved_causes(self._loop, layout)
                self._shown = next(filter(self._loop.is_wrong, examined), shown) if causes else shown
        except Exception:  # the user's code may raise anything where it takes no such values: a scale below 0, say
            return []
        near = "with other values of the parameters, near those given: "
        return [c._replace(explanation=near + c.explanation) for c in causes]

    def _about_scale(self, causes: list[Cause], layout: Layout) -> list[Cause]:
        """``causes``, with a wrong scale put down to a GradScaler, or to a sum if it grows with the items."""
        unscaling = unscaling_cause(self._loop, layout) if causes else None
        if unscaling is not None:
            return [unscaling]
        wrong, shown = next((c for c in causes if c.kind in (Kind.WRONG_SCALE, Kind.SUM_LOSS)), None), self._shown
        if wrong is None or shown is None:
            return causes
        for one in self._loop.examine(Layout.of([self._size - 1] * len(layout.sizes), self._k)):
            if one.held == shown.held and len(one.steps) == len(shown.steps) > 0:
                before, after = (ratio_of(e.steps[0], e.expected[0])[0] for e in (shown, one))
                times = f"the gradient is {factor(before)} times that of the full batch's mean"
                better = cause(Kind.WRONG_SCALE, f"{times}.")
                if before and after / before < 1 - 0.5 / self._size:
                    better = cause(Kind.SUM_LOSS, f"{times}, and more with more items.")
                return [better if c is wrong else c for c in causes]
        return causes

    def _tails(self, *, ragged: bool) -> list[Cause]:
        """Causes that show in a short last window of some length, or in one whose last micro-batch is short, too."""
        k, wrong = self._k, {}
        for length in range(1, k):
            # After a full window. For a large K that takes long: then a tail of most lengths runs alone.
            full = k if length in tail_lengths(k) else 0
            examined = self._examine(Layout.of([self._size] * (full + length), k))
            if any(map(self._loop.is_wrong, examined)):
                wrong[length] = examined
        if not wrong and ragged and k > 2:
            uneven = self._examine(Layout.of([self._size] * (2 * k - 2) + [self._size - 1], k))
            return self._explained(uneven, lambda weights: diagnose_tail(weights, k))
        if not wrong:
            return []
        causes = self._explained(wrong[max(wrong)], lambda weights: diagnose_tail(weights, k))
        if len(wrong) < k - 1:
            lengths = ", ".join(map(str, list(wrong)[:8]))
            causes = [c._replace(explanation=f"{c.explanation} Tails of {lengths} are wrong.") for c in causes]
        return causes

    def _about_precision(self, layout: Layout) -> list[Cause]:
        """Run the loop in the model's own precision too: a cause if much is lost there, a note if it has 16 bits."""
        loop, subject = self._loop, self._subject
        if subject.dtype is subject.own_dtype:
            return []
        name = dtype_name(subject.own_dtype)
        try:
            own = subject.in_own_precision()
            own_loop = loop.on(own)
            both = [
                pair
                for pair in zip(own_loop.groups(layout, 1.0), loop.groups(layout, 1.0), strict=True)
                if pair[0].held == pair[1].held and len(pair[0].steps) == len(pair[1].steps)
            ]
            of_loop = max(max(map(relative_error, ours.steps, exact.steps)) for ours, exact in both)
            of_passes = max(max(map(relative_error, ours.incoming, exact.incoming)) for ours, exact in both)
            pairs = zip(own_loop.wholes(layout), loop.wholes(layout), strict=True)
            of_batch = max(relative_error(own.gradient(a), subject.gradient(e)) for a, e in pairs)
        except (DagnnError, RuntimeError, ValueError):
            self._notes.append(f"compared in float64; the loop could not be compared in the model's own {name}.")
            return []
        numbers = f"in {name} itself its steps are off by {of_loop:.1e}, and those of the full batch by {of_batch:.1e}"
        if of_loop > max(1e-4, 10 * of_batch) and of_loop <= 2 * of_passes:
            self._notes.append(
                f"{numbers}: its passes run in 16 bits, as in autocast; summing them loses nothing more."
            )
        elif of_loop > max(1e-4, 10 * of_batch):
            return [cause(Kind.LOW_PRECISION, f"{numbers}: the loop computes or sums gradients in 16 bits.")]
        elif subject.has_16_bits:
            advice = ": sum gradients in float32" if of_loop > 2 * of_batch else ""
            self._notes.append(f"compared in float64; {numbers}{advice}.")
        return []

    def _report(self, causes: list[Cause]) -> Report:
        subject, shown = self._subject, self._shown
        assert shown is not None
        expected: Gradients = [None] * len(subject.names)
        actual: Gradients = [None] * len(subject.names)
        window = max(0, min(len(shown.steps), len(shown.expected)) - 1)
        for place, index in enumerate(shown.held):
            expected[index] = shown.expected[window][place]
            actual[index] = shown.steps[window][place] if shown.steps else None
        equal = not causes and not self._loop.is_wrong(shown)
        held = {index for group in self._loop.first.groups for index in group.held}
        free = [name for index, name in enumerate(subject.names) if held and index not in held]
        if free:
            self._notes.append(f"no optimizer that steps holds {', '.join(free[:5])}: not compared.")
        if self._loop.first.foreign:
            self._notes.append(
                f"not compared: what the optimizers hold beside the model's parameters ({self._loop.first.foreign} in "
                "all). Put it into the model to have it compared."
            )
        if self._loop.first.unscaled:
            self._notes.append("a GradScaler is disabled: the check could not see what the loop does when it scales.")
        if self._loop.first.idle:
            self._notes.append(
                "a step found no gradient, after no backward pass: it changes nothing, and is not counted."
            )
        self._notes += notes_on_precision(subject)
        return make_report(
            causes, subject.names, actual, expected, equal=equal, precision=subject.dtype, notes=self._notes
        )
