"""The copy of a user's model and batch that the check examines, and what its precision hides."""

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dagnn.accumulation.check.arithmetic import (
    WIDE,
    Arithmetic,
    dtype_name,
    narrower,
    relative_error,
    seed_python,
    seed_torch,
    total_norm,
    widened,
)
from dagnn.accumulation.check.start import KeptNumbers, ModelStart
from dagnn.accumulation.random_states import Generators, Snapshot
from dagnn.errors import ConfigError, DagnnError

LossFn = Callable[[Any, Any], Any]
Gradients = list[Tensor | None]
TrainStep = Callable[..., Any]  # train_step(model, optimizer, micro_batches), with or without a scheduler at the end

# Relative error up to which two gradients count as equal, by the narrowest dtype that an operation used.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}


class Subject:
    """A copy of a model and a batch that can be run again and again from the same state.

    Attributes:
        model, batch: the copies.
        own_dtype: the dtype of the caller's model.
        dtype: float64, or ``own_dtype`` where the loss cannot run in float64.
        narrowest: the narrowest dtype that any operation used.
        avoided: dtypes that the loss or the loop casts to, and that float64 replaced.
        draws: an operation drew random numbers while ``attentive``.
        still: random numbers are the same for each item, see :class:`Arithmetic`.
        stateful: a forward pass reads what an earlier one wrote into a buffer.
        attentive: dtypes are recorded. That takes half of the time, so it is off once nothing was found.
        names, parameters: those that require a gradient.
        generators: those of the user's own that the model, the loss or the loop draws from.
        kept: numbers that the loss and the loop keep between their calls.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, batch: Any, *, wide: bool = True) -> None:
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError(
                f"the model ({type(model).__name__}) has no parameter that requires a gradient: unfreeze some of it."
            )
        tensors = [p for p in model.parameters() if p.is_floating_point() or p.is_complex()]
        self.own_dtype = next((p.dtype for p in tensors if p.is_floating_point()), torch.float32)
        self._original = (model, loss_fn, batch)
        self._loss_fn, self._wide, self.still, self._noise = loss_fn, wide, False, 0.0
        self.attentive, self.draws, self.stateful = True, False, False
        self.avoided: set[torch.dtype] = set()
        self.generators, self.kept = Generators(), KeptNumbers()
        self.generators.look_in(loss_fn)
        self.kept.look_in(loss_fn)
        self.model, self.batch, self.narrowest = _copy(model), batch, torch.float64
        self.generators.look_in(self.model)
        if wide:
            self.model._apply(lambda tensor: tensor.to(WIDE.get(tensor.dtype, tensor.dtype)))  # type: ignore[no-untyped-call]
            self.batch = _to_double(batch)
            if not self._runs():
                self.model, self.batch, self._wide = _copy(model), batch, False
                self.generators.look_in(self.model)
                self.avoided.clear()
        self.dtype = torch.float64 if self._wide else self.own_dtype
        self.narrowest = self.dtype
        self.model.zero_grad()
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self._start, self._model_start = Snapshot([self.model]), ModelStart(self.model)
        self._values = [p.detach().clone() for p in self.parameters]
        gradient = self.gradient()
        infinite = [n for n, g in zip(self.names, gradient, strict=True) if g is not None and not g.isfinite().all()]
        if infinite:
            raise ConfigError(
                f"the gradient of the full batch is not finite at {infinite[0]}: give a batch whose loss is finite."
            )
        if all(g is None for g in gradient):
            raise ConfigError(
                "the loss does not depend on the model that loss_fn gets: use its first argument, not a model from "
                "outside, since the check runs on a copy."
            )

    @property
    def tolerance(self) -> float:
        """Relative error up to which two gradients count as equal."""
        least = _TOLERANCE.get(self.narrowest, 2e-5)
        if least > 1e-6 and not self._noise:
            self._noise = self._rounding(self.narrowest)
        return max(least, min(0.1, 4 * self._noise))

    @property
    def has_16_bits(self) -> bool:
        """The caller's model is in float16 or bfloat16."""
        return self.own_dtype in (torch.float16, torch.bfloat16)

    def in_own_precision(self) -> "Subject":
        """The same model and batch in the caller's dtype."""
        other = self.narrow()
        other.still, other.stateful, other.attentive = self.still, self.stateful, False
        return other

    def narrow(self) -> "Subject":
        """The same from its start, in the caller's dtype."""
        self.generators.restore()
        other = Subject(*self._original, wide=False)
        other.generators, other.kept = self.generators, self.kept
        other.generators.look_in(other.model)
        return other

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Inside, operations run as ``Arithmetic`` makes them, and this subject records what it saw."""
        default = torch.get_default_dtype()
        try:
            if self._wide:
                torch.set_default_dtype(torch.float64)
            arithmetic = Arithmetic(wide=self._wide, still=self.still, generators=self.generators)
            needed = self.attentive or self.still or self.avoided
            with warnings.catch_warnings(), torch.enable_grad(), arithmetic if needed else nullcontext():
                warnings.simplefilter("ignore")  # the user's code warns when it runs by itself
                yield
            self.narrowest = narrower(self.narrowest, arithmetic.narrowest)
            self.avoided |= arithmetic.avoided
            self.draws |= arithmetic.draws
        finally:
            torch.set_default_dtype(default)

    def loss(self, batch: Any) -> Tensor:
        """The loss of ``batch`` as one number."""
        try:
            return _total_loss(self._loss_fn(self.model, batch))
        except TypeError as error:
            error.add_note("loss_fn is called as loss_fn(model, batch), and returns the mean loss of the batch.")
            raise

    def gradient(self, batch: Any = None, *, seed: int = 0) -> Gradients:
        """Gradient of the loss of ``batch`` (default: the whole) from the state at the start."""
        self.reset(seed)
        return self.next_gradient(self.batch if batch is None else batch)

    def next_gradient(self, batch: Any) -> Gradients:
        """Gradient of the loss of ``batch`` from the state that the last call left."""
        self.model.zero_grad()
        with self.computing():
            loss = self.loss(batch)
            if not loss.requires_grad:
                return [None] * len(self.parameters)
            # backward, not autograd.grad: reentrant checkpoints refuse the latter.
            loss.backward()  # type: ignore[no-untyped-call]
        found: Gradients = [None if p.grad is None else widened(p.grad) for p in self.parameters]
        self.model.zero_grad()
        return found

    def slope(self, gradient: Gradients) -> float:
        """How fast the loss of the whole batch rises along ``gradient``: the norm of a right gradient.

        It is a central difference, with the random numbers of seed 0 at both ends.
        """
        norm, size = total_norm(gradient), max(1.0, total_norm(self._values))
        slopes = [self._difference(gradient, norm, size * step) for step in (1e-4, 1e-6)]
        return min(slopes, key=lambda slope: abs(slope - norm))

    def reset(self, seed: int = 0) -> None:
        """Go back to the state at the start: all of the model, gradients, random numbers, what the loop counts."""
        self._model_start.restore()
        self.kept.restore()
        self.restore_parameters()
        self.restore_buffers()
        self.model.zero_grad()
        seed_torch(seed)
        seed_python(seed)
        self.generators.restore()
        if seed:
            self.generators.seed(seed)

    def repeat_draws(self) -> None:
        """Let Python, NumPy and generators of the user's own draw the same numbers again."""
        seed_python(0)
        self.generators.restore()

    def restore_parameters(self) -> list[str]:
        """Give all parameters their values from the start; return the names of those that had moved."""
        moved = []
        for name, parameter, value in zip(self.names, self.parameters, self._values, strict=True):
            if not torch.equal(parameter.data, value):
                parameter.data.copy_(value)
                moved.append(name)
        return moved

    def restore_buffers(self) -> None:
        """Give all buffers their values from the start."""
        self._start.restore_buffers()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Inside, the start is another one, near it: a penalty to the first one, or a factor of 0, hides gradients."""
        values, random = self._values, torch.Generator().manual_seed(0)

        def near(value: Tensor) -> Tensor:
            noise = torch.randn(value.shape, generator=random, dtype=torch.float64).to(value)
            return value + noise * (0.02 + 0.1 * float(value.abs().mean()) if value.numel() else 0.0)

        self._values = [near(value) for value in values]
        try:
            yield
        finally:
            self._values = values
            self.reset()

    def batch_norm_layers(self) -> list[tuple[str, nn.Module]]:
        """BatchNorm layers in training mode."""
        return [(n, m) for n, m in self.model.named_modules() if isinstance(m, _BatchNorm) and m.training]

    def dropout_layers(self) -> list[tuple[str, nn.Module]]:
        """Dropout layers in training mode that drop something."""
        return [(n, m) for n, m in self.model.named_modules() if isinstance(m, _DropoutNd) and m.training and m.p > 0]

    def _difference(self, gradient: Gradients, norm: float, step: float) -> float:
        losses = []
        for sign in (1, -1):
            self.reset()
            for p, g in zip(self.parameters, gradient, strict=True):
                if g is not None:
                    p.data.add_((g * (sign * step / norm)).to(p.dtype))
            with self.computing():  # with autograd: a gradient penalty needs it
                losses.append(float(self.loss(self.batch).detach().real))
        self.reset()
        return (losses[0] - losses[1]) / (2 * step)

    def _rounding(self, dtype: torch.dtype) -> float:
        """Relative change of the gradient when every parameter changes by one unit in the last place of ``dtype``."""
        eps = torch.finfo(dtype).eps
        before = self.gradient()
        self.reset(1)
        for p in self.parameters:
            p.data.add_(p.data * torch.randn_like(p.data) * eps)
        return relative_error(self.next_gradient(self.batch), before)

    def _runs(self) -> bool:
        """Whether the loss runs in float64. It does not if it holds a constant of another dtype."""
        try:
            with self.computing():
                loss = self.loss(self.batch)
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, TypeError, ValueError, AssertionError):
            return False
        self.model.zero_grad()
        return True


def num_arguments(train_step: TrainStep) -> int:
    """3 for ``(model, optimizer, micro_batches)``, 4 with a scheduler after them."""
    if inspect.iscoroutinefunction(train_step) or inspect.isgeneratorfunction(train_step):
        raise ConfigError("train_step must run when it is called: wrap a coroutine or generator in a plain function.")
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


def notes_on_precision(subject: Subject) -> list[str]:
    """Which differences the check cannot see, because of the dtypes it computes in."""
    if subject.dtype is not torch.float64:
        why = f"the loss or the loop cannot run in float64, so it was compared in {dtype_name(subject.dtype)}"
    elif subject.narrowest is not torch.float64:
        why = f"something is computed in {dtype_name(subject.narrowest)}"
    elif subject.avoided:
        return [f"casts to {', '.join(sorted(map(dtype_name, subject.avoided)))} were kept in float64."]
    else:
        return []
    return [f"{why}: differences below {subject.tolerance:.0e} of the gradient cannot be seen."]


def own_precision_note(subject: Subject) -> list[str]:
    """How far off the gradient of the full batch is in the model's own precision, if that has 16 bits."""
    if not subject.has_16_bits or subject.dtype is not torch.float64:
        return []
    try:
        error = relative_error(subject.in_own_precision().gradient(), subject.gradient())
    except (DagnnError, RuntimeError):
        return []
    return [
        f"compared in float64; in {dtype_name(subject.own_dtype)} itself the full batch's gradient is off by "
        f"{error:.1e}, and sums of many micro-batches lose more: sum them in float32."
    ]


