"""What each node of a `WideDagNN` is: its width, activation, norm, dropout and head; read, checked, written down."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag
from dagnn.kernels.nodes import activation_text
from dagnn.nn.dag_nn.parameters import node_activations
from dagnn.nn.learnable import check_size

_NORMS = ("batch", "layer")


@dataclass(frozen=True)
class NodeSettings:
    """One entry for every node of the Dag, in its order.

    Attributes:
        width: units.
        activation: text, as `dagnn.kernels.nodes.activation_text` writes it.
        normed, residual: whether it has a norm; whether its sources' values are passed on.
        dropout: the probability that it is 0 in a sample.
        head: outputs of its head; 0 for none.
    """

    width: list[int]
    activation: list[str]
    normed: list[bool]
    residual: list[bool]
    dropout: list[float]
    head: list[int]

    def more(self, count: int, *, width: int, activation: str, normed: bool) -> "NodeSettings":
        """With ``count`` more nodes, which pass sources on if others do, and have no dropout and no head."""
        return NodeSettings(
            self.width + [width] * count,
            self.activation + [activation] * count,
            self.normed + [normed] * count,
            self.residual + [any(self.residual)] * count,
            self.dropout + [0.0] * count,
            self.head + [0] * count,
        )

    def document(self) -> dict[str, list[Any]]:
        """For JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def read(document: Mapping[str, Any], num_nodes: int) -> "NodeSettings":
        """What `document` wrote, checked.

        Raises:
            ConfigError: something else.
        """
        kinds = {"width": int, "activation": str, "normed": bool, "residual": bool, "dropout": float, "head": int}
        for name, kind in kinds.items():
            values = document.get(name)
            fits = isinstance(values, list) and len(values) == num_nodes
            if not fits or not all(type(value) is kind for value in values or ()):
                raise ConfigError(f"{name} must list a {kind.__name__} for each of {num_nodes} nodes.")
        made = NodeSettings(**{name: list(document[name]) for name in kinds})
        for text in set(made.activation):
            activation_text(text)
        if min(made.width, default=1) < 1 or min(made.head, default=0) < 0:
            raise ConfigError("widths must be at least 1, and outputs of heads at least 0.")
        for rate in set(made.dropout):
            check_rate(rate, "dropout")
        return made


def read_settings(
    dag: Dag,
    *,
    width: int | Sequence[int] | Mapping[Hashable, int],
    activation: Any,
    output_activation: Any,
    normalise: str | None,
    dropout: float | Mapping[Hashable, float],
    residual: bool,
    heads: int | Collection[Hashable] | Mapping[Hashable, int] | None,
) -> NodeSettings:
    """The settings of every node from the arguments of `WideDagNN`.

    Raises:
        ConfigError: a value out of range, a list of another length; a layer norm of a node with one unit.
        GraphError: an unknown node, or one twice; a head on an input.
    """
    if normalise not in (None, *_NORMS):
        raise ConfigError(f"normalise must be 'batch', 'layer' or None, got {normalise!r}.")
    if not isinstance(residual, bool):
        raise ConfigError(f"residual must be True or False, got {residual!r}.")
    inputs = set(dag.inputs.tolist())
    head = _heads(dag, heads, inputs)
    # An output that nothing reads but the user: no norm, no dropout, and one unit unless told.
    final = {
        node for node in dag.outputs[dag.out_degree[dag.outputs] == 0].tolist() if node not in inputs and not head[node]
    }
    hidden = [node not in inputs and node not in final for node in range(dag.num_nodes)]
    widths = _widths(dag, width, hidden)
    # An output with a head is a hidden node: its activation is that of the others.
    headed = [node for node in dag.outputs.tolist() if head[node]]
    activations = node_activations(dag, activation, output_activation, headed)
    if normalise == "layer":
        single = [node for node in range(dag.num_nodes) if hidden[node] and widths[node] == 1]
        if single:
            raise ConfigError(
                f"a layer norm of one unit is always 0, and the node {dag.name_of(single[0])!r} has one "
                f"({len(single)} nodes in all): give it more, or choose normalise='batch'."
            )
    return NodeSettings(
        widths,
        activations,
        [normalise is not None and is_hidden for is_hidden in hidden],
        [residual and is_hidden for is_hidden in hidden],
        _rates(dag, dropout, hidden, inputs),
        head,
    )


def check_rate(given: object, argument: str) -> float:
    """``given`` as a probability below 1.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(given, Real) and not isinstance(given, bool) and 0 <= float(given) < 1:
        return float(given)
    raise ConfigError(f"{argument} must be at least 0 and below 1, got {given!r}: it is the share that is dropped.")


def _widths(dag: Dag, given: Any, hidden: Sequence[bool]) -> list[int]:
    if isinstance(given, Mapping):
        chosen = _by_node(dag, given, "width")
        return [
            _width(chosen[node], f"width[{dag.name_of(node)!r}]") if node in chosen else 1
            for node in range(dag.num_nodes)
        ]
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str):
        levels, count = dag.levels.tolist(), int(dag.levels.max()) + 1 if dag.num_nodes else 0
        if len(given) != count:
            raise ConfigError(f"width lists {len(given)} numbers, expected one for each of {count} levels.")
        listed = [_width(one, f"width[{level}]") for level, one in enumerate(given)]
        return [listed[level] for level in levels]
    one = _width(given, "width")
    return [one if is_hidden else 1 for is_hidden in hidden]


def _width(given: object, argument: str) -> int:
    return check_size(argument, int(given) if isinstance(given, Integral) and not isinstance(given, bool) else given)  # type: ignore[arg-type]


def _rates(dag: Dag, given: Any, hidden: Sequence[bool], inputs: set[int]) -> list[float]:
    if not isinstance(given, Mapping):
        rate = check_rate(given, "dropout")
        return [rate if is_hidden else 0.0 for is_hidden in hidden]
    rates = [0.0] * dag.num_nodes
    for node, rate in _by_node(dag, given, "dropout").items():
        if node in inputs:
            raise GraphError(
                f"dropout names the input {dag.name_of(node)!r}, whose value is given: drop it in x, or leave it out."
            )
        rates[node] = check_rate(rate, f"dropout[{dag.name_of(node)!r}]")
    return rates


def _heads(dag: Dag, given: Any, inputs: set[int]) -> list[int]:
    if given is None:
        return [0] * dag.num_nodes
    if isinstance(given, Integral):
        outputs = _width(given, "heads")
        return [0 if node in inputs else outputs for node in range(dag.num_nodes)]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(
            f"heads must be a number of outputs for every node, a list of nodes, or a dict by node name, got {given!r}."
        )
    chosen = _by_node(dag, given if isinstance(given, Mapping) else dict.fromkeys(given, 1), "heads")
    counts = [0] * dag.num_nodes
    for node, outputs in chosen.items():
        if node in inputs:
            raise GraphError(f"heads names the input {dag.name_of(node)!r}: a head reads a node that is computed.")
        counts[node] = _width(outputs, f"heads[{dag.name_of(node)!r}]")
    return counts


def _by_node(dag: Dag, given: Mapping[Hashable, Any], argument: str) -> dict[int, Any]:
    chosen = dict[int, Any]()
    for name, value in given.items():
        node = dag.index_of(name)
        if node in chosen:
            raise GraphError(f"{argument} has the node {dag.name_of(node)!r} twice, the second time as {name!r}.")
        chosen[node] = value
    return chosen
