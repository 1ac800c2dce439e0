"""How compiled passes fit into PyTorch: the tensors they may read, their memory, leaf gradients, the fused step."""

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
    """Whether a tensor on the CPU is its memory and nothing else, so that compiled code may read it.

    False for subclasses, wrappers of ``torch.func``, tensors with a forward-mode tangent, zeros without memory, and
    where a negation is still to be carried out.
    """
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not _is_transformed(tensor)
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )


def is_plain_on_gpu(tensor: Tensor) -> bool:
    """The same for a tensor on a GPU and for a Triton kernel."""
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cuda
        and tensor.layout is torch.strided
        and not _is_transformed(tensor)
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )


def _is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor is a wrapper of ``torch.func`` (a batch under ``vmap``, for one) or has a tangent."""
    if is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def is_watched() -> bool:
    """Whether somebody records or replaces PyTorch's operations: ``make_fx``, ``torch.jit.trace``, ``torch.func``.

    The first two do not see compiled code and would record its results as constants. Transforms of ``torch.func``
    refuse autograd Functions, even on tensors that they do not transform.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def is_recorded() -> bool:
    """Whether autograd records what runs now, and nobody else does but ``torch.compile``."""
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled() and not torch.compiler.is_exporting()
    return torch.is_grad_enabled() and not is_watched()


def with_memory(gradient: Tensor) -> Tensor:
    """The same numbers in memory of their own, where a gradient on the CPU is sparse, negated or has none."""
    if _is_transformed(gradient):
        return gradient
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    if gradient._is_zerotensor():
        return torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    return gradient.resolve_neg()


# Pieces that are kept for each dtype: what a pass saved and the scratch of its gradients, for one network and one sweep
# or for two networks in a row.
_KEPT = 4
# By id: a dict gains and loses an entry in one step, also while other threads change it, or the garbage collector in
# the middle of a line of ours. A lock would deadlock in a collector that runs while its own thread holds it, and after
# a fork.
_kept: dict[torch.dtype, dict[int, Tensor]] = {dtype: {} for dtype in (torch.float32, torch.float64)}


class Borrowed:
    """Memory for as long as this object lives: flat ``numbers``, aligned to 64 bytes, which hold what was left there.

    New memory from the system costs a page fault for every 4 KiB: as much as the backward pass itself on a wide network
    with a small batch.
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
    """Whether autograd should keep the gradients of these parameters, because they are their first.

    Autograd keeps a first gradient without a copy, and `only_adds` costs 0.1 ms where autograd answers with an
    exception. With other threads about, `added_to` keeps it: they may be adding under its lock. Threads that compiled
    code runs on do not count, since they add nothing of their own.
    """
    for parameter in parameters:  # a loop, not `any(...)`: this runs in every step
        if not parameter.is_leaf:  # computed for this step. Nobody reads its .grad, and reading it here would warn
            return True
        if parameter.grad is not None:
            return False
    return threading.active_count() == 1 + workers.num_python_threads()


def only_adds(parameters: Sequence[Tensor], nodes: Sequence[Any]) -> bool:
    """Whether autograd would do nothing with the gradients of all these parameters but add them to ``.grad``.

    ``nodes``: where their gradients go next, the ``ctx.next_functions`` of the running backward pass.
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
    """Whether a parameter is a leaf without hooks, and has no gradient yet or one that may be written in place."""
    if not (parameter.is_leaf and parameter.requires_grad and parameter.is_contiguous()):
        return False
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        return False
    grad = parameter.grad
    return grad is None or (
        type(grad) is Tensor
        and is_plain(grad)  # any other is left to PyTorch, which raises the right error
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
    """Compiled code has written to these: autograd must not go back through a graph that saved one of them."""
    # PyTorch does not see those writes. Without this, autograd would compute with the changed numbers and not notice.
    torch.autograd.graph.increment_version(tensors)


# Makes the work that adds the gradient of a weight to a tensor, or to zeros. Given the weight and ``lr``, the work also
# moves the weight.
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
    """Backward and update in one pass: which weights move, and the gradients that wait for the end of the pass."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self._lr = lr
        self._moving = {id(parameter) for parameter in parameters}
        self._waiting: dict[Tensor, list[_MakeWork]] = {}

    def takes(self, weight: Tensor, node: Any, make_work: _MakeWork) -> bool:
        """Whether `finish` will add this gradient to ``.grad``; ``node`` is where autograd would send it.

        It waits, since a later part of the same backward pass may still read the weight.
        """
        if id(weight) not in self._moving or not only_adds([weight], [node]):
            return False
        self._waiting.setdefault(weight, []).append(make_work)
        return True

    def finish(self) -> set[int]:
        """After the backward pass: add what waits to ``.grad``. Returns the ids of the weights that also moved."""
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
        # What is left: meanwhile, another part of the graph left a gradient that may not be written in place.
        for weight, makers in self._waiting.items():
            for make_work in makers:
                gradient = run_works([make_work(None, None)])[0].view_as(weight)
                weight.grad = gradient if weight.grad is None else gradient + weight.grad
        if not is_apart:
            return set()
        written(*direct)
        return {id(weight) for weight in direct}


@contextmanager
def fused_step(parameters: Iterable[Tensor], lr: float) -> Iterator[FusedStep]:
    """The backward pass in this block, on this thread, leaves what it can to the `FusedStep`; then call its `finish`.

    It leaves nothing where processes train together, since DDP reduces gradients during the pass; nor where float32
    cannot hold ``lr``, so that PyTorch raises its error.
    """
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    fits = lr <= torch.finfo(torch.float32).max
    outer, _here.step = current_step(), FusedStep(parameters if fits and not is_distributed else (), lr)
    try:
        yield _here.step
    finally:
        _here.step = outer


def current_step() -> FusedStep | None:
    """The `FusedStep` of the backward pass on this thread, if there is one."""
    return getattr(_here, "step", None)
