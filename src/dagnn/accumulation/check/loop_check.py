"""check_loop: does a hand-written loop step with the gradient of the full batch, and if not, why and where."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from dagnn.accumulation.check.causes import Cause, Kind, cause
from dagnn.accumulation.check.diagnosis import Run, diagnose_equal, diagnose_ragged, diagnose_tail
from dagnn.accumulation.check.model_check import fit_finite, model_causes, split_by
from dagnn.accumulation.check.nonlinear import clips_micro_batches
from dagnn.accumulation.check.recording import Recording, TrainStep, num_arguments, record
from dagnn.accumulation.check.report import Report, make_report, relative_error
from dagnn.accumulation.check.source import find_line
from dagnn.accumulation.check.subject import Gradients, LossFn, Subject
from dagnn.accumulation.items import count_items
from dagnn.accumulation.snapshot import RandomState
from dagnn.accumulation.splitting import slice_batch
from dagnn.errors import AccumulationError, ConfigError

_SMALL, _LARGE = 2.0**-20, 2.0**20  # exact factors; see record()


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

    The loop runs a few times on a copy of the model, with an optimizer that records gradients and moves nothing. From
    each recorded gradient the weight of every micro-batch in it is computed; those weights tell the cause. Nothing of
    the caller's is changed: model, buffers, random numbers.

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

    Args:
        train_step: ``train_step(model, optimizer, micro_batches)``, your loop; ``micro_batches`` is a list. With a
            fourth argument it gets a learning-rate scheduler.
        model: any module that can be copied; with at least as many parameters as there are micro-batches.
        batch: at least ``4 * micro_batches`` items; see ``accumulate`` for what can be split.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a whole batch: what the loop should be equal to.
        micro_batches: how many micro-batches the loop takes per step, its K.
        each_call: what one call of ``train_step`` does: an "epoch" of several steps, or a "window", one step from all
            the micro-batches it gets.
        ragged: also try micro-batches of unequal sizes.
        tail: also try an epoch whose last window is short.

    Raises:
        ConfigError: the check cannot run with these arguments.
        AccumulationError: the loop raised.
    """
    random_state = RandomState()
    try:
        checker = _Checker(train_step, model, batch, loss_fn, micro_batches, each_call)
        try:
            return checker.check(ragged=ragged, tail=tail)
        except AccumulationError:
            if checker.subject.dtype is not torch.float64:
                raise
            # The loop itself may need the model's own dtype (autocast, a cast of its inputs).
            checker.subject = Subject(model, loss_fn, batch, wide=False)
            return checker.check(ragged=ragged, tail=tail)
    finally:
        random_state.restore()


