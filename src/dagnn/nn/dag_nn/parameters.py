"""The parameters of a `DagNN`: which entry belongs to which edge or node, and the values they start with.

`ParameterLayout` orders them. The functions after it read what a user gives per node (activations, aggregations,
responses, biases) and draw the first weights.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import TypeGuard, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn.errors import ConfigError, ConstantNodesWarning, GraphError, warn
from dagnn.graph import Dag
from dagnn.graph.cached import ordinary_tensors
from dagnn.graph.edges import stable_order
from dagnn.graph.names import sort_key
from dagnn.kernels import NetworkPlan, plan_network
from dagnn.kernels.nodes import activation_text, check_aggregation, second_moment

T = TypeVar("T")


class ParameterLayout:
    """The order of a network's parameters. It depends on the names of the nodes, not on the order of declaration.

    A node's *place* is its rank by (level, name). The entries of ``edge_weight`` are in the order of (place of the
    target, place of the source), so the weights into one node, and into one level, are neighbours. The entries of
    ``bias`` are in the order of places.

    Args:
        dag: without a repeated edge and without an edge into an input.
        bias: a bias for every node that is not an input; or for some nodes, bool ``[num_nodes]``.
            Sources that are not inputs always have one: they have nothing else.
        by_name: nodes sorted by name, if known from a Dag with the same names.

    Raises:
        GraphError: an edge is declared twice, or leads into an input; the Dag has no outputs.

    Attributes:
        node_at: int64 ``[num_nodes]``, the node (index in ``dag``) at each place.
        by_name: int64 ``[num_nodes]``, the nodes sorted by name (by index where they have none).
        place_of: int64 ``[num_nodes]``, the place of each node.
        edges: int64 ``[num_edges, 2]``, in the order of the weights: places of source and target.
        edge_at: int64 ``[num_edges]``, the row of ``dag.edges`` of each weight.
        has_bias: bool ``[num_nodes]``, by place.
        num_biases: entries of the bias vector.
        levels, in_degree: int64 ``[num_nodes]``, by place.
        inputs, outputs: int64, places in the DAG's order of inputs and outputs.
    """

    def __init__(self, dag: Dag, bias: bool | Tensor, by_name: Tensor | None = None) -> None:
        self.dag = dag
        self.by_name = _by_name(dag) if by_name is None else by_name
        self.node_at = self.by_name[_order(dag.levels[self.by_name], dag.num_nodes)]
        self.place_of = torch.empty_like(self.node_at).scatter_(0, self.node_at, torch.arange(dag.num_nodes))
        edges = self.place_of[dag.edges]
        self._key = edges[:, 1] * dag.num_nodes + edges[:, 0]
        self.edge_at = _order(self._key, dag.num_nodes**2)
        self._key = self._key[self.edge_at]
        self.edges = edges[self.edge_at]
        self.levels = dag.levels[self.node_at]
        self.in_degree = dag.in_degree[self.node_at]
        self.inputs, self.outputs = self.place_of[dag.inputs], self.place_of[dag.outputs]
        self._check()

        chosen = bias[self.node_at] if isinstance(bias, Tensor) else torch.full((dag.num_nodes,), bias)
        self.has_bias = chosen | (self.in_degree == 0)
        self.has_bias[self.inputs] = False
        self.num_biases = int(self.has_bias.sum())

    def index_of(self, u: Hashable, v: Hashable) -> int:
        """Entry of ``edge_weight`` for the edge between nodes of these names; GraphError for an unknown one."""
        source, target = (int(self.place_of[self.dag.index_of(name)]) for name in (u, v))
        key = target * self.dag.num_nodes + source
        index = int(torch.searchsorted(self._key, key))
        if index == len(self._key) or int(self._key[index]) != key:
            reverse = source * self.dag.num_nodes + target
            hint = f"; there is {v!r} -> {u!r}" if bool((self._key == reverse).any()) else ""
            raise GraphError(f"there is no edge {u!r} -> {v!r}{hint}: give the source first, then the target.")
        return index

    def index_of_edge(self, edge: Hashable) -> int:
        """`index_of` for the pair (source, target)."""
        if not isinstance(edge, tuple | list) or len(edge) != 2:
            raise GraphError(f"an edge is a pair of names (source, target), got {edge!r}.")
        return self.index_of(*edge)

    def bias_index_of(self, node: Hashable) -> int:
        """Entry of ``bias`` for the node with this name; GraphError for an unknown node, or one without a bias."""
        place = int(self.place_of[self.dag.index_of(node)])
        if not self.has_bias[place]:
            reason = "is an input" if place in self.inputs.tolist() else "was made without one"
            raise GraphError(f"the node {node!r} has no bias: it {reason}. bias_names() lists the nodes that have one.")
        return int(self.has_bias[:place].sum())

    def indices_of(self, edges: Tensor) -> Tensor:
        """Entries of ``edge_weight``, int64 ``[n]``, for edges that exist, int64 ``[n, 2]`` by node index."""
        ends = self.place_of[edges]
        return torch.searchsorted(self._key, ends[:, 1] * self.dag.num_nodes + ends[:, 0])

    def edge_names(self) -> list[tuple[Hashable, Hashable]]:
        """(source name, target name) of every entry of ``edge_weight``."""
        names = [self.dag.name_of(node) for node in self.node_at.tolist()]
        return [(names[u], names[v]) for u, v in self.edges.tolist()]

    def bias_names(self) -> list[Hashable]:
        """The name of the node of every entry of ``bias``."""
        return [self.dag.name_of(node) for node in self.node_at[self.has_bias].tolist()]

    def _check(self) -> None:
        repeated = (self._key[1:] == self._key[:-1]).nonzero()
        if len(repeated):
            u, v = self._names_of_edge(int(repeated[0]))
            raise GraphError(
                f"the edge {u!r} -> {v!r} is declared twice, but a DagNN has one weight per edge: drop one."
            )
        is_input = torch.zeros(self.dag.num_nodes, dtype=torch.bool)
        is_input[self.inputs] = True
        entering = is_input[self.edges[:, 1]].nonzero()
        if len(entering):
            u, v = self._names_of_edge(int(entering[0]))
            raise GraphError(
                f"the input {v!r} has the incoming edge {u!r} -> {v!r}, but the value of an input is given, "
                "not computed: drop the edge, or feed the input through a node of its own."
            )
        if len(self.outputs) == 0:
            raise GraphError("the Dag has no outputs, so a network on it computes nothing: name outputs=[...].")

    def _names_of_edge(self, index: int) -> tuple[Hashable, Hashable]:
        u, v = self.node_at[self.edges[index]].tolist()
        return self.dag.name_of(u), self.dag.name_of(v)


def _order(keys: Tensor, bound: int) -> Tensor:
    """Indices that sort ``keys``, each in ``0 .. bound - 1``; several times faster than PyTorch's sort."""
    return torch.from_numpy(stable_order(keys.numpy(), bound))


