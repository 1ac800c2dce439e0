"""Steps of plain gradient descent that compiled code takes as it computes the last part of a gradient.

They wait for the end of the backward pass: until then some other part of the graph may read the weight, or add to its
gradient. So do the gradients themselves: what looks at ``.grad`` during the pass finds it without them.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dagnn.kernels.leaf_gradients import added_to, is_plain_leaf, only_adds, written

if TYPE_CHECKING:
    from dagnn.kernels.sweep_calls import Work

# Makes the work that adds the gradient of a weight to a tensor, or to zeros; with a weight and ``lr`` it also moves it.
_MakeWork = Callable[[Tensor | None, tuple[Tensor, float] | None], "Work[Tensor]"]
_here = threading.local()


def _after_fork() -> None:
    """The pass that forked this process goes on in its parent."""
    global _here
    _here = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Descent:
    """The step of a backward pass: which weights move, and the gradients that wait for its end."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self._lr = lr
        self._moving = {id(parameter) for parameter in parameters}
        self._waiting: dict[Tensor, list[_MakeWork]] = {}

    def takes(self, weight: Tensor, node: Any, make_work: _MakeWork) -> bool:
        """Whether the gradient is taken care of here; ``node`` is where autograd would send it."""
        if id(weight) not in self._moving or not only_adds([weight], [node]):
            return False
        self._waiting.setdefault(weight, []).append(make_work)
        return True

    def finish(self) -> set[int]:
        """After the backward pass: add what waits to ``.grad``; the ids of the weights that also moved."""
        if not self._waiting:
            return set()
        from dagnn.kernels.sweep_calls import joined, run  # here: it needs llvmlite

        direct = [weight for weight in self._waiting if is_plain_leaf(weight)]
        with added_to(direct) as grads:
            memory = {tensor.untyped_storage().data_ptr() for tensor in [*direct, *grads]}
            # Where two weights or their gradients share memory, all must be complete before any weight moves.
            is_apart = len(memory) == 2 * len(direct)
            works = []
            for weight, grad in zip(direct, grads, strict=True):
                *others, last = self._waiting.pop(weight)
                step = (weight, self._lr) if is_apart else None
                works.append(joined([*(make_work(grad, None) for make_work in others), last(grad, step)]))
            run(works, at_once=is_apart and not any(call.is_shared for work in works for call in work.calls))
        for weight, makers in self._waiting.items():  # another part of the graph left a gradient of another form
            for make_work in makers:
                gradient = run([make_work(None, None)])[0].view_as(weight)
                weight.grad = gradient if weight.grad is None else gradient + weight.grad
        if not is_apart:
            return set()
        written(*direct)
        return {id(weight) for weight in direct}


@contextmanager
def descending(parameters: Iterable[Tensor], lr: float) -> Iterator[Descent]:
    """The backward pass in this block, on this thread, leaves what it can to the `Descent`; call its `finish` then.

    Nothing is left to it where processes train together: what joins their gradients looks at them during the pass. Nor
    where float32 cannot hold ``lr``: PyTorch then says so.
    """
    is_joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    fits = lr <= torch.finfo(torch.float32).max
    outer, _here.descent = current(), Descent(parameters if fits and not is_joined else (), lr)
    try:
        yield _here.descent
    finally:
        _here.descent = outer


def current() -> Descent | None:
    """That of the backward pass which runs on this thread, if there is one."""
    return getattr(_here, "descent", None)
