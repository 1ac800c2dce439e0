"""`NetworkPlan`: one DAG prepared as a network with a weight per edge, in the form that each path needs."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dagnn.graph.cached import Living, cached_tensor_property, constant
from dagnn.kernels.emit.native import Target, host_target
from dagnn.kernels.level_plans import NetworkLevels, plan_network_levels
from dagnn.kernels.network.compiled_plan import CompiledPlan
from dagnn.kernels.nodes import num_operations

# More would take seconds to compile; their codes are bytes.
_MOST_ACTIVATIONS = 64
_LONGEST_FORMULA = 500


class NetworkPlan:
    """A DAG with inputs, outputs, biases and activations. What a path needs of it is worked out when it first runs.

    Nodes are numbered by level, and edges as the entries of the weight vector.

    Attributes:
        edges: int64 ``[num_edges, 2]`` (source, target).
        node_levels: int64 ``[num_nodes]``, not decreasing.
        inputs: int64, nodes of level 0, feature by feature.
        outputs: int64, any nodes, output by output.
        has_bias: bool ``[num_nodes]``.
        activation: for every node a name, or the text of a formula.
        aggregation: name for every node.
        response: float64 ``[num_nodes]``, by which the aggregate of a node is multiplied.
        why_reference: why the compiled path cannot run this network; empty if it can.
        device: where the reference runs; all of the above is on the CPU.
        on_gpu: what the Triton kernels need, by device; `dagnn.kernels.gpu.network.gpu_plan` makes it.
        fingerprint: a digest of all of the above but the device, the same in every process; see `plan_of`.
    """

    def __init__(
        self,
        edges: Tensor,
        node_levels: Tensor,
        inputs: Tensor,
        outputs: Tensor,
        has_bias: Tensor,
        activation: Sequence[str],
        aggregation: Sequence[str] | None = None,
        response: Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.edges, self.node_levels, self.inputs, self.outputs = edges, node_levels, inputs, outputs
        self.has_bias, self.activation = has_bias, tuple(activation)
        self.aggregation = ("sum",) * len(node_levels) if aggregation is None else tuple(aggregation)
        self.response = torch.ones(len(node_levels), dtype=torch.float64) if response is None else response
        self.device = torch.device("cpu") if device is None else device
        median = "median" in self.aggregation
        self.why_reference = (
            "nodes aggregate by median, which is not compiled" if median else why_not_compiled(self.activation)
        )
        self.on_gpu: dict[torch.device, Any] = {}
        self.fingerprint = _fingerprint(self._parts())
        _plans.add(self.fingerprint, self)

    @property
    def num_nodes(self) -> int:
        return len(self.node_levels)

    @cached_property
    def num_edges(self) -> int:
        return len(self.edges)

    @cached_property
    def num_biases(self) -> int:
        return int(self.has_bias.sum())

    @cached_tensor_property
    def bias_index(self) -> Tensor:
        """int64 ``[num_nodes]``, where the bias of a node is in the bias vector; its length for no bias."""
        return torch.where(self.has_bias, self.has_bias.cumsum(0) - 1, self.num_biases)

    @cached_tensor_property
    def levels(self) -> NetworkLevels:
        """For the reference path, on `device`."""
        return plan_network_levels(
            self.edges,
            self.node_levels,
            self.inputs,
            self.outputs,
            self.bias_index,
            self.activation,
            self.aggregation,
            self.response,
        ).to(self.device)

    @constant
    def levels_as_constant(self) -> NetworkLevels:
        """`levels`, for `torch.compile` and `torch.export`, which cannot follow how they are worked out."""
        return self.levels

    @cached_tensor_property
    def compiled(self) -> CompiledPlan:
        """For the compiled path, on the processor at hand."""
        return self.compile(host_target())

    def compile(self, target: Target) -> CompiledPlan:
        """For the compiled path on another processor."""
        return CompiledPlan(
            self.edges.numpy(),
            self.node_levels.numpy(),
            self.inputs.numpy(),
            self.outputs.numpy(),
            torch.where(self.has_bias, self.bias_index, -1).numpy(),
            self.activation,
            self.aggregation,
            self.response.numpy(),
            target,
        )

    def read_at(self, outputs: Tensor) -> "NetworkPlan":
        """The same network with other outputs."""
        edges, levels, inputs, _, has_bias, activation, aggregation, response = self._parts()
        return NetworkPlan(edges, levels, inputs, outputs, has_bias, activation, aggregation, response)

    def to(self, device: torch.device) -> "NetworkPlan":
        """The same plan for tensors on ``device``."""
        return NetworkPlan(*self._parts(), device)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what has been worked out: that holds addresses of this process's memory.
        return NetworkPlan, (*self._parts(), self.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "NetworkPlan":
        return self  # nothing in it ever changes, and a copied module may share it

    def _parts(self) -> "_Parts":
        tensors = (self.edges, self.node_levels, self.inputs, self.outputs, self.has_bias)
        return (*tensors, self.activation, self.aggregation, self.response)


def why_not_compiled(activation: Sequence[str]) -> str:
    """Why a network of nodes with these activations is not compiled; empty if it is."""
    count = len(set(activation))
    if count > _MOST_ACTIVATIONS:
        return f"it has {count} different activations, and up to {_MOST_ACTIVATIONS} are compiled"
    length = max((num_operations(text) for text in set(activation)), default=0)
    if length > _LONGEST_FORMULA:
        return f"a formula has {length} operations, and those of up to {_LONGEST_FORMULA} are compiled"
    return ""


_Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[str, ...], tuple[str, ...], Tensor]


def _fingerprint(parts: _Parts) -> str:
    # Shapes too: without them, an entry could move from one tensor to the next and the digest would be the same.
    *tensors, activation, aggregation, response = parts
    # Names and formulas are one line each.
    found = hashlib.sha256("\n".join((*activation, *aggregation)).encode())
    for tensor in (*tensors, response):
        found.update(f"{list(tensor.shape)}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


_plans = Living[NetworkPlan]()


def plan_of(fingerprint: str) -> NetworkPlan:
    """A plan with this fingerprint, while one lives in this process; GraphError where none does."""
    return _plans.of_program(fingerprint, "DagNN")


def plan_network(
    edges: Tensor,
    levels: Tensor,
    inputs: Tensor,
    outputs: Tensor,
    has_bias: Tensor,
    activation: Sequence[str],
    aggregation: Sequence[str] | None = None,
    response: Tensor | None = None,
) -> NetworkPlan:
    """Plan of the network on a DAG whose nodes are numbered by level.

    Args:
        edges: int64 ``[num_edges, 2]`` (source, target), row e belongs to weight e; sorted by (target, source).
        levels: int64 ``[num_nodes]``, not decreasing.
        inputs: int64, nodes of level 0, feature by feature.
        outputs: int64, any nodes, output by output.
        has_bias: bool ``[num_nodes]``; the bias vector has one entry per True, in node order.
        activation: a name or the text of a formula for every node; those of inputs are not used.
        aggregation: a name for every node; by default all sum.
        response: float64 ``[num_nodes]``; by default 1.

    >>> edges, inputs, outputs = torch.tensor([[0, 1]]), torch.tensor([0]), torch.tensor([1])
    >>> has_bias = torch.tensor([False, True])
    >>> plan_network(edges, torch.tensor([0, 1]), inputs, outputs, has_bias, ["identity", "relu"]).num_biases
    1
    """
    return NetworkPlan(edges, levels, inputs, outputs, has_bias, activation, aggregation, response)
