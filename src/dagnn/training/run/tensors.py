"""Model and optimizer as named tensors and JSON, and back: checked whole before anything changes."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.training.run.values import packed, unpacked

_EXTRA = "_extra_state"  # the end of the names that nn.Module gives what get_extra_state returns


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and `DistributedDataParallel`: its names are the user's own."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):
            model = inside
        else:
            return model


def check_initialised(model: nn.Module) -> None:
    """Raise ConfigError for what is no module, or a lazy one that has not seen a batch yet: it has no weights to train,
    average or save."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module, got {type(model).__name__}.")
    for name, each in unwrapped(model).named_parameters():
        if nn.parameter.is_lazy(each):
            raise ConfigError(f"the model's {name} is not initialised yet: call the model once before training.")


def model_tensors(model: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and extra state by name (not copies)."""
    return dict(unwrapped(model).state_dict())


def check_tensors(saved: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    """Compare names, shapes and dtypes; CheckpointError for the first that differs. Extra state may be of any form."""
    for name in (*wanted, *saved):
        if name not in saved and name.rpartition(".")[2] == "_extra_state":
            continue  # load_state_dict knows whether the module can do without
        if name not in saved or name not in wanted:
            who = "the checkpoint lacks" if name not in saved else "only the checkpoint has"
            raise CheckpointError(f"the checkpoint is of another {what}: {who} {name}.")
        mine, theirs = wanted[name], saved[name]
        if name.endswith(_EXTRA) or not (isinstance(mine, Tensor) and isinstance(theirs, Tensor)):
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise CheckpointError(
                f"the checkpoint is of another {what}: {name} is {theirs.dtype} {list(theirs.shape)} there, "
                f"{mine.dtype} {list(mine.shape)} here."
            )


def load_model(model: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Copy saved tensors and extra state into the model, which an error, as of `check_tensors`, leaves unchanged."""
    check_tensors(tensors, model_tensors(model), "model")
    for module in unwrapped(model).modules():
        for name, buffer in module.named_buffers(recurse=False):
            if any(size > 1 and not stride for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
                setattr(module, name, buffer.clone())  # expanded: its elements are one, which cannot be copied into
    unwrapped(model).load_state_dict(dict(tensors))


def averaged_tensors(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The model's state of a checkpoint's groups, with the averaged weights where it has them."""
    return {**groups["model"], **groups.get("ema", {})}


def load_weights(model: nn.Module, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Copy a checkpoint's weights, the averaged ones where it has them, into the model for use.

    A CheckpointError, where they are of another model, leaves it unchanged.
    """
    load_model(model, averaged_tensors(groups))


def flags_of(model: nn.Module) -> dict[str, list[str]]:
    """What decides how a model trains and is no tensor: frozen parameters, and modules in eval mode."""
    inside = unwrapped(model)
    return {
        "frozen": [name for name, parameter in inside.named_parameters() if not parameter.requires_grad],
        "evaluating": [name for name, module in inside.named_modules() if not module.training],
    }


def load_flags(model: nn.Module, flags: Mapping[str, Sequence[str]]) -> None:
    """Put the flags where `flags_of` found them. Raises CheckpointError: a name is none of the model's."""
    inside = unwrapped(model)
    parameters, modules = dict(inside.named_parameters()), dict(inside.named_modules())
    for name in (*set(flags["frozen"]).difference(parameters), *set(flags["evaluating"]).difference(modules)):
        raise CheckpointError(f"the checkpoint is of another model: only the checkpoint has {name}.")
    for name, parameter in parameters.items():
        if parameter.requires_grad != (name not in flags["frozen"]):
            parameter.requires_grad_(name not in flags["frozen"])
    for name, module in modules.items():
        module.training = name not in flags["evaluating"]


def optimizer_state(
    optimizer: Optimizer, model: nn.Module, begun: Sequence[Sequence[str]] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's state: tensors by ``"<parameter name>/<slot>"``, and the rest as JSON values.

    By name, not by position: each parameter gets its own moments back, even if the order has changed.

    Args:
        begun: `names_of_groups` when the training began, where groups may have been added since.

    Raises:
        RunError: a parameter is not the model's, or an option cannot be kept.
    """
    names = names_of_groups(optimizer, model)
    in_order = [name for group in names for name in group]
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"{in_order[index]}/{slot}"] = value
            else:
                values.setdefault(in_order[index], {})[slot] = packed(value, f"the optimizer's {slot}")
    groups = [
        {
            key: _kept_option(value, f"the optimizer's {key}")
            for key, value in group.items()
            if key not in ("params", "param_names")
        }
        for group in state["param_groups"]
    ]
    kept = {"groups": groups, "names": names, "values": values}
    return tensors, kept if begun is None or begun == names else {**kept, "begun": begun}


def load_optimizer(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Put the optimizer where `optimizer_state` found it, with the groups that it had then.

    A CheckpointError, where it was over other parameters, leaves it unchanged.
    """
    check_optimizer(optimizer, model, state)
    names = names_of_groups(optimizer, model)
    if not _same_names(names, state["names"]):
        _regroup(optimizer, model, state)
        names = state["names"]
    current = optimizer.state_dict()

    index_of = {name: index for index, name in enumerate(name for group in names for name in group)}
    slots: dict[int, dict[str, Any]] = {index_of[name]: unpacked(values) for name, values in state["values"].items()}
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in index_of:
            raise CheckpointError(f"the checkpoint's optimizer has state for {name}, which is no parameter here.")
        slots.setdefault(index_of[name], {})[slot] = tensor
    groups = [
        {**mine, **{key: _as_before(unpacked(value), mine.get(key)) for key, value in saved.items()}}
        for mine, saved in zip(current["param_groups"], state["groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})


def check_optimizer(optimizer: Optimizer, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError where `load_optimizer` would. The groups may be those of now or of the training's start."""
    names = names_of_groups(optimizer, model)
    if not any(_same_names(names, groups) for groups in (state["names"], state.get("begun", state["names"]))):
        raise CheckpointError("the checkpoint's optimizer is over other parameters: use the run's own configuration.")
    mine = [sorted(_options(group)) for group in optimizer.state_dict()["param_groups"]]
    if any(sorted(_options(group)) not in mine for group in state["groups"]):
        raise CheckpointError("the checkpoint is of another kind of optimizer: use the run's own configuration.")


def names_of_groups(optimizer: Optimizer, model: nn.Module) -> list[list[str]]:
    """The names of the parameters of every group. Raises RunError: one is not the model's."""
    name_of = {id(parameter): name for name, parameter in unwrapped(model).named_parameters()}
    try:
        return [[name_of[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    except KeyError:
        raise RunError("the optimizer has a parameter that is not the model's: build it over this model.") from None


def _same_names(mine: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> bool:
    return [sorted(group) for group in mine] == [sorted(group) for group in theirs]


def _regroup(optimizer: Optimizer, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Give the optimizer, which has the groups of the training's start, those of the checkpoint."""
    parameters = dict(unwrapped(model).named_parameters())
    named = any("param_names" in group for group in optimizer.param_groups)
    unknown = [name for group in state["names"] for name in group if name not in parameters]
    if unknown:
        raise CheckpointError(f"the checkpoint's optimizer has {unknown[0]}, which is no parameter here.")
    first = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "param_names")}
    optimizer.param_groups.clear()
    optimizer.state.clear()
    for names in state["names"]:
        group = [(name, parameters[name]) if named else parameters[name] for name in names]
        optimizer.add_param_group({**first, "params": group})


def _options(group: Mapping[str, Any]) -> list[str]:
    return [key for key in group if key not in ("params", "param_names", "initial_lr")]


def _kept_option(value: Any, name: str) -> Any:
    """An option of a group: a tuple or a tensor of one number is a list or a number there, as `_as_before` knows."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return packed(value.item(), name)
    if isinstance(value, tuple | list):
        return [_kept_option(item, name) for item in value]
    return packed(value, name)


def _as_before(saved: Any, mine: Any) -> Any:
    """An option in the form that the optimizer here has: a compiled step reads its learning rate from a tensor."""
    if isinstance(mine, tuple) and isinstance(saved, list):
        return tuple(_as_before(each, old) for each, old in zip_longest(saved, mine))
    if isinstance(mine, Tensor) and isinstance(saved, float):
        return torch.full_like(mine, saved)
    return saved
