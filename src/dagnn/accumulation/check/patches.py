"""What a loop may make for itself and PyTorch has no hook for: optimizers, schedulers, loss scalers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import _disable_current_modes


class Patches:
    """While active, notes what optimizers, schedulers and loss scalers do, whoever made them.

    Attributes:
        optimizers: those made since, in order.
        scheduler_steps: steps of the scheduler that stepped most; a step to a given epoch does not count.
        scaled, disabled: a ``GradScaler`` scaled a loss, or was disabled.
    """

    def __init__(self, loss_scale: float, on_schedule: Callable[[], None]) -> None:
        self.optimizers: list[Optimizer] = []
        self.scaled = self.disabled = False
        self._loss_scale, self._on_schedule = loss_scale, on_schedule
        self._schedulers: dict[int, tuple[LRScheduler, int]] = {}
        self._scalers: dict[int, tuple[GradScaler, dict[str, Any]]] = {}
        self._depth = 0

    @property
    def scheduler_steps(self) -> int:
        return max((count for _, count in self._schedulers.values()), default=0)

    def __enter__(self) -> None:
        with ExitStack() as stack:
            self._wrap(stack, Optimizer, "__init__", self._make_optimizer)
            for scheduler in _family(LRScheduler):
                if "step" in vars(scheduler):
                    self._wrap(stack, scheduler, "step", self._schedule)
            self._wrap(stack, GradScaler, "__init__", self._make_scaler)
            self._wrap(stack, GradScaler, "scale", self._scale)
            self._wrap(stack, GradScaler, "_lazy_init_scale_growth_tracker", self._start_scale)
            for name in ("unscale_", "step", "update"):
                # A scaler's own arithmetic is float32, and its kernels take nothing else.
                self._wrap(stack, GradScaler, name, _without_modes)
            self._exit = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._exit.close()
        for scaler, state in self._scalers.values():
            vars(scaler).clear()
            vars(scaler).update(state)

    @staticmethod
    def _wrap(stack: ExitStack, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        original = vars(owner)[name]

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(original, self, *args, **kwargs)

        setattr(owner, name, method)
        stack.callback(setattr, owner, name, original)

    def _make_optimizer(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.optimizers.append(optimizer)

    def _schedule(self, original: Any, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
        initial = getattr(scheduler, "_is_initial", False)
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        to_epoch = (len(args) > plateau and args[plateau] is not None) or kwargs.get("epoch") is not None
        if not self._depth and not initial and not to_epoch:
            _, count = self._schedulers.get(id(scheduler), (scheduler, 0))
            self._schedulers[id(scheduler)] = (scheduler, count + 1)
            self._on_schedule()
        self._depth += 1  # a scheduler made of others steps them
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._depth -= 1

    @staticmethod
    def _make_scaler(original: Any, scaler: GradScaler, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        # On a machine without CUDA a scaler for it would switch itself off, and nothing could be seen.
        original(scaler, device if torch.cuda.is_available() else "cpu", *args, **kwargs)

    def _scale(self, original: Any, scaler: GradScaler, outputs: Any) -> Any:
        self.scaled |= scaler.is_enabled()
        self.disabled |= not scaler.is_enabled()
        self._keep(scaler)
        return original(scaler, outputs)

    def _start_scale(self, original: Any, scaler: GradScaler, device: torch.device) -> None:
        with _disable_current_modes():
            original(scaler, device)
            assert scaler._scale is not None
            scaler._scale = scaler._scale * self._loss_scale

    def _keep(self, scaler: GradScaler) -> None:
        """Remember a scaler's state when it is first seen, to give it back afterwards."""
        if id(scaler) in self._scalers:
            return
        with _disable_current_modes():
            state: dict[str, Any] = dict(vars(scaler))
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()
                elif isinstance(value, dict):
                    state[name] = value.copy()
            self._scalers[id(scaler)] = (scaler, state)
            if scaler.is_enabled() and scaler._scale is not None:
                scaler._scale = scaler._scale * self._loss_scale


def _without_modes(original: Any, scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
    with _disable_current_modes():
        return original(scaler, *args, **kwargs)


def _family(base: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield base
    for child in base.__subclasses__():
        yield from _family(child)
