"""Functions as machine code of numba, which keeps it on disk for other processes."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

Value = TypeVar("Value")
Parameters = ParamSpec("Parameters")


def jitted(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """The function as machine code that runs without the interpreter lock; numba compiles it on the first call.

    numba keeps the code on disk. Where it can write neither beside the source nor in the user's home or
    ``NUMBA_CACHE_DIR``, every process compiles again: a few seconds.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return njit(nogil=True)(function)
