"""Calls of compiled functions: one after another, each on as many threads as it is worth, or two rows of them at once.

Sweeps that do not depend on each other, such as those up and down one graph, may share out the cores as wholes, where
neither has levels wide enough to share them out itself. Each row of calls then has one thread and runs as it would run
alone: the bits are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import Generic, TypeVar

import numpy as np

from dagnn.kernels import workers
from dagnn.kernels.frame import Frame
from dagnn.kernels.native_code import NativeFunction, compiled, host_target

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Call:
    """A compiled function with what it works on.

    Attributes:
        frame: of this call alone.
        pieces: of work.
        is_shared: several threads take pieces of it.
    """

    function: NativeFunction
    frame: Frame
    pieces: int
    is_shared: bool

    def run(self) -> None:
        if self.is_shared:
            workers.run(self.function, self.frame, self.pieces)
        else:
            self.frame.begin(self.pieces)
            self.function(self.frame.address)


@dataclass(frozen=True, eq=False)
class Work(Generic[T]):
    """Calls that run in order, and what they have computed when they are done.

    Attributes:
        reads: what has to live until then: a frame holds addresses only.
    """

    calls: Sequence[Call]
    result: Callable[[], T]
    reads: object = None


def run(works: Sequence[Work[T]], *, at_once: bool = False) -> list[T]:
    """The results of some works, one after another or all at once; then they must not write to the same memory."""
    if at_once and len(works) > 1:
        _run_at_once([work.calls for work in works])
    else:
        for call in chain.from_iterable(work.calls for work in works):
            call.run()
    return [work.result() for work in works]


def joined(works: Sequence[Work[T]]) -> Work[list[T]]:
    """Several works as one, in this order."""
    return Work([call for work in works for call in work.calls], lambda: [work.result() for work in works], works)


def _run_at_once(rows: Sequence[Sequence[Call]]) -> None:
    calls = list(chain.from_iterable(rows))
    for call in calls:
        call.frame.begin(call.pieces)
    table = np.array([(call.function.address, call.frame.address) for call in calls], dtype=np.int64).reshape(-1, 2)
    firsts = np.array([0, *accumulate(map(len, rows))], dtype=np.int64)
    frame = Frame()
    frame.set(calls=table.ctypes.data, first_calls=firsts.ctypes.data)
    workers.run(_calls_function(), frame, len(rows))


@cache
def _calls_function() -> NativeFunction:
    from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

    from dagnn.kernels.code_calls import write_calls

    module = ir.Module("dagnn")
    write_calls(module, host_target(), "calls")
    return compiled(str(module), ("calls",), host_target())["calls"]
