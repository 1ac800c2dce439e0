"""`NetworkPlan`: one DAG prepared as a network with a weight per edge, in the form that each path needs."""

import itertools
import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dagnn.graph.lasting import lasting_property
from dagnn.kernels.network_levels import NetworkLevels, plan_network_levels

if TYPE_CHECKING:
    from dagnn.kernels.compiled_plan import CompiledPlan


class NetworkPlan:
    """A DAG with inputs, outputs, biases and activations. What a path needs of it is worked out when it first runs.

    Nodes are numbered by level, and edges as the entries of the weight vector.

    Attributes:
        edges: int64 ``[num_edges, 2]`` (source, target).
        node_levels: int64 ``[num_nodes]``, not decreasing.
        inputs: int64, nodes of level 0, feature by feature.
        outputs: int64, any nodes, output by output.
        has_bias: bool ``[num_nodes]``.
        activation: name for every node.
        device: where the reference runs; all of the above is on the CPU.
        accumulating: held while gradients are added in place: threads that share a network share its buffers.
        number: of this plan among all of the process; see `plan_of_number`.
    """

    def __init__(
        self,
        edges: Tensor,
        node_levels: Tensor,
        inputs: Tensor,
        outputs: Tensor,
        has_bias: Tensor,
        activation: Sequence[str],
        device: torch.device | None = None,
    ) -> None:
        self.edges, self.node_levels, self.inputs, self.outputs = edges, node_levels, inputs, outputs
        self.has_bias, self.activation = has_bias, tuple(activation)
        self.device = torch.device("cpu") if device is None else device
        self.accumulating = threading.Lock()
        self.number = next(_numbers)
        _plans[self.number] = self

    @property
    def num_nodes(self) -> int:
        return len(self.node_levels)

    @cached_property
    def num_edges(self) -> int:
        return len(self.edges)

    @cached_property
    def num_biases(self) -> int:
        return int(self.has_bias.sum())

    @lasting_property
    def bias_slot(self) -> Tensor:
        """int64 ``[num_nodes]``, entry of the bias vector, or its length for no bias."""
        return torch.where(self.has_bias, self.has_bias.cumsum(0) - 1, self.num_biases)

    @lasting_property
    def levels(self) -> NetworkLevels:
        """For the reference path, on `device`."""
        return plan_network_levels(
            self.edges, self.node_levels, self.inputs, self.outputs, self.bias_slot, self.activation
        ).to(self.device)

    @lasting_property
    def compiled(self) -> "CompiledPlan":
        """For the compiled path."""
        from dagnn.kernels.compiled_plan import CompiledPlan  # here: it needs llvmlite

        return CompiledPlan(self)

    def to(self, device: torch.device) -> "NetworkPlan":
        """The same plan for tensors on ``device``."""
        return NetworkPlan(*self._parts(), device)

    def __reduce__(self) -> tuple[Any, ...]:
        # What was worked out holds addresses of this process's memory.
        return NetworkPlan, (*self._parts(), self.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "NetworkPlan":
        return self  # nothing in it ever changes

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[str, ...]]:
        return self.edges, self.node_levels, self.inputs, self.outputs, self.has_bias, self.activation


# An operator of torch.library takes numbers, not objects of ours.
_numbers = itertools.count()
_plans: "weakref.WeakValueDictionary[int, NetworkPlan]" = weakref.WeakValueDictionary()


def plan_of_number(number: int) -> NetworkPlan:
    """The plan with this number, while it lives."""
    return _plans[number]


def plan_network(
    edges: Tensor, levels: Tensor, inputs: Tensor, outputs: Tensor, has_bias: Tensor, activation: Sequence[str]
) -> NetworkPlan:
    """Plan of the network on a DAG whose nodes are numbered by level.

    Args:
        edges: int64 ``[num_edges, 2]`` (source, target), row e belongs to weight e; sorted by (target, source).
        levels: int64 ``[num_nodes]``, not decreasing.
        inputs: int64, nodes of level 0, feature by feature.
        outputs: int64, any nodes, output by output.
        has_bias: bool ``[num_nodes]``; the bias vector has one entry per True, in node order.
        activation: name for every node; those of inputs are not used.
    """
    return NetworkPlan(edges, levels, inputs, outputs, has_bias, activation)
