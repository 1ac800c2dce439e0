"""Trainer: batch -> forward -> loss -> accumulate -> step, with exact resume."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dagnn.accumulation.random_states import rng_state, seed_everything, untouched_rng
from dagnn.errors import RunError
from dagnn.training.averages import WeightAverage
from dagnn.training.config import TrainingConfig
from dagnn.training.counters import Clock, Counters, StagePromotion, TrainingResult
from dagnn.training.evaluation import checked_metrics, evaluated, score_of
from dagnn.training.loader import BatchLoader, as_loader
from dagnn.training.log import PROFILE_FILE, MetricsLog, Progress, StepProfiler, evaluation_lines
from dagnn.training.lr_finder import LrCurve, find_lr
from dagnn.training.optimizers import make_optimizer
from dagnn.training.processes import Processes, torch_threads
from dagnn.training.run.checkpoints import Checkpoint, CheckpointStore
from dagnn.training.run.directory import RunDirectory, open_checkpoints
from dagnn.training.run.resume import Resumable, changes, num_ranks_of, same_training
from dagnn.training.run.tensors import check_initialised, flags_of, load_flags, unwrapped
from dagnn.training.signals import StopRequest, TrainingInterrupted
from dagnn.training.step import EpochMeans, WindowStep, check_functions

_MAX_REFUSED_IN_A_ROW = 20


@dataclass(frozen=True)
class TrainingTask:
    """What a `Trainer` takes: a function that returns one can be named to ``dagnn train --task MODULE:FUNCTION``.

    Attributes:
        model, loss_fn, loader, evaluate, weight: as of `Trainer`.
        test: ``test(model)`` gives numbers by name: the final evaluation, in eval mode and without gradients.
    """

    model: nn.Module
    loss_fn: Callable[[nn.Module, Any], Any]
    loader: BatchLoader[Any] | Iterable[Any]
    evaluate: Callable[[nn.Module, int], Mapping[str, Any]] | None = None
    weight: Callable[[Any], float | Mapping[str, float]] | None = None
    test: Callable[[nn.Module], Mapping[str, float]] | None = None


class Trainer:
    """Trains any module on any `BatchLoader` or DataLoader, and resumes to the bit.

    `resume`, then `fit`, gives the same weights, optimizer state, averages, random numbers, data and metrics
    rows as never having stopped, wherever it was stopped.

    Where torchrun has started several processes (`dagnn.training.process_group`), each makes a trainer with its
    own share of the data: all hold the same weights and decide alike, and the first writes.

    Attributes:
        model, config, promotion: as given.
        loader: as given, or an `IterableLoader` around it.
        optimizer: as given or built.
        stop: ``trainer.stop.request()`` does what Ctrl-C does.

    >>> settings = {"max_steps": 2, "batch_size": 4, "micro_batches": 1, "schedule.name": "constant"}
    >>> config = TrainingConfig.resolve(environment={}, flags=settings)
    >>> batches = [(torch.ones(4, 3), torch.zeros(4, 1))]
    >>> def mse(model, batch):
    ...     return nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> Trainer(nn.Linear(3, 1), mse, batches, config, show_progress=False).fit().step
    2
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Any],
        loader: BatchLoader[Any] | Iterable[Any],
        config: TrainingConfig,
        *,
        run: RunDirectory | None = None,
        evaluate: Callable[[nn.Module, int], Mapping[str, Any]] | None = None,
        promotion: StagePromotion | None = None,
        on_promotion: Callable[[tuple[int, ...]], None] | None = None,
        weight: Callable[[Any], float | Mapping[str, float]] | None = None,
        optimizer: Optimizer | None = None,
        description: Any = None,
        show_progress: bool = True,
    ) -> None:
        """Nothing is read, written or drawn yet.

        Args:
            loss_fn: ``loss_fn(model, micro_batch)`` gives the mean loss over the micro-batch's items; or ``(loss,
                weight)``, where only it knows what the mean was divided by; or losses by name, which are added, each
                with a column ``loss/<name>`` of the metrics.
            loader: gives ``config.micro_batches`` micro-batches for each optimizer step: a `BatchLoader`, or a
                DataLoader or another iterable of micro-batches, then as `IterableLoader` says.
            run: where configuration, metrics and checkpoints are kept; None keeps nothing.
            evaluate: ``evaluate(model, step)``, called every ``eval_every`` steps and after the last one, in
                eval mode, without gradients, with the averaged weights where there are any. Returns numbers of any
                kind, or other JSON values, by name: the monitored metric, and ``"accuracy/<stage>"`` for promotion; a
                true ``"finished"`` ends the training; a `Meter` counts as its mean, over the shares of all processes,
                each of which calls it. What it draws from the generators leaves no trace. Where a signal aborts it, or
                it fails, the step is saved without it, and the resume calls it again.
            promotion: the rule that opens stages.
            on_promotion: called with the open stages when training starts or resumes (before the loader's state
                is loaded) and whenever a stage opens: so the loader knows what to draw from.
            weight: items in a micro-batch, or what each named loss is a mean of; None counts its first dimension.
            optimizer: None builds ``config.optimizer``.
            description: JSON value kept in every checkpoint: what is needed to build the model again.

        Raises:
            ConfigError: the model is none or has lazy modules that have not seen a batch, or the loader is no loader,
                or what is to be called is no function.
        """
        check_initialised(model)
        check_functions(loss_fn=loss_fn, evaluate=evaluate, weight=weight)
        self._processes = Processes()
        self.model = model
        self.loader = as_loader(loader, seed=config.seed, rank=self._processes.rank)
        self.config = config
        self.promotion = promotion
        self.optimizer = make_optimizer(model, config.optimizer) if optimizer is None else optimizer
        self.stop = StopRequest()
        self._loss_fn = loss_fn
        self._evaluate = evaluate
        self._on_promotion = on_promotion
        self._weight = weight
        self._description = description
        self._show_progress = show_progress and self._processes.is_first
        self._run = run
        self._store = None if run is None else open_checkpoints(run, config)
        self._average = WeightAverage(unwrapped(model), config.ema_decay) if config.ema_decay else None
        self._parts = Resumable(model, self.optimizer, self._average, self.loader, promotion)
        self._window: WindowStep | None = None

        self._counters = Counters()
        self._epoch = EpochMeans()
        self._started = False
        self._flags: dict[str, list[str]] | None = None  # of the model when the training stopped in this process
        self._made = 0  # steps by this trainer
        self._rehearsed = False
        self._changes: list[tuple[str, dict[str, Any]]] = []  # rows of metrics.jsonl about a resume
        self._saved: tuple[int, int, bool] | None = None
        self._checkpoint: Path | None = None
        self._clock = Clock()
        self._metrics: MetricsLog | None = None
        self._profiler = StepProfiler(None, 0)
        self._progress = Progress(config.max_steps, shown=False)

    @property
    def step(self) -> int:
        """Optimizer steps made so far."""
        return self._counters.step

    def fit(self) -> TrainingResult:
        """Train until ``max_steps``, or until early stopping ends it.

        A fresh training first seeds every global generator with ``config.seed``. SIGINT and SIGTERM end it after
        the step at hand, or out of an evaluation, with everything saved; a second signal ends it at once.

        Raises:
            TrainingInterrupted: by a signal, or by ``stop.request()``.
            RunError: the run cannot be written, or (before the first step) something of the model, optimizer or loader
                cannot be kept in a checkpoint; or a step was refused and ``non_finite`` is "stop", or too many in a row
                were. The last checkpoint stays.
            ConfigError: the evaluation returned what is no metric, or none that is monitored; the step is saved.
        """
        with ExitStack() as stack:
            stack.enter_context(self.stop.installed())
            stack.enter_context(torch_threads(self.config.threads))
            if not self._started:
                self._begin()
            self._window = self._make_window()
            if self._run is not None and self._processes.is_first:
                log = MetricsLog(self._run.metrics_path, num_rows=self._counters.num_rows)
                self._metrics = stack.enter_context(log)
            self._progress = Progress(self.config.max_steps, step=self.step, shown=self._show_progress)
            stack.callback(self._progress.close)
            if self._run is not None and self._processes.is_first:
                trace = self._run.path / PROFILE_FILE
                self._profiler = StepProfiler(trace, self.config.profile_steps, self._progress.note)
            stack.callback(getattr(self.loader, "close", lambda: None))
            stack.enter_context(self._clock.running())
            stack.enter_context(self._profiler.running())
            self.model.train()
            if self._flags is not None:
                load_flags(self.model, self._flags)
            if self._ended:
                self._progress.note(f"no step is left: the training ended at step {self.step}")
            while self._changes:
                self._write(*self._changes.pop(0))
                self._counters.save_due = True
            try:
                self._loop()
            finally:
                self._flags = flags_of(self.model)
        early = self._counters.stop_early(self.config) and self.step < self.config.max_steps
        return TrainingResult.of(self._counters, self._clock, self._checkpoint, early)

    def resume(self, step: int | None = None, *, reschedule: str | None = None) -> bool:
        """Go back to a checkpoint of the run: the newest whole one, or that of ``step``. Then call `fit`.

        A damaged one is passed over with a warning. Later ones are moved to ``checkpoints/set-aside``. Another number
        of processes than before computes the same batches, the same gradients to rounding, and draws other random
        numbers: a warning and a row of the metrics report it.

        Args:
            step: of the checkpoint; None takes the newest.
            reschedule: "keep" or "stretch", where ``max_steps`` changes the schedule; see `resumed_config`.

        Returns:
            False when the run has no checkpoint yet: `fit` then starts from the beginning.

        Raises:
            CheckpointError: none is whole, or it is of another model, optimizer or curriculum.
            ConfigError: the trainer's configuration would train otherwise than the run's.
            RunError: there is no run directory.
        """
        if self._run is None or self._store is None:
            raise RunError("there is nothing to resume: the trainer was made without run=.")
        stored = self._run.config(type(self.config))
        self.config = same_training(stored, self.config, reschedule=reschedule)
        checkpoint = self._found(self._store, step)
        if checkpoint is None:
            return False

        self._counters = self._parts.restore(
            checkpoint, self._announce_stages, rank=self._processes.rank, seed=self.config.seed
        )
        self._flags = flags_of(self.model)
        self._epoch = EpochMeans.from_json(self._counters.epoch)
        self._clock = Clock(checkpoint.clock.get("seconds", 0.0), checkpoint.clock.get("cpu_seconds", 0.0))
        self._processes.by_first(lambda: self._go_on_from(checkpoint.step))
        self._checkpoint = self._store.path_of(checkpoint.step)
        self._saved = self._moment()
        self._started = True
        self._changes = changes(stored, self.config, reschedule, num_ranks_of(checkpoint), self._processes)
        return True

    def find_lr(self, *, lowest: float = 1e-6, highest: float = 1.0, steps: int = 100) -> LrCurve:
        """The loss at rising learning rates under ``config.optimizer``, on a copy; see `dagnn.training.find_lr`."""
        if not self._started:
            self._announce_stages()
        return find_lr(
            self.model,
            self._loss_fn,
            self.loader,
            lambda trial: make_optimizer(trial, self.config.optimizer),
            lowest=lowest,
            highest=highest,
            steps=steps,
        )

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The model in eval mode with its averaged weights (its own without averaging); as before afterwards."""
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            with nullcontext() if self._average is None else self._average.applied():
                yield self.model
        finally:
            for module, mode in modes:
                module.training = mode

    def _found(self, store: CheckpointStore, step: int | None) -> Checkpoint | None:
        """The checkpoint to go on from: the first process finds it, the others load the same."""
        found: list[Checkpoint | None] = []

        def find() -> int | None:
            store.recover()
            found.append(store.latest() if step is None else store.load(step))
            return found[0].step if found[0] is not None else None

        chosen = self._processes.by_first(find)
        return found[0] if found else None if chosen is None else store.load(chosen)

    def _go_on_from(self, step: int) -> None:
        assert self._run is not None and self._store is not None
        self._store.set_aside_after(step)
        self._run.store_config(self.config)

    def _begin(self) -> None:
        if self._store is not None and self._store.steps():
            raise RunError(f"{self._store.path} holds checkpoints: call resume() before fit().")
        if self._run is not None and self._processes.is_first:
            self._run.store_config(self.config)
        self._processes.same_model(self.model)
        self._parts.begin()
        seed_everything(self.config.seed, self._processes.rank)
        self._announce_stages()
        self._started = True

    def _loop(self) -> None:
        while True:
            if self._store is not None and not self._rehearsed:
                # Before the first step, and after it: some optimizers make their state in it.
                self._parts.check(self._counters, self._description)
                self._rehearsed = self._made > 0
            if self._counters.evaluation_due:
                self._run_evaluation()
            # After an aborted evaluation the save stays due until after the resume: it must hold the score.
            if self._counters.save_due and not self._counters.evaluation_due:
                self._counters.save_due = False
                self._save()
            if self._must_stop():
                self._save()
                raise TrainingInterrupted(self.stop.taken(), self.step, self._checkpoint)
            if self._ended:
                return
            self._train_step()

    def _must_stop(self) -> bool:
        """Whether a signal has reached any of the processes: then all stop, at the same step."""
        signals = [number for number in self._processes.gather(self.stop.signal_number) if number is not None]
        if signals:
            self.stop.request(signals[0])
        return bool(signals)

    @property
    def _ended(self) -> bool:
        return self.step >= self.config.max_steps or self._counters.stop_early(self.config)

    def _train_step(self) -> None:
        assert self._window is not None
        values, refused, shares = self._window.make()
        values["level"] = None if self.promotion is None else self.promotion.stage
        epochs = self._epoch.add(self._processes.gather(shares), made=refused is None)
        if refused is not None:
            self._refuse(values, refused)
        else:
            self._count(values)
        for row in epochs:
            self._write("epoch", row)

    def _count(self, values: Mapping[str, Any]) -> None:
        """The window made a step."""
        counters = self._counters
        counters.step += 1
        self._made += 1
        counters.refused_in_a_row = 0
        counters.loss = values["loss"]
        if self._average is not None:
            self._average.update(self.step)
        counters.evaluation_due = self._evaluate is not None and self._is_due(self.config.eval_every)
        counters.save_due = self._is_due(self.config.checkpoint.save_every)
        self._write("step", {**values, "skipped": counters.skipped, "seconds": round(self._clock.seconds, 3)})
        self._progress.step(self.step, {key: values[key] for key in ("level", "loss", "lr")}, values["weight"])
        self._profiler.step()

    def _refuse(self, values: Mapping[str, Any], reason: str) -> None:
        """The window made no step: weights, averages and learning rate are as they were."""
        counters = self._counters
        counters.skipped += 1
        counters.refused_in_a_row += 1
        self._write("refused", {**values, "skipped": counters.skipped, "seconds": round(self._clock.seconds, 3)})
        message = f"step {self.step + 1} was refused: {reason} (loss {values['loss']:.4g})"
        if self.config.non_finite == "stop":
            raise RunError(f"{message}, and non_finite = stop.")
        if counters.refused_in_a_row >= _MAX_REFUSED_IN_A_ROW:
            raise RunError(f"{message}, {counters.refused_in_a_row} in a row: lower optimizer.lr, or look at the data.")
        self._progress.note(message)

    def _is_due(self, every: int) -> bool:
        return self.step == self.config.max_steps or (every > 0 and self.step % every == 0)

    def _run_evaluation(self) -> None:
        """Evaluate, record, rank, promote. Aborted by a signal it stays due, for after the resume."""
        assert self._evaluate is not None
        evaluate = self._evaluate

        def own() -> dict[str, Any]:
            with untouched_rng(), self.averaged() as model, torch.no_grad(), self.stop.interruptible():
                return checked_metrics(evaluate(model, self.step), self.config, self.promotion)

        try:
            metrics = evaluated(own, self.loader, self._processes)
        except Exception:
            self._save()  # the steps are made: an evaluation that fails must not cost them
            raise
        if metrics is None:
            return
        counters = self._counters
        counters.evaluation_due = False
        counters.evaluation, counters.evaluated_step = metrics, self.step
        self._write("evaluation", {**metrics, "seconds": round(self._clock.seconds, 3)})
        for line in evaluation_lines(self.step, metrics):
            self._progress.note(line)
        for line in counters.take(score_of(metrics, self.config), self.config):
            self._progress.note(line)
        if self.promotion is not None:
            given = {stage: metrics.get(f"accuracy/{stage}") for stage in self.promotion.stages}
            if self.promotion.observe(self.step, {k: float(value) for k, value in given.items() if value is not None}):
                self._write("promotion", {"level": self.promotion.stage, "active": self.promotion.active})
                self._progress.note(f"stage {self.promotion.stage} opens at step {self.step}")
                counters.restart_waiting()
                self._announce_stages()

    def _announce_stages(self) -> None:
        if self.promotion is not None and self._on_promotion is not None:
            self._on_promotion(self.promotion.active)

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        # All processes count, the first writes: all must know whether there is something new to save.
        self._counters.num_rows += 1
        if self._metrics is not None:
            self._metrics.write(kind, self.step, values)

    def _moment(self) -> tuple[int, int, bool]:
        """What distinguishes two checkpoints of one session."""
        return (self.step, self._counters.num_rows, self._counters.evaluation_due)

    def _save(self) -> None:
        """Save a checkpoint of this moment, unless it is on the disk already."""
        if self._store is None or self._saved == self._moment():
            return
        generators = self._processes.gather(rng_state())
        self._checkpoint = self._processes.by_first(lambda: self._write_checkpoint(generators))
        self._saved = self._moment()

    def _write_checkpoint(self, generators: list[dict[str, Any]]) -> Path:
        assert self._store is not None and self._run is not None
        if self._metrics is not None:
            self._metrics.sync()  # the checkpoint counts on these rows
        self._counters.epoch = self._epoch.to_json()
        state = self._parts.state(self._counters, self._description, generators)
        evaluated = self._counters.evaluated_step == self.step
        score = score_of(self._counters.evaluation, self.config) if evaluated else None
        score = score if score is not None and math.isfinite(score) else None
        return self._store.save(
            Checkpoint(self._run.run_id, self.step, score, self._parts.tensors(), state, self._clock.to_json())
        )

    def _make_window(self) -> WindowStep:
        return WindowStep(
            self.model,
            self._loss_fn,
            self.loader,
            self.optimizer,
            self.config,
            self._processes,
            step=self.step,
            weight=self._weight,
            drops=lambda: self._counters.drops,
        )
