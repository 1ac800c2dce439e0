"""Processes that each hold the whole model (DDP, or a plain module with a process group): one sum per window.

Inside a window DDP's own synchronisation is off, forward and backward alike, and the finished gradients are summed
here, bucket by bucket. So each bucket travels once per window whatever K is, and nothing depends on which parameters a
micro-batch used, on how many micro-batches a process has, or on ``static_graph``. The price is that the sum does not
overlap with the last backward pass.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dagnn.accumulation.notices import warn
from dagnn.accumulation.processes import Ranks
from dagnn.errors import AccumulationError

T = TypeVar("T")
BUCKET_BYTES = 25 * 2**20  # DDP's default
_SWITCHES = ("require_backward_grad_sync", "require_forward_param_sync", "static_graph", "find_unused_parameters")


@final
class Replicated(Ranks):
    """Sums gradients over the processes of ``group``."""

    seed_factor = 1.0
    every_backward = False

    def __init__(self, models: Sequence[nn.Module], group: Any) -> None:
        self._group = group
        self.world_size = dist.get_world_size(group)
        self._wrapped = [model for model in models if isinstance(model, DistributedDataParallel)]
        self._before: list[dict[str, bool]] | None = None
        for model in self._wrapped:
            if getattr(model, "_comm_hooks", None):
                warn(
                    "the communication hook of DDP is not used inside windows: gradients are summed once per window, "
                    "in full precision."
                )

    def gather(self, value: T) -> list[T]:
        return gather_objects(value, self._group)

    def open_window(self, micro_batches: list[int]) -> None:
        if self._before is None:
            self._before = [{name: getattr(model, name) for name in _SWITCHES} for model in self._wrapped]
        for model in self._wrapped:
            for name in _SWITCHES:
                setattr(model, name, False)

    def open_micro_batch(self, *, is_last: bool) -> None:
        pass

    def close_window(self) -> None:
        for model, values in zip(self._wrapped, self._before or [], strict=False):
            for name, value in values.items():
                setattr(model, name, value)
        self._before = None

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        used = self._used_anywhere(parameters)
        gradients = []
        for parameter, is_used in zip(parameters, used, strict=True):
            if not is_used:
                continue  # used by no process: stays None, so that the optimizer leaves it alone
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype, requires_grad=False)
            if parameter.grad.is_sparse:
                raise AccumulationError(
                    "sparse gradients cannot be summed over processes: use nn.Embedding(sparse=False)."
                )
            gradients.append(parameter.grad)
        for bucket in buckets(gradients, BUCKET_BYTES):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=self._group)
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def sum_parts(self, value: float) -> float:
        return value

    def share_buffers(self) -> None:
        for model in self._wrapped:
            if model.broadcast_buffers:
                for buffer in model.module.buffers():
                    dist.broadcast(buffer, group=self._group, group_src=0)

    def _used_anywhere(self, parameters: list[nn.Parameter]) -> list[bool]:
        if not parameters:
            return []
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32, device=parameters[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self._group)
        return [bool(u) for u in used.tolist()]


def gather_objects(value: T, group: Any) -> list[T]:
    """``value`` of every process of ``group``."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered


def buckets(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """``tensors`` in groups of one dtype and device and at most ``limit`` bytes each, in order."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for tensor in tensors:
        key = (tensor.dtype, tensor.device)
        size = tensor.numel() * tensor.element_size()
        if key in groups and sizes[key] + size > limit:
            yield groups.pop(key)
        if key not in groups:
            groups[key], sizes[key] = [], 0
        groups[key].append(tensor)
        sizes[key] += size
    yield from groups.values()
