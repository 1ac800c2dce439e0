"""How counts and gradients of several processes are joined: the interface, and one process alone."""

from abc import ABC, abstractmethod
from typing import TypeVar, final

from torch import nn

T = TypeVar("T")


class Ranks(ABC):
    """What a window asks of the processes that share the model. Each method is called by all of them."""

    world_size: int
    seed_factor: float  # what losses are multiplied by, where the wrapper divides gradients by the world size
    every_backward: bool  # all processes must run every backward pass, also of a micro-batch that counts nothing

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """``value`` of every process, in the order of their ranks."""

    @abstractmethod
    def open_window(self, micro_batches: list[int]) -> None:
        """Called before the first forward pass of a window, with the number of micro-batches of every process."""

    @abstractmethod
    def open_micro_batch(self, *, is_last: bool) -> None:
        """Called before the forward pass of each micro-batch."""

    @abstractmethod
    def close_window(self) -> None:
        """Called when the window ends, also by an error."""

    @abstractmethod
    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Replace the ``.grad`` of every process by their sum."""

    @abstractmethod
    def sum_parts(self, value: float) -> float:
        """Sum of ``value`` over the processes where each holds a part of every gradient; else ``value`` itself."""

    @abstractmethod
    def share_buffers(self) -> None:
        """Give every process the buffers of the first, where the wrapper does so."""


@final
class Alone(Ranks):
    """One process: nothing to join."""

    world_size = 1
    seed_factor = 1.0
    every_backward = False

    def gather(self, value: T) -> list[T]:
        return [value]

    def open_window(self, micro_batches: list[int]) -> None:
        pass

    def open_micro_batch(self, *, is_last: bool) -> None:
        pass

    def close_window(self) -> None:
        pass

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        pass

    def sum_parts(self, value: float) -> float:
        return value

    def share_buffers(self) -> None:
        pass
