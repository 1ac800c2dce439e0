"""Signals that stop a training: Ctrl-C and SIGTERM end it after the step, with everything saved."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

# SIGHUP comes when the terminal is closed; Windows has none.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_HANGUP = getattr(signal, "SIGHUP", None)


class TrainingInterrupted(Exception):
    """Training was stopped from outside; everything up to ``step`` is saved.

    Attributes:
        exit_code: what the process should exit with: 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP.
        step: optimizer steps made.
        checkpoint: where they are saved; None for a training without a run directory.

    >>> TrainingInterrupted(signal.SIGINT, 7, None)
    TrainingInterrupted('stopped by SIGINT at step 7; not saved: there is no run directory.')
    """

    def __init__(self, signal_number: int, step: int, checkpoint: Path | None) -> None:
        saved = f"saved in {checkpoint}" if checkpoint is not None else "not saved: there is no run directory"
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}; {saved}.")
        self.exit_code = 128 + signal_number
        self.step = step
        self.checkpoint = checkpoint


class EvaluationAborted(BaseException):
    """Raised by the handler inside `StopRequest.interruptible`; never leaves the trainer.

    A BaseException, as KeyboardInterrupt is: it must pass an ``except Exception`` in the user's evaluation.
    """


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM raise an exception: files are closed, and the exit code is 130 or 143.

    For work that has nothing to save; for training, `StopRequest.installed` takes over. Child processes end as well:
    waiting for their work could take minutes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signal_number: int, frame: FrameType | None) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        _raise(signal_number)

    with _handlers(leave):
        yield


class StopRequest:
    """Remembers the first signal that came, ``signal_number``, after which the training stops; None so far."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._interruptible = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, SIGINT and SIGTERM come here. Outside the main thread nothing is installed (Python allows it there
        only), and `request` is the way to stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with _handlers(self._handle):
            yield

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, the first signal raises EvaluationAborted at once: for long work that can be repeated."""
        if self.signal_number is not None:
            raise EvaluationAborted
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def request(self, signal_number: int = signal.SIGINT) -> None:
        """Stop as if this signal had come."""
        if self.signal_number is None:
            self.signal_number = int(signal_number)

    def taken(self) -> int:
        """The signal that came; clears it, so that training can start again."""
        assert self.signal_number is not None
        number, self.signal_number = self.signal_number, None
        return number

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            _raise(signal_number)
        self.request(signal_number)
        if self._interruptible:
            self._interruptible = False
            raise EvaluationAborted


@contextmanager
def _handlers(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before.get(_HANGUP) is signal.SIG_IGN:
        del before[_HANGUP]  # nohup: the training should survive its terminal
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _raise(signal_number: int) -> NoReturn:
    # KeyboardInterrupt and SystemExit pass every `except Exception` on the way out.
    if signal_number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + signal_number)
