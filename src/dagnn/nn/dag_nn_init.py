"""Which activation every node of a `DagNN` has, and how large its weights start."""

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.kernels.activations import SECOND_MOMENT, check_activation
from dagnn.nn.parameter_layout import ParameterLayout


def node_activations(
    dag: Dag, activation: str | Sequence[str] | Mapping[Hashable, str], output_activation: str
) -> list[str]:
    """The activation of every node, in node order; inputs have "identity".

    Raises:
        ConfigError: an unknown activation, a list of another length, a dict without a hidden node.
        GraphError: the dict names an unknown node.
    """
    check_activation(output_activation, "output_activation")
    inputs, outputs = set(dag.inputs.tolist()), set(dag.outputs.tolist())
    if isinstance(activation, str):
        check_activation(activation)
        chosen = [output_activation if v in outputs else activation for v in range(dag.num_nodes)]
    elif isinstance(activation, Mapping):
        chosen = _from_mapping(dag, activation, output_activation)
    else:
        chosen = list(activation)
        if len(chosen) != dag.num_nodes:
            raise ConfigError(f"activation lists {len(chosen)} names, expected one for each of {dag.num_nodes} nodes.")
        for v, name in enumerate(chosen):
            check_activation(name, f"activation[{v}]")
    return ["identity" if v in inputs else name for v, name in enumerate(chosen)]


def _from_mapping(dag: Dag, activation: Mapping[Hashable, str], output_activation: str) -> list[str]:
    name_at = {}
    for node, name in activation.items():
        name_at[dag.index_of(node)] = check_activation(name, f"activation[{node!r}]")
    for v in dag.outputs.tolist():
        name_at.setdefault(v, output_activation)
    for v in dag.inputs.tolist():
        name_at.setdefault(v, "identity")
    missing = [dag.name_of(v) for v in range(dag.num_nodes) if v not in name_at]
    if missing:
        raise ConfigError(
            f"activation is a dict without the hidden node {missing[0]!r} ({len(missing)} missing in all): "
            "name every hidden node, or give one activation for all."
        )
    return [name_at[v] for v in range(dag.num_nodes)]


def initial_bounds(layout: ParameterLayout, activations: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Largest absolute value at the start: of every weight ``[num_edges]``, of every bias ``[num_biases]``.

    Float64, by slot. See `DagNN.reset_parameters` for the rule and its source.
    """
    moment = torch.tensor([SECOND_MOMENT[name] for name in activations], dtype=torch.float64)[layout.node_at]
    source, target = layout.edges.unbind(1)
    variance = 1 / (layout.in_degree[target] * moment[source])
    is_source = (layout.in_degree == 0)[layout.has_bias]
    # A uniform variable in +-b has the variance b^2 / 3.
    return (3 * variance).sqrt(), 3**0.5 * is_source.double()
