"""`from_sequential`: a `DagNN` that computes the same function as an MLP of PyTorch."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.nn.dag_nn.network import DagNN
from dagnn.nn.learnable import value_of

# Module -> the name of our activation, and whether the module's settings are those of ours.
_ACTIVATIONS: dict[type[nn.Module], tuple[str, Callable[..., bool]]] = {
    nn.Identity: ("identity", lambda module: True),
    nn.ReLU: ("relu", lambda module: True),
    nn.LeakyReLU: ("leaky_relu", lambda module: module.negative_slope == 0.01),
    nn.ELU: ("elu", lambda module: module.alpha == 1.0),
    nn.Tanh: ("tanh", lambda module: True),
    nn.Sigmoid: ("sigmoid", lambda module: True),
    nn.GELU: ("gelu", lambda module: module.approximate == "none"),
    nn.SiLU: ("silu", lambda module: True),
    nn.Softplus: ("softplus", lambda module: module.beta == 1.0 and module.threshold == 20.0),
}


def from_sequential(model: nn.Sequential) -> DagNN:
    """A `DagNN` with the same function: one node per unit, one edge per weight. The weights are copies.

    Nodes have no names: features come first, then the units layer by layer. Between two linear layers in a row, the
    activation is the identity. The network has the model's dtype, device and training mode.

    Args:
        model: `nn.Linear` modules, each followed by at most one activation that `DagNN` knows, with PyTorch's default
            settings. All of one dtype, float32 or float64.

    Raises:
        ConfigError: another module, an activation with other settings, or no linear layer; the message names it.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(from_sequential(model)(x), model(x), atol=1e-6)
    True
    """
    layers = _layers(model)
    sizes = [layers[0][0].in_features, *(linear.out_features for linear, _ in layers)]
    first = np.cumsum([0, *sizes])
    nodes = [np.arange(start, stop) for start, stop in pairwise(first)]
    edges = [np.stack(np.meshgrid(u, v, indexing="ij"), axis=-1).reshape(-1, 2) for u, v in pairwise(nodes)]
    activations = ["identity"] * sizes[0]
    biased: list[int] = []
    for (linear, activation), units in zip(layers, nodes[1:], strict=True):
        activations += [activation] * linear.out_features
        if linear.bias is not None:
            biased += units.tolist()
    dag = Dag(np.concatenate(edges), int(first[-1]), inputs=nodes[0], outputs=nodes[-1])
    weights = [value_of(linear, "weight") for linear, _ in layers]
    net = DagNN(dag, activation=activations, bias=biased, dtype=weights[0].dtype, device=weights[0].device)
    with torch.no_grad():
        # `edge_weight` is ordered by (target, source), as a weight matrix [out, in] is in memory.
        net.edge_weight.copy_(torch.cat([weight.flatten() for weight in weights]))
        biases = [value_of(linear, "bias") for linear, _ in layers if linear.bias is not None]
        if biases:
            net.bias.copy_(torch.cat(biases))
    net.train(model.training)
    return net


def _layers(model: nn.Sequential) -> list[tuple[nn.Linear, str]]:
    """The linear layers, each with the name of its activation."""
    layers: list[tuple[nn.Linear, str]] = []
    is_open = False  # the last layer has no activation yet
    for place, module in enumerate(model):
        if type_before_parametrizations(module) is nn.Linear:
            assert isinstance(module, nn.Linear)
            layers.append((module, "identity"))
            is_open = True
            continue
        name, has_our_settings = _ACTIVATIONS.get(type(module), ("", lambda module: False))
        if not has_our_settings(module) or not is_open:
            known = ", ".join(kind.__name__ for kind in _ACTIVATIONS)
            raise ConfigError(
                f"module {place} of the Sequential is {module}, expected a Linear, or after one an activation with "
                f"PyTorch's default settings ({known}): leave it out, or write it as a DagNN."
            )
        layers[-1] = (layers[-1][0], name)
        is_open = False
    if not layers:
        raise ConfigError(f"the Sequential has no Linear module among its {len(model)}: a network needs at least one.")
    return layers
