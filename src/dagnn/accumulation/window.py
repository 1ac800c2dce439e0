"""One window: the micro-batches that together make one optimizer update."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from dagnn.accumulation.loss_scale import LossScale, check_loss, refuse_detached, reported_loss, warn_if_divided
from dagnn.accumulation.partition import MicroBatch
from dagnn.accumulation.ranks import Ranks
from dagnn.accumulation.shares import SINGLE, Joined, Planned, Reduction, Shares, check_weight, join_tallies
from dagnn.accumulation.state import BatchNorms, restore_window, window_state
from dagnn.accumulation.stepping import Finisher, Stepped, Update
from dagnn.accumulation.sums import Sums
from dagnn.errors import AccumulationError, ConfigError

OnNonfinite = Literal["skip", "drop", "raise"]


class Engine(NamedTuple):
    """What a window works with."""

    sums: Sums
    ranks: Ranks
    finisher: Finisher | None  # None where gradients are wanted and no update
    on_nonfinite: OnNonfinite
    batch_norms: BatchNorms
    check: Callable[[Sums], None]  # raises where a step would move what it must not
    names: Callable[[], dict[int, str]]  # id(parameter) -> its name in the model; asked for in error messages only
    closed: Callable[[bool, bool], int]  # (an update was made, half an update was) -> updates made so far


class Window:
    """Micro-batches and the sum of their gradients. Iterate over it, call ``backward`` in each, then ``step``.

    Made by ``GradientAccumulator.windows``; not by hand.
    """

    def __init__(self, engine: Engine, micros: list[MicroBatch], planned: Planned | None) -> None:
        self._engine = engine
        self._micros = micros
        self._planned = planned
        # A total that was counted but not declared is only the size that counted weights are divided by until the
        # true total is known. It must be the same on all processes.
        guess = planned.totals.get(SINGLE) if planned is not None and not planned.declared else None
        self._shares = Shares(planned, guess or (None if engine.ranks.world_size == 1 else 1.0))
        self._loss_scale: LossScale | None = None
        self.micro_batches = len(micros)
        self.state: Literal["open", "stepped", "discarded"] = "open"

        self._started = False
        self._resumed_at = 0
        self._current = -1  # index of the micro-batch at hand
        self._running = False  # between the start and the end of a micro-batch
        self._ran = self._dropped = False  # the micro-batch at hand had a backward; is left out
        self._num_run = 0
        self._joined: Joined | None = None
        self.failed: str | None = None  # the error inside a backward pass
        self.num_run = 0  # micro-batches over all processes, once settled
        engine.batch_norms.open_window(self.micro_batches)

    def __len__(self) -> int:
        return self.micro_batches

    def __iter__(self) -> Iterator[Any]:
        yield from self.run()
        self.settle()

    def run(self) -> Iterator[Any]:
        """The micro-batches, as iteration gives them, but without joining the processes at the end."""
        if self._started or self._joined is not None:
            raise AccumulationError(
                "a window runs once, and this one has given out its micro-batches already: to run the same data "
                "several times per update use accumulator.update(batch, loss_fn)."
            )
        self._started = True
        for index in range(self.micro_batches):
            if index < self._resumed_at:
                self._micros[index] = MicroBatch(None, None)  # ran before the state was saved
                continue
            data, self._micros[index] = self._micros[index].data, MicroBatch(None, None)  # free it after use
            self.begin_micro_batch(is_last=index == self.micro_batches - 1)
            yield data
            del data
            self.end_micro_batch()

    def backward(
        self,
        loss: Tensor | Mapping[str, Tensor],
        weight: float | Tensor | None = None,
        reduction: Reduction = "mean",
        *,
        retain_graph: bool = False,
    ) -> None:
        """Add the gradient of ``loss``, weighted by this micro-batch's share of the window.

        Do not divide the loss by the number of micro-batches: the division is done here, once.

        Args:
            loss: the loss of this micro-batch, 0-dimensional unless ``reduction`` is "none". Losses in a mapping are
                added and run in one backward pass, each by the weight that ``windows(weight=...)`` gave under its
                name, so that an auxiliary loss can have a denominator of its own.
            weight: what ``loss`` was divided by, if that is known only now (the number of valid tokens). Give it for
                every micro-batch of the window or for none.
            reduction: "mean" if ``loss`` is a mean, "sum" if it is a sum, "none" if it is one loss per item, to be
                summed and divided: the window then has the gradient of the mean. "undivided" adds the losses as they
                are and divides by nothing: no weights are needed, and the window has the gradient of their sum.
            retain_graph: for a second backward call through the same graph; a mapping of losses needs none.

        Raises:
            AccumulationError: called outside a micro-batch; weights are missing, mixed or contradictory; ``loss``
                has the wrong shape or does not depend on a parameter.
        """
        self._check_running("backward")
        if weight is not None and isinstance(weight, Mapping):
            raise AccumulationError(
                "several losses with weights of their own need their totals before the window runs: use "
                "windows(weight=lambda micro: {'main': ..., 'aux': ...}) in place of backward(weight={...})."
            )
        if reduction not in get_args(Reduction):
            raise ConfigError(f"reduction must be 'mean', 'sum', 'none' or 'undivided', got {reduction!r}.")
        declared = None if weight is None else check_weight(weight, "weight")
        if declared is not None and self._engine.sums.final and not (self._planned and self._planned.declared):
            raise AccumulationError(
                "with eager updates weights must be known before the window runs: use windows(weight=...), not "
                "backward(weight=...)."
            )

        losses = {SINGLE: loss} if isinstance(loss, Tensor) or not isinstance(loss, Mapping) else loss
        names: list[str] = []
        tensors: list[Tensor] = []
        coefficients: list[float] = []
        for name, value in losses.items():
            check_loss(name, value, reduction)
            coefficient = self._shares.coefficient(self._current, name, declared, reduction)
            if coefficient == 0.0 and not self._engine.ranks.every_backward:
                continue  # nothing was counted in it: a mean over nothing is nan, and must not reach the gradients
            if coefficient == 0.0 and not bool(torch.isfinite(value).all()):
                raise AccumulationError(
                    "a micro-batch of weight 0 has a loss of nan, and fully_shard needs its backward pass: use a sum "
                    "loss with reduction='sum', which is 0 there."
                )
            if not value.requires_grad:
                refuse_detached(name, self._engine.sums.parameters)
            if self._num_run == 0:
                warn_if_divided(value, self.micro_batches, reduction)
            names.append(name)
            tensors.append(value)
            coefficients.append(coefficient * self._engine.ranks.seed_factor)
        for name, value in zip(names, tensors, strict=True):
            self._shares.record(self._current, name, reported_loss(value), reduction)
        self._ran = True

        if not tensors or self._dropped:
            return
        if self._engine.on_nonfinite == "drop" and not all(bool(torch.isfinite(t).all()) for t in tensors):
            self._drop(overflowed=True)
            return
        self._run_backward(tensors, coefficients, retain_graph)

    def _run_backward(self, losses: list[Tensor], coefficients: list[float], retain_graph: bool) -> None:
        if self._loss_scale is None:
            self._loss_scale = self._new_loss_scale()
        try:
            if self._engine.sums.final and not all(bool(torch.isfinite(loss).all()) for loss in losses):
                raise AccumulationError("the loss is not finite, and with eager updates nothing can be left out.")
            for roots, seeds, is_last in self._loss_scale.passes(losses, coefficients):
                self._engine.sums.backward(roots, gradients=seeds, retain_graph=retain_graph or not is_last)
        except BaseException as error:
            self._note_failure(error)
            raise

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Remembers an error, also one that the caller swallows: what was running may have added half a gradient."""
        try:
            yield
        except BaseException as error:
            self._note_failure(error)
            raise

    def _note_failure(self, error: BaseException) -> None:
        self.failed = f"{type(error).__name__} in micro-batch {self._current}"

    def _new_loss_scale(self) -> LossScale:
        finisher = self._engine.finisher
        may_rescale = not self._engine.ranks.every_backward  # there, each pass adds what all processes have
        return LossScale(self._engine.sums, 1.0 if finisher is None else finisher.scale(), may_rescale=may_rescale)

    def carry_back(self, roots: Sequence[Tensor], gradients: Sequence[Tensor], retain_graph: bool) -> None:
        """Continue a backward pass that was cut: ``gradients`` of ``roots`` have the window's division in them."""
        with self._failing():
            self._engine.sums.backward(roots, gradients=gradients, retain_graph=retain_graph)

    def recomputing(self) -> AbstractContextManager[None]:
        """While a forward pass is repeated: its items do not count again in running statistics."""
        return self._engine.batch_norms.recomputing()

    def drop(self) -> None:
        """Leave the micro-batch at hand out of the window: its weight, and so its share of the mean, is gone."""
        self._check_running("drop", may_have_failed=self._engine.on_nonfinite == "drop")
        if self._engine.sums.final:
            raise AccumulationError(
                "with eager updates no micro-batch can be dropped: give it the weight 0 beforehand."
            )
        if self._ran and self._engine.on_nonfinite != "drop":
            raise AccumulationError(
                "drop() after backward needs an accumulator with on_nonfinite='drop', which keeps the gradient of a "
                "micro-batch apart until it is accepted: use that, or call drop() in place of backward."
            )
        self._ran = True
        self.failed = None  # with "drop", what the failed pass added is kept apart
        self._drop(overflowed=False)

    def settle(self) -> None:
        """Put the gradient of the mean over the whole window, all processes, into ``.grad``.

        Happens by itself after the last micro-batch, and in ``step``; once done, calling it does nothing.
        """
        if self._joined is not None:
            return
        engine = self._engine
        self._check_not_failed()
        everywhere = engine.ranks.gather((self._shares.tally(), self._num_run))
        totals = self._planned.totals if self._planned is not None else None
        joined = join_tallies([tally for tally, _ in everywhere], totals)
        with self._failing():
            if joined.empty:
                engine.sums.clear()
            else:
                engine.sums.scale_(1.0 if self._loss_scale is None else self._loss_scale.leftover)
                engine.sums.expose()
                engine.ranks.sum_gradients(engine.sums.parameters)
                engine.sums.scale_(joined.correction)
            engine.batch_norms.close_window(engine.ranks)
        engine.ranks.share_buffers()
        engine.ranks.close_window()
        self.num_run = sum(num_run for _, num_run in everywhere)
        self._joined = joined

    def step(self) -> Update:
        """Update the parameters with the gradient of the window, then drop the gradients.

        In this order: check finite, clip, optimizer step, scaler update, scheduler, EMA, zero.

        Raises:
            AccumulationError: called twice, or before every micro-batch had its ``backward``; or a gradient is not
                finite and ``on_nonfinite`` is "raise".
        """
        self._check_complete()
        self.settle()
        engine = self._engine
        assert engine.finisher is not None

        stepped = Stepped(math.nan, engine.finisher.lr, "empty")
        try:
            if not self.joined.empty:
                engine.check(engine.sums)
                stepped = engine.finisher.finish(
                    engine.sums, engine.names, engine.ranks.sum_parts, self.joined.losses, self.joined.overflowed
                )
        except BaseException:
            self.discard()
            raise
        return self.close(stepped)

    def close(self, stepped: Stepped) -> Update:
        """End the window after its step, and drop the gradients."""
        self.state = "stepped"
        self._engine.sums.clear()
        updates = self._engine.closed(stepped.skipped is None, False)
        return Update(
            step=updates,
            loss=self.joined.loss,
            weight=self.joined.weight,
            grad_norm=stepped.grad_norm,
            lr=stepped.lr,
            skipped=stepped.skipped,
            micro_batches=self.num_run,
            losses=self.joined.losses,
        )

    def discard(self) -> None:
        """Give the window up: its gradients are dropped, and nothing is updated."""
        if self.state == "open":
            self.state = "discarded"
            update_begun = self._engine.sums.update_begun
            self._engine.sums.clear()
            self._engine.batch_norms.close_window(None)
            self._engine.ranks.close_window()
            self._engine.closed(False, update_begun)

    def finish_gradients(self) -> None:
        """Leave the settled gradient in ``.grad``, in the dtype of its parameter, ready for an optimizer."""
        self._engine.check(self._engine.sums)
        self._engine.sums.narrow()

    @property
    def joined(self) -> Joined:
        """What the settled window was, over all processes."""
        assert self._joined is not None
        return self._joined

    def state_dict(self) -> dict[str, Any]:
        """The window so far, after the backward of a micro-batch, which it ends."""
        self._check_open()
        self._check_not_failed()
        self.end_micro_batch()
        return window_state(self._engine.sums, self._shares, self._loss_scale, self._current + 1, self._num_run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the micro-batches of ``state``, which iteration then leaves out."""
        if restore_window(state, self._engine.sums, self._shares, self.micro_batches):
            self._loss_scale = self._new_loss_scale()
            self._loss_scale.load_state(state["scale"])
        self._resumed_at, self._num_run = state["done"], state["num_run"]
        self._current = self._resumed_at - 1

    def add_micro_batch(self) -> None:
        """The manual form: one more micro-batch begins."""
        self.micro_batches += 1
        self.begin_micro_batch(is_last=False)

    def take_back_micro_batch(self) -> bool:
        """The manual form: forget the micro-batch at hand, which came to nothing; False if it was the only one."""
        if self._engine.on_nonfinite == "drop":
            self._engine.sums.end_trial(keep=False)
        self._engine.batch_norms.drop_micro_batch()
        self._shares.take_back(self._current)
        self._running = False
        self._current -= 1
        self.micro_batches -= 1
        return self.micro_batches > 0

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Start the next micro-batch; iteration and the manual form call it."""
        self._current += 1
        self._running, self._ran, self._dropped = True, False, False
        self._engine.ranks.open_micro_batch(is_last=is_last)
        self._engine.sums.begin_micro_batch(is_last=is_last)
        self._engine.batch_norms.begin_micro_batch()
        if self._engine.on_nonfinite == "drop":
            self._engine.sums.begin_trial()

    def end_micro_batch(self) -> None:
        """Accept the micro-batch at hand, or under ``on_nonfinite="drop"`` leave it out."""
        if not self._running:
            return  # step() was called inside the loop and ended it
        if self.failed is not None:
            self._check_not_failed()
        if not self._ran and not self._weighs_nothing():
            raise AccumulationError(
                f"micro-batch {self._current} of {self.micro_batches} had no window.backward(loss): call it, or "
                "window.drop() to leave the micro-batch out."
            )
        if self._engine.on_nonfinite == "drop":
            kept = self._engine.sums.end_trial(keep=not self._dropped)
            if not kept and not self._dropped:
                self._drop(overflowed=True)
        self._running = False
        self._num_run += not self._dropped

    def _drop(self, *, overflowed: bool) -> None:
        self._dropped = True
        self._shares.drop(self._current, overflowed=overflowed)
        self._engine.batch_norms.drop_micro_batch()

    def _weighs_nothing(self) -> bool:
        return self._planned is not None and not any(self._planned.weights[self._current].values())

    def _check_running(self, call: str, *, may_have_failed: bool = False) -> None:
        self._check_open()
        if self.failed is not None and not may_have_failed:
            self._check_not_failed()
        if not self._running:
            raise AccumulationError(
                f"{call}() was called outside a micro-batch: loop over the window, `for micro in window:`, and call it "
                "inside that loop."
            )

    def _check_open(self) -> None:
        if self.state == "stepped":
            raise AccumulationError("this window was stepped already: one window makes one update. Take the next one.")
        if self.state == "discarded":
            raise AccumulationError("this window was discarded: take the next one.")

    def _check_not_failed(self) -> None:
        if self.failed is not None:
            raise AccumulationError(
                f"there was an error inside backward ({self.failed}), so the sums may hold half of a gradient, and no "
                "step can be made of them: give the window up with discard() and run its data again. With "
                "on_nonfinite='drop', window.drop() in that micro-batch leaves it out."
            )

    def _check_complete(self) -> None:
        self._check_open()
        self._check_not_failed()
        if self._running and self._current == self.micro_batches - 1:
            self.end_micro_batch()  # step() inside the loop, in the last micro-batch
        done = self._current + (not self._running)
        if done < self.micro_batches:
            raise AccumulationError(
                f"step() after {max(done, 0)} of {self.micro_batches} micro-batches: call it once, after the loop over "
                "the window, or window.discard() to give the window up."
            )
