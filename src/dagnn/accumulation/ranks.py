"""How processes add up counts and gradients: one alone, several with replicas (DDP) or with shards (FSDP2)."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError, warn

T = TypeVar("T")
FsdpSync = Literal["each", "last"]


class Ranks:
    """What a window needs of the processes that share the model, all of which call each method; as it is: one alone."""

    world_size = 1
    seed_factor = 1.0  # what losses are multiplied by, where the wrapper divides gradients by the world size
    every_backward = False  # all processes must run every backward pass, also of a micro-batch that counts nothing

    def gather(self, value: T) -> list[T]:
        """``value`` of every process, in the order of their ranks."""
        return [value]

    def open_window(self, micro_batches: list[int]) -> None:
        """Called before the first forward pass of a window, with the number of micro-batches of every process."""

    def open_micro_batch(self, *, is_last: bool) -> None:
        """Called before the forward pass of each micro-batch."""

    def close_window(self) -> None:
        """Called when the window ends, also by an error."""

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Replace the ``.grad`` of every process by their sum."""

    def sum_parts(self, value: float) -> float:
        """Sum of ``value`` over the processes where each holds a part of every gradient; else ``value`` itself."""
        return value

    def share_buffers(self) -> None:
        """Give every process the buffers of the first, where the wrapper does so."""


def ranks_of(
    models: Sequence[nn.Module],
    parameters: Sequence[nn.Parameter],
    *,
    process_group: Any = None,
    fsdp_sync: FsdpSync = "each",
) -> Ranks:
    """How the processes that train ``models`` add up their windows.

    Args:
        models: as the user wrapped them.
        parameters: those that get gradients.
        process_group: the processes that hold replicas of a plain module.
        fsdp_sync: see ``GradientAccumulator``.

    Raises:
        ConfigError: the models are wrapped in different ways, or in a way that cannot be summed exactly.
    """
    if fsdp_sync not in ("each", "last"):
        raise ConfigError(
            "fsdp_sync must be 'each' (reduce after every micro-batch, least memory) or 'last' (reduce once per "
            f"window, least traffic), got {fsdp_sync!r}."
        )
    if not dist.is_available() or not dist.is_initialized():
        return Ranks()
    wrappers = {_wrapper_of(model) for model in models}
    if "FullyShardedDataParallel" in wrappers:
        raise ConfigError(
            f"the model is wrapped in {', '.join(sorted(wrappers))}: FSDP1 cannot be summed exactly. Use fully_shard "
            "(FSDP2), or DDP."
        )
    if len(wrappers) > 1:
        raise ConfigError(f"the models are wrapped in different ways ({', '.join(sorted(wrappers))}): use one for all.")
    (wrapper,) = wrappers
    if wrapper == "FSDPModule":
        return Sharded(models, parameters, reduce_each=fsdp_sync == "each")

    if wrapper == "DistributedDataParallel":
        groups = [model.process_group for model in models]
        if any(group is not groups[0] for group in groups):
            raise ConfigError(
                f"the {len(models)} models are wrapped with {len(set(map(id, groups)))} process groups: use one for "
                "all."
            )
        return Replicated(models, groups[0])
    if process_group is not None:
        return Replicated(models, process_group)
    if dist.get_world_size() > 1:
        warn(
            f"torch.distributed has {dist.get_world_size()} processes, but the model is not wrapped: gradients are not "
            "summed over them. Wrap it in DistributedDataParallel, or pass "
            "process_group=torch.distributed.group.WORLD.",
            AccumulationWarning,
        )
    return Ranks()


def _wrapper_of(model: nn.Module) -> str:
    """Name of the class that wraps ``model`` for several processes; "a plain module" if none does."""
    # By name: importing torch.distributed.fsdp takes long, and most users have no use for it.
    names = {cls.__name__ for cls in type(model).__mro__ if cls.__module__.startswith("torch.")}
    for wrapper in ("FSDPModule", "DistributedDataParallel", "FullyShardedDataParallel"):
        if wrapper in names:
            return wrapper
    return "a plain module"


_BUCKET_BYTES = 25 * 2**20  # DDP's default
_SWITCHES = ("require_backward_grad_sync", "require_forward_param_sync", "static_graph", "find_unused_parameters")


@final
class Replicated(Ranks):
    """Sums gradients over the processes of ``group``."""

    def __init__(self, models: Sequence[nn.Module], group: Any) -> None:
        self._group = group
        self.world_size = dist.get_world_size(group)
        self._wrapped = [model for model in models if isinstance(model, DistributedDataParallel)]
        self._before: list[dict[str, bool]] | None = None
        for model in self._wrapped:
            if getattr(model, "_comm_hooks", None):
                warn(
                    "the communication hook of DDP is not used inside windows: gradients are summed once per window, "
                    "in full precision.",
                    AccumulationWarning,
                )

    def gather(self, value: T) -> list[T]:
        return gather_objects(value, self._group)

    def open_window(self, micro_batches: list[int]) -> None:
        if self._before is None:
            self._before = [{name: getattr(model, name) for name in _SWITCHES} for model in self._wrapped]
        for model in self._wrapped:
            for name in _SWITCHES:
                setattr(model, name, False)

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
                    f"the sparse gradient of a parameter of the shape {list(parameter.shape)} cannot be summed over "
                    "processes: use nn.Embedding(sparse=False)."
                )
            gradients.append(parameter.grad)
        for bucket in buckets(gradients, _BUCKET_BYTES):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=self._group)
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

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
                "with fully_shard all parameters of the optimizer must be sharded over the same mesh, got "
                f"{len(meshes)} meshes or plain parameters beside sharded ones: call fully_shard(model) on the whole "
                "model before making the optimizer."
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

    def sum_parts(self, value: float) -> float:
        return sum(self.gather(value)) / self._copies
