"""Worker threads: they run compiled functions, one after another or several at once, and wait for each other."""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.native import Frame, NativeFunction, Target, compiled, host_target
from dagnn.kernels.emit.writer import I32, I64, CodeWriter, Value

T = TypeVar("T")
# Looks at the counter before a waiting worker gives up its core. A level is often done within these; and where more
# threads run than there are cores, the one that is waited for may need this very core.
_LOOKS = 256
# A forked child has none of its parent's threads, and GNU OpenMP would wait for them for ever.
_is_forked = False


def _after_fork() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def num_workers(pieces: int) -> int:
    """How many threads `run` uses for so many pieces of work."""
    # Scratch memory is laid out for this many workers before `run`: both must count alike.
    if pieces < 2 or _is_forked:
        return 1
    return min(torch.get_num_threads(), pieces)


def run(function: NativeFunction, frame: Frame, pieces: int, *, is_shared: bool = True) -> None:
    """Calls ``function`` with ``frame`` and waits: on `num_workers` threads if work ``is_shared``, else on this one."""
    frame.begin(pieces)
    # The counters are in the frame: no other call may use it until this one returns.
    workers = num_workers(pieces) if is_shared else 1
    if workers == 1:
        function(frame.address)
    else:
        _team()(function, frame.address, workers)


class SingleThreadedProducts:
    """Inside, MKL's products on this thread take no other one: on several they may give other bits than on one."""

    def __enter__(self) -> None:
        self._setting = _product_threads() if torch.get_num_threads() > 1 else None
        self._before = 0 if self._setting is None else self._setting(1)

    def __exit__(self, *_: object) -> None:
        if self._setting is not None:
            self._setting(self._before)


class _Share:
    """What each worker of a team runs, in Python: it looks like a compiled function to `_team`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.errors: list[BaseException] = []
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value

    def __call__(self, _frame: int | None) -> None:
        try:
            with torch.no_grad(), SingleThreadedProducts():
                self._work()
        except BaseException as error:  # which could not pass through the team
            self.errors.append(error)


def run_products(product: Callable[[slice], object], length: int, step: int) -> None:
    """Calls ``product``, inside `SingleThreadedProducts`, with slices of ``step`` of ``0 .. length``, several at once.

    The slices must follow from the shapes alone: then the bits do not depend on the number of threads.
    """
    slices = [slice(first, min(first + step, length)) for first in range(0, length, step)]
    if _product_threads() is None:  # another library, whose only setting is PyTorch's own, for all threads
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for each in slices:
                product(each)
        finally:
            torch.set_num_threads(before)
        return
    workers = num_workers(len(slices))
    if workers == 1:
        for each in slices:
            product(each)
        return
    left = iter(slices)

    def work() -> None:
        for each in left:  # whoever is free takes the next one
            product(each)

    # On the team, whose threads wait for work by spinning: others would compete with them for the cores.
    share = _Share(work)
    _team()(share, 0, workers)
    if share.errors:
        raise share.errors[0]


@cache
def products_are_single() -> bool:
    """Products inside `SingleThreadedProducts` take one thread; where not, `run_products` sees to that."""
    return _product_threads() is not None


@cache
def _product_threads() -> Callable[[int], int] | None:
    """Sets how many threads MKL's products take on the calling thread, 0 for all, and returns what that was.

    None where PyTorch computes with another library.
    """
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    setting = getattr(ctypes.CDLL(str(path)), "MKL_Set_Num_Threads_Local", None) if path.exists() else None
    if setting is not None:
        setting.argtypes, setting.restype = [ctypes.c_int], ctypes.c_int
    return setting


@cache
def _team() -> Callable[[NativeFunction | _Share, int, int], None]:
    # The team that PyTorch itself computes with: its threads exist already, and a pool of ours beside it would compete
    # with them for the cores. PyTorch's wheels bundle libgomp under a name with a hash.
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        parallel = ctypes.CDLL(str(path)).GOMP_parallel
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return lambda function, frame, workers: parallel(function.address, frame, workers, 0)
    return python_team


def python_team(function: NativeFunction | _Share, frame: int, workers: int) -> None:
    """Runs a function on threads of Python's, where PyTorch comes without libgomp, as on macOS."""
    # ctypes releases the interpreter lock during the call. This thread is a worker too.
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


@dataclass(frozen=True, eq=False)
class Call:
    """A compiled function with what it works on.

    Attributes:
        frame: of this call alone, since it holds the counters by which workers take pieces.
        pieces: how many pieces of work.
        is_shared: several threads take pieces.
    """

    function: NativeFunction
    frame: Frame
    pieces: int
    is_shared: bool

    def run(self) -> None:
        if self.is_shared:
            run(self.function, self.frame, self.pieces)
        else:
            self.frame.begin(self.pieces)
            self.function(self.frame.address)


