"""The parameters that optimizers hold, looked at anew for each window: they may be added, exchanged or frozen."""

import operator
from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from dagnn.accumulation.arguments import unique_parameters
from dagnn.accumulation.sums import Sums
from dagnn.errors import AccumulationError, ConfigError


class OwnedParameters:
    """What the optimizers of some models update.

    Raises:
        ConfigError: the optimizers hold no parameter of the models.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._models = models
        self._optimizers = optimizers
        self._listed: list[nn.Parameter] = []  # as the groups list them
        self._unique: list[nn.Parameter] = []
        self._frozen: list[nn.Parameter] = []
        self._look_up()
        of_models = {id(p) for model in models for p in model.parameters()}
        if not any(id(parameter) in of_models for parameter in self._unique):
            raise ConfigError(
                "the optimizer holds no parameter of the model, so the model would never learn: make it from "
                "model.parameters(), after the model has its final parameters (load_state_dict(assign=True), "
                "fully_shard and a new layer replace them). To train other tensors through the model, pass what holds "
                "them too: model=[model, torch.nn.ParameterList([tensor])]."
            )

    def open_window(self) -> list[nn.Parameter]:
        """The parameters that get gradients in the next window. What frozen ones have in ``.grad`` is dropped."""
        self._look_up()
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
            AccumulationError: parameters were frozen, unfrozen or exchanged since the window was opened, or the
                optimizer holds parameters that the model has no more.
        """
        if not self._is_current():
            raise AccumulationError(
                "the parameter groups of the optimizer changed inside a window: change them between windows, and give "
                "this one up with window.discard()."
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
        if not all(found):
            self._check_stale([p for p, has_sum in zip(sums.parameters, found, strict=True) if not has_sum])

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
            self._unique = unique_parameters(self._listed)

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

    def _toggled(self, parameter: nn.Parameter, how: str, what: str) -> str:
        name = self.names().get(id(parameter), "a parameter")
        return (
            f"{name} was {how} inside a window, and has {what} it: set requires_grad between windows, and give this "
            "one up with window.discard()."
        )
