"""Optimizers by name: a closed registry over `torch.optim`; a name from a file is looked up, never imported."""

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from dagnn.training.config import OptimizerConfig

_FUSED_ON = ("cpu", "cuda")


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer over the trainable parameters of ``model``, with their names in its groups.

    A checkpoint stores optimizer state by these names, so a model whose parameters come in another order
    resumes with the right moments.
    """
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    lr, decay = config.lr, config.weight_decay
    fused = True if all(_may_be_fused(parameter) for _, parameter in parameters) else None  # None: PyTorch chooses
    makers: dict[str, Callable[[], Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=decay),
        "adam": lambda: torch.optim.Adam(parameters, lr=lr, betas=config.betas, weight_decay=decay, fused=fused),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=lr, betas=config.betas, weight_decay=decay, fused=fused),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=lr, momentum=config.momentum, weight_decay=decay),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=lr, weight_decay=decay),
    }
    return makers[config.name]()


def _may_be_fused(parameter: nn.Parameter) -> bool:
    """Whether one call may update it with all others: a quarter of the time for a small network, on any threads the
    same bits.

    It walks along the memory of weight, gradient and moments and asks for no strides (torch 2.13). Moments that come
    back from a checkpoint are contiguous; a weight that is not would get another one's, or write to its neighbours.
    """
    return parameter.is_floating_point() and parameter.is_contiguous() and parameter.device.type in _FUSED_ON
