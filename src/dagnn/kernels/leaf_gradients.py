"""Gradients that compiled code adds straight into ``.grad``: where that is all that autograd would do with them.

That is so when the parameter is a leaf without hooks and the pass is a plain backward: `torch.autograd.grad` gets them
returned, as does any hook of the parameter. Hooks of the node behind it, which accumulates, cannot be asked for: they
are told None.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dagnn.kernels import workers
from dagnn.kernels.plain_tensors import is_plain

_NUM_LOCKS = 64
_locks = tuple(threading.Lock() for _ in range(_NUM_LOCKS))


def _after_fork() -> None:
    """A thread that held a lock when its process forked does not exist in the child, and would never let go."""
    global _locks
    _locks = tuple(threading.Lock() for _ in range(_NUM_LOCKS))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def are_first(*parameters: Tensor) -> bool:
    """Whether these get their first gradients, which are left to autograd.

    It keeps a first gradient without a copy, and asking it whether it would costs 0.1 ms when it says no by an
    exception. With other threads we keep it ourselves: theirs may be adding, under our lock. Those that compiled code
    runs on add nothing of their own.
    """
    for parameter in parameters:  # a loop: this is asked in every step
        if not parameter.is_leaf:  # computed for this step; its .grad, whose question warns, is nobody's
            return True
        if parameter.grad is not None:
            return False
    return threading.active_count() == 1 + workers.num_python_threads()


def only_adds(parameters: Sequence[Tensor], nodes: Sequence[Any]) -> bool:
    """Whether autograd would do nothing with the gradients of all these parameters but add them to ``.grad``.

    Args:
        parameters: inputs of the autograd Function whose backward asks.
        nodes: where their gradients go next, from ``ctx.next_functions``.
    """
    for parameter, node in zip(parameters, nodes, strict=True):
        if node is None or not is_plain_leaf(parameter):
            return False
        # With hooks on saved tensors, as activation checkpointing and offloading set them, autograd hands out a copy:
        # a leaf with the memory of the parameter, or its values, and a ``.grad`` that nobody will ever read.
        if getattr(node, "variable", None) is not parameter:
            return False
        try:
            if not torch._C._will_engine_execute_node(node):
                return False
        except RuntimeError:  # torch.autograd.grad: the gradient is a result, not to be accumulated
            return False
    return True


def is_plain_leaf(parameter: Tensor) -> bool:
    """A leaf that nobody listens to, with no gradient yet or one in a buffer that may be written in place."""
    if not (parameter.is_leaf and parameter.requires_grad and parameter.is_contiguous()):
        return False
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        return False
    grad = parameter.grad
    return grad is None or (
        type(grad) is Tensor
        and is_plain(grad)  # memory and nothing else: PyTorch itself says what is wrong with another
        and (grad.dtype, grad.shape) == (parameter.dtype, parameter.shape)
        and grad.is_contiguous()
        and not grad.requires_grad
        and not grad.is_inference()
    )


@contextmanager
def turn(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Nobody else who asks here adds to the gradients of these parameters meanwhile.

    Two threads that go backward through the same parameters at once take turns, and no sum is lost.
    """
    # In order, so that no two threads wait for each other; parameters that share a lock share it also here.
    locks = [_locks[number] for number in sorted({id(parameter) // 16 % _NUM_LOCKS for parameter in parameters})]
    for lock in locks:
        lock.acquire()
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def written(*tensors: Tensor) -> None:
    """Compiled code has written to these. A graph that saved one of them must not be differentiated any more."""
    torch.autograd.graph.increment_version(tensors)


@contextmanager
def added_to(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The ``.grad`` of each, zeros where there was none, to be added to in their `turn`."""
    with turn(parameters):
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in parameters]
        yield grads  # type: ignore[misc]  # none of them is None any more
        written(*grads)  # type: ignore[arg-type]
