"""What a training shows: text that is safe to print, progress on a terminal, a profile of some steps.

Every command prints through this file, so it loads torch only where steps are profiled.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dagnn.errors import RunError
from dagnn.files import replaced_file

if TYPE_CHECKING:
    from torch.profiler import profile

PROFILE_FILE = "profile.json"
_LINES_PER_RUN = 50
# Without the rate in steps: the values hold samples a second, and at 80 columns both leave no room for a bar.
_BAR = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} left {remaining}{postfix}"


def printable(text: str) -> str:
    r"""The text with every control character as its escape; on one line.

    A name in a stranger's file must not move the cursor or colour the screen.

    >>> print(printable("weight\x1b[2J\nnext"))
    weight\x1b[2J\nnext
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def write_line(text: str, stream: TextIO | None) -> bool:
    """Writes a line, with escapes for what the stream's encoding lacks; False where nobody can read it any more.

    The reader of a pipe may have gone, a terminal may be closed, a program without a console has no streams at all.
    """
    if stream is None:
        return False
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):  # gone; closed
        return False
    return True


class Progress:
    """Shows steps, loss, learning rate and evaluations.

    On a terminal: a tqdm bar that starts at the step resumed from, its rate measured in this session only. Elsewhere
    (a file, a pipe): at most one line every ``max_steps / 50`` steps, and the last step always. Where nobody can read
    it (any more), training goes on without it.
    """

    def __init__(self, max_steps: int, *, step: int = 0, stream: TextIO | None = None, shown: bool = True) -> None:
        """Start at ``step``. ``stream``: None is stderr, so that stdout stays free for results."""
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._max_steps = max_steps
        self._interval = max(1, -(-max_steps // _LINES_PER_RUN))
        self._first_step, self._started = step, time.monotonic()
        self._items = 0.0
        self._bar: Any = None
        self._shown = shown and self._stream is not None and not self._stream.closed
        if self._shown and self._stream is not None and self._stream.isatty():
            with self._while_read():
                from tqdm import tqdm

                self._bar = tqdm(total=max_steps, initial=step, file=self._stream, dynamic_ncols=True, bar_format=_BAR)

    def step(self, step: int, values: Mapping[str, Any], items: float | None = None) -> None:
        """After an optimizer step.

        Args:
            values: short words and numbers to show beside it.
            items: examples in it; their rate in this session is shown.
        """
        self._items += items or 0.0
        due = step % self._interval == 0 or step == self._max_steps
        if self._bar is None and not (self._shown and due):
            return
        if self._items:
            values = {**values, "samples/s": f"{self._items / max(time.monotonic() - self._started, 1e-9):,.0f}"}
        text = " ".join(f"{key} {_short(value)}" for key, value in values.items() if value is not None)
        if self._bar is not None:
            with self._while_read():
                self._bar.set_postfix_str(text, refresh=False)
                self._bar.update(step - self._bar.n)
        else:
            self._line(f"step {step}/{self._max_steps} {text} {self._time_left(step)}")

    def note(self, text: str) -> None:
        """One line that stays, such as an evaluation."""
        if self._bar is not None:
            with self._while_read():
                self._bar.write(text, file=self._stream)
        elif self._shown:
            self._line(text)

    def close(self) -> None:
        """Close the bar; it stays on the screen."""
        if self._bar is not None:
            with self._while_read():
                self._bar.close()

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        """Inside, an error of the stream turns the display off: its reader has gone."""
        try:
            yield
        except (OSError, ValueError):
            if self._bar is not None:
                self._bar.disable = True  # else tqdm writes once more when it is thrown away
            self._bar, self._shown = None, False

    def _line(self, text: str) -> None:
        self._shown = write_line(text, self._stream)

    def _time_left(self, step: int) -> str:
        seconds = (time.monotonic() - self._started) / max(1, step - self._first_step) * (self._max_steps - step)
        return f"left {int(seconds) // 60}:{int(seconds) % 60:02d}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
        """Profile the training inside; a trace that is not written yet is written at its end, however it ends."""
        if self._left > 0:
            import torch
            from torch.profiler import ProfilerActivity, profile

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
        try:
            # A trace of an earlier session stays whole until there is a new one.
            with replaced_file(self._target) as temporary:
                ended.export_chrome_trace(str(temporary))
            self._note(f"profile in {self._target}: open it in https://ui.perfetto.dev or chrome://tracing")
        except (OSError, RuntimeError) as error:
            raise RunError(f"cannot write {self._target}: {getattr(error, 'strerror', None) or error}.") from error
