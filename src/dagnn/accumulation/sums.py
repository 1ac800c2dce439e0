"""Where the gradients of a window go while it runs: the interface that windows use."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer


class Sums(ABC):
    """The gradients of one window. See ``gradients.py`` for the usual form, ``eager.py`` for those that save memory."""

    parameters: list[nn.Parameter]
    narrow_parameters: bool  # some parameters have 16 bits
    rescalable: bool  # no sum has 16 bits, so that they may be multiplied by a factor almost without loss
    final: bool  # what backward adds cannot be rescaled any more: weights must be known before

    @abstractmethod
    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Called before the first backward pass of each micro-batch."""

    @abstractmethod
    def backward(
        self, losses: Sequence[Tensor], *, gradients: Sequence[Tensor] | None = None, retain_graph: bool = False
    ) -> None:
        """Run one backward pass over ``losses``, adding to the sums; from ``gradients`` if they are no numbers."""

    @abstractmethod
    def scale_(self, factor: float) -> None:
        """Multiply all sums by ``factor``; where that is too late, divide what comes next by it."""

    @abstractmethod
    def expose(self) -> None:
        """Put the sums into ``.grad``, for the user, the norm and the optimizer."""

    @abstractmethod
    def norm(self, sum_parts: Callable[[float], float]) -> tuple[bool, float]:
        """Whether all sums are finite, and their L2 norm; nan where it is not known."""

    @property
    def update_begun(self) -> bool:
        """Something was updated that ``clear`` cannot undo."""
        return False

    @abstractmethod
    def has_sum(self) -> list[bool]:
        """For each of ``parameters`` whether a gradient was added."""

    @abstractmethod
    def named(self, names: dict[int, str]) -> list[tuple[str, Tensor]]:
        """(name, sum) of every parameter that has one; ``names`` by ``id(parameter)``."""

    @abstractmethod
    def narrow(self) -> None:
        """Cast exposed sums to the dtype of their parameters."""

    @abstractmethod
    def apply(self, optimizers: Sequence[Optimizer]) -> None:
        """Update the parameters."""

    @abstractmethod
    def clear(self) -> None:
        """Drop the sums and ``.grad``: memory goes back, and a parameter without gradient is left alone by step."""

    @abstractmethod
    def begin_trial(self) -> None:
        """Keep what follows apart, until it is accepted or left out. Costs a second set of gradients."""

    @abstractmethod
    def end_trial(self, *, keep: bool) -> bool:
        """Add what came since ``begin_trial`` if it is finite and ``keep``, else forget it; True if it was added."""
