"""Which processes share a model: found from how it is wrapped."""

from collections.abc import Sequence
from typing import Any, Literal

import torch.distributed as dist
from torch import nn

from dagnn.accumulation.notices import warn
from dagnn.accumulation.processes import Alone, Ranks
from dagnn.errors import ConfigError

FsdpSync = Literal["each", "last"]


def ranks_of(
    models: Sequence[nn.Module],
    parameters: Sequence[nn.Parameter],
    *,
    process_group: Any = None,
    fsdp_sync: FsdpSync = "each",
) -> Ranks:
    """How the processes that train ``models`` join their windows.

    Args:
        models: as the user wrapped them.
        parameters: those that get gradients.
        process_group: joins processes that hold plain modules.
        fsdp_sync: see ``GradientAccumulator``.

    Raises:
        ConfigError: the models are wrapped in different ways, or in a way that cannot be joined.
    """
    if fsdp_sync not in ("each", "last"):
        raise ConfigError(
            "fsdp_sync must be 'each' (reduce after every micro-batch, least memory) or 'last' (reduce once per "
            f"window, least traffic), got {fsdp_sync!r}."
        )
    if not dist.is_available() or not dist.is_initialized():
        return Alone()
    wrappers = {wrapper_of(model) for model in models}
    if "FullyShardedDataParallel" in wrappers:
        raise ConfigError("FullyShardedDataParallel (FSDP1) cannot be joined exactly: use fully_shard (FSDP2), or DDP.")
    if len(wrappers) > 1:
        raise ConfigError(f"the models are wrapped in different ways ({', '.join(sorted(wrappers))}): use one for all.")
    (wrapper,) = wrappers
    if wrapper == "FSDPModule":
        from dagnn.accumulation.sharded import Sharded

        return Sharded(models, parameters, reduce_each=fsdp_sync == "each")

    from dagnn.accumulation.replicated import Replicated

    if wrapper == "DistributedDataParallel":
        groups = [model.process_group for model in models]
        if any(group is not groups[0] for group in groups):
            raise ConfigError("the models are wrapped with different process groups: use one group for all.")
        return Replicated(models, groups[0])
    if process_group is not None:
        return Replicated(models, process_group)
    if dist.get_world_size() > 1:
        warn(
            f"torch.distributed has {dist.get_world_size()} processes, but the model is not wrapped: gradients are not "
            "summed over them. Wrap it in DistributedDataParallel, or pass process_group=torch.distributed.group.WORLD."
        )
    return Alone()


def wrapper_of(model: nn.Module) -> str:
    """Name of the class that joins ``model`` over processes; "a plain module" if none does."""
    # By name: importing torch.distributed.fsdp takes long, and most users have no use for it.
    names = {cls.__name__ for cls in type(model).__mro__ if cls.__module__.startswith("torch.")}
    for wrapper in ("FSDPModule", "DistributedDataParallel", "FullyShardedDataParallel"):
        if wrapper in names:
            return wrapper
    return "a plain module"
