"""What is computed once and kept: tensors that outlive the call that made them, plans found again by their digest."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from dagnn.errors import GraphError

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


def ordinary_tensors() -> AbstractContextManager[None]:
    """A ``with`` block whose new tensors are ordinary ones, whatever mode the caller is in.

    Use it for what outlives the call, such as the plan of a graph. An inference tensor can never be trained with or
    written to. A tensor made inside a transform of ``torch.func`` or under a dispatch mode is invalid when that ends.
    ``torch.jit.trace`` would record the computation as a part of its program. A default device is such a mode too, so
    new tensors are on the CPU.
    """
    is_ordinary = (
        not torch.is_inference_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and torch._C._get_tracing_state() is None
    )
    return nullcontext() if is_ordinary else _without_modes()


@contextmanager
def _without_modes() -> Iterator[None]:
    tracing = torch._C._get_tracing_state()
    with (
        torch.inference_mode(False),
        temporarily_clear_interpreter_stack(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
    ):
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


def made_once(kept: dict[torch.device, Any], device: torch.device, make: Callable[[], Value]) -> Value:
    """``kept[device]``, made within `ordinary_tensors` when it is first needed."""
    found: Value | None = kept.get(device)
    if found is None:
        with ordinary_tensors():
            found = kept.setdefault(device, make())
    return found


def cached_tensor_property(compute: Callable[[Any], Value]) -> cached_property[Value]:
    """A ``cached_property`` that computes its value within `ordinary_tensors`."""

    def computed(owner: Any) -> Value:
        with ordinary_tensors():
            return compute(owner)

    computed.__doc__ = compute.__doc__
    return cached_property(computed)


def constant(function: Function) -> Function:
    """Marks a function that `torch.compile` and `torch.export` call while they trace; its result is a constant."""
    # As torch.compiler.assume_constant_result does, which would import all of torch.compile: more than a second.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Living(Generic[Value]):
    """Objects of this process by their digest, for as long as they live.

    An operator of torch.library takes numbers and strings, no objects of ours. A string: `torch.compile` keeps programs
    on disk for other processes, where the same number would mean another object.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakKeyDictionary[Value, str] = weakref.WeakKeyDictionary()
        self._newest: weakref.WeakValueDictionary[str, Value] = weakref.WeakValueDictionary()

    def add(self, digest: str, value: Value) -> None:
        self._all[value] = digest
        self._newest[digest] = value

    def find(self, digest: str) -> Value | None:
        value = self._newest.get(digest)
        if value is None:  # the newest of equal ones is gone; an older one may still live
            value = next((each for each, its in list(self._all.items()) if its == digest), None)
            if value is not None:
                self._newest[digest] = value
        return value

    def of_program(self, digest: str, kind: str) -> Value:
        """The object that a compiled program needs; GraphError, which calls it ``kind``, where none lives."""
        found = self.find(digest)
        if found is None:
            raise GraphError(
                f"a compiled program computes with a {kind} that this process does not hold (fingerprint {digest[:12]}"
                "): make the same network here before running it and keep it, or give away a program of torch.export, "
                "which needs none."
            )
        return found
