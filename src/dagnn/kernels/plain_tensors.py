"""Which tensors compiled code may be given: it reads their memory, and nothing of what PyTorch keeps beside it."""

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.autograd import forward_ad

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
