"""Lightning: a callback that makes ``accumulate_grad_batches`` exact, and one that judges it."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dagnn.accumulation.check.arithmetic import widened
from dagnn.accumulation.check.causes import judge
from dagnn.accumulation.check.report import Report
from dagnn.accumulation.check.subject import Gradients
from dagnn.accumulation.partition import WeightFn
from dagnn.accumulation.state import RandomState, Snapshot
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError, library, warn
from dagnn.integrations.windows import TrainerWindows

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

    Args:
        weight: a function of the micro-batch that returns what its mean loss divides by, where the graph cannot show
            it.

    Raises:
        ConfigError: when ``fit`` begins: manual optimisation, several processes, a float16 loss scaler, or an optimizer
            that calls its closure several times.
        AccumulationError: in ``fit``: the loss couples its items, or what it divides by cannot be read.
    """

    def __init__(self, *, weight: WeightFn | None = None) -> None:
        self._weight = weight
        self._windows: TrainerWindows | None = None
        self._batch: tuple[Any, int] = (None, 0)
        self._random: RandomState | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take over the backward pass of the module."""
        _refuse_unsupported(trainer, pl_module)
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

        pl_module.backward = backward

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Remember the micro-batch, and the random numbers that it begins with."""
        self._batch, self._random = (batch, batch_idx), RandomState.now()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the backward pass back."""
        pl_module.__dict__.pop("backward", None)
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

    Attributes:
        report: the verdict, a ``dagnn.accumulation.Report``; None before the first step, and where the loss couples its
            items, so that there is nothing to compare with.

    Raises:
        ConfigError: ``on_unequal`` has another value.
    """

    def __init__(self, *, on_unequal: Literal["warn", "raise"] = "warn") -> None:
        if on_unequal not in ("warn", "raise"):
            raise ConfigError(f"on_unequal must be 'warn' or 'raise', got {on_unequal!r}.")
        self.report: Report | None = None
        self._on_unequal = on_unequal
        self._ran: list[tuple[Any, int, RandomState]] = []
        self._judged = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record a micro-batch of the first window."""
        if not self._judged:
            self._ran.append((batch, batch_idx, RandomState.now()))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Judge the window: its gradient is complete, and not clipped yet."""
        if self._judged:
            return
        self._judged = True
        found, gradients = _gradients(pl_module), [(p, p.grad) for p in pl_module.parameters()]
        random, buffers = RandomState.now(), Snapshot([pl_module])
        try:
            self.report = self._judge(trainer, pl_module, found)
        except AccumulationError as error:
            warn(f"the gradient of this training cannot be judged: {error}", AccumulationWarning)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            buffers.restore()
            random.restore()
            self._ran = []
        if self.report is not None and not self.report.equal:
            if self._on_unequal == "raise":
                raise AccumulationError(str(self.report))
            warn(str(self.report), AccumulationWarning)

    def _judge(self, trainer: Any, pl_module: Any, found: Gradients) -> Report:
        named = [(name, p) for name, p in pl_module.named_parameters() if p.requires_grad]
        windows, parts = TrainerWindows(pl_module), []
        for i, (batch, index, random) in enumerate(self._ran):
            random.restore()
            loss_of = functools.partial(_loss_again, trainer, pl_module, index=index)
            windows.add(batch, loss_of, last=i == len(self._ran) - 1)
        expected = _gradients(pl_module)
        for batch, index, random in self._ran:
            random.restore()
            single = TrainerWindows(pl_module, weight=lambda batch: 1.0)
            single.add(batch, functools.partial(_loss_again, trainer, pl_module, index=index), last=True)
            parts.append(_gradients(pl_module))
        wide = all(p.dtype is torch.float64 for _, p in named)
        coarse = "16" in str(trainer.precision)
        return judge(
            [name for name, _ in named],
            [p for _, p in named],
            found,
            expected,
            parts,
            remedy="add dagnn.integrations.lightning.ExactAccumulation() to the callbacks of the Trainer.",
            tolerance=4e-2 if coarse else 1e-6 if wide else 1e-4,
        )


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
    with _silent(pl_module), trainer.precision_plugin.train_step_context():
        result = pl_module.training_step(batch, index)
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


def _gradients(model: nn.Module) -> Gradients:
    return [None if p.grad is None else widened(p.grad).clone() for p in model.parameters() if p.requires_grad]
