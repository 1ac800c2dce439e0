"""The gradients of one window while they are summed: where they go, their norm, and clipping by it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.errors import AccumulationError, ConfigError

AccumulateDtype = torch.dtype | str | None
# Of a number, and of each part of a complex one.
_BITS = {
    torch.float16: 16,
    torch.bfloat16: 16,
    torch.complex32: 16,
    torch.float32: 32,
    torch.complex64: 32,
    torch.float64: 64,
    torch.complex128: 64,
}


class Sums(ABC):
    """The gradients of one window. ``GradientSums`` is the usual form; ``eager.py`` has those that save memory."""

    parameters: list[nn.Parameter]
    narrow_parameters: bool  # some parameters have 16 bits
    rescalable: bool  # no sum has 16 bits, so multiplying them by a factor loses almost nothing
    final: bool  # what backward adds cannot be rescaled any more: weights must be known before

    @abstractmethod
    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Called before the first backward pass of each micro-batch."""

    @abstractmethod
    def backward(
        self, losses: Sequence[Tensor], *, gradients: Sequence[Tensor] | None = None, retain_graph: bool = False
    ) -> None:
        """Run one backward pass over ``losses``, adding to the sums; from ``gradients`` if they are no numbers."""

    @abstractmethod
    def scale_(self, factor: float) -> None:
        """Multiply all sums by ``factor``; where that is too late, divide what comes next by it."""

    @abstractmethod
    def expose(self) -> None:
        """Put the sums into ``.grad``, for the user, the norm and the optimizer."""

    @abstractmethod
    def norm(self, sum_parts: Callable[[float], float]) -> tuple[bool, float]:
        """Whether all sums are finite, and their L2 norm; nan where it is not known."""

    @property
    def update_begun(self) -> bool:
        """Something was updated that ``clear`` cannot undo."""
        return False

    @abstractmethod
    def has_sum(self) -> list[bool]:
        """For each of ``parameters`` whether a gradient was added."""

    @abstractmethod
    def named(self, names: dict[int, str]) -> list[tuple[str, Tensor]]:
        """(name, sum) of every parameter that has one; ``names`` by ``id(parameter)``."""

    @abstractmethod
    def narrow(self) -> None:
        """Cast exposed sums to the dtype of their parameters."""

    @abstractmethod
    def apply(self, optimizers: Sequence[Optimizer]) -> None:
        """Update the parameters."""

    @abstractmethod
    def clear(self) -> None:
        """Drop the sums and ``.grad``: memory goes back, and a parameter without gradient is left alone by step."""

    @abstractmethod
    def state(self) -> list[Tensor | None]:
        """A copy of the sum of each of ``parameters``, in order."""

    @abstractmethod
    def load_state(self, state: Sequence[Tensor | None]) -> None:
        """Inverse of ``state``."""

    @abstractmethod
    def begin_trial(self) -> None:
        """Keep what follows apart, until it is accepted or left out. Costs a second set of gradients."""

    @abstractmethod
    def end_trial(self, *, keep: bool) -> bool:
        """Add what came since ``begin_trial`` if it is finite and ``keep``, else forget it; True if it was added."""


