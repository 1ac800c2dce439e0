"""A profile of some steps: what torch spent its time on, as a trace that a browser shows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from dagnn.errors import RunError

FILE_NAME = "profile.json"


class StepProfiler:
    """Profiles the first steps of a session of training; makes no number of it different."""

    def __init__(self, target: Path | None, num_steps: int, note: Callable[[str], object] = print) -> None:
        """Nothing is measured before `running`.

        Args:
            target: where the trace goes. None, or no steps: nothing is profiled.
            note: called with a line that says where it went.
        """
        self._note = note
        self._target = target
        self._left = num_steps if target is not None else 0
        self._profile: profile | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The training; a trace that is not written yet is written when it ends, however it ends."""
        if self._left > 0:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            self._profile = profile(activities=activities)
            self._profile.start()
        try:
            yield
        finally:
            self._write()

    def step(self) -> None:
        """After every optimizer step. Raises RunError: the trace cannot be written."""
        self._left -= 1
        if self._left <= 0:
            self._write()

    def _write(self) -> None:
        if self._profile is None:
            return
        ended, self._profile = self._profile, None
        ended.stop()
        assert self._target is not None
        temporary = self._target.with_name(f".writing-{self._target.name}")
        try:
            # By rename: a trace of an earlier session stays whole until there is a new one.
            ended.export_chrome_trace(str(temporary))
            temporary.replace(self._target)
            self._note(f"profile in {self._target}: open it in https://ui.perfetto.dev or chrome://tracing")
        except (OSError, RuntimeError) as error:
            raise RunError(f"cannot write {self._target}: {getattr(error, 'strerror', None) or error}.") from error