class _Checker:
    def __init__(
        self,
        train_step: TrainStep,
        model: nn.Module,
        batch: Any,
        loss_fn: LossFn,
        micro_batches: int,
        each_call: str,
    ) -> None:
        if each_call not in ("epoch", "window"):
            raise ConfigError(f"each_call must be 'epoch' or 'window', got {each_call!r}.")
        if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 2:
            raise ConfigError(f"micro_batches must be a whole number of at least 2, got {micro_batches!r}.")
        num_arguments(train_step)
        num_items = count_items(batch)
        # Sizes that cannot be mistaken for K or for 1 tell a sum over items from a sum over micro-batches.
        self.size = next((b for b in (3, 2) if b != micro_batches and 2 * micro_batches * b <= num_items), 0)
        if not self.size:
            raise ConfigError(
                f"the batch has {num_items} items, too few for two windows of {micro_batches} micro-batches with "
                f"several items each: give at least {2 * micro_batches * (3 if micro_batches == 2 else 2)}."
            )
        self.train_step, self.k, self.by_window = train_step, micro_batches, each_call == "window"
        self.subject = Subject(model, loss_fn, batch)

    def check(self, *, ragged: bool, tail: bool) -> Report:
        k, size = self.k, self.size
        causes = model_causes(self.subject)
        run, recording = self._run([size] * (2 * k), [list(range(k)), list(range(k, 2 * k))])
        causes += diagnose_equal(run, k, size)
        runs = [run]
        if not causes and ragged:
            uneven, _ = self._run([1 if j % 2 else 2 * size - 1 for j in range(k)], [list(range(k))])
            causes += diagnose_ragged(uneven)
            runs.append(uneven)
        if not [c for c in causes if c.kind is not Kind.MEAN_OF_MEANS] and tail:
            short = max(1, k // 2)
            last, _ = self._run([size] * (k + short), [list(range(k)), list(range(k, k + short))])
            causes += diagnose_tail(last, k)
            runs.append(last)
        causes += self._other_causes(recording, run)
        causes = [self._locate(found) for found in causes]

        worst = max(runs, key=lambda one: relative_error(one.shown, one.expected[one.shown_window]))
        expected = worst.expected[worst.shown_window]
        equal = not causes and relative_error(worst.shown, expected) <= self._tolerance
        return make_report(causes, self.subject.names, worst.shown, expected, equal=equal, precision=self.subject.dtype)

    @property
    def _tolerance(self) -> float:
        return max(1e-8, self.subject.tolerance)

    def _run(self, sizes: list[int], windows: list[list[int]]) -> tuple[Run, Recording]:
        """Run the loop over micro-batches of ``sizes`` and write its steps in their gradients."""
        subject = self.subject
        pieces = split_by(subject.batch, sizes)
        calls = [[pieces[j] for j in window] for window in windows] if self.by_window else [pieces]
        recording = record(subject, self.train_step, calls, scale=_SMALL)
        parts = [subject.gradient(piece) for piece in pieces]
        silent = _silent_parameters(recording, parts)
        subset = [i for i in range(len(subject.parameters)) if i not in silent]
        kept = [_only(part, subset) for part in parts]
        parameters = [subject.parameters[i] for i in subset]

        ends = [0, *(sum(sizes[: j + 1]) for j in range(len(sizes)))]
        expected_gradients, expected = [], []
        for window in windows:
            whole = slice_batch(subject.batch, ends[window[0]], ends[window[-1] + 1])
            gradient = subject.gradient(whole)
            expected_gradients.append(gradient)
            found, rest = fit_finite([kept[j] for j in window], _only(gradient, subset), parameters)
            if rest > self._tolerance:  # the loss couples its items: weights by number of items
                found = [sizes[j] / sum(sizes[i] for i in window) for j in window]
            expected.append(found)
        steps = [fit_finite(kept, _only(step, subset), parameters) for step in recording.steps]
        left = fit_finite(kept, _only(recording.left, subset), parameters)[0]
        return (
            Run(
                sizes=sizes,
                windows=windows,
                shares=expected,
                steps=[coefficients for coefficients, _ in steps],
                rest=max((rest for _, rest in steps), default=0.0),
                left=left,
                gradients=recording.steps,
                expected=expected_gradients,
                silent=[subject.names[i] for i in sorted(silent)],
                tolerance=1e-5 if self.subject.tolerance < 1e-6 else 1e-2,
                low_precision=recording.low_precision,
                calls=calls,
            ),
            recording,
        )

    def _other_causes(self, recording: Recording, run: Run) -> list[Cause]:
        causes = []
        if run.silent:
            names = ", ".join(run.silent[:5])
            causes.append(cause(Kind.UNUSED_PARAMETER, f"the loop gives no gradient to {names}; the full batch does."))
        if run.low_precision and run.rest > self._tolerance:
            causes.append(
                cause(Kind.LOW_PRECISION, f"the loop computes in 16 bits: its gradient is off by {run.rest:.1e}.")
            )
        if recording.schedule_steps is not None and recording.schedule_steps > len(recording.steps):
            causes.append(
                cause(
                    Kind.SCHEDULE_PER_MICRO_BATCH,
                    f"scheduler.step() ran {recording.schedule_steps} times in {len(recording.steps)} optimizer steps.",
                )
            )
        large = record(self.subject, self.train_step, run.calls, scale=_LARGE)
        if clips_micro_batches(recording.steps, large.steps, _SMALL, _LARGE, tolerance=run.tolerance):
            causes.append(
                cause(
                    Kind.CLIP_PER_MICRO_BATCH,
                    "with large gradients the step is no multiple of the gradient of the window: parts of it were "
                    "clipped, not the whole.",
                )
            )
        return causes

    def _locate(self, found: Cause) -> Cause:
        return found._replace(line=find_line(self.train_step, found.kind))


def _silent_parameters(recording: Recording, parts: Sequence[Gradients]) -> set[int]:
    """Parameters that the loss uses, but that never get a gradient in the loop."""
    everything = [*recording.steps, recording.left]
    if not any(_nonzero(gradient) for step in everything for gradient in step):
        return set()  # no gradient at all is another matter
    return {
        index
        for index in range(len(recording.left))
        if any(_nonzero(part[index]) for part in parts) and not any(_nonzero(step[index]) for step in everything)
    }


def _nonzero(gradient: Any) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _only(gradients: Gradients, indices: Sequence[int]) -> Gradients:
    return [gradients[i] for i in indices]
