"""What moves once per update besides the optimizer: schedulers and averages, checked when they are given."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dagnn.accumulation.arguments import as_list
from dagnn.errors import ConfigError

_ONE_EACH = "pass one average per model, as a list in the order of the models, or as a mapping {model: average}"


def check_schedulers(scheduler: Any, optimizers: Sequence[Optimizer]) -> list[Any]:
    """The schedulers in ``scheduler``, each of which can be moved by ``step()`` once per update of ``optimizers``.

    Raises:
        ConfigError: one of them cannot, is given twice, or moves the learning rate of another optimizer.
    """
    schedulers = [] if scheduler is None else as_list(scheduler)
    for each in schedulers:
        _check_scheduler(each, optimizers)
    if len({id(each) for each in schedulers}) < len(schedulers):
        raise ConfigError("scheduler holds the same scheduler twice, which would move twice per update: give it once.")
    return schedulers


def average_updates(ema: Any, models: Sequence[nn.Module]) -> list[Callable[[], Any]]:
    """What to call after an update, so that each average moves once, with its own model.

    Args:
        ema: None, an average, a list of averages (one for each model, None for none), or a mapping from models to
            averages. An average has ``update_parameters(model)`` as ``torch.optim.swa_utils.AveragedModel`` has, or
            ``update(model)``, or ``update()``, or is a function of the model or of nothing.

    Raises:
        ConfigError: an average is of no such kind, or it is not clear whose average it is.
    """
    if ema is None:
        return []
    if isinstance(ema, Mapping):
        unknown = [model for model in ema if not any(model is known for known in models)]
        if unknown:
            raise ConfigError(
                f"ema has a {type(unknown[0]).__name__} as a key, which is not the accumulator's model: its keys are "
                "the models that were passed as model=."
            )
        return [_update_of(average, model) for model, average in ema.items() if average is not None]
    if isinstance(ema, (list, tuple)):
        if len(ema) != len(models):
            raise ConfigError(f"ema holds {len(ema)} averages, but there are {len(models)} models: {_ONE_EACH}.")
        pairs = zip(ema, models, strict=True)
        return [_update_of(average, model) for average, model in pairs if average is not None]
    if len(models) == 1 or _needs_no_model(ema):
        return [_update_of(ema, models[0])]
    fitting = [model for model in models if _fits(ema, model)]
    if len(fitting) != 1 or not _has_copy(ema):
        raise ConfigError(
            f"ema is one {type(ema).__name__}, but there are {len(models)} models, and it could be the average of "
            f"{len(fitting)} of them: {_ONE_EACH}."
        )
    return [_update_of(ema, fitting[0])]


def _check_scheduler(scheduler: Any, optimizers: Sequence[Optimizer]) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau follows a metric, not the updates: leave it out of scheduler= and call its step(metric) "
            "yourself after each evaluation."
        )
    name = scheduler.__name__ if isinstance(scheduler, type) else type(scheduler).__name__
    step = getattr(scheduler, "step", None)
    if isinstance(scheduler, (Optimizer, type)) or not callable(step):
        raise ConfigError(f"scheduler must have a step() method to move it, got {name}.")
    if needed := _required(step):
        raise ConfigError(
            f"the step() of {name} needs {', '.join(needed)}, but is called with nothing, once per update: leave the "
            f"scheduler out and call it yourself, after window.step() or once per epoch, or pass an object whose "
            "step() does so."
        )
    moved = getattr(scheduler, "optimizer", None)
    if isinstance(moved, Optimizer) and not any(_same_groups(moved, optimizer) for optimizer in optimizers):
        raise ConfigError(
            f"the {name} in scheduler= moves the learning rate of another optimizer than the accumulator's: make it "
            "from the optimizer that is passed as optimizer=, or call its step() yourself."
        )


def _same_groups(moved: Optimizer, optimizer: Optimizer) -> bool:
    # Wrappers of optimizers (Accelerate's) share the groups of what they wrap.
    return moved is optimizer or moved.param_groups is optimizer.param_groups


def _update_of(average: Any, model: nn.Module) -> Callable[[], Any]:
    method, needed = _method(average)
    if len(needed) > 1:
        raise ConfigError(
            f"ema is a {type(average).__name__} that must be called with {', '.join(needed)}, but all that is known is "
            "the model: pass a function of the model that calls it."
        )
    if not _fits(average, model):
        raise ConfigError(
            f"ema averages a {type(getattr(average, 'module', None)).__name__} whose parameters are not those of its "
            f"model, {type(model).__name__}, by number and shape: make it from that model."
        )
    return (lambda: method(model)) if needed else method


def _method(average: Any) -> tuple[Callable[..., Any], list[str]]:
    """How to call ``average``, and the arguments that this needs."""
    if not isinstance(average, type):
        for name in ("update_parameters", "update"):
            method = getattr(average, name, None)
            if callable(method):
                return method, _required(method)
        if callable(average) and not isinstance(average, nn.Module):
            return average, _required(average)
    name = average.__name__ if isinstance(average, type) else type(average).__name__
    raise ConfigError(
        "ema must have update_parameters(model), as torch.optim.swa_utils.AveragedModel has, or update(), or be a "
        f"function of the model, got {name}."
    )


def _needs_no_model(average: Any) -> bool:
    return not _method(average)[1]


def _has_copy(average: Any) -> bool:
    return isinstance(getattr(average, "module", None), nn.Module)


def _fits(average: Any, model: nn.Module) -> bool:
    """False where ``average`` shows its copy of a model (``.module``), and that is of another shape."""
    if not _has_copy(average):
        return True
    return [p.shape for p in average.module.parameters()] == [p.shape for p in model.parameters()]


def _required(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments that ``function`` cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature: taken as functions of one argument
        return ["model"]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
