"""The processes that train together, their threads, and the signals that stop them."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dagnn.accumulation.ranks import gather_objects

T = TypeVar("T")

# One process may trace or evaluate for long while the others wait; the death of a peer is noticed at once.
_TIMEOUT = timedelta(hours=6)


class Processes:
    """This process and those it trains with; by itself when torch.distributed was not set up.

    Attributes:
        rank, size: this process's number, from 0, and how many there are.
        group: of torch.distributed; None for a process by itself.

    >>> Processes().gather("mine")
    ['mine']
    """

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self.group: Any = dist.group.WORLD if self.size > 1 else None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """``value`` of every process, in the order of their ranks. All must call it."""
        return [value] if self.group is None else gather_objects(value, self.group)

    def by_first(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on the first process, on all of them; what it raises there is raised on all."""
        if self.group is None:
            return function()
        result_and_error: list[Any] = [None, None]
        if self.is_first:
            try:
                result_and_error[0] = function()
            except Exception as error:
                result_and_error[1] = error
        dist.broadcast_object_list(result_and_error, src=0, group=self.group)
        if result_and_error[1] is not None:
            raise result_and_error[1]
        result: T = result_and_error[0]
        return result

    def same_model(self, model: nn.Module) -> None:
        """Give all processes the parameters and buffers of the first."""
        if self.group is not None:
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.detach(), src=0, group=self.group)

    def same_buffers(self, model: nn.Module) -> None:
        """Give all processes the buffers of the first (running statistics differ with the data); DDP does so itself."""
        if self.group is not None and not isinstance(model, DistributedDataParallel):
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0, group=self.group)


@contextmanager
def process_group() -> Iterator[Processes]:
    """Inside, the processes that torchrun has started are connected over gloo; without torchrun, the process is alone.

    >>> with process_group() as processes:
    ...     processes.rank, processes.gather("mine")
    (0, ['mine'])
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield Processes()
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # torchrun's restarted workers meet in the store of the failed ones, which still holds their addresses. Waiting for
    # those would hang forever, so each start has keys of its own.
    store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
    store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    try:
        yield Processes()
    finally:
        # Reference cycles keep the group of a dropped trainer alive. Freed as late as interpreter exit, its threads
        # would abort the process.
        gc.collect()
        # Not a barrier: where one process leaves by an error, the others must not wait for it.
        dist.destroy_process_group()


def device_of(model: nn.Module) -> torch.device:
    """Where the model computes: the device of its first parameter."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch computes with ``count`` threads inside; 0 changes nothing."""
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        if count:
            torch.set_num_threads(before)


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
