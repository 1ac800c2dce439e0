"""The one door to Numba: it has no types of its own, so this file gives it some.

Numba notices when the file of a function changes, but not when a function changes that it calls: after editing one
that is called from another file, delete the ``__pycache__`` folders of this package.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from dagnn.graph.jitted import jitted

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """``function`` as machine code, compiled on the first call, kept on disk if possible, run without the GIL."""
    return cast(Function, jitted(function, nogil=True))


def interpreted(function: Function) -> Function:
    """The Python under a ``compiled`` function: slow, but it takes integers of any size, in arrays of objects."""
    return cast(Function, getattr(function, "py_func", function))
