"""Time spent in training: the only thing in a run that two equal runs do not share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of wall and of processor time, over all sessions of a training."""

    def __init__(self, seconds: float = 0.0, cpu_seconds: float = 0.0) -> None:
        """Start from what earlier sessions have spent."""
        self._before = (seconds, cpu_seconds)
        self._since: tuple[float, float] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time inside counts."""
        self._since = (time.monotonic(), time.process_time())
        try:
            yield
        finally:
            self._before, self._since = (self.seconds, self.cpu_seconds), None

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return self._before[0] + (0.0 if self._since is None else time.monotonic() - self._since[0])

    @property
    def cpu_seconds(self) -> float:
        """Processor time of this process so far, all threads."""
        return self._before[1] + (0.0 if self._since is None else time.process_time() - self._since[1])

    def to_json(self) -> dict[str, float]:
        """The arguments of a clock that goes on from here."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
