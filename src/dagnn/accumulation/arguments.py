"""Arguments of GradientAccumulator that may be one object or several."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dagnn.errors import ConfigError


def unique_parameters(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Each parameter once, in order: tied weights and several optimizers may list one twice."""
    return list({id(parameter): parameter for parameter in parameters}.values())


def as_list(value: Any) -> list[Any]:
    """``value`` itself if it is a list or tuple, else a list of it."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check_models(model: Any) -> list[nn.Module]:
    """One module or several as a list; ConfigError for anything else."""
    models = as_list(model)
    for item in models:
        if not isinstance(item, nn.Module):
            raise ConfigError(f"model must be an nn.Module, or a list of them, got {type(item).__name__}.")
    if len({id(item) for item in models}) < len(models):
        raise ConfigError("model holds the same module twice: give each once.")
    if not models:
        raise ConfigError("model is an empty list: pass an nn.Module, or a list of them.")
    return models


def check_optimizers(optimizer: Any) -> list[Optimizer]:
    """One optimizer or several as a list; ConfigError for anything else."""
    optimizers = as_list(optimizer)
    for item in optimizers:
        if not isinstance(item, Optimizer):
            raise ConfigError(
                f"optimizer must be a torch.optim.Optimizer, or a list of them, got {type(item).__name__}."
            )
    if len({id(item) for item in optimizers}) < len(optimizers):
        raise ConfigError("optimizer holds the same optimizer twice, which would step twice: give each once.")
    if not optimizers:
        raise ConfigError("optimizer is an empty list: pass a torch.optim.Optimizer, or a list of them.")
    return optimizers
