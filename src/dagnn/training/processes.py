"""The processes that train together, and their threads."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

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
