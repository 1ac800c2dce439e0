"""How compiled passes join PyTorch: the tensors they may read, leaf gradients, the fused step, memory."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.autograd import forward_ad

from dagnn.graph.cached import ordinary_tensors
from dagnn.kernels.emit import workers
from dagnn.kernels.emit.workers import Work, concatenated, run_works

# Subclasses may hold no memory at all, or mean something else by it.
_PLAIN_TYPES = (Tensor, nn.Parameter)


def is_plain(tensor: Tensor) -> bool:
    """Whether the memory of a tensor on the CPU is all that there is to it.

    Not for subclasses, for what ``torch.func`` and forward-mode derivatives have wrapped, for zeros without memory, and
    where a negation waits to be carried out.
    """
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not is_transformed(tensor)
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )


def is_transformed(tensor: Tensor) -> bool:
    """Whether it stands for many tensors at once, for one being traced by ``torch.func``, or has a tangent."""
    if is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def is_watched() -> bool:
    """Whether somebody records or replaces PyTorch's operations: ``make_fx``, ``torch.jit.trace``, ``torch.func``.

    The first two would take what compiled code computes for a constant. Transforms of ``torch.func`` refuse autograd
    Functions, also of tensors that they do not transform.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def with_memory(gradient: Tensor) -> Tensor:
    """The same numbers in memory of their own, where a gradient on the CPU is sparse, negated or zeros of none."""
    if is_transformed(gradient):
        return gradient
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    if gradient._is_zerotensor():
        return torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    return gradient.resolve_neg()


# Pieces that are kept for each dtype: what a pass saved and the scratch of its gradients, for one network and one sweep
# or for two networks in a row.
_KEPT = 4
# By their identity: a dict gains and loses an entry in one step, also where other threads, or the garbage collector in
# the middle of what this one does, change it too. A lock would have to survive both, and a fork.
_kept: dict[torch.dtype, dict[int, Tensor]] = {dtype: {} for dtype in (torch.float32, torch.float64)}


class Borrowed:
    """Memory for as long as this object lives. Its numbers are what the last user left.

    New memory from the system costs a page fault for every 4 KiB: as much as the backward pass itself on a wide network
    with a small batch.

    Attributes:
        numbers: flat, at least ``length`` of them, at a multiple of 64 bytes.
    """

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.numbers = _take(length, dtype)

    def __del__(self) -> None:
        memory = getattr(self, "numbers", None)  # `_take` may have raised
        if memory is None:
            return
        pieces = _kept[memory.dtype]
        pieces[id(memory)] = memory
        if len(pieces) > _KEPT:  # the smallest one goes
            smallest = min(list(pieces.values()), key=Tensor.numel, default=None)
            pieces.pop(id(smallest), None)


def _take(length: int, dtype: torch.dtype) -> Tensor:
    pieces = _kept[dtype]
    for key in reversed(list(pieces)):  # the last one used first: it may still be in the caches
        memory = pieces.pop(key, None)  # one step: two threads never get the same
        if memory is None:
            continue
        # One that is far too large would be held for nothing while it is in use.
        if length <= memory.numel() <= 4 * length + (1 << 20):
            return memory
        pieces[key] = memory
    with ordinary_tensors():
        return torch.empty(length, dtype=dtype, device="cpu")


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


_NUM_LOCKS = 64
_locks = tuple(threading.Lock() for _ in range(_NUM_LOCKS))


@contextmanager
def added_to(parameters: Sequence[Tensor], *, may_overwrite: bool = False) -> Iterator[tuple[list[Tensor], bool]]:
    """The ``.grad`` of each parameter, to be added to in this block, and True.

    Two threads that go backward through the same parameters take turns here, and no sum is lost. A parameter without a
    gradient gets zeros first.

    Args:
        may_overwrite: where no parameter has a gradient, the block gets new memory and False instead: it must write
            every number, and no zeros are filled in and read again for nothing.
    """
    # In order, so that no two threads wait for each other; parameters that share a lock share it also here.
    locks = [_locks[number] for number in sorted({id(parameter) // 16 % _NUM_LOCKS for parameter in parameters})]
    for lock in locks:
        lock.acquire()
    try:
        if may_overwrite and all(parameter.grad is None for parameter in parameters):
            grads = [torch.empty_like(parameter) for parameter in parameters]
            yield grads, False
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        held = [parameter.grad for parameter in parameters]
        yield held, True  # type: ignore[misc]  # none of them is None any more
        written(*held)  # type: ignore[arg-type]
    finally:
        for lock in locks:
            lock.release()


def written(*tensors: Tensor) -> None:
    """Compiled code has written to these. A graph that saved one of them must not be differentiated any more."""
    # Compiled code writes behind PyTorch's back: without this, autograd would use the changed numbers and not notice.
    torch.autograd.graph.increment_version(tensors)


# Makes the work that adds the gradient of a weight to a tensor, or to zeros; with a weight and ``lr`` it also moves it.
_MakeWork = Callable[[Tensor | None, tuple[Tensor, float] | None], Work[Tensor]]
_here = threading.local()


def _after_fork() -> None:
    """What a child inherits from threads that it does not have."""
    global _locks, _here
    # A thread that held a lock when the process forked does not exist in the child, and would never let go.
    _locks = tuple(threading.Lock() for _ in range(_NUM_LOCKS))
    _here = threading.local()  # the pass that forked goes on in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class FusedStep:
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
        direct = [weight for weight in self._waiting if is_plain_leaf(weight)]
        with added_to(direct) as (grads, _):
            memory = {tensor.untyped_storage().data_ptr() for tensor in [*direct, *grads]}
            # Where two weights or their gradients share memory, all must be complete before any weight moves.
            is_apart = len(memory) == 2 * len(direct)
            works = []
            for weight, grad in zip(direct, grads, strict=True):
                *others, last = self._waiting.pop(weight)
                step = (weight, self._lr) if is_apart else None
                works.append(concatenated([*(make_work(grad, None) for make_work in others), last(grad, step)]))
            run_works(works, at_once=is_apart and not any(call.is_shared for work in works for call in work.calls))
        for weight, makers in self._waiting.items():  # another part of the graph left a gradient of another form
            for make_work in makers:
                gradient = run_works([make_work(None, None)])[0].view_as(weight)
                weight.grad = gradient if weight.grad is None else gradient + weight.grad
        if not is_apart:
            return set()
        written(*direct)
        return {id(weight) for weight in direct}


@contextmanager
def fused_step(parameters: Iterable[Tensor], lr: float) -> Iterator[FusedStep]:
    """The backward pass in this block, on this thread, leaves what it can to the `FusedStep`; call its `finish` then.

    Nothing is left to it where processes train together: what joins their gradients looks at them during the pass. Nor
    where float32 cannot hold ``lr``: PyTorch then says so.
    """
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    fits = lr <= torch.finfo(torch.float32).max
    outer, _here.step = current_step(), FusedStep(parameters if fits and not is_distributed else (), lr)
    try:
        yield _here.step
    finally:
        _here.step = outer


def current_step() -> FusedStep | None:
    """That of the backward pass which runs on this thread, if there is one."""
    return getattr(_here, "step", None)
