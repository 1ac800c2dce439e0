"""One window: the micro-batches that together make one optimizer update."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from dagnn.accumulation import shares, stepping
from dagnn.accumulation.batch_norms import BatchNorms
from dagnn.accumulation.loss_scale import LossScale, Way
from dagnn.accumulation.partition import MicroBatch
from dagnn.accumulation.ranks import Ranks
from dagnn.accumulation.shares import SINGLE, KnownWeights, Reduction, Shares, WindowTotals
from dagnn.accumulation.stepping import Finalizer, Stepped, Update
from dagnn.accumulation.sums import Sums
from dagnn.errors import AccumulationError, ConfigError

OnNonfinite = Literal["skip", "drop", "raise"]
_USED = MicroBatch(None, None)


class Window:
    """Micro-batches and the sum of their gradients. Iterate over it, call ``backward`` in each, then ``step``.

    ``GradientAccumulator.windows`` makes windows; you never make one yourself. ``len(window)`` is the number of its
    micro-batches in this process.

    >>> import torch, dagnn
    >>> model = torch.nn.Linear(3, 1)
    >>> accumulator = dagnn.GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> window = next(accumulator.windows([torch.randn(4, 3), torch.randn(2, 3)], micro_batches=2))
    >>> for inputs in window:
    ...     window.backward(model(inputs).square().mean())
    >>> len(window), window.step().weight
    (2, 6.0)
    """

    def __init__(
        self,
        micros: list[MicroBatch],
        known: KnownWeights | None,  # None where weights come with the losses
        *,
        sums: Sums,
        ranks: Ranks,
        batch_norms: BatchNorms,
        on_nonfinite: OnNonfinite = "skip",
        finalizer: Finalizer | None = None,  # None where only the gradients are wanted
        check: Callable[[Sums], None] = lambda sums: None,  # raises where a step would move what it must not
        names: Callable[[], dict[int, str]] = dict,  # id(parameter) -> its name, called for error messages only
        closed: Callable[[bool, bool], int] = lambda updated, broken: 0,  # (whole, half update made) -> updates so far
    ) -> None:
        self._micros = micros
        self._known = known
        self._sums = sums
        self._ranks = ranks
        self._batch_norms = batch_norms
        self._on_nonfinite = on_nonfinite
        self._finalizer = finalizer
        self._check = check
        self._names = names
        self._closed = closed
        # A total that was counted but not declared is only the size that counted weights are divided by until the
        # true total is known. It must be the same on all processes.
        guess = known.totals.get(SINGLE) if known is not None and not known.declared else None
        self._shares = Shares(known, guess or (None if ranks.world_size == 1 else 1.0), final=sums.final)
        self.parts = self._shares.parts  # of every micro-batch here: denominator -> (sum of weight * mean loss, weight)
        # With fully_shard a pass adds the gradients of all processes, so one process cannot rescale its sums.
        self._loss_scale = LossScale(sums, finalizer, may_rescale=not ranks.every_backward)
        self.micro_batches = len(micros)
        self.state: Literal["open", "stepped", "discarded"] = "open"

        self._started, self._resumed_at, self._current = False, 0, -1  # index of the current micro-batch
        self._running = False  # between the start and the end of a micro-batch
        self._ran, self._dropped, self._num_run = False, False, 0  # the current one had a backward; is left out
        # (weight, dtype, device of a loss) -> what its backward pass begins with, so that the usual one takes a short
        # way: after a model's own work the caches are cold, and 10 us of Python become 30.
        self._seeds: dict[tuple[float | None, torch.dtype, torch.device, Way], Tensor] = {}
        self._totals: WindowTotals | None = None
        self.failed: str | None = None  # the error inside a backward pass
        self.num_run = 0  # over all processes, once settled
        batch_norms.open_window(self.micro_batches)

    def __len__(self) -> int:
        return self.micro_batches

    def __iter__(self) -> Iterator[Any]:
        yield from self.run()
        self.settle()

    def run(self) -> Iterator[Any]:
        """The micro-batches, as iteration gives them, but without joining the processes at the end."""
        if self._started or self._totals is not None:
            raise AccumulationError(
                f"a window runs once, and this one has already yielded its {self.micro_batches} micro-batches: to run "
                "the same data several times per update use accumulator.update(batch, loss_fn)."
            )
        self._started = True
        for index in range(self.micro_batches):
            data, self._micros[index] = self._micros[index].data, _USED  # free it after use
            if index < self._resumed_at:
                continue  # it ran before the state was saved
            self._begin_micro_batch(is_last=index == self.micro_batches - 1)
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
        way: Way = self._loss_scale.way(loss) if type(loss) is Tensor else ()
        if self._seeds and weight is None and reduction == "mean" and type(loss) is Tensor:
            assert self._known is not None
            own = self._known.weights[self._current].get(SINGLE)
            seed = self._seeds.get((own, loss.dtype, loss.device, way))
            first = self._running and not self._ran and self.state == "open"
            if seed is not None and first and loss.requires_grad and not loss.ndim:
                self._add_usual(loss, seed, retain_graph)
                return
        self._check_running("backward")
        if self._dropped:
            return  # its weight has left the window, and must not come back with a second loss
        usual = weight is None and reduction == "mean" and (self._num_run > 0 or self.micro_batches == 1)
        if usual and type(loss) is Tensor and self._backward_mean(loss, way, retain_graph):
            return
        self._seeds = {}  # the long way may scale the sums by another factor
        declared = shares.declared_weight(weight)
        losses = stepping.named_losses(loss)
        coefficients = {name: self._coefficient(name, value, declared, reduction) for name, value in losses.items()}
        factors = {name: factor for name, factor in coefficients.items() if factor is not None}
        tensors = [losses[name] for name in factors]
        for name, value in zip(factors, tensors, strict=True):
            self._shares.record(self._current, name, stepping.reported_loss(value), reduction)
        self._ran = True

        if self._sums.final:
            with self._failing():
                stepping.refuse_nonfinite(tensors, self._current)
        if self._on_nonfinite == "drop" and not all(bool(torch.isfinite(t).all()) for t in tensors):
            self._drop(overflowed=True)
        elif tensors:
            with self._failing():
                for roots, seeds, is_last in self._loss_scale.passes(tensors, list(factors.values()), way):
                    self._sums.backward(roots, gradients=seeds, retain_graph=retain_graph or not is_last)

    def _backward_mean(self, loss: Tensor, way: Way, retain_graph: bool) -> bool:
        """The usual ``backward``: nothing to warn of, or to look for in a graph; False where more is needed."""
        if loss.ndim or not loss.requires_grad or self._on_nonfinite == "drop" or self._sums.final:
            return False  # the last two look into each loss, before its backward pass
        share = self._shares.of_mean(self._current)
        seed = None if share is None else self._loss_scale.seed(loss, share * self._ranks.seed_factor, way)
        if seed is None:
            return False
        self._add_usual(loss, seed, retain_graph)
        assert self._known is not None
        self._seeds[self._known.weights[self._current][SINGLE], loss.dtype, loss.device, way] = seed
        return True

    def _add_usual(self, loss: Tensor, seed: Tensor, retain_graph: bool) -> None:
        self._shares.record_mean(self._current, loss.detach())
        self._ran = True
        try:
            self._sums.backward((loss,), gradients=(seed,), retain_graph=retain_graph)
        except BaseException as error:
            self._note_failure(error)
            raise

    def _coefficient(self, name: str, loss: Any, weight: float | None, reduction: Reduction) -> float | None:
        """What the gradient of ``loss`` is multiplied by; None where the loss must not run at all."""
        stepping.check_loss(name, loss, reduction)
        coefficient = self._shares.coefficient(self._current, name, weight, reduction)
        if coefficient == 0.0 and not self._ranks.every_backward:
            return None  # nothing was counted in it: a mean over nothing is nan, and must not reach the gradients
        if coefficient == 0.0:
            stepping.refuse_uncounted(loss, self._current)
        if not loss.requires_grad:
            stepping.refuse_detached(name, self._sums.parameters)
        if self._num_run == 0:
            stepping.warn_if_divided(loss, self.micro_batches, reduction, scale=self._loss_scale.of_scaler)
        return coefficient * self._ranks.seed_factor

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Records an error, even one that the caller swallows: what was running may have added half a gradient."""
        try:
            yield
        except BaseException as error:
            self._note_failure(error)
            raise

    def _note_failure(self, error: BaseException) -> None:
        self._seeds = {}
        self.failed = f"{type(error).__name__} in micro-batch {self._current}"

    def continue_backward(self, roots: Sequence[Tensor], gradients: Sequence[Tensor], retain_graph: bool) -> None:
        """Continue a backward pass that stopped at ``roots``: their ``gradients`` contain the window's division."""
        with self._failing():
            self._sums.backward(roots, gradients=gradients, retain_graph=retain_graph)

    def recomputing(self) -> AbstractContextManager[None]:
        """A context in which a forward pass is repeated: its items do not count again in running statistics."""
        return self._batch_norms.recomputing()

    def drop(self) -> None:
        """Leave the current micro-batch out of the window: its weight, and so its share of the mean, is gone.

        Raises:
            AccumulationError: called outside a micro-batch, with eager updates, or after ``backward`` without
                ``on_nonfinite="drop"``.
        """
        apart = self._on_nonfinite == "drop"  # the gradient of this micro-batch is in no sum yet
        self._check_running("drop", may_have_failed=apart)
        if self._sums.final:
            raise AccumulationError(
                f"micro-batch {self._current} cannot be dropped with eager updates: give it the weight 0 in "
                "windows(weight=...)."
            )
        if self._ran and not apart:
            raise AccumulationError(
                f"drop() after backward needs an accumulator with on_nonfinite='drop', got {self._on_nonfinite!r}: "
                "only 'drop' keeps the gradient of a micro-batch apart until it is accepted. Use it, or call drop() in "
                "place of backward."
            )
        self._ran = True
        self.failed = None  # with "drop", what the failed pass added is kept apart
        self._drop(overflowed=False)

    def settle(self) -> None:
        """Put the gradient of the mean over the whole window, all processes, into ``.grad``.

        Iteration does this after the last micro-batch, and ``step`` does it too; a second call changes nothing.

        Raises:
            AccumulationError: a backward pass failed, or the processes gave weights in different ways.
        """
        if self._totals is not None:
            return
        stepping.refuse_failed(self.failed)
        everywhere = self._ranks.gather((self._shares.contribution(), self._num_run))
        known = self._known.totals if self._known is not None else None
        totals = shares.window_totals([contribution for contribution, _ in everywhere], known)
        try:  # not `_failing`: this runs at every update, and a context manager costs 2 us of it
            if totals.empty:
                self._sums.clear()
            else:
                self._sums.scale_(self._loss_scale.leftover)
                self._sums.expose()
                self._ranks.sum_gradients(self._sums.parameters)
                self._sums.scale_(totals.correction)
            self._batch_norms.close_window(self._ranks)
        except BaseException as error:
            self._note_failure(error)
            raise
        self._ranks.share_buffers()
        self._ranks.close_window()
        self.num_run = sum(num_run for _, num_run in everywhere)
        self._totals = totals

    def step(self) -> Update:
        """Update the parameters with the gradient of the window, then drop the gradients.

        In this order: check finite, clip, optimizer step, scaler update, scheduler, EMA, zero.

        Raises:
            AccumulationError: called twice, or before every micro-batch had its ``backward``; or a gradient is not
                finite and ``on_nonfinite`` is "raise".
        """
        self._check_complete()
        self.settle()
        assert self._finalizer is not None
        stepped = Stepped(math.nan, self._finalizer.lr, "empty")
        try:
            if not self.totals.empty:
                self._check(self._sums)
                stepped = self._finalizer.finalize(
                    self._sums, self._names, self._ranks.sum_parts, self.totals.losses, self.totals.overflowed
                )
        except BaseException:
            if self._finalizer.moved:  # a scheduler or an average failed: the update counts
                self.close(stepped._replace(skipped=None))
            self.discard()
            raise
        return self.close(stepped)

    def close(self, stepped: Stepped) -> Update:
        """End the window after its step, and drop the gradients."""
        self.state = "stepped"
        self._sums.clear()
        updates, totals = self._closed(stepped.skipped is None, False), self.totals
        return Update(updates, totals.loss, totals.weight, *stepped, self.num_run, totals.losses)

    def discard(self) -> None:
        """Give the window up: drop its gradients and update nothing. On a window that ended it does nothing."""
        if self.state == "open":
            self.state = "discarded"
            update_begun = self._sums.update_begun
            self._sums.clear()
            self._batch_norms.close_window(None)
            self._ranks.close_window()
            self._closed(False, update_begun)

    def finish_gradients(self) -> None:
        """Leave the settled gradient in ``.grad``, in the dtype of its parameter, ready for an optimizer."""
        self._check(self._sums)
        self._sums.narrow()

    @property
    def totals(self) -> WindowTotals:
        """Weight, losses and division of the settled window, over all processes."""
        assert self._totals is not None
        return self._totals

    def state_dict(self) -> dict[str, Any]:
        """The window so far, as plain values and tensors. Ends the current micro-batch, whose backward has run.

        Raises:
            AccumulationError: the window has ended, a backward pass failed, or the updates are eager.
        """
        self._check_open()
        stepping.refuse_failed(self.failed)
        if self._totals is not None:
            raise AccumulationError(
                f"all {self.micro_batches} micro-batches of this window have run, and .grad holds their mean: call "
                "step() and save at the window's boundary."
            )
        self.end_micro_batch()
        return {
            "done": self._current + 1,
            "num_run": self._num_run,
            "sums": self._sums.state(),
            "num_sums": sum(self._sums.has_sum()),
            "shares": self._shares.state(),
            "scale": self._loss_scale.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the micro-batches of ``state``, which iteration then leaves out.

        Raises:
            ConfigError: this window has fewer micro-batches than ``state`` has done, other weights or parameters.
        """
        if state["done"] > self.micro_batches:
            raise ConfigError(
                f"the saved window had {state['done']} micro-batches done, but this one has {self.micro_batches}: "
                "start the loader at the first micro-batch of the saved window."
            )
        self._sums.load_state(state["sums"])
        self._shares.load_state(state["shares"], state["done"])
        self._loss_scale.load_state(state["scale"])
        self._resumed_at, self._num_run, self._current = state["done"], state["num_run"], state["done"] - 1

    def add_micro_batch(self) -> None:
        """The manual form: one more micro-batch begins."""
        self.micro_batches += 1
        self._begin_micro_batch(is_last=False)

    def forget_micro_batch(self) -> bool:
        """The manual form: undo the current micro-batch, which was refused; False if it was the only one."""
        if self._on_nonfinite == "drop":
            self._sums.end_trial(keep=False)
        self._batch_norms.drop_micro_batch()
        self._shares.forget(self._current)
        self._running = False
        self._current -= 1
        self.micro_batches -= 1
        return self.micro_batches > 0

    def _begin_micro_batch(self, *, is_last: bool) -> None:
        self._current += 1
        self._running, self._ran, self._dropped = True, False, False
        self._ranks.open_micro_batch(is_last=is_last)
        self._sums.begin_micro_batch(is_last=is_last)
        self._batch_norms.begin_micro_batch()
        if self._on_nonfinite == "drop":
            self._sums.begin_trial()

    def end_micro_batch(self) -> None:
        """Accept the current micro-batch; under ``on_nonfinite="drop"`` leave it out if it is not finite."""
        if not self._running:
            return  # step() was called inside the loop and ended it
        stepping.refuse_failed(self.failed)
        if not self._ran and (self._known is None or any(self._known.weights[self._current].values())):
            raise AccumulationError(
                f"micro-batch {self._current} of {self.micro_batches} had no window.backward(loss): call it, or "
                "window.drop() to leave the micro-batch out."
            )
        is_kept = self._on_nonfinite != "drop" or self._sums.end_trial(keep=not self._dropped)
        if not is_kept and not self._dropped:
            self._drop(overflowed=True)
        self._running = False
        self._num_run += not self._dropped

    def _drop(self, *, overflowed: bool) -> None:
        self._dropped = True
        self._shares.drop(self._current, overflowed=overflowed)
        self._batch_norms.drop_micro_batch()

    def _check_running(self, call: str, *, may_have_failed: bool = False) -> None:
        self._check_open()
        if not may_have_failed:
            stepping.refuse_failed(self.failed)
        if not self._running:
            raise AccumulationError(
                f"{call}() was called outside a micro-batch: loop over the window, `for micro in window:`, and call it "
                "inside that loop."
            )

    def _check_open(self) -> None:
        if self.state != "open":
            raise AccumulationError(
                f"this window was {self.state} already, after {self._num_run} of {self.micro_batches} micro-batches: "
                "one window makes one update. Take the next one."
            )

    def _check_complete(self) -> None:
        self._check_open()
        stepping.refuse_failed(self.failed)
        if self._running and self._current == self.micro_batches - 1:
            self.end_micro_batch()  # step() inside the loop, in the last micro-batch
        if (done := self._current + (not self._running)) < self.micro_batches:
            raise AccumulationError(
                f"step() after {max(done, 0)} of {self.micro_batches} micro-batches: call it once, after the loop over "
                "the window, or window.discard() to give the window up."
            )