@dataclass(frozen=True, eq=False)
class Work(Generic[T]):
    """Calls that run in order, and their result.

    Attributes:
        result: to be called once the calls have run.
        reads: whatever must live until then, since a frame holds only addresses.
    """

    calls: Sequence[Call]
    result: Callable[[], T]
    reads: object = None


def run_works(works: Sequence[Work[T]], *, at_once: bool = False) -> list[T]:
    """Runs some works and gives their results; all ``at_once``, if no two write to the same memory, or in turn."""
    if at_once and len(works) > 1:
        _run_at_once([work.calls for work in works])
    else:
        for call in chain.from_iterable(work.calls for work in works):
            call.run()
    return [work.result() for work in works]


def concatenated(works: Sequence[Work[T]]) -> Work[list[T]]:
    """Several works as one, in this order."""
    return Work([call for work in works for call in work.calls], lambda: [work.result() for work in works], works)


def _run_at_once(rows: Sequence[Sequence[Call]]) -> None:
    calls = list(chain.from_iterable(rows))
    # The compiled function cannot set counters back, so all of them are set before the first call.
    for call in calls:
        call.frame.begin(call.pieces)
    # `table` and `firsts` live in this function until all have run: `frame` has only their addresses.
    table = np.array([(call.function.address, call.frame.address) for call in calls], dtype=np.int64).reshape(-1, 2)
    firsts = np.array([0, *accumulate(map(len, rows))], dtype=np.int64)
    frame = Frame()
    frame.set(calls=table.ctypes.data, first_calls=firsts.ctypes.data)
    run(_calls_function(), frame, len(rows))


_CALL_BYTES = 16
"""A call is two int64: the address of the function and that of its frame."""


def _write_calls(module: Value, target: Target, name: str) -> None:
    """The function ``name``: the calls ``first_calls[row] .. first_calls[row + 1] - 1`` in order; a piece is a row."""
    # In compiled code, for the worker threads are OpenMP's: they must never need the interpreter lock.
    code = CodeWriter(module, name, double=False, lanes=target.vector_bytes // 4, target=target)
    code.fields("pieces", "calls", "first_calls")
    function = ir.PointerType(ir.FunctionType(ir.VoidType(), [I64]))
    with code.pieces() as row:
        first = code.offset_at(code.field("first_calls"), row)
        last = code.offset_at(code.field("first_calls"), code.build.add(row, code.i64(1)))
        with code.loop(first, last) as number:
            call = code.at(code.field("calls"), number, _CALL_BYTES)
            address, frame = (code.offset_at(call, code.i64(k)) for k in (0, 1))
            code.build.call(code.build.inttoptr(address, function), [frame])
    code.finish()


@cache
def _calls_function() -> NativeFunction:
    module = ir.Module("dagnn")
    _write_calls(module, host_target(), "calls")
    return compiled(str(module), ("calls",), host_target())["calls"]


def write_wait(code: CodeWriter, needed: Value) -> None:
    """Code that waits until so many blocks are done: it looks at their counter again and again, then gives up its core.

    It takes the fields ``blocks_done``, the address of the counter, and ``yield_core``, that of `yield_core`.
    """
    build = code.build
    looks = code.variable(I64)
    build.store(code.i64(0), looks)
    look, again, give, done = (build.append_basic_block(name) for name in ("look", "again", "yield", "ready"))
    build.branch(look)
    build.position_at_end(look)
    # Acquire: no load of a row may move before the load of the count that promises it.
    count = build.load_atomic(_blocks_done(code), "acquire", 8)
    build.cbranch(build.icmp_signed("<", count, needed), again, done)
    build.position_at_end(again)
    build.store(build.add(build.load(looks), code.i64(1)), looks)
    patient = build.icmp_signed("<", build.load(looks), code.i64(_LOOKS))
    nobody = build.icmp_signed("==", code.field("yield_core"), code.i64(0))  # Windows has no function to call
    build.cbranch(build.or_(patient, nobody), look, give)
    build.position_at_end(give)
    build.call(build.inttoptr(code.field("yield_core"), ir.PointerType(ir.FunctionType(I32, []))), [])
    build.branch(look)
    build.position_at_end(done)


def write_done(code: CodeWriter) -> None:
    """Code that counts one more block as done."""
    # Release: a worker that sees this count in `write_wait` also sees every row that the block has written. A count
    # added to stays ordered behind the counts before it, so one counter serves for all blocks.
    code.build.atomic_rmw("add", _blocks_done(code), code.i64(1), "acq_rel")


def _blocks_done(code: CodeWriter) -> Value:
    return code.build.inttoptr(code.field("blocks_done"), ir.PointerType(I64))


@cache
def yield_core() -> int:
    """The address of a function that lets other threads have the core; 0 where there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):  # Windows
        return 0
