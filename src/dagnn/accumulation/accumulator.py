"""GradientAccumulator: exact gradient accumulation around an unchanged model and optimizer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.accumulation.batch_norms import BatchNormMode, BatchNorms
from dagnn.accumulation.eager import Eager, LastBackwardSums, MomentumSums, check_eager
from dagnn.accumulation.optimizers import OwnedParameters, check_models, check_optimizers
from dagnn.accumulation.partition import (
    MicroBatch,
    Outline,
    PartitionRule,
    Tail,
    WeightFn,
    known_weights,
    partition_windows,
)
from dagnn.accumulation.ranks import FsdpSync, Ranks, ranks_of
from dagnn.accumulation.shares import Reduction, check_saved_window
from dagnn.accumulation.stepping import Finalizer, Update
from dagnn.accumulation.sums import AccumulateDtype, GradientSums, Sums, check_accumulate_dtype
from dagnn.accumulation.whole_batch import Job, LossFn, MicroBatchSize, run_batch, step_with_closure
from dagnn.accumulation.window import OnNonfinite, Window
from dagnn.errors import AccumulationError, ConfigError

_STATE_VERSION = 1


class GradientAccumulator:
    """Sums gradients over windows of micro-batches so that each update is that of the full batch.

    >>> import torch, dagnn
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> accumulator = dagnn.GradientAccumulator(model, optimizer, max_norm=1.0)
    >>> loader = [(torch.randn(n, 3), torch.randn(n, 1)) for n in (4, 4, 2)]
    >>> for window in accumulator.windows(loader, micro_batches=2):
    ...     for inputs, targets in window:
    ...         window.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    ...     update = window.step()
    >>> update.step, update.weight
    (2, 2.0)

    Args:
        model: any module, or several. Only parameters that ``optimizer`` holds get gradients; the others are left
            alone. A frozen parameter does not move, whatever its ``.grad`` holds.
        optimizer: any ``torch.optim`` optimizer, or several that are stepped together.
        max_norm: clip the L2 norm over all gradients of the window to this.
        scheduler: a scheduler of these optimizers, or several: any objects with ``step()``, called once per update.
        scaler: a ``torch.amp.GradScaler`` for float16. The window unscales once, with one scale.
        ema: ``torch.optim.swa_utils.AveragedModel``, an object with ``update(model)`` or ``update()``, or a function
            of the model; called once per update. With several models, a list in the same order or a mapping
            ``{model: average}``; a single average is accepted if it fits exactly one of the models.
        accumulate_dtype: "auto" sums 16-bit gradients in float32; ``torch.float32``, ``torch.float64``, or None to
            sum in the gradients' own dtype.
        on_nonfinite: what to do when a gradient or a loss is inf or nan: "skip" the window (no update), "drop" the
            micro-batch (its weight leaves the mean; keeps a second set of gradients), or "raise".
        batch_norm: BatchNorm normalises each micro-batch by itself, which no accumulator can repair. "warn" warns
            once, "defer" also moves the running statistics once per window by all of its items, "ignore" does nothing.
        process_group: the processes that hold replicas of a plain module; models in DDP or ``fully_shard`` need none.
        fsdp_sync: with ``fully_shard``, reduce gradients after "each" micro-batch (least memory) or after the "last"
            of a window (least traffic).
        eager: begin the update during the window, to save memory. "momentum" adds gradients straight into the
            momentum buffer of ``torch.optim.SGD`` (one copy of the parameters less), "last" steps each parameter
            during the last backward pass. Needs ``on_nonfinite="raise"`` and no clipping: it cannot be undone.

    Raises:
        ConfigError: an argument is out of range or of the wrong kind, the optimizer holds no parameter of the model, a
            scheduler needs arguments for ``step()`` or belongs to another optimizer, or it is not clear which model
            ``ema`` averages.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        max_norm: float | None = None,
        scheduler: Any = None,
        scaler: torch.amp.GradScaler | None = None,
        ema: Any = None,
        accumulate_dtype: AccumulateDtype = "auto",
        on_nonfinite: OnNonfinite = "skip",
        batch_norm: BatchNormMode = "warn",
        process_group: Any = None,
        fsdp_sync: FsdpSync = "each",
        eager: Eager = None,
    ) -> None:
        models = check_models(model)
        optimizers = check_optimizers(optimizer)
        check_accumulate_dtype(accumulate_dtype)
        if on_nonfinite not in ("skip", "drop", "raise"):
            raise ConfigError(
                "on_nonfinite must be 'skip' (leave the window out), 'drop' (leave the micro-batch out) or 'raise', "
                f"got {on_nonfinite!r}."
            )
        self._models = models
        self._accumulate_dtype = accumulate_dtype
        self._on_nonfinite = on_nonfinite
        self._finalizer = Finalizer(
            models,
            optimizers,
            max_norm=max_norm,
            scheduler=scheduler,
            scaler=scaler,
            ema=ema,
            raise_on_nonfinite=on_nonfinite == "raise",
        )
        self._owned = OwnedParameters(models, optimizers)
        self._batch_norms = BatchNorms(models, batch_norm)
        parameters = self._owned.open_window()
        self._ranks: Ranks = ranks_of(models, parameters, process_group=process_group, fsdp_sync=fsdp_sync)
        if self._ranks.every_backward:
            self._accumulate_dtype = None  # fully_shard has a precision policy of its own
            if on_nonfinite == "drop":
                raise ConfigError(
                    f"on_nonfinite={on_nonfinite!r} cannot be used with fully_shard, where all processes share every "
                    "gradient: use 'skip' or 'raise'."
                )
        check_eager(
            eager,
            optimizers,
            max_norm=max_norm,
            has_scaler=self._finalizer.scaler is not None,
            on_nonfinite=on_nonfinite,
            world_size=self._ranks.world_size,
            accumulate_dtype=accumulate_dtype,
        )
        self._eager = eager
        self._open: Window | None = None
        self._manual = False  # the open window belongs to the manual form
        self._carried: list[Any] = []
        self._saved_window: Mapping[str, Any] | None = None  # loaded, to go on with in the next window
        self._updates = 0
        self._broken = False  # an eager update was given up half way
        self._fitting_sizes: dict[str | int | None, int] = {}  # memory= of update() -> micro-batch size that fits

    @property
    def updates(self) -> int:
        """Optimizer updates made so far; a skipped window does not count."""
        return self._updates

    def windows(
        self,
        loader: Iterable[Any],
        *,
        micro_batches: int | None = None,
        micro_batch_size: int | None = None,
        max_weight: float | None = None,
        weight: WeightFn | None = None,
        tail: Tail = "flush",
    ) -> Iterator[Window]:
        """The batches of ``loader``, grouped into windows of one update each.

        Before the first forward pass of a window, all of its batches are fetched and their weights are added up, over
        all processes. So ``Window.backward`` can multiply each loss by its exact share.

        Args:
            loader: any iterable of batches.
            micro_batches: batches per window.
            micro_batch_size: instead of ``micro_batches``: every batch of ``loader`` is one window, split into
                micro-batches of this many items.
            max_weight: instead of ``micro_batches``: a window is full when one more batch would exceed this weight.
            weight: a function of a micro-batch that returns its weight: what its mean loss divides by (items, valid
                tokens), or a mapping from loss names to weights. Default: the first dimension of its tensors.
            tail: the batches at the end that do not fill a window: "flush" runs them as a short window, "carry" keeps
                them for the next call, "drop" leaves them out.

        Raises:
            ConfigError: an argument is out of range.
            AccumulationError: the previous window was neither stepped nor discarded; or the loader changed a batch
                after yielding it.
        """
        rule = PartitionRule(micro_batches, micro_batch_size, max_weight, weight, tail)
        rule.check()
        self._check_nothing_open("windows()")
        return self._run_windows(loader, rule)

    def backward(
        self,
        loss: Tensor | Mapping[str, Tensor],
        *,
        weight: float | Tensor | None = None,
        reduction: Reduction = "mean",
        retain_graph: bool = False,
    ) -> None:
        """The manual form: add one micro-batch; call ``step()`` after any number of them.

        The total weight is known only in ``step``, so the division happens there. With DDP each process must call this
        at least once before each ``step``; ``windows`` has no such condition.

        Args:
            loss: see ``Window.backward``. Each call is one micro-batch: pass several losses as one mapping.
            weight: what ``loss`` was divided by. Required, since the library does not see the micro-batch.
            reduction: see ``Window.backward``.
            retain_graph: keep the graph for a backward pass of your own.

        Raises:
            AccumulationError: inside a window of ``windows``, or for what ``Window.backward`` refuses.
        """
        window = self._manual_window("backward")
        window.add_micro_batch()
        try:
            window.backward(loss, weight, reduction, retain_graph=retain_graph)
            window.end_micro_batch()
        except BaseException:
            if not window.failed and not window.forget_micro_batch():
                window.discard()  # it was the first: nothing is open
            raise

    def update(
        self,
        batch: Any,
        loss_fn: LossFn,
        *,
        micro_batch_size: MicroBatchSize,
        weight: WeightFn | None = None,
        reduction: Reduction = "mean",
        coupled: bool = False,
        memory: str | int | None = None,
        restore: Sequence[Any] = (),
        closure: bool | None = None,
    ) -> Update:
        """One update from a whole batch, for what a loop over a window cannot do.

        When memory runs out, the micro-batch is halved and the window starts again; "auto" measures once and remembers
        the size. With ``coupled=True`` the loss may depend on all items together. Optimizers that compute the loss
        several times per step get a closure over the whole window, which draws the same random numbers at each call;
        the returned loss and norm are those of the first call.

        >>> import torch, dagnn
        >>> model = torch.nn.Linear(3, 1)
        >>> accumulator = dagnn.GradientAccumulator(model, torch.optim.LBFGS(model.parameters()))
        >>> loss_fn = lambda model, inputs: model(inputs).square().mean()
        >>> accumulator.update(torch.randn(10, 3), loss_fn, micro_batch_size=4).weight
        10.0

        Args:
            batch, loss_fn, micro_batch_size, weight, reduction, coupled, memory, restore: see ``accumulate``. With
                several models, ``loss_fn`` gets the list of them.
            closure: pass True for optimizers that accept a closure but do not require it (SAM).

        Raises:
            ConfigError, AccumulationError: see ``accumulate`` and ``Window.step``.
        """
        self._check_nothing_open("update()")
        job = Job(micro_batch_size, weight, reduction, coupled, memory, restore)
        job.check()
        if micro_batch_size == "auto" and memory in self._fitting_sizes:
            job = replace(job, micro_batch_size=self._fitting_sizes[memory], memory=None)
        model = self._models[0] if len(self._models) == 1 else self._models

        def run() -> Window:
            self._open = None
            window, size = run_batch(self._models, model, loss_fn, batch, job, self._ranks, self._open_window)
            if len(window) > 1:
                self._fitting_sizes[memory] = size
            return window

        try:
            if not (self._finalizer.needs_closure if closure is None else closure):
                return run().step()
            window, stepped = step_with_closure(self._finalizer, run)
            return window.close(stepped)
        except BaseException:
            self.discard()
            raise

    def step(self) -> Update:
        """The manual form: make one update of what ``backward`` has summed.

        Raises:
            AccumulationError: there was no ``backward`` since the last step (``flush`` allows that).
        """
        if self._open is None and self._saved_window is None:
            raise AccumulationError(
                f"step() without a backward since update {self._updates}: call accumulator.backward(loss, weight=n) "
                "first, or accumulator.flush(), which does nothing where nothing was summed."
            )
        return self._manual_window("step").step()

    def flush(self) -> Update | None:
        """The manual form, at the end of an epoch: step if anything was summed since the last step, else None.

        With several processes all must call it; those without a micro-batch then take part in the others' update.
        """
        if self._open is None and self._saved_window is None and self._ranks.world_size == 1:
            return None
        update = self._manual_window("flush").step()
        return update if update.micro_batches else None

    def discard(self) -> None:
        """Drop what was summed since the last update, for example after an exception inside a window."""
        if self._open is not None:
            self._open.discard()

    def state_dict(self, *, inside_window: bool = False) -> dict[str, Any]:
        """What must be saved to resume later: plain numbers at a window boundary.

        Args:
            inside_window: also save the open window, after the ``backward`` of a micro-batch: its sums (tensors) and
                its record. Without it a resumed run starts the window again, with the same result.

        Raises:
            AccumulationError: a window is open and ``inside_window`` is False, or the open window cannot be saved.
        """
        if not inside_window:
            self._check_nothing_open("state_dict()")
        window = None if self._open is None else self._open.state_dict() | {"batch_norms": self._batch_norms.state()}
        return {"version": _STATE_VERSION, "updates": self._updates, "carried": len(self._carried), "window": window}

    def load_state_dict(self, state: Mapping[str, Any], *, carried: Sequence[Any] = ()) -> None:
        """Continue from ``state_dict()``.

        Args:
            state: from ``state_dict``.
                If it holds a window, the loader of the next ``windows`` must start at that window's first micro-batch;
                the window then skips those that ran before. The manual form goes on after them.
            carried: the batches that ``windows(tail="carry")`` had kept at that time, in their order.

        Raises:
            ConfigError: ``state`` is not of this class, or ``carried`` has another length than was saved. Later, the
                next window has other parameters, dtypes or weights than the saved one.
            AccumulationError: a window is open.
        """
        self._check_nothing_open("load_state_dict()")
        is_mapping = isinstance(state, Mapping)
        updates = state.get("updates") if is_mapping and state.get("version") == _STATE_VERSION else None
        if type(updates) is not int or updates < 0:
            found = f"its keys are {', '.join(map(str, state)) or 'none'}" if is_mapping else type(state).__name__
            found = found if updates is None else f"its updates are {updates!r}"
            raise ConfigError(f"this is not the state of a GradientAccumulator of version {_STATE_VERSION}: {found}.")
        if state.get("window") is not None:
            check_saved_window(state["window"])
        if len(carried) != state.get("carried", 0):
            raise ConfigError(
                f"{state.get('carried', 0)} carried batches were saved, got {len(carried)}: pass the last batches "
                "before the saved position as carried=[...]."
            )
        self._updates = state["updates"]
        self._broken = False
        self._carried = list(carried)
        self._saved_window = state.get("window")

    def _run_windows(self, loader: Iterable[Any], rule: PartitionRule) -> Iterator[Window]:
        micro_batches = partition_windows(loader, rule, self._carried)
        while True:
            micros = next(micro_batches, None)
            everywhere = self._ranks.gather(Outline.of(micros, declared=rule.weight is not None))
            if not any(outline.has_window for outline in everywhere):
                return
            self._check_nothing_open("windows()")
            yield self._open_window(micros or [], everywhere)
            if self._open is not None:
                raise AccumulationError(
                    f"a window of {len(self._open)} micro-batches was left without window.step(): its gradients would "
                    "be lost. Call step() after the loop over the window, or window.discard() to give it up."
                )

    def _open_window(self, micros: list[MicroBatch], everywhere: list[Outline]) -> Window:
        self._open = self._new_window(micros, everywhere)
        if self._saved_window is not None:
            saved, self._saved_window = self._saved_window, None
            if not everywhere:  # the manual form, whose number of micro-batches grows
                self._open.micro_batches = saved["done"]
            try:
                self._open.load_state_dict(saved)
                self._batch_norms.load_state(saved.get("batch_norms", {}))
            except BaseException:
                self.discard()
                raise
        return self._open

    def _manual_window(self, call: str) -> Window:
        if self._open is not None and not self._manual:
            raise AccumulationError(
                f"accumulator.{call}() inside a window of windows(): use window.{call}(), which knows the window's "
                "weight."
            )
        if self._open is None:
            self._open_window([], [])
            self._manual = True
        assert self._open is not None
        return self._open

    def _new_window(self, micros: list[MicroBatch], everywhere: list[Outline]) -> Window:
        known = known_weights(everywhere, micros) if everywhere else None
        self._ranks.open_window([outline.micro_batches for outline in everywhere])
        return Window(
            micros,
            known,
            sums=self._new_sums(),
            ranks=self._ranks,
            batch_norms=self._batch_norms,
            on_nonfinite=self._on_nonfinite,
            finalizer=self._finalizer,
            check=self._owned.check,
            names=self._owned.names,
            closed=self._close_window,
        )

    def _new_sums(self) -> Sums:
        # New for each window: parameter groups and dtypes may change between windows.
        if self._broken:
            raise AccumulationError(
                f"a window with eager={self._eager!r} was discarded after its update had begun, and the parameters "
                "cannot be restored: load the model and the optimizer from a checkpoint, and "
                "accumulator.load_state_dict(...) with them."
            )
        parameters = self._owned.open_window()
        if self._eager == "momentum":
            return MomentumSums(parameters, self._finalizer.optimizers)
        if self._eager == "last":
            return LastBackwardSums(parameters, self._finalizer.optimizers)
        return GradientSums(parameters, self._accumulate_dtype)

    def _close_window(self, updated: bool, broken: bool) -> int:
        self._open, self._manual = None, False
        self._updates += updated
        self._broken |= broken
        return self._updates

    def _check_nothing_open(self, call: str) -> None:
        if self._open is not None:
            raise AccumulationError(
                f"{call} while a window is open, with gradients that no step has used: call step() first, or discard() "
                "to give it up."
            )
