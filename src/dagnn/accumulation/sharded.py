"""Processes that each hold a part of every parameter (FSDP2, ``fully_shard``)."""

from collections.abc import Sequence
from typing import Any, TypeVar, final

import torch.distributed as dist
from torch import nn

from dagnn.accumulation.processes import Ranks
from dagnn.accumulation.replicated import gather_objects
from dagnn.errors import AccumulationError, ConfigError

T = TypeVar("T")


@final
class Sharded(Ranks):
    """Leaves the reduction to FSDP2, which averages gradients over the processes.

    ``reduce_each`` reduces after every micro-batch: the memory of one shard of gradients. Without it, they are
    reduced once per window: less traffic, but every process keeps the gradients of the whole model until then.
    """

    every_backward = True

    def __init__(self, models: Sequence[Any], parameters: Sequence[nn.Parameter], *, reduce_each: bool) -> None:
        meshes = {mesh for p in parameters if (mesh := getattr(p, "device_mesh", None)) is not None}
        if len(meshes) != 1 or any(getattr(p, "device_mesh", None) is None for p in parameters):
            raise ConfigError(
                "with fully_shard all parameters of the optimizer must be sharded over the same mesh: call "
                "fully_shard(model) on the whole model before making the optimizer."
            )
        (mesh,) = meshes
        if mesh.ndim > 1 and mesh.size() != dist.get_world_size():
            raise ConfigError(
                f"a mesh of {mesh.ndim} dimensions must hold all {dist.get_world_size()} processes, got {mesh.size()}."
            )
        self._models = list(models)
        self._reduce_each = reduce_each
        self._group = mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
        self.world_size = mesh.size()
        self.seed_factor = float(self.world_size)
        self._copies = 1 if mesh.ndim == 1 else mesh.size(0)  # HSDP: the first dimension replicates

    def gather(self, value: T) -> list[T]:
        return gather_objects(value, self._group)

    def open_window(self, micro_batches: list[int]) -> None:
        if len(set(micro_batches)) > 1:
            raise AccumulationError(
                f"with fully_shard all processes must run the same number of micro-batches per window, got "
                f"{', '.join(map(str, micro_batches))}: they exchange parameters in every forward pass. Give every "
                "process the same number of batches (DistributedSampler does), or use DDP."
            )

    def open_micro_batch(self, *, is_last: bool) -> None:
        if not self._reduce_each:
            for model in self._models:
                model.set_requires_gradient_sync(is_last)

    def close_window(self) -> None:
        if not self._reduce_each:
            for model in self._models:
                model.set_requires_gradient_sync(True)

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        pass

    def sum_parts(self, value: float) -> float:
        return sum(self.gather(value)) / self._copies

    def share_buffers(self) -> None:
        pass