def _total_loss(result: Any) -> Tensor:
    """The loss from what ``loss_fn`` returned: the sum of named losses, without a weight beside them."""
    if isinstance(result, tuple):
        result = result[0]
    if isinstance(result, Mapping):
        result = sum(result.values())
    if not isinstance(result, Tensor) or result.numel() != 1:
        given = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else repr(result)[:80]
        raise ConfigError(f"loss_fn must return one number as a tensor, got {given}: return the mean loss.")
    return result.squeeze()


def _to_double(batch: Any) -> Any:
    """``batch`` with its floating-point and complex tensors in float64 and complex128."""
    if isinstance(batch, Tensor):
        return batch.detach().to(WIDE.get(batch.dtype, batch.dtype))
    if isinstance(batch, np.ndarray):
        return batch.astype(np.result_type(batch.dtype, np.float64)) if batch.dtype.kind in "fc" else batch
    if isinstance(batch, Mapping):
        parts = {key: _to_double(value) for key, value in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_double(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to_double(value) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: _to_double(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        remedy = "give it a __deepcopy__, or keep what cannot be copied outside of it"
        if "explicitly by the user" in str(error):  # tensors with a graph, as torch.nn.utils.weight_norm keeps them
            remedy = "use torch.nn.utils.parametrizations for weight_norm and the like, and prune.remove after pruning"
        raise ConfigError(
            f"the check runs on a copy, but copy.deepcopy of {type(model).__name__} failed: {error} To be copied, "
            f"{remedy}."
        ) from error
