"""Steps of plain gradient descent that compiled code takes as it computes the last part of a gradient.

They wait for the end of the backward pass: until then some other part of the graph may read the weight, or add to its
gradient. What waits belongs to different weights, so it may run at the same time.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dagnn.kernels.leaf_gradients import added_to, is_plain_leaf, may_be_written, only_adds

if TYPE_CHECKING:
    from dagnn.kernels.sweep_calls import Work

# Gradient of a weight: added to a tensor if there is one; then a parameter moves by -lr times that, if one is given.
_WeightGradient = Callable[[Tensor | None, tuple[Tensor, float] | None], "Work[Tensor]"]
_here = threading.local()


class Descent:
    """The step of a backward pass: which parameters move, and the gradients that wait for its end."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self._lr = lr
        self._moving = {id(parameter) for parameter in parameters}
        self._waiting: dict[Tensor, list[_WeightGradient]] = {}

    def takes(self, parameter: Tensor, node: Any, gradient: _WeightGradient) -> bool:
        """Whether the gradient is taken care of here; ``node`` is where autograd would send it."""
        if id(parameter) not in self._moving or not only_adds([parameter], [node]):
            return False
        self._waiting.setdefault(parameter, []).append(gradient)
        return True

    def finish(self) -> set[int]:
        """After the backward pass: add what waits to ``.grad``; the ids of the parameters that also moved."""
        if not self._waiting:
            return set()
        from dagnn.kernels.sweep_calls import joined, run  # here: it needs llvmlite

        direct = [p for p in self._waiting if is_plain_leaf(p) and may_be_written(p.grad)]
        with added_to(direct) as grads:
            works = []
            for parameter, grad in zip(direct, grads, strict=True):
                *others, last = self._waiting.pop(parameter)
                works.append(joined([*(one(grad, None) for one in others), last(grad, (parameter, self._lr))]))
            is_apart = len({memory.untyped_storage().data_ptr() for memory in [*direct, *grads]}) == 2 * len(direct)
            run(works, at_once=is_apart and not any(call.is_shared for work in works for call in work.calls))
        torch.autograd.graph.increment_version(direct)
        for parameter, gradients in self._waiting.items():  # another part of the graph left a gradient of another form
            for (gradient,) in (run([one(None, None)]) for one in gradients):
                gradient = gradient.view_as(parameter)
                parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad
        return {id(parameter) for parameter in direct}


@contextmanager
def descending(parameters: Iterable[Tensor], lr: float) -> Iterator[Descent]:
    """The backward pass in this block, on this thread, leaves what it can to the `Descent`; call its `finish` then."""
    outer, _here.descent = current(), Descent(parameters, lr)
    try:
        yield _here.descent
    finally:
        _here.descent = outer


def current() -> Descent | None:
    """That of the backward pass which runs on this thread, if there is one."""
    return getattr(_here, "descent", None)
