"""What a loss function may return: a loss, ``(loss, weight)``, or losses by name that are added."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from dagnn.errors import ConfigError

WITHOUT_NAME = "loss"


class Returned(NamedTuple):
    """What a loss function returned.

    Attributes:
        loss: one mean loss, or several by name.
        weight: what the means were divided by; None where it was not said.
    """

    loss: Tensor | dict[str, Tensor]
    weight: float | Tensor | None

    @classmethod
    def of(cls, value: Any) -> "Returned":
        """Read a loss function's value.

        Raises:
            ConfigError: losses by name have weights of their own that differ.
        """
        weight = None
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value
        if not isinstance(value, Mapping):
            return cls(value, weight)
        losses, weights = {}, {}
        for name, each in value.items():
            losses[str(name)] = each[0] if isinstance(each, tuple) and len(each) == 2 else each
            if losses[str(name)] is not each:
                weights[str(name)] = float(each[1])
        if weights and (weight is not None or len(weights) < len(losses) or len(set(weights.values())) > 1):
            raise ConfigError(
                f"loss_fn returned losses with weights of their own ({weights}), which must be known before a step "
                "begins: return the losses alone, and give Trainer(weight=lambda batch: {name: weight, ...})."
            )
        return cls(losses, next(iter(weights.values())) if weights else weight)

    @property
    def total(self) -> Tensor:
        """The loss, or the sum of the losses."""
        if not isinstance(self.loss, dict):
            return self.loss
        total, *others = self.loss.values()
        for each in others:
            total = total + each
        return total

    def parts(self, weight: Any) -> dict[str, tuple[float, float]]:
        """Sum of weight * loss, and weight, by denominator.

        Args:
            weight: the micro-batch's: a number, or one by name of a loss ("loss": for those without one of their own).
        """
        weights = weight if isinstance(weight, Mapping) else {WITHOUT_NAME: weight}
        found = {name: (0.0, float(each)) for name, each in weights.items()}
        for name, loss in (self.loss if isinstance(self.loss, dict) else {WITHOUT_NAME: self.loss}).items():
            name = name if name in found else WITHOUT_NAME
            total, own = found[name]
            found[name] = (total + (own * float(loss.detach()) if own else 0.0), own)
        return found