def _by_name(dag: Dag) -> Tensor:
    """Nodes sorted by name, or by index where nodes have no names."""
    if dag.names is None:
        return torch.arange(dag.num_nodes)
    keys = [sort_key(name) for name in dag.names]
    return torch.tensor(sorted(range(dag.num_nodes), key=keys.__getitem__), dtype=torch.int64)


def network_plan(
    layout: ParameterLayout, activations: Sequence[str], aggregations: Sequence[str], responses: Sequence[float]
) -> NetworkPlan:
    """The plan of a network on the CPU; lists in node order."""
    node_at = layout.node_at.tolist()
    is_plain = set(aggregations) <= {"sum"} and set(responses) <= {1.0}
    return plan_network(
        layout.edges,
        layout.levels,
        layout.inputs,
        layout.outputs,
        layout.has_bias,
        [activations[node] for node in node_at],
        None if is_plain else [aggregations[node] for node in node_at],
        None if is_plain else torch.tensor(responses, dtype=torch.float64, device="cpu")[layout.node_at],
    )


def node_activations(
    dag: Dag, activation: object, output_activation: object, hidden: Collection[int] = ()
) -> list[str]:
    """The activation of every node as text, in node order; inputs have "identity".

    An output that feeds other nodes is a hidden node that is also read: to read it must not change the function.

    Args:
        hidden: outputs that are hidden nodes although no edge leaves them, as those that a head reads.

    Raises:
        ConfigError: an unknown activation, a list of another length, a dict without a hidden node.
        GraphError: the dict names an unknown node, or one twice.
    """
    last = activation_text(output_activation, "output_activation")
    final = set(dag.outputs[dag.out_degree[dag.outputs] == 0].tolist()).difference(hidden)
    known = dict.fromkeys(dag.inputs.tolist(), "identity") | dict.fromkeys(final, last)
    if _is_mapping(activation):
        chosen = known | _from_mapping(dag, activation, "activation", activation_text)
        missing = [dag.name_of(v) for v in range(dag.num_nodes) if v not in chosen]
        if missing:
            raise ConfigError(
                f"activation is a dict without the hidden node {missing[0]!r} ({len(missing)} missing in all): "
                "name every hidden node, or give one activation for all."
            )
    elif _is_list(activation):
        chosen = dict(enumerate(_listed(dag, activation, "activation", activation_text)))
    else:
        listed = [activation_text(activation, "activation", _OR_EACH)] * dag.num_nodes
        for v, name in known.items():
            listed[v] = name
        return listed
    chosen |= dict.fromkeys(dag.inputs.tolist(), "identity")
    return [chosen[v] for v in range(dag.num_nodes)]


