"""Running a user's loop over micro-batches and recording the gradient of every optimizer step."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.check.subject import DtypeRecorder, Gradients, Subject
from dagnn.errors import AccumulationError, ConfigError

TrainStep = Callable[..., Any]


class Recording(NamedTuple):
    """What a loop did."""

    steps: list[Gradients]  # the gradient at every optimizer step
    left: Gradients  # what was in .grad when the loop ended
    schedule_steps: int | None  # calls of scheduler.step(); None if the loop takes no scheduler
    low_precision: bool  # something was computed in 16 bits


def record(subject: Subject, train_step: TrainStep, calls: Sequence[Sequence[Any]], *, scale: float) -> Recording:
    """Run ``train_step`` for each of ``calls``, lists of micro-batches; every gradient is multiplied by ``scale``.

    The optimizer has the learning rate 0, so that all steps see the same parameters: then every recorded gradient is a
    combination of the same micro-batch gradients. A small ``scale`` keeps a clipping from acting, a large one forces
    it to; recorded gradients are divided by ``scale`` again.

    Raises:
        AccumulationError: the loop raised.
    """
    subject.reset()
    optimizer = torch.optim.SGD(subject.parameters, lr=0.0)
    steps: list[Gradients] = []

    def note(*_: Any) -> None:
        steps.append(_read(subject.parameters, scale))

    handles = [p.register_hook(lambda gradient: gradient * scale) for p in subject.parameters]  # type: ignore[no-untyped-call]
    step_handle = optimizer.register_step_pre_hook(note)
    scheduler: torch.optim.lr_scheduler.LambdaLR | None = None
    try:
        # The scheduler and the loop may warn about their order; the report says it better.
        with warnings.catch_warnings(), DtypeRecorder() as recorder, torch.enable_grad():
            warnings.simplefilter("ignore")
            if num_arguments(train_step) == 4:
                scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
            for micro_batches in calls:
                train_step(subject.model, optimizer, list(micro_batches), *([scheduler] if scheduler else []))
    except Exception as error:
        raise AccumulationError(f"the loop could not be run, it raised {type(error).__name__}: {error}") from error
    finally:
        step_handle.remove()
        for handle in handles:
            handle.remove()
    left = _read(subject.parameters, scale)
    subject.model.zero_grad()
    return Recording(steps, left, None if scheduler is None else scheduler.last_epoch, recorder.low)


def num_arguments(train_step: TrainStep) -> int:
    """3 for ``(model, optimizer, micro_batches)``, 4 with a scheduler after them."""
    parameters = inspect.signature(train_step).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if len(required) > 4 or len(positional) < 3:
        raise ConfigError(
            "train_step must take (model, optimizer, micro_batches), or (model, optimizer, micro_batches, scheduler), "
            f"got {inspect.signature(train_step)}."
        )
    takes_scheduler = len(positional) >= 4 and (len(required) == 4 or positional[3].name == "scheduler")
    return 4 if takes_scheduler else 3


def _read(parameters: Sequence[Tensor], scale: float) -> Gradients:
    return [None if p.grad is None else p.grad.detach().double().clone() / scale for p in parameters]
