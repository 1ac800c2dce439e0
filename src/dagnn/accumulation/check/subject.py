"""The copy of a user's model and batch that is examined, so that the originals stay as they are."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from dagnn.accumulation.snapshot import Snapshot
from dagnn.errors import ConfigError

LossFn = Callable[[Any, Any], Any]
Gradients = list[Tensor | None]


class Subject:
    """A copy of a model and a batch that can be run again and again from the same state.

    Attributes:
        model, batch: the copies.
        dtype: float64, or the model's own where its loss cannot run in float64.
        tolerance: relative error up to which two gradients count as equal in that dtype.
        names, parameters: those that require a gradient.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, batch: Any, *, wide: bool = True) -> None:
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError("the model has no parameter that requires a gradient: there is nothing to check.")
        own_dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        self._loss_fn = loss_fn
        self.model, self.batch, self.dtype = _copy(model), batch, own_dtype
        if wide and _runs(loss_fn, _copy(model).double(), to_double(batch)):
            self.model, self.batch, self.dtype = self.model.double(), to_double(batch), torch.float64
        self.model.zero_grad()
        self.tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(self.dtype, 5e-2)
        self.names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._start = Snapshot([self.model])
        if all(gradient is None for gradient in self.gradient()):
            raise ConfigError(
                "the loss does not depend on the model that loss_fn gets: use its first argument, not a model from "
                "outside, since the check runs on a copy."
            )

    def loss(self, batch: Any) -> Tensor:
        """The loss of ``batch`` as one number."""
        return total_loss(self._loss_fn(self.model, batch))

    def gradient(self, batch: Any = None, *, seed: int = 0) -> Gradients:
        """Gradient of the loss of ``batch`` (default: the whole) from the state at the start."""
        self.reset(seed)
        return self.next_gradient(self.batch if batch is None else batch)

    def next_gradient(self, batch: Any) -> Gradients:
        """Gradient of the loss of ``batch`` from the state that the last call left."""
        found = torch.autograd.grad(self.loss(batch), self.parameters, allow_unused=True)
        return [None if g is None else g.detach() for g in found]

    def reset(self, seed: int = 0) -> None:
        """Back to the state at the start: buffers, gradients, random numbers."""
        self._start.restore_buffers()
        self.model.zero_grad()
        torch.manual_seed(seed)

    def batch_norm_layers(self) -> list[tuple[str, nn.Module]]:
        """BatchNorm layers in training mode."""
        return [(n, m) for n, m in self.model.named_modules() if isinstance(m, _BatchNorm) and m.training]

    def dropout_layers(self) -> list[tuple[str, nn.Module]]:
        """Dropout layers in training mode that drop something."""
        return [(n, m) for n, m in self.model.named_modules() if isinstance(m, _DropoutNd) and m.training and m.p > 0]


class DtypeRecorder(TorchDispatchMode):
    """Notes whether anything was computed in 16 bits while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.low = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype in (torch.float16, torch.bfloat16):
            self.low = True
        return result


def total_loss(result: Any) -> Tensor:
    """The loss that ``loss_fn`` returned as one tensor: named losses added, a weight beside it left out."""
    if isinstance(result, tuple):
        result = result[0]
    if isinstance(result, Mapping):
        result = sum(result.values())
    if not isinstance(result, Tensor) or result.numel() != 1:
        raise ConfigError(f"loss_fn must return one number as a tensor, got {type(result).__name__}.")
    return result.squeeze()


def to_double(batch: Any) -> Any:
    """``batch`` with its floating-point tensors in float64."""
    if isinstance(batch, Tensor):
        return batch.detach().double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        parts = {key: to_double(value) for key, value in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_double(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_double(value) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: to_double(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ConfigError(f"the model cannot be copied, so it cannot be checked on a copy: {error}") from error


def _runs(loss_fn: LossFn, model: nn.Module, batch: Any) -> bool:
    """The loss runs in float64; it does not where it holds a constant of another dtype."""
    try:
        with torch.no_grad():
            loss_fn(model, batch)
    except (RuntimeError, TypeError):
        return False
    return True