def node_aggregations(dag: Dag, aggregation: object) -> list[str]:
    """How every node aggregates, in node order; inputs, and those that a dict does not name, have "sum".

    Raises:
        ConfigError: an unknown aggregation, a list of another length.
        GraphError: the dict names an unknown node, or one twice.
    """
    return _of_nodes(dag, aggregation, "aggregation", "sum", check_aggregation)


def node_responses(dag: Dag, response: object) -> list[float]:
    """The response of every node, in node order; inputs, and nodes that a dict does not name, have 1.

    Raises:
        ConfigError: no finite number, a list of another length.
        GraphError: the dict names an unknown node, or one twice.
    """
    if isinstance(response, Tensor) and response.dim() == 1:
        response = response.tolist()
    return _of_nodes(dag, response, "response", 1.0, check_response)


def check_response(given: object, argument: str = "response", or_else: str = "") -> float:
    """``given`` as a finite number; ConfigError if it is none."""
    if isinstance(given, Tensor | np.ndarray) and given.ndim == 0:
        given = given.item()
    if isinstance(given, Real) and not isinstance(given, bool) and math.isfinite(given):
        return float(given)
    raise ConfigError(f"{argument} must be a finite number{or_else}, got {given!r}.")


_OR_EACH = ", a list with one for every node, or a dict by node name"


def _of_nodes(dag: Dag, given: object, argument: str, otherwise: T, check: Callable[..., T]) -> list[T]:
    """A value for every node, from one, a list or a dict; ``otherwise`` at inputs and where a dict has none."""
    if _is_mapping(given):
        chosen = [otherwise] * dag.num_nodes
        for v, value in _from_mapping(dag, given, argument, check).items():
            chosen[v] = value
    elif _is_list(given):
        chosen = _listed(dag, given, argument, check)
    else:
        chosen = [check(given, argument, _OR_EACH)] * dag.num_nodes
    for v in dag.inputs.tolist():
        chosen[v] = otherwise
    return chosen


