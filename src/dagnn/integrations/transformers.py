"""transformers: a Trainer whose gradient is the full batch's for any head, and a callback that judges any Trainer."""

import contextlib
import functools
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn

from dagnn.accumulation.check.report import Report
from dagnn.accumulation.check.subject import Gradients
from dagnn.accumulation.check.watching import FirstWindow, gradients_of
from dagnn.accumulation.partition import WeightFn
from dagnn.errors import AccumulationError, ConfigError, library
from dagnn.integrations.windows import CoupledWindows, TrainerWindows, full_gradient, mean_gradient, refuse_coupled

__all__ = ["OLDEST", "ExactTrainer", "GradientCheck"]

OLDEST = (5, 17)
transformers = library("transformers", "dagnn.integrations.transformers", "dagnn[transformers]")
_Trainer: Any = transformers.Trainer
_TrainerCallback: Any = transformers.TrainerCallback
_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
if _VERSION < OLDEST:
    raise ConfigError(
        f"transformers {transformers.__version__} is installed, but dagnn.integrations.transformers needs "
        f"{'.'.join(map(str, OLDEST))} or newer: pip install -U transformers."
    )


class ExactTrainer(_Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` whose gradient is that of the full batch, whatever the head divides its loss by.

    ``gradient_accumulation_steps``, ragged batches, a short last window and several processes change nothing: each
    step is that of ``model(**whole_batch).loss.backward()``. All else is the Trainer's own: clipping, schedules,
    callbacks, checkpoints, resume. The logged loss is that of the full batch.

    The model computes its plain mean loss for each micro-batch (``num_items_in_batch`` is not passed on). What that
    loss divided by is read from its graph, see ``dagnn.weights.terms``. Losses with several denominators that do not
    keep one proportion (tokens and sentences) cost one more forward pass. In the first window the loss of two items is
    compared with those of each, so a loss that couples the items of a batch is refused, not trained wrongly: give
    ``coupled=True`` for a contrastive loss (CLIP) or one that balances experts over the batch. The micro-batches of a
    window are then joined, shorter ones padded, and the model sees them as one batch. Its encoders, and whatever else
    treats items one by one, still run a micro-batch at a time, once more than without; what follows them has the
    memory of the whole window.

    Args:
        weight: a function of the micro-batch that returns what its mean loss divides by, where the graph cannot show
            it (a compiled model, a custom autograd function).
        args, kwargs: those of ``transformers.Trainer``. A ``compute_loss_func`` gets ``num_items_in_batch=None`` and
            must then return a mean.

    Raises:
        ConfigError: DeepSpeed, FSDP, sharded or replicated models (``DataParallel``) and optimizers that update inside
            backward: the gradient is not in ``.grad`` there.
        AccumulationError: in ``train()``: the loss couples its items, or its denominator cannot be read.
    """

    def __init__(self, *args: Any, weight: WeightFn | None = None, coupled: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _refuse_unsupported(self)
        if coupled:
            refuse_coupled(weight, self.accelerator.num_processes)
        self._exact_weight = weight
        self.coupled = coupled
        self._exact_windows: tuple[nn.Module, TrainerWindows | CoupledWindows] | None = None

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Add one micro-batch to the window. Returns the window's loss with its last micro-batch, and 0 before."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        if self._exact_windows is None or self._exact_windows[0] is not model:
            self._exact_windows = (model, self._new_windows(model))
        windows, batch = self._exact_windows[1], dict(self._prepare_inputs(inputs))
        last, loss_of = self.accelerator.sync_gradients, functools.partial(self._mean_loss, model)
        loss: Tensor | None
        if isinstance(windows, TrainerWindows):
            loss = windows.add(batch, loss_of, last=last, scale=self._loss_scale())
        else:
            whole = windows.join(batch, last=last)
            loss = windows.backward(windows.forward(whole, loss_of), self._loss_scale()) if last else None
        return torch.zeros((), device=self.args.device) if loss is None else loss.to(self.args.device)

    def _new_windows(self, model: nn.Module) -> TrainerWindows | CoupledWindows:
        if self.coupled:
            return CoupledWindows(model, pad_token=_pad_token(self))
        return TrainerWindows(model, weight=self._exact_weight)

    def _mean_loss(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        with self.compute_loss_context_manager():
            # A copy: label smoothing takes the labels out of it.
            loss: Any = self.compute_loss(model, dict(batch), num_items_in_batch=None)
        if not isinstance(loss, Tensor):
            raise AccumulationError(f"compute_loss returned {type(loss).__name__}: return the mean loss, a tensor.")
        return loss.squeeze() if loss.numel() == 1 else loss

    def _loss_scale(self) -> float:
        """What accelerate will divide the gradient by before clipping: the scale of its float16 scaler."""
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is None or not scaler.is_enabled():
            return 1.0
        scaler.scale(torch.zeros((), device=self.args.device))  # it makes its scale with the first loss
        return float(scaler.get_scale())


def _pad_token(trainer: Any) -> int | None:
    """The padding of the trainer's tokenizer, alone or in a processor; None where it has none."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    return getattr(tokenizer, "pad_token_id", None)


def _refuse_unsupported(trainer: Any) -> None:
    kind = str(getattr(trainer.accelerator.distributed_type, "value", trainer.accelerator.distributed_type))
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_XPU"):
        raise ConfigError(
            f"ExactTrainer sums gradients in one process or in DDP, but accelerate runs as {kind}: use DDP, or "
            "transformers.Trainer with GradientCheck, which says what the gradient is."
        )
    if trainer.args.n_gpu > 1:
        raise ConfigError(
            f"one process would use {trainer.args.n_gpu} GPUs through DataParallel: start one process per GPU "
            "(torchrun --nproc_per_node), or set CUDA_VISIBLE_DEVICES to one."
        )
    if "lomo" in str(trainer.args.optim).lower():
        raise ConfigError(f"optim={str(trainer.args.optim)!r} updates inside backward, before a window has its sum.")
    if trainer.args.max_steps == 0:
        raise ConfigError("max_steps=0 trains nothing: leave it out, or give at least 1.")


class GradientCheck(_TrainerCallback):  # type: ignore[misc]
    """A callback that compares the first window's gradient with that of the full batch, and says what is wrong.

    ``trainer.add_callback(GradientCheck(trainer))``. It works with any ``transformers.Trainer``, subclasses included.
    The micro-batches of the first window run again afterwards, from the same random numbers, so training goes on as it
    would have without the check; it takes the time of about two windows, once, and the memory of a set of gradients
    for each micro-batch where the verdict is "not equal".

    Args:
        trainer: the trainer whose training is judged.
        on_unequal: "warn", or "raise" an AccumulationError.
        coupled: compare with the gradient of the joined micro-batches, for a loss that couples the items of a batch
            and draws no random numbers. Default: as the trainer, where it is an ``ExactTrainer``.

    Raises:
        ConfigError: ``on_unequal`` has another value, or ``coupled`` in several processes.
    """

    def __init__(
        self, trainer: Any, *, on_unequal: Literal["warn", "raise"] = "warn", coupled: bool | None = None
    ) -> None:
        self._trainer = trainer
        self._coupled = getattr(trainer, "coupled", False) if coupled is None else coupled
        option = " with coupled=True" if self._coupled else ""
        remedy = f"use dagnn.integrations.transformers.ExactTrainer{option} in place of transformers.Trainer."
        self._window = FirstWindow(on_unequal, remedy)
        self._model: nn.Module = trainer.model
        self._found: Gradients | None = None
        self._undo: list[Any] = []

    @property
    def report(self) -> Report | None:
        """The verdict; None before the first step, and where it cannot be judged: a coupled loss, see ``coupled``."""
        return self._window.report

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch the first window."""
        if self._window.judged or self._undo:
            return
        step, clip = self._trainer.training_step, torch.nn.utils.clip_grad_norm_

        def training_step(model: nn.Module, inputs: Any, *rest: Any, **more: Any) -> Any:
            self._model = model
            self._window.add(dict(inputs), self._mean_loss)
            return step(model, inputs, *rest, **more)

        def clip_grad_norm_(*given: Any, **more: Any) -> Any:
            if self._found is None:
                self._found = gradients_of(self._model)
            return clip(*given, **more)

        for patch in (
            mock.patch.object(self._trainer, "training_step", training_step),
            mock.patch.object(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_),  # accelerate's way to the norm
        ):
            patch.start()
            self._undo.append(patch)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Judge the window, once its gradient is complete."""
        if self._window.judged or not self._window.ran:
            return
        self._stop()
        self._window.judge(
            self._model,
            self._found,
            full=functools.partial(full_gradient, self._model, coupled=self._coupled),
            mean=functools.partial(mean_gradient, self._model),
            low_precision=self._trainer.args.bf16 or self._trainer.args.fp16,
            coupled=self._coupled,
        )
        self._found = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hooks off where training ended inside the first window."""
        self._stop()

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop().stop()

    def _mean_loss(self, inputs: dict[str, Any]) -> Tensor:
        batch = dict(self._trainer._prepare_inputs(inputs))
        with self._trainer.compute_loss_context_manager():
            loss: Tensor = self._trainer.compute_loss(self._model, batch, num_items_in_batch=None)
        return loss.squeeze() if loss.numel() == 1 else loss


def window_gradient(trainer_class: Callable[..., Any], model: nn.Module, micros: Sequence[dict[str, Any]]) -> Gradients:
    """The gradient that a trainer finds after one window of ``micros``, before it clips; the model has none after."""
    model.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, gradient_accumulation_steps=len(micros), use_cpu=True, report_to="none", disable_tqdm=True
        )
        trainer = trainer_class(model=model, args=arguments)
    samples, num_items = trainer.get_batch_samples(iter(micros), len(micros), arguments.device)
    trainer.current_gradient_accumulation_steps = len(samples)
    for i, inputs in enumerate(samples):
        trainer.accelerator.gradient_state._set_sync_gradients(i == len(samples) - 1)
        trainer.training_step(model, inputs, num_items)
    found = gradients_of(model)
    model.zero_grad()
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, neither transformers nor Python warns."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(50)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes more CPU time; without effect where there are no such alarms."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it took more than {seconds} CPU seconds")

    try:
        before = signal.signal(signal.SIGPROF, stop)
    except (AttributeError, ValueError):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
