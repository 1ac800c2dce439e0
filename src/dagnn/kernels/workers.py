"""Runs a compiled function on several threads. The function itself hands out the pieces of work.

The threads are those of PyTorch: its OpenMP workers wait in a loop for a while after their last job, and a second set
of threads would fight them for the cores (measured on 2 cores: a forward pass of 3.0 ms took 7.1 with threads of
Python's beside it). Where PyTorch came without GNU OpenMP, Python's threads serve.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from dagnn.kernels.frame import Frame
from dagnn.kernels.native_code import NativeFunction

# A forked child has none of its parent's threads, and GNU OpenMP waits for them for ever.
_is_forked = False


def _after_fork() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def num_workers(pieces: int) -> int:
    """How many threads `run` uses for so many pieces of work."""
    if pieces < 2 or _is_forked:
        return 1
    return min(torch.get_num_threads(), pieces)


def run(function: NativeFunction, frame: Frame, pieces: int, *, is_shared: bool = True) -> None:
    """Calls ``function`` with ``frame`` and waits: on `num_workers` threads if work ``is_shared``, else on this one."""
    frame.begin(pieces)
    workers = num_workers(pieces) if is_shared else 1
    if workers == 1:
        function(frame.address)
    else:
        _team()(function, frame.address, workers)


@cache
def _team() -> Callable[[NativeFunction, int, int], None]:
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        parallel = ctypes.CDLL(str(path)).GOMP_parallel
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return lambda function, frame, workers: parallel(function.address, frame, workers, 0)
    return python_team


def python_team(function: NativeFunction, frame: int, workers: int) -> None:
    """The same on threads of Python's; compiled code runs without the interpreter lock."""
    others = [_pool().submit(function, frame) for _ in range(workers - 1)]
    function(frame)
    for other in others:
        other.result()


_started: list[int] = []


def num_python_threads() -> int:
    """How many threads of Python's serve here."""
    return 0 if _is_forked else len(_started)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        os.cpu_count(), thread_name_prefix="dagnn", initializer=lambda: _started.append(threading.get_ident())
    )
