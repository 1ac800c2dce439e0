"""The limits of a search, and stopping jitted functions and child processes: at a deadline, or after Ctrl-C."""

import math
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import ConfigError
from dagnn.ged.costs import is_no_number

Result = TypeVar("Result")

# Seconds between two looks at the clock. Waits are this short because Python handles Ctrl-C only between two steps of
# its own, and on some systems not while it waits for a lock.
GLANCE = 0.05


class Limits(NamedTuple):
    """The limits of a search; None for no limit."""

    budget: int
    seconds: float | None
    upper_bound: float | None


def checked_limits(budget: Any, seconds: Any = None, upper_bound: Any = None, called: str = "upper_bound") -> Limits:
    """The arguments as plain numbers; ConfigError, where the last is ``called`` so, for no number, a negative, NaN."""
    nodes = whole_number("budget", budget, 0, "search nodes")
    return Limits(nodes, _checked_limit("seconds", seconds), _checked_limit(called, upper_bound))


def whole_number(name: str, value: Any, least: int, unit: str) -> int:
    """``value`` as an int; ConfigError unless it is a whole number of at least ``least``."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number of {unit}, at least {least}.")
    return number


def checked_workers(workers: Any) -> int:
    """How many threads to use: ``workers``, or one for each core; ConfigError unless it is a whole number above 0."""
    return _cores() if workers is None else whole_number("workers", workers, 1, "threads")


def _cores() -> int:
    """How many cores this process may use; all of the machine where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked_limit(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        limit = math.nan if isinstance(value, bool) or is_no_number(value) else float(value)
    except OverflowError:
        limit = math.inf if value > 0 else math.nan
    except (TypeError, ValueError):
        limit = math.nan
    if not limit >= 0:
        raise ConfigError(f"{name} is {value!r}: it must be at least 0.")
    return None if math.isinf(limit) else limit


class Watch:
    """A deadline in so many seconds, or none, and the flag that jitted functions poll.

    ``stop``: int64 ``[1]``; 1 once the work must end.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.stop: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._deadline = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds_left(self) -> float | None:
        """None without a deadline."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def over(self) -> bool:
        """Whether the work must end; raises the flag at the deadline."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.stop[0] = 1
        return bool(self.stop[0])

    def run(self, work: Callable[[], Result]) -> Result:
        """``work()``, run in another thread; this one waits, and raises the flag at the deadline or after Ctrl-C."""
        outcome: Future[Result] = Future()

        def call() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        try:
            threading.Thread(target=call, daemon=False, name="dagnn-ged").start()
            while wait([outcome], GLANCE).not_done:
                self.over()
        except BaseException:
            self.stop[0] = 1
            raise
        return outcome.result()

    def run_script(self, script: Path, given: bytes) -> bytes | None:
        """What ``script`` writes to stdout when it reads ``given`` from stdin; None if it fails or takes too long.

        It runs in a child process, which is killed at the deadline and after Ctrl-C.
        """
        with TemporaryFile() as read, TemporaryFile() as written:
            read.write(given)
            read.seek(0)
            child = subprocess.Popen(
                [sys.executable, "-P", str(script)],
                stdin=read,
                stdout=written,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C reaches this process only: it decides what ends
            )
            try:
                while child.poll() is None and not self.over():
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(GLANCE)
                written.seek(0)
                return written.read() if child.returncode == 0 else None
            finally:
                child.kill()
                child.wait()
