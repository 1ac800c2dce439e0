"""The loss and the model in it through torch.compile, where a configuration asks for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dagnn.errors import ConfigError

LossFunction = Callable[[nn.Module, Any], Any]


def compiled(loss_fn: LossFunction) -> LossFunction:
    """The loss function, compiled at its first call together with the model that it calls.

    The model itself stays as it is: its names in checkpoints, its evaluation and its averaged weights are those of a
    model that was never compiled.

    Raises:
        ConfigError: at a call: torch cannot compile it here, such as without a C++ compiler.
    """
    # Sizes are variables from the start: with fixed ones each ragged micro-batch would be compiled anew, and a resumed
    # training, which meets them in another order, would run other code than one that was never stopped.
    fast = torch.compile(loss_fn, dynamic=True)
    from torch._dynamo.exc import TorchDynamoException

    def call(model: nn.Module, batch: Any) -> Any:
        try:
            return fast(model, batch)
        except TorchDynamoException as error:
            told = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"compile = true: torch.compile cannot compile this training here ({told}): install a C++ compiler, "
                "or leave compile out."
            ) from error

    return call
