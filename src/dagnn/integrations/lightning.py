"""Lightning: a callback that makes ``accumulate_grad_batches`` exact, and one that judges it."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dagnn.accumulation.check.report import Report
from dagnn.accumulation.check.watching import FirstWindow
from dagnn.accumulation.partition import WeightFn
from dagnn.accumulation.random_states import RandomState
from dagnn.errors import AccumulationError, ConfigError, library
from dagnn.integrations.windows import CoupledWindows, TrainerWindows, full_gradient, mean_gradient, refuse_coupled

__all__ = ["OLDEST", "ExactAccumulation", "GradientCheck"]

OLDEST = (2, 6)
lightning = library("lightning", "dagnn.integrations.lightning", "dagnn[lightning]")
_Callback: Any = lightning.pytorch.callbacks.Callback
if tuple(int(part) for part in lightning.__version__.split(".")[:2]) < OLDEST:
    raise ConfigError(
        f"lightning {lightning.__version__} is installed, but dagnn.integrations.lightning needs "
        f"{'.'.join(map(str, OLDEST))} or newer: pip install -U lightning."
    )


class ExactAccumulation(_Callback):  # type: ignore[misc]
    """With this callback, each step has the gradient of the full batch: ``Trainer(callbacks=[ExactAccumulation()])``.

    Lightning divides each loss by ``accumulate_grad_batches``, which is right only while all micro-batches count the
    same and windows are full. Here each has its own share, read from its loss (see ``dagnn.weights.terms``); the short
    window at the end of an epoch is divided by its own total. Clipping, schedules, precision (32 bits and bf16),
    logging and checkpoints are Lightning's own.

    ``training_step`` runs once per micro-batch; three more times in the first, on two of its items, to see whether the
    loss couples them; and twice more where a loss has denominators that do not keep one proportion. What it logs then
    is left out.

    A loss that couples the items of a batch (contrastive losses) is refused, unless ``coupled=True``: ``training_step``
    then runs once a window, on its micro-batches as one batch, shorter ones padded. Modules of the model that treat
    items one by one still run a micro-batch at a time, once more than without; what follows them has the memory of the
    whole window.

    Args:
        weight: a function of the micro-batch that returns what its mean loss divides by, where the graph cannot show
            it.
        coupled: run the micro-batches of a window as one batch.

    Raises:
        ConfigError: ``weight`` and ``coupled`` are given; or when ``fit`` begins: manual optimisation, several
            processes, a float16 loss scaler, or an optimizer that calls its closure several times.
        AccumulationError: in ``fit``: the loss couples its items, or what it divides by cannot be read; or with
            ``coupled``, the micro-batches cannot be joined.
    """

    def __init__(self, *, weight: WeightFn | None = None, coupled: bool = False) -> None:
        if coupled:
            refuse_coupled(weight, 1)
        self.coupled = coupled
        self._weight = weight
        self._windows: TrainerWindows | None = None
        self._batch: tuple[Any, int] = (None, 0)
        self._random: RandomState | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take over the backward pass of the module."""
        _refuse_unsupported(trainer, pl_module)
        if self.coupled:
            _join_windows(trainer, pl_module)
            return
        windows = self._windows = TrainerWindows(pl_module, weight=self._weight)

        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            batch, index = self._batch
            windows.add(
                batch,
                functools.partial(_loss_again, trainer, pl_module, index=index),
                last=not trainer.fit_loop.epoch_loop._should_accumulate(),
                loss=loss * trainer.accumulate_grad_batches,  # Lightning has divided it by this number
                random=self._random,
            )

        setattr(backward, _REPLACED, None)
        pl_module.backward = backward

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Remember the micro-batch, and the random numbers that it begins with."""
        self._batch, self._random = (batch, batch_idx), RandomState.now()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the backward pass back."""
        for name in ("backward", "training_step"):
            if hasattr(pl_module.__dict__.get(name), _REPLACED):
                pl_module.__dict__.pop(name)
        if self._windows is not None:
            self._windows.discard()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the backward pass back after an error too."""
        self.on_train_end(trainer, pl_module)


class GradientCheck(_Callback):  # type: ignore[misc]
    """Compares the gradient of the first window with that of the full batch, and says what is wrong.

    ``Trainer(callbacks=[GradientCheck()])``. It changes no bit of the training: the micro-batches of the window run
    again from the same random numbers, and what they log is left out.

    Args:
        on_unequal: "warn", or "raise" an AccumulationError.
        coupled: compare with the gradient of the joined micro-batches, for a loss that couples the items of a batch
            and draws no random numbers. Default: as an ``ExactAccumulation`` beside it, or False.

    Raises:
        ConfigError: ``on_unequal`` has another value, or ``coupled`` in several processes.
    """

    def __init__(self, *, on_unequal: Literal["warn", "raise"] = "warn", coupled: bool | None = None) -> None:
        option = "coupled=True" if coupled else ""
        remedy = f"add dagnn.integrations.lightning.ExactAccumulation({option}) to the callbacks of the Trainer."
        self._window = FirstWindow(on_unequal, remedy)
        self._coupled = coupled

    @property
    def report(self) -> Report | None:
        """The verdict; None before the first step, and where it cannot be judged: a coupled loss, see ``coupled``."""
        return self._window.report

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record a micro-batch of the first window."""
        if not self._window.judged:
            self._window.add(batch, functools.partial(_loss_again, trainer, pl_module, index=batch_idx))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Judge the window: its gradient is complete, and not clipped yet."""
        if self._window.judged:
            return
        coupled = self._coupled
        if coupled is None:
            coupled = any(isinstance(each, ExactAccumulation) and each.coupled for each in trainer.callbacks)
        self._window.judge(
            pl_module,
            None,
            full=functools.partial(full_gradient, pl_module, coupled=coupled),
            mean=functools.partial(mean_gradient, pl_module),
            low_precision="16" in str(trainer.precision),
            coupled=coupled,
        )


def _join_windows(trainer: Any, pl_module: Any) -> None:
    """Let ``training_step`` and ``backward`` wait for the last micro-batch of a window, and then run on all."""
    windows, step = CoupledWindows(pl_module), pl_module.training_step
    complete = False

    def training_step(batch: Any, index: int, *args: Any, **kwargs: Any) -> Any:
        nonlocal complete
        complete = not trainer.fit_loop.epoch_loop._should_accumulate()
        whole = windows.join(batch, last=complete)
        if not complete:
            return torch.zeros((), device=pl_module.device, requires_grad=True)
        results = []

        def loss_of(batch: Any) -> Tensor:
            results.append(step(batch, index, *args, **kwargs))
            return _loss_in(results[-1])

        windows.forward(whole, loss_of, functools.partial(_loss_again, trainer, pl_module, index=index))
        return results[-1]

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if complete:
            windows.backward(loss * trainer.accumulate_grad_batches)  # Lightning has divided it by this number

    setattr(training_step, _REPLACED, step)
    setattr(backward, _REPLACED, None)
    pl_module.training_step, pl_module.backward = training_step, backward


_REPLACED = "_dagnn_replaced"  # attribute of a function in the place of one of the module: the module's own


def _refuse_unsupported(trainer: Any, pl_module: Any) -> None:
    if not pl_module.automatic_optimization:
        raise ConfigError(
            "the module optimises by hand (automatic_optimization=False): use dagnn.GradientAccumulator in its "
            "training_step, as the page 'Your Lightning module' shows."
        )
    if trainer.world_size > 1:
        raise ConfigError(
            f"{trainer.world_size} processes: ExactAccumulation sums the windows of one. Optimise by hand with "
            "dagnn.GradientAccumulator, which adds up those of all."
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ConfigError(f"precision={trainer.precision!r} scales the loss: use 'bf16-mixed' or 32 bits.")
    for optimizer in trainer.optimizers:
        if isinstance(getattr(optimizer, "optimizer", optimizer), torch.optim.LBFGS):
            raise ConfigError("LBFGS calls its closure several times per step: use dagnn.GradientAccumulator.update.")


def _loss_again(trainer: Any, pl_module: Any, batch: Any, index: int) -> Tensor:
    """The loss of a micro-batch once more, without what it logs."""
    step = getattr(pl_module.training_step, _REPLACED, pl_module.training_step)
    with _silent(pl_module), trainer.precision_plugin.train_step_context():
        return _loss_in(step(batch, index))


def _loss_in(result: Any) -> Tensor:
    loss = result["loss"] if isinstance(result, dict) else result
    if not isinstance(loss, Tensor):
        raise AccumulationError(f"training_step returned {type(result).__name__}: return the mean loss in all batches.")
    return loss


@contextlib.contextmanager
def _silent(pl_module: nn.Module) -> Iterator[None]:
    names = ("log", "log_dict")
    for name in names:
        pl_module.__dict__[name] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for name in names:
            pl_module.__dict__.pop(name, None)