def _is_mapping(given: object) -> TypeGuard[Mapping[Hashable, object]]:
    """Whether it has labels that say what belongs to which node: a mapping, or a column of pandas."""
    return isinstance(given, Mapping) or (
        hasattr(given, "items") and hasattr(given, "index") and not callable(given.index)
    )


def _is_list(given: object) -> TypeGuard[Iterable[object]]:
    """Whether it holds something for every node in an order: not a set, a text, or a container of modules."""
    return isinstance(given, Iterable) and not isinstance(given, Set | str | bytes | nn.Module | Tensor)


def _listed(dag: Dag, given: Iterable[object], argument: str, check: Callable[..., T]) -> list[T]:
    values = list(given)
    if len(values) != dag.num_nodes:
        what = "numbers" if argument == "response" else "names"
        raise ConfigError(f"{argument} lists {len(values)} {what}, expected one for each of {dag.num_nodes} nodes.")
    return [check(value, f"{argument}[{v}]") for v, value in enumerate(values)]


def _from_mapping(dag: Dag, given: Mapping[Hashable, object], argument: str, check: Callable[..., T]) -> dict[int, T]:
    chosen = dict[int, T]()
    for node, value in given.items():
        index = dag.index_of(node)
        if index in chosen:
            raise GraphError(
                f"{argument} has the node {dag.name_of(index)!r} twice, the second time as {node!r}: give it once."
            )
        chosen[index] = check(value, f"{argument}[{node!r}]")
    return chosen


def bias_mask(dag: Dag, bias: object) -> bool | Tensor:
    """Whether all nodes have a bias, or none; or which do, bool ``[num_nodes]``.

    ConfigError for neither a truth value nor nodes, GraphError for an unknown node, or one twice.
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
    warn(
        f"no edge leads to {shown}{more}, which {are} not among the inputs: the network learns a constant there, "
        "random at the start. List measured nodes in Dag(inputs=...); drop the others with dag.without_dangling(), or "
        "dag.remove(nodes=dag.dangling().unfed); or, if constants are what you want, name these nodes in bias=[...], "
        "or ignore dagnn.ConstantNodesWarning.",
        ConstantNodesWarning,
    )


# The variance of the aggregate of n independent messages of variance 1 grows as n to this power; of a product it is 1,
# and of an extreme about 1.
_TERMS = {"sum": 1.0, "mean": -1.0}


def initial_bounds(
    layout: ParameterLayout, activations: Sequence[str], aggregations: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest absolute value at the start: of every weight ``[num_edges]``, of every bias ``[num_biases]``.

    Float64, in the order of the parameters. See `DagNN.reset_parameters` for the rule and its source.
    """
    with ordinary_tensors():
        moments = np.fromiter(map(second_moment, activations), np.float64, len(activations))
        moment = torch.from_numpy(moments)[layout.node_at]
        terms = layout.in_degree.double()
        if not set(aggregations) <= {"sum"}:
            power = torch.tensor([_TERMS.get(name, 0.0) for name in aggregations], dtype=torch.float64)
            terms = terms ** power[layout.node_at]
        source, target = layout.edges.unbind(1)
        variance = 1 / (terms[target] * moment[source])
        is_source = (layout.in_degree == 0)[layout.has_bias]
        # A uniform variable in +-b has the variance b^2 / 3.
        return (3 * variance).sqrt().numpy(), (3**0.5 * is_source.double()).numpy()


@torch.no_grad()
def draw_uniform(parameter: Tensor, bound: NDArray[np.float64], generator: torch.Generator | None) -> None:
    """Every entry uniformly within its bound, in place; also where ``fully_shard`` has split the parameter."""
    largest = torch.from_numpy(bound).to(parameter.dtype).to(parameter.device)
    if hasattr(parameter, "placements"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        largest = distribute_tensor(largest, parameter.device_mesh, parameter.placements)
    parameter.uniform_(-1, 1, generator=generator).mul_(largest)
