"""Model and optimizer as named tensors and JSON, and back: checked whole before anything changes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.errors import CheckpointError, RunError


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and `DistributedDataParallel`: its names are the user's own."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):
            model = inside
        else:
            return model


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name (not copies).

    Raises:
        RunError: the model's state holds something that is no tensor.
    """
    state = unwrapped(model).state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise RunError(f"the model's state {name} is a {type(value).__name__}: checkpoints keep tensors only.")
    return dict(state)


def check_tensors(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Compare names, shapes and dtypes.

    Raises:
        CheckpointError: they differ; the message names the first that does.
    """
    for name in (*wanted, *saved):
        if name not in saved or name not in wanted:
            who = "the checkpoint lacks" if name not in saved else "only the checkpoint has"
            raise CheckpointError(f"the checkpoint is of another {what}: {who} {name}.")
        mine, theirs = wanted[name], saved[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise CheckpointError(
                f"the checkpoint is of another {what}: {name} is {theirs.dtype} {list(theirs.shape)} there, "
                f"{mine.dtype} {list(mine.shape)} here."
            )


def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into the model.

    Raises:
        CheckpointError: names, shapes or dtypes differ; the model is then unchanged.
    """
    check_tensors(tensors, model_tensors(model), "model")
    unwrapped(model).load_state_dict(dict(tensors))


def load_weights(model: nn.Module, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Copy a checkpoint's weights into the model for use: the averaged ones, where it has them.

    Args:
        groups: `Checkpoint.tensors`.

    Raises:
        CheckpointError: they are of another model; the model is then unchanged.
    """
    load_model(model, {**groups["model"], **groups.get("ema", {})})


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's state: tensors by ``"<parameter name>/<slot>"``, and the rest as JSON values.

    By name, not by position: a model whose parameters come in another order gets its own moments back.

    Raises:
        RunError: a parameter is not the model's, or an option cannot be kept.
    """
    names = _names_of_groups(optimizer, model)
    in_order = [name for group in names for name in group]
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"{in_order[index]}/{slot}"] = value
            else:
                values.setdefault(in_order[index], {})[slot] = _json_value(value, slot)
    groups = [
        {key: _json_value(value, key) for key, value in group.items() if key not in ("params", "param_names")}
        for group in state["param_groups"]
    ]
    return tensors, {"groups": groups, "names": names, "values": values}


def load_optimizer(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Put the optimizer where `optimizer_state` found it.

    Raises:
        CheckpointError: it was over other parameters; the optimizer is then unchanged.
    """
    names = _names_of_groups(optimizer, model)
    if [sorted(group) for group in state["names"]] != [sorted(group) for group in names]:
        raise CheckpointError("the checkpoint's optimizer is over other parameters: use the run's own configuration.")
    current = optimizer.state_dict()
    if [sorted(_options(group)) for group in current["param_groups"]] != [
        sorted(each) for each in map(_options, state["groups"])
    ]:
        raise CheckpointError("the checkpoint is of another kind of optimizer: use the run's own configuration.")

    index_of = {name: index for index, name in enumerate(name for group in names for name in group)}
    slots: dict[int, dict[str, Any]] = {index_of[name]: dict(values) for name, values in state["values"].items()}
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in index_of:
            raise CheckpointError(f"the checkpoint's optimizer has state for {name}, which is no parameter here.")
        slots.setdefault(index_of[name], {})[slot] = tensor
    groups = [
        {**mine, **{key: tuple(value) if isinstance(mine.get(key), tuple) else value for key, value in saved.items()}}
        for mine, saved in zip(current["param_groups"], state["groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _names_of_groups(optimizer: Optimizer, model: nn.Module) -> list[list[str]]:
    name_of = {id(parameter): name for name, parameter in unwrapped(model).named_parameters()}
    try:
        return [[name_of[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    except KeyError:
        raise RunError("the optimizer has a parameter that is not the model's: build it over this model.") from None


def _options(group: Mapping[str, Any]) -> list[str]:
    return [key for key in group if key not in ("params", "param_names", "initial_lr")]


def _json_value(value: Any, name: str) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, tuple | list):
        return [_json_value(item, name) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RunError(f"the optimizer's {name} is a {type(value).__name__}: checkpoints keep numbers and tensors only.")