@final
class GradientSums(Sums):
    """Sums of gradients, kept away from ``.grad`` between the backward calls of a window.

    What else happens to ``.grad`` in between (another model's loss that flows through these parameters, a stray
    ``zero_grad``, a backward in an evaluation loop) can then not disturb the sum. Moving the tensors in and out is
    pointer work: about 0.5 microseconds per parameter and micro-batch.

    Parameters of 16 bits get 32-bit sums: ``grad_dtype`` is set only while our own backward runs, because optimizers
    reject the mix and a copied parameter would lose it.
    """

    final = False

    def __init__(self, parameters: Iterable[nn.Parameter], accumulate_dtype: AccumulateDtype = "auto") -> None:
        self.parameters: list[nn.Parameter] = list(parameters)
        self._held: list[Tensor | None] = [None] * len(self.parameters)
        wide = {dtype: wide_dtype(dtype, accumulate_dtype) for dtype in {p.dtype for p in self.parameters}}
        self._wide = [(p, d) for p in self.parameters if (d := wide[p.dtype]) is not None] if any(wide.values()) else []
        self._base: list[Tensor | None] | None = None  # the sums without the micro-batch on trial
        self.narrow_parameters = any(map(has_16_bits, wide))
        self.rescalable = all(d is not None for dtype, d in wide.items() if has_16_bits(dtype))
        self._exposed = False

    def begin_micro_batch(self, *, is_last: bool) -> None:
        pass

    def backward(
        self, losses: Sequence[Tensor], *, gradients: Sequence[Tensor] | None = None, retain_graph: bool = False
    ) -> None:
        self._attach()
        try:
            run_backward(losses, gradients, retain_graph=retain_graph)
        finally:
            self._detach()

    def expose(self) -> None:
        if not self._exposed:
            self._attach()
            self._held = [None] * len(self.parameters)
            self._exposed = True

    def tensors(self) -> list[Tensor]:
        """The sums that exist, as plain local tensors that share memory with them."""
        source = [p.grad for p in self.parameters] if self._exposed else self._held
        return [_local_part(gradient) for gradient in source if gradient is not None]

    def has_sum(self) -> list[bool]:
        return [p.grad is not None for p in self.parameters] if self._exposed else [h is not None for h in self._held]

    def named(self, names: dict[int, str]) -> list[tuple[str, Tensor]]:
        source = [p.grad for p in self.parameters] if self._exposed else self._held
        return [
            (names.get(id(p), f"parameter {i}"), _local_part(g))
            for i, (p, g) in enumerate(zip(self.parameters, source, strict=True))
            if g is not None
        ]

    def scale_(self, factor: float) -> None:
        if factor == 1.0:
            return
        sums = self.tensors()
        if self._base is not None:
            sums += [_local_part(gradient) for gradient in self._base if gradient is not None]
        dense = [gradient for gradient in sums if not gradient.is_sparse]
        if dense:
            torch._foreach_mul_(dense, factor)
        for gradient in sums:
            if gradient.is_sparse:
                gradient.mul_(factor)

    def state(self) -> list[Tensor | None]:
        return [None if held is None else held.detach().clone() for held in self._held]

    def load_state(self, state: Sequence[Tensor | None]) -> None:
        if len(state) != len(self.parameters):
            raise ConfigError(
                f"the saved window had {len(state)} parameters, but this one has {len(self.parameters)}: load the "
                "state with the same model and the same parameters frozen."
            )
        wide = {id(parameter): dtype for parameter, dtype in self._wide}
        for parameter, saved in zip(self.parameters, state, strict=True):
            if saved is not None and saved.shape != parameter.shape:
                raise ConfigError(
                    f"a saved gradient has the shape {list(saved.shape)}, its parameter {list(parameter.shape)}: the "
                    "state is of another model."
                )
            if saved is not None and saved.dtype != (dtype := wide.get(id(parameter), parameter.dtype)):
                raise ConfigError(
                    f"a saved gradient is a sum in {saved.dtype}, but the gradients of this {parameter.dtype} "
                    f"parameter are summed in {dtype}: load the state with a model of the same dtype and the same "
                    "accumulate_dtype."
                )
        pairs = zip(state, self.parameters, strict=True)
        self._held = [None if s is None else s.to(p.device, copy=True) for s, p in pairs]  # they grow in place

    def begin_trial(self) -> None:
        self._base, self._held = self._held, [None] * len(self.parameters)

    def end_trial(self, *, keep: bool) -> bool:
        keep = keep and math.isfinite(total_norm(self.tensors()))
        base, trial = self._base or [], self._held
        self._base = None
        self._held = [add_gradients(old, new) if keep else old for old, new in zip(base, trial, strict=True)]
        return keep

    def norm(self, sum_parts: Callable[[float], float]) -> tuple[bool, float]:
        norm = total_norm(self.tensors(), sum_parts)
        return math.isfinite(norm), norm

    def apply(self, optimizers: Sequence[Optimizer]) -> None:
        self.narrow()
        for optimizer in optimizers:
            optimizer.step()

    def narrow(self) -> None:
        for parameter, _ in self._wide:
            gradient = parameter.grad  # one at a time: wide and narrow gradients never exist in full together
            parameter.grad = None
            parameter.grad_dtype = parameter.dtype
            if gradient is not None:
                parameter.grad = gradient.to(parameter.dtype)

    def clear(self) -> None:
        self._held = [None] * len(self.parameters)
        self._base = None
        self._exposed = False
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, _ in self._wide:
            parameter.grad_dtype = parameter.dtype

    def _attach(self) -> None:
        for parameter, dtype in self._wide:
            parameter.grad = None
            parameter.grad_dtype = dtype
        try:
            for parameter, gradient in zip(self.parameters, self._held, strict=True):
                parameter.grad = gradient
        except RuntimeError as error:
            assert gradient is not None
            raise AccumulationError(
                f"a parameter of the shape {list(gradient.shape)} is {parameter.dtype} on {parameter.device} now, but "
                f"its gradient so far is {gradient.dtype} on {gradient.device}: convert or move a model between "
                "windows, and give this one up with window.discard()."
            ) from error

    def _detach(self) -> None:
        self._held = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, _ in self._wide:
            parameter.grad_dtype = parameter.dtype


