"""What is computed once and kept: tensors that outlive the call that made them, and functions that numba compiles."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from numba import njit
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


def lasting() -> AbstractContextManager[None]:
    """Code whose tensors outlive the call, such as the plan of a graph.

    What inference mode makes could never be trained with or written to; what is made within a transform of
    ``torch.func`` or under somebody's dispatch mode belongs to it, and is no tensor any more when that ends. A default
    device is such a mode too: plans are made on the CPU. What
    ``torch.jit.trace`` sees becomes a part of its program.
    """
    is_ordinary = (
        not torch.is_inference_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and torch._C._get_tracing_state() is None
    )
    return nullcontext() if is_ordinary else _outside()


@contextmanager
def _outside() -> Iterator[None]:
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


def lasting_property(make: Callable[[Any], Made]) -> cached_property[Made]:
    """A ``cached_property`` whose tensors are `lasting`."""

    def made(owner: Any) -> Made:
        with lasting():
            return make(owner)

    made.__doc__ = make.__doc__
    return cached_property(made)


def constant(fact: Function) -> Function:
    """`torch.compile` and `torch.export` call this function and take what comes back for a constant."""
    # As torch.compiler.assume_constant_result, which imports all of torch.compile for it: more than a second.
    fact._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fact


def jitted(function: Function) -> Function:
    """``function`` as machine code, which numba compiles at the first call and runs without the GIL.

    numba keeps the code on disk. Where it may write neither beside the source nor in the user's home or
    ``NUMBA_CACHE_DIR``, every process compiles again, which takes a few seconds.
    """
    try:
        return cast(Function, njit(cache=True, nogil=True)(function))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cast(Function, njit(nogil=True)(function))


def interpreted(function: Function) -> Function:
    """The Python under a `jitted` function: slow, but it takes integers of any size, in arrays of objects."""
    return cast(Function, getattr(function, "py_func", function))
