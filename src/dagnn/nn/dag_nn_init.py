"""Which activation every node of a `DagNN` has, and how large its weights start."""

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn.errors import ConfigError, ConstantNodesWarning, GraphError
from dagnn.graph import Dag
from dagnn.graph.lasting import lasting
from dagnn.kernels.activations import SECOND_MOMENT, check_activation
from dagnn.nn.parameter_layout import ParameterLayout


def node_activations(dag: Dag, activation: object, output_activation: object) -> list[str]:
    """The activation of every node, in node order; inputs have "identity".

    An output that feeds other nodes is a hidden node that is also read: to read it must not change the function.

    Raises:
        ConfigError: an unknown activation, a list of another length, a dict without a hidden node.
        GraphError: the dict names an unknown node, or one twice.
    """
    last = check_activation(output_activation, "output_activation")
    inputs = set(dag.inputs.tolist())
    final = set(dag.outputs[dag.out_degree[dag.outputs] == 0].tolist())
    if isinstance(activation, Mapping) or _is_labelled(activation):
        chosen = _from_mapping(dag, activation, inputs, dict.fromkeys(final, last))
    elif isinstance(activation, str) or not _is_list(activation):
        hidden = check_activation(activation, "activation", ", a list with one for every node, or a dict by node name")
        chosen = [last if v in final else hidden for v in range(dag.num_nodes)]
    else:
        listed = list(activation)
        if len(listed) != dag.num_nodes:
            raise ConfigError(f"activation lists {len(listed)} names, expected one for each of {dag.num_nodes} nodes.")
        chosen = [check_activation(name, f"activation[{v}]") for v, name in enumerate(listed)]
    return ["identity" if v in inputs else name for v, name in enumerate(chosen)]


def _is_labelled(given: object) -> TypeGuard[Mapping[Hashable, object]]:
    """Whether it is a column of pandas, whose labels say what belongs to which node."""
    return hasattr(given, "items") and hasattr(given, "index") and not callable(given.index)


def _is_list(given: object) -> TypeGuard[Iterable[object]]:
    """Whether it holds something for every node in an order: not a set, a text, or a container of modules."""
    return isinstance(given, Iterable) and not isinstance(given, Set | str | bytes | nn.Module | Tensor)


def _from_mapping(
    dag: Dag, activation: Mapping[Hashable, object], inputs: set[int], name_at: dict[int, str]
) -> list[str]:
    name_at |= dict.fromkeys(inputs, "identity")
    given = set[int]()
    for node, name in activation.items():
        index = dag.index_of(node)
        if index in given:
            raise GraphError(
                f"activation has the node {dag.name_of(index)!r} twice, the second time as {node!r}: give it once."
            )
        given.add(index)
        name_at[index] = check_activation(name, f"activation[{node!r}]")
    missing = [dag.name_of(v) for v in range(dag.num_nodes) if v not in name_at]
    if missing:
        raise ConfigError(
            f"activation is a dict without the hidden node {missing[0]!r} ({len(missing)} missing in all): "
            "name every hidden node, or give one activation for all."
        )
    return [name_at[v] for v in range(dag.num_nodes)]


def bias_mask(dag: Dag, bias: object) -> bool | Tensor:
    """Whether all nodes have a bias, or none; or which do, bool ``[num_nodes]``.

    Raises:
        ConfigError: neither a truth value nor nodes.
        GraphError: an unknown node, or one twice.
    """
    if isinstance(bias, bool | np.bool_):
        return bool(bias)
    if isinstance(bias, str | bytes | Mapping) or not isinstance(bias, Iterable):
        raise ConfigError(f"bias must be True, False, or the nodes to give one, as a list of names, got {bias!r}.")
    mask = torch.zeros(dag.num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(dag._nodes.indices_of(bias, "bias"))] = True
    return mask


def warn_of_constants(dag: Dag, bias: object) -> None:
    """Warn of sources that are no inputs, unless ``bias`` names them: they are constants that the network learns."""
    is_constant = dag.in_degree == 0
    is_constant[dag.inputs] = False
    if isinstance(bias, Tensor):
        is_constant &= ~bias
    constants = is_constant.nonzero().flatten().tolist()
    if not constants:
        return
    shown = ", ".join(repr(dag.name_of(v)) for v in constants[:3])
    more = f" and {len(constants) - 3} more" if len(constants) > 3 else ""
    are = "is" if len(constants) == 1 else "are"
    warnings.warn(
        f"no edge leads to {shown}{more}, which {are} not among the inputs: the network learns a constant there, "
        "random at the start. List measured nodes in Dag(inputs=...); drop the others with dag.without_dangling(), or "
        "dag.remove(nodes=dag.dangling().unfed); or, if constants are what you want, name these nodes in bias=[...], "
        "or ignore dagnn.ConstantNodesWarning.",
        ConstantNodesWarning,
        stacklevel=3,
    )


def initial_bounds(
    layout: ParameterLayout, activations: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest absolute value at the start: of every weight ``[num_edges]``, of every bias ``[num_biases]``.

    Float64, by slot. See `DagNN.reset_parameters` for the rule and its source.
    """
    with lasting():
        moment = torch.tensor([SECOND_MOMENT[name] for name in activations], dtype=torch.float64)[layout.node_at]
        source, target = layout.edges.unbind(1)
        variance = 1 / (layout.in_degree[target] * moment[source])
        is_source = (layout.in_degree == 0)[layout.has_bias]
        # A uniform variable in +-b has the variance b^2 / 3.
        return (3 * variance).sqrt().numpy(), (3**0.5 * is_source.double()).numpy()


@torch.no_grad()
def draw_uniform(parameter: Tensor, bound: NDArray[np.float64], generator: torch.Generator | None) -> None:
    """Every entry uniformly within its bound, in place; also of a parameter that fully_shard has taken apart."""
    largest = torch.from_numpy(bound).to(parameter.dtype).to(parameter.device)
    if hasattr(parameter, "placements"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        largest = distribute_tensor(largest, parameter.device_mesh, parameter.placements)
    parameter.uniform_(-1, 1, generator=generator).mul_(largest)