def add_gradients(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """The sum, in the memory of one of them; a sparse and a dense gradient make a dense one."""
    if old is None or new is None:
        return new if old is None else old
    return new.add_(old) if old.is_sparse and not new.is_sparse else old.add_(new)


def has_16_bits(dtype: torch.dtype) -> bool:
    """True for float16, bfloat16 and complex32, whose gradients are summed in a wider dtype."""
    return _BITS.get(dtype) == 16


def wide_dtype(dtype: torch.dtype, accumulate_dtype: AccumulateDtype) -> torch.dtype | None:
    """The dtype to sum gradients of ``dtype`` in, or None where that is ``dtype`` itself."""
    if accumulate_dtype is None or dtype not in _BITS:
        return None
    target = torch.float32 if accumulate_dtype == "auto" else accumulate_dtype
    if not isinstance(target, torch.dtype) or _BITS[target] <= _BITS[dtype]:
        return None
    return target.to_complex() if dtype.is_complex else target


def check_accumulate_dtype(value: AccumulateDtype) -> None:
    """Raise ConfigError unless ``value`` is "auto", None, torch.float32 or torch.float64."""
    if value not in ("auto", None, torch.float32, torch.float64):
        raise ConfigError(
            f"accumulate_dtype must be 'auto' (32-bit sums for 16-bit gradients), None (sum in the gradients' own "
            f"dtype), torch.float32 or torch.float64, got {value!r}."
        )


# What torch.autograd.backward calls once it has checked its arguments. Those checks take about a fifth of the backward
# pass of a small model, and here there is nothing to check. It is not public: without it the public way is taken.
_run_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)


def run_backward(losses: Sequence[Tensor], gradients: Sequence[Tensor] | None, *, retain_graph: bool) -> None:
    """``torch.autograd.backward``; quicker for 0-dimensional ``losses`` with ``gradients`` that fit them."""
    if gradients is None or _run_engine is None or not all(map(_is_plain_number, losses)):
        torch.autograd.backward(losses, gradients, retain_graph=retain_graph)
        return
    _run_engine(tuple(losses), tuple(gradients), retain_graph, False, (), allow_unreachable=True, accumulate_grad=True)


def _is_plain_number(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and not tensor.ndim


def total_norm(gradients: Sequence[Tensor], sum_over_ranks: Callable[[float], float] | None = None) -> float:
    """L2 norm over all elements of ``gradients``; inf or nan exactly when an element is.

    Gradients of 16 bits are squared in float32. Should float32 overflow on finite elements, the norm is computed again
    in float64: a norm of inf would turn every finite gradient into zero when clipped.

    Args:
        gradients: local tensors of any dtype and device, dense or sparse.
        sum_over_ranks: adds a number over the processes that each hold a part of the gradients.
    """
    dense = list(map(values, gradients))
    squared = sum(norm * norm for norm in _norms(dense, torch.float32))
    if not math.isfinite(squared) and all(bool(torch.isfinite(gradient).all()) for gradient in dense):
        squared = sum(norm * norm for norm in _norms(dense, torch.float64))
    return math.sqrt(squared if sum_over_ranks is None else sum_over_ranks(squared))


def clip_factor(norm: float, max_norm: float) -> float:
    """What gradients of norm ``norm`` are multiplied by, the same as ``torch.nn.utils.clip_grad_norm_`` does."""
    return min(1.0, max_norm / (norm + 1e-6))


def first_nonfinite(gradients: Sequence[tuple[str, Tensor]]) -> str | None:
    """Name of the first gradient with an element that is inf or nan."""
    for name, gradient in gradients:
        if not bool(torch.isfinite(values(gradient)).all()):
            return name
    return None


def values(gradient: Tensor) -> Tensor:
    """The elements of a gradient; of a sparse one those that are stored, duplicates summed."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _local_part(gradient: Tensor) -> Tensor:
    """This process's part of a gradient that is sharded over processes (a DTensor), else ``gradient``."""
    if type(gradient) is Tensor:
        return gradient
    # By attribute, not by class: torch.distributed.tensor takes long to import and may be missing.
    to_local = getattr(gradient, "to_local", None)
    if to_local is None:
        return gradient
    local: Tensor = to_local()
    return local


def _norms(gradients: Sequence[Tensor], at_least: torch.dtype) -> list[float]:
    """Norms in ``at_least`` or the gradient's own dtype if that is wider, with one transfer per (device, dtype)."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(
            gradient.detach() if gradient.requires_grad else gradient
        )
    norms: list[float] = []
    for (_, dtype), members in groups.items():
        norms += as_numbers(torch._foreach_norm(members, 2.0, torch.promote_types(dtype, at_least)))
    return norms


def as_numbers(tensors: Sequence[Tensor]) -> list[float]:
    """0-dimensional ``tensors`` as numbers, with one transfer from a device; read one by one on the host, which is
    three times faster there than to stack them."""
    if len(tensors) > 1 and not tensors[0].is_cpu and len({(t.dtype, t.device) for t in tensors}) == 1:
        values: list[float] = torch.stack(list(tensors)).tolist()
        return values
    return list(map(float, tensors))
