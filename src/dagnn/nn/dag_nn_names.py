"""Weights, biases and gradients of a network, by the names of its edges and nodes."""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dagnn.errors import DtypeError, GraphError
from dagnn.nn.learnable import LearnableModule
from dagnn.nn.parameter_layout import ParameterLayout
from dagnn.nn.reparametrised import check_own, value_of


class NamedParameters(LearnableModule):
    """What a `DagNN` offers by name: its weights, biases and gradients."""

    edge_weight: nn.Parameter
    bias: nn.Parameter
    _layout: ParameterLayout

    def edge_names(self) -> list[tuple[Hashable, Hashable]]:
        """The edge (u, v) that each entry of ``edge_weight`` belongs to."""
        return self._layout.edge_names()

    def bias_names(self) -> list[Hashable]:
        """The node that each entry of ``bias`` belongs to."""
        return self._layout.bias_names()

    def edge_weights(self) -> dict[tuple[Hashable, Hashable], float]:
        """(u, v) -> weight, for every edge."""
        return dict(zip(self.edge_names(), value_of(self, "edge_weight").tolist(), strict=True))

    def biases(self) -> dict[Hashable, float]:
        """Node -> bias, for every node that has one."""
        return dict(zip(self.bias_names(), value_of(self, "bias").tolist(), strict=True))

    def set_weights(self, weights: Mapping[tuple[Hashable, Hashable], float | Tensor]) -> None:
        """Set the weights of these edges, in place; the others stay.

        Args:
            weights: (u, v) -> number, or a tensor with one element.

        Raises:
            GraphError: an unknown node, no such edge, or one twice. Nothing has changed then, as with every error.
            DtypeError: a value that is no real number, or one too large for the dtype; no mapping.
            ConfigError: the weights are computed from others, as by ``torch.nn.utils.parametrize``.
        """
        check_own(self, ("edge_weight",), "set_weights")
        _assign(self.edge_weight, weights, self._layout.slot_of_edge, "weights")

    def set_biases(self, biases: Mapping[Hashable, float | Tensor]) -> None:
        """Set the biases of these nodes, in place; the others stay. Arguments and errors as of `set_weights`."""
        check_own(self, ("bias",), "set_biases")
        _assign(self.bias, biases, self._layout.bias_slot_of, "biases")

    def weight_of(self, u: Hashable, v: Hashable) -> float:
        """The weight of the edge u -> v. Raises GraphError if there is none."""
        return float(value_of(self, "edge_weight").detach()[self._layout.slot_of(u, v)])

    def grad_of(self, u: Hashable, v: Hashable) -> float:
        """The gradient accumulated for the edge u -> v; 0.0 when there is none yet.

        Raises:
            GraphError: an unknown node, or no such edge.
            ConfigError: the weights are computed from others, which hold the gradients.
        """
        check_own(self, ("edge_weight",), "a gradient by name")
        slot = self._layout.slot_of(u, v)
        return 0.0 if self.edge_weight.grad is None else float(self.edge_weight.grad[slot])

    def get_edge_grad(self, u: Hashable, v: Hashable) -> float:
        """The same as `grad_of`: the reading twin of `accumulate_edge_grad`."""
        return self.grad_of(u, v)

    def edge_grads(self) -> dict[tuple[Hashable, Hashable], float]:
        """(u, v) -> accumulated gradient, for every edge; 0.0 where nothing is accumulated. Errors as of `grad_of`."""
        check_own(self, ("edge_weight",), "a gradient by name")
        grad = self.edge_weight.grad
        values = [0.0] * self._layout.dag.num_edges if grad is None else grad.tolist()
        return dict(zip(self.edge_names(), values, strict=True))

    @torch.no_grad()
    def accumulate_edge_grad(self, u: Hashable, v: Hashable, g: float | Tensor) -> None:
        """Add ``g`` to the accumulated gradient of the edge u -> v. In eval mode: nothing.

        Args:
            g: a number, or a tensor with one element.

        Raises:
            GraphError: an unknown node, or no such edge.
            DtypeError: ``g`` is no real number.
            ConfigError: the weights are computed from others, which hold the gradients.
        """
        check_own(self, ("edge_weight",), "a gradient by name")
        slot = self._layout.slot_of(u, v)
        number = _number((u, v), g, "g", self.edge_weight.dtype)
        if not (self.training and self.edge_weight.requires_grad):
            return
        if self.edge_weight.grad is None:
            self.edge_weight.grad = torch.zeros_like(self.edge_weight)
        self.edge_weight.grad[slot] += number


def _assign(parameter: Tensor, values: Mapping[Any, Any], slot_of: Callable[[Any], int], argument: str) -> None:
    """Write every value into the slot of its name, in place; nothing is written if one is wrong."""
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        raise DtypeError(f"{argument} must be a mapping from name to number, got a {type(values).__name__}.")
    number_at = dict[int, float]()
    for name, value in values.items():
        slot = slot_of(name)
        if slot in number_at:  # by name and by index, or in a table that has a label twice
            raise GraphError(f"{argument} has {name!r} twice, the second time perhaps by its number: give it once.")
        number_at[slot] = _number(name, value, argument, parameter.dtype)
    with torch.no_grad():
        slots = torch.tensor(list(number_at), dtype=torch.int64, device=parameter.device)
        numbers = torch.tensor(list(number_at.values()), dtype=parameter.dtype, device=parameter.device)
        parameter.index_copy_(0, slots, numbers)


def _number(name: Hashable, value: Any, argument: str, dtype: torch.dtype) -> float:
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DtypeError(f"{argument}[{name!r}] must be a real number, got {value!r}.")
    largest = torch.finfo(dtype).max
    if largest < abs(value) < math.inf:
        raise DtypeError(f"{argument}[{name!r}] is too large for {dtype}, whose largest number is {largest:.4g}.")
    return float(value)
