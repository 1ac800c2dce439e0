"""The sweeps over DAGs that `dagnn.nn` runs on, and the one place that chooses how they run.

Today there is one path, the plain-PyTorch reference. The environment variable ``DAGNN_KERNELS``
forces a path by name; it is read at every call.
"""

import os

from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.kernels import reference
from dagnn.kernels.activations import ACTIVATIONS
from dagnn.kernels.levels import LevelPlan, plan_levels
from dagnn.kernels.network import NetworkPlan, plan_network
from dagnn.kernels.reference import Cell
from dagnn.kernels.segments import Aggregate

__all__ = [
    "ACTIVATIONS",
    "Aggregate",
    "Cell",
    "LevelPlan",
    "NetworkPlan",
    "kernel_path",
    "plan_levels",
    "plan_network",
    "run_network",
    "run_sweep",
]

_PATHS = ("reference",)


def kernel_path() -> str:
    """Name of the path that runs, from ``DAGNN_KERNELS`` if it is set.

    Raises:
        ConfigError: the variable names no path.
    """
    path = os.environ.get("DAGNN_KERNELS", "") or "reference"
    if path not in _PATHS:
        raise ConfigError(
            f"DAGNN_KERNELS={path!r} is not a kernel path: unset it, or set it to one of {', '.join(_PATHS)}."
        )
    return path


def run_network(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """Outputs ``[B, outputs]`` of a network for ``x [B, inputs]``; see `reference.run_network`."""
    kernel_path()
    return reference.run_network(plan, x, edge_weight, bias)


def run_sweep(plan: LevelPlan, features: Tensor, position: Tensor, cell: Cell) -> Tensor:
    """Outputs ``[num_nodes, width]`` of a sweep of ``cell``; see `reference.run_sweep`."""
    kernel_path()
    return reference.run_sweep(plan, features, position, cell)
