"""What a window steps: the parameters of its optimizers, and the schedulers and averages that follow."""

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dagnn.accumulation.sums import Sums
from dagnn.errors import AccumulationError, ConfigError


def _as_list(value: Any) -> list[Any]:
    """``value`` itself if it is a list or tuple, else a list of it."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check_models(model: Any) -> list[nn.Module]:
    """One module or several as a list; ConfigError for anything else."""
    return _list_of(model, nn.Module, "model", "an nn.Module", "module")


def check_optimizers(optimizer: Any) -> list[Optimizer]:
    """One optimizer or several as a list; ConfigError for anything else."""
    return _list_of(optimizer, Optimizer, "optimizer", "a torch.optim.Optimizer", "optimizer")


def _list_of(value: Any, kind: type[Any], argument: str, wanted: str, noun: str) -> list[Any]:
    items = _as_list(value)
    for item in items:
        if not isinstance(item, kind):
            raise ConfigError(f"{argument} must be {wanted}, or a list of them, got {type(item).__name__}.")
    _check_distinct(items, argument, noun)
    if not items:
        raise ConfigError(f"{argument} is an empty list ({value!r}): pass {wanted}, or a list of them.")
    return items


def _check_distinct(items: Sequence[Any], argument: str, noun: str) -> None:
    for index, item in enumerate(items):
        if any(item is other for other in items[:index]):
            raise ConfigError(
                f"{argument} holds the same {noun} twice, a {type(item).__name__}, which would act twice per update: "
                "give each once."
            )


class OwnedParameters:
    """What the optimizers of some models update; ConfigError where they hold no parameter of the models."""

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._models = models
        self._optimizers = optimizers
        self._listed: list[nn.Parameter] = []  # as the groups list them
        self._unique: list[nn.Parameter] = []
        self._frozen: list[nn.Parameter] = []
        self._placed: list[nn.Parameter] = []  # of the unique ones those in the models, at homes[i][names[i]]
        self._homes: list[dict[str, nn.Parameter | None]] = []
        self._names: list[str] = []
        self._look_up()
        of_models = {id(p) for model in models for p in model.parameters()}
        if not any(id(parameter) in of_models for parameter in self._unique):
            raise ConfigError(
                f"the optimizer holds no parameter of the model, but {len(self._unique)} others, so the model would "
                "never learn: make it from model.parameters(), after the model has its final parameters "
                "(load_state_dict(assign=True), fully_shard and a new layer replace them). To train other tensors "
                "through the model, pass what holds them too: model=[model, torch.nn.ParameterList([tensor])]."
            )

    def open_window(self) -> list[nn.Parameter]:
        """The parameters that get gradients in the next window. What frozen ones have in ``.grad`` is dropped."""
        self._look_up()
        if not self._is_in_place():
            self._find_places()
        trainable = [parameter for parameter in self._unique if parameter.requires_grad]
        self._frozen = []
        if len(trainable) < len(self._unique):
            self._frozen = [parameter for parameter in self._unique if not parameter.requires_grad]
            for parameter in self._frozen:
                parameter.grad = None
        return trainable

    def check(self, sums: Sums) -> None:
        """Raise where a step would move what it must not, or not move what it should.

        Raises:
            AccumulationError: parameters were frozen, unfrozen, replaced or exchanged since the window was opened, the
                optimizer holds parameters that the model has no more, or nothing got a gradient.
        """
        if not self._is_current():
            raise AccumulationError(
                "the parameter groups of the optimizer changed inside a window, from "
                f"{len(self._listed)} parameters to {len(self._groups())}: change them between windows, and give this "
                "one up with window.discard()."
            )
        for parameter in self._frozen:
            if parameter.grad is None:
                continue
            if parameter.requires_grad:
                raise AccumulationError(self._toggled(parameter, "unfrozen", "a gradient from a part of"))
            parameter.grad = None
        found = sums.has_sum()
        if not all(parameter.requires_grad for parameter in sums.parameters):
            for parameter, has_sum in zip(sums.parameters, found, strict=True):
                if has_sum and not parameter.requires_grad:
                    raise AccumulationError(self._toggled(parameter, "frozen", "a gradient from"))
        if not self._is_in_place():
            self._check_replaced([p for p, has_sum in zip(sums.parameters, found, strict=True) if has_sum])
        if not all(found):
            self._check_stale([p for p, has_sum in zip(sums.parameters, found, strict=True) if not has_sum])
        if not any(found):
            raise AccumulationError(
                f"none of the {len(found)} parameters that the optimizer holds got a gradient in this window: the loss "
                "depends on others only, or a hook of yours took the gradients out of .grad. Give the window up with "
                "window.discard()."
            )

    def names(self) -> dict[int, str]:
        """``id(parameter)`` -> its name in the model."""
        return {id(p): name for model in self._models for name, p in model.named_parameters()}

    def _groups(self) -> list[nn.Parameter]:
        return [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]

    def _is_current(self) -> bool:
        listed = self._groups()
        return len(listed) == len(self._listed) and all(map(operator.is_, listed, self._listed))

    def _look_up(self) -> None:
        if not self._is_current():
            self._listed = self._groups()
            # Tied weights and several optimizers may list one twice.
            self._unique = list({id(parameter): parameter for parameter in self._listed}.values())
            self._find_places()

    def _is_in_place(self) -> bool:
        """Whether the models still hold what they held; a tenth of a microsecond for each parameter."""
        return all(map(operator.is_, map(dict.get, self._homes, self._names), self._placed))

    def _find_places(self) -> None:
        owned = {id(parameter) for parameter in self._unique}
        places = {
            id(parameter): (parameter, module._parameters, name)
            for model in self._models
            for module in model.modules()
            for name, parameter in module._parameters.items()
            # fully_shard exchanges its own in every pass.
            if parameter is not None and id(parameter) in owned and not hasattr(parameter, "device_mesh")
        }
        self._placed = [parameter for parameter, _, _ in places.values()]
        self._homes = [home for _, home, _ in places.values()]
        self._names = [name for _, _, name in places.values()]

    def _check_replaced(self, with_gradient: list[nn.Parameter]) -> None:
        of_models = {id(p) for model in self._models for p in model.parameters()}
        gone = {id(p): name for p, name in zip(self._placed, self._names, strict=True) if id(p) not in of_models}
        for parameter in with_gradient:
            if id(parameter) in gone:
                raise AccumulationError(
                    f"{gone[id(parameter)]} of the shape {list(parameter.shape)} was replaced in the model, or left "
                    "it, inside a window, and has a gradient from a part of it: do so between windows, give the new "
                    "one to the optimizer, and give this window up with window.discard()."
                )

    def _check_stale(self, without_gradient: list[nn.Parameter]) -> None:
        """Parameters without a gradient are unused, or no part of the model any more, which has others instead."""
        of_models = {id(p) for model in self._models for p in model.parameters()}
        stale = [parameter for parameter in without_gradient if id(parameter) not in of_models]
        if not stale:
            return
        owned = {id(parameter) for parameter in self._unique}
        for model in self._models:
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and id(parameter) not in owned:
                    raise AccumulationError(
                        f"the optimizer holds {len(stale)} parameters that got no gradient and are not in the model, "
                        f"which has {name} that no optimizer holds: was it replaced after the optimizer was made? Make "
                        "the optimizer from the parameters that the model has now. If those others belong to a loss or "
                        "another module, pass it too: model=[model, module]."
                    )

    def _toggled(self, parameter: nn.Parameter, change: str, gradient: str) -> str:
        name = self.names().get(id(parameter), "a parameter")
        return (
            f"{name} was {change} inside a window, and has {gradient} it: set requires_grad between windows, and give "
            "this one up with window.discard()."
        )


_ONE_EACH = "pass one average per model, as a list in the order of the models, or as a mapping {model: average}"


def check_schedulers(scheduler: Any, optimizers: Sequence[Optimizer]) -> list[Any]:
    """The schedulers in ``scheduler``, each of which can be moved by ``step()`` once per update of ``optimizers``.

    ConfigError where one cannot, is given twice, or moves the learning rate of another optimizer.
    """
    schedulers = [] if scheduler is None else _as_list(scheduler)
    for each in schedulers:
        _check_scheduler(each, optimizers)
    _check_distinct(schedulers, "scheduler", "scheduler")
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
    if len(models) == 1 or not _method(ema)[1]:
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
            f"{type(scheduler).__name__} follows a metric, not the updates: leave it out of scheduler= and call its "
            "step(metric) yourself after each evaluation."
        )
    name = scheduler.__name__ if isinstance(scheduler, type) else type(scheduler).__name__
    step = getattr(scheduler, "step", None)
    if isinstance(scheduler, (Optimizer, type)) or not callable(step):
        raise ConfigError(f"scheduler must have a step() method to move it, got {name}.")
    if needed := _required(step):
        raise ConfigError(
            f"the step() of {name} needs {', '.join(needed)}, but the accumulator calls it without arguments, once per "
            "update: leave the scheduler out and call it yourself, after window.step() or once per epoch, or pass an "
            "object whose step() does so."
        )
    moved = getattr(scheduler, "optimizer", None)
    # Wrappers of optimizers (Accelerate's) share the groups of what they wrap.
    if isinstance(moved, Optimizer) and not any(moved.param_groups is each.param_groups for each in optimizers):
        raise ConfigError(
            f"the {name} in scheduler= moves the learning rate of another optimizer than the accumulator's: make it "
            "from the optimizer that is passed as optimizer=, or call its step() yourself."
        )


def _update_of(average: Any, model: nn.Module) -> Callable[[], Any]:
    method, needed = _method(average)
    if len(needed) > 1:
        raise ConfigError(
            f"ema is a {type(average).__name__} that must be called with {', '.join(needed)}, but the accumulator has "
            "only the model: pass a function of the model that calls it."
        )
    if not _fits(average, model):
        raise ConfigError(
            f"ema averages a {type(getattr(average, 'module', None)).__name__} whose parameters are not those of its "
            f"model, {type(model).__name__}, by number and shape: make it from that model."
        )
    # A partial, no lambda: a copy of the accumulator must move its own average, and pickle must find it.
    return partial(method, model) if needed else method


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
