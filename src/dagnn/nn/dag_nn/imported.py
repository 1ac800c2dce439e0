"""Networks of other libraries, read as what a `DagNN` is made of: MLPs of PyTorch, genomes of neat-python.

neat-python itself is not needed.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from dagnn.errors import ConfigError, CycleError, DagnnError, GraphError
from dagnn.graph import Dag
from dagnn.kernels import AGGREGATIONS, NEAT_ACTIVATIONS
from dagnn.kernels.nodes import activation_text, check_aggregation
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


_NEAT = "neat."  # the package of its functions, and the prefix of our names for them
_GENES = ("bias", "response", "activation", "aggregation")


@dataclass(frozen=True)
class Phenotype:
    """The network that a genome describes, by the keys of its nodes.

    Attributes:
        dag: the inputs, and the nodes that an output needs, by key.
        of_nodes: the arguments of `DagNN` that name nodes.
        biases: of the nodes that are no inputs.
        weights: of the edges.
    """

    dag: Dag
    of_nodes: dict[str, Any]
    biases: dict[Hashable, float]
    weights: dict[tuple[Hashable, Hashable], float]


def read_genome(
    genome: Any, config: Any, activations: Mapping[str, Any] | None, aggregations: Mapping[str, str] | None
) -> Phenotype:
    """What neat-python's `FeedForwardNetwork.create` would make of a genome; arguments and errors as of `from_neat`."""
    try:
        settings = getattr(config, "genome_config", config)
        inputs, outputs = list(settings.input_keys), list(settings.output_keys)
        nodes, connections = dict(genome.nodes), list(genome.connections.items())
        weight_of = {tuple(key): float(gene.weight) for key, gene in connections if gene.enabled}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            "from_neat takes a genome with .nodes and .connections and its config with .genome_config, got a "
            f"{type(genome).__name__} and a {type(config).__name__}: {error}."
        ) from error
    needed = _needed(weight_of, inputs, outputs)
    missing = [key for key in needed if key not in nodes]
    if missing:
        raise GraphError(f"the genome has no node {missing[0]!r}, which an output or an enabled connection needs.")
    # Connections into inputs change nothing: the value of an input is given.
    edges = {(u, v): weight for (u, v), weight in weight_of.items() if v in needed and (u in needed or u in inputs)}
    names = [*inputs, *sorted(needed)]
    try:
        dag = Dag(list(edges), names=names, inputs=inputs, outputs=outputs)
    except CycleError as error:
        raise CycleError(
            f"the genome is recurrent: {error} neat-python evolves none with feed_forward = True."
        ) from error

    genes = {key: _gene(key, nodes[key]) for key in sorted(needed)}
    act = _Names("activation", NEAT_ACTIVATIONS, _NEAT, activations, settings, "activation_defs", activation_text)
    agg = _Names(
        "aggregation", AGGREGATIONS, "", aggregations, settings, "aggregation_function_defs", check_aggregation
    )
    of_nodes = {
        "activation": {key: act.of(key, gene["activation"]) for key, gene in genes.items()},
        "aggregation": {key: agg.of(key, gene["aggregation"]) for key, gene in genes.items()},
        "response": {key: gene["response"] for key, gene in genes.items()},
        "bias": list(genes),
    }
    return Phenotype(dag, of_nodes, {key: gene["bias"] for key, gene in genes.items()}, edges)


def _needed(edges: Iterable[tuple[Any, ...]], inputs: Collection[Any], outputs: Collection[Any]) -> set[Any]:
    """The outputs and every node with a path to one; no inputs."""
    sources_of: dict[Any, list[Any]] = {}
    for source, target in edges:
        sources_of.setdefault(target, []).append(source)
    needed, rest = set[Any](), list(outputs)
    while rest:
        key = rest.pop()
        if key not in needed and key not in inputs:
            needed.add(key)
            rest.extend(sources_of.get(key, ()))
    return needed


def _gene(key: Hashable, gene: Any) -> dict[str, Any]:
    lacking = [name for name in _GENES if not hasattr(gene, name)]
    if lacking:
        raise ConfigError(f"the gene of node {key!r} has no {lacking[0]}, got {gene!r}: give one of neat-python's.")
    return {name: getattr(gene, name) for name in _GENES}


@dataclass(frozen=True)
class _Names:
    """Our names for functions that genes name.

    Attributes:
        what: "activation" or "aggregation".
        known: our names.
        prefix: of our name for a function of neat-python's.
        given: the user's own, by the name in the genes.
        settings, functions: where the config has the functions by name; a config without them has neat-python's.
        check: makes the text of what is given.
    """

    what: str
    known: Collection[str]
    prefix: str
    given: Mapping[str, Any] | None
    settings: Any
    functions: str
    check: Callable[[object, str], str]

    def of(self, key: Hashable, name: str) -> str:
        if self.given is not None and name in self.given:
            return self.check(self.given[name], f"{self.what}s[{name!r}]")
        defined = getattr(self.settings, self.functions, None)
        function = getattr(defined, "functions", {}).get(name)
        if defined is None or getattr(function, "__module__", None) == f"{_NEAT}{self.what}s":
            # The name of the function, not of the gene: a config may have it under any name.
            own = name if function is None else function.__name__.removesuffix(f"_{self.what}")
            if self.prefix + own in self.known:
                return self.prefix + own
        problem = "neat-python has no function of that name"
        if function is not None:
            problem = "it is a function of the config's own"
            try:  # one that is made of arithmetic is a formula as it is
                return self.check(function, f"{self.what} {name!r}")
            except DagnnError as error:
                problem += f" ({error})"
        raise ConfigError(
            f"node {key!r} has the {self.what} {name!r}, but {problem}: pass {self.what}s={{{name!r}: ...}} with what "
            f"DagNN takes as {self.what}."
        )


@dataclass(frozen=True)
class Layered:
    """An MLP as a DAG: a node per unit, features first, then layer by layer.

    Attributes:
        activation: of every node.
        biased: nodes with a bias, in order.
        weights, biases: of the layers; flat and joined, the weights are in the order of `DagNN.edge_weight`.
    """

    dag: Dag
    activation: list[str]
    biased: list[int]
    weights: list[Tensor]
    biases: list[Tensor]


def read_sequential(model: nn.Sequential) -> Layered:
    """Errors as of `from_sequential`."""
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
    return Layered(
        Dag(np.concatenate(edges), int(first[-1]), inputs=nodes[0], outputs=nodes[-1]),
        activations,
        biased,
        [value_of(linear, "weight") for linear, _ in layers],
        [value_of(linear, "bias") for linear, _ in layers if linear.bias is not None],
    )


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
