"""Functions that numba compiles at their first call."""

from collections.abc import Callable
from typing import Any

from numba import njit


def jitted(function: Callable[..., Any], *, nogil: bool = False) -> Any:
    """``function`` as machine code, which numba keeps on disk where it may write.

    Where it may not, neither beside the source nor in the user's home or ``NUMBA_CACHE_DIR``, every process compiles
    anew: a few seconds.

    Args:
        nogil: without the interpreter lock.
    """
    try:
        return njit(cache=True, nogil=nogil)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return njit(nogil=nogil)(function)
