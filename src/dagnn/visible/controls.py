"""Controls for explanations: shuffled labels, inputs that are the labels, and random graphs of the same degrees."""

from collections.abc import Hashable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag

# Rounds in which every edge is paired once and tries to swap: after so many, hardly one is where it was.
_ROUNDS = 20


def rewired(dag: Dag, seed: int, rounds: int = _ROUNDS) -> Dag:
    """A random Dag with the same nodes, inputs, outputs, and number of edges into and out of every node.

    Pairs of edges ``u -> v, p -> q`` become ``u -> q, p -> v``, where that makes no edge twice and no edge against the
    levels of ``dag``; so there are no cycles. Attributes of edges are dropped; those of nodes stay.

    Args:
        seed: 0 or more; equal seeds give equal graphs.
        rounds: in each, every edge is paired with a random one; 0 returns the same edges.

    Raises:
        GraphError: ``dag`` is no `Dag`, or has an edge twice.
        ConfigError: a negative seed or number of rounds.

    Source: Maslov, Sneppen, "Specificity and Stability in Topology of Protein Networks", Science 296, 2002.

    >>> dag = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("p", "y"), ("q", "y")])
    >>> other = rewired(dag, seed=1)
    >>> other.in_degree.tolist() == dag.in_degree.tolist(), other.out_degree.tolist() == dag.out_degree.tolist()
    (True, True)
    """
    if not isinstance(dag, Dag):
        raise GraphError(f"rewired needs a Dag, got {type(dag).__name__}.")
    for name, value in (("seed", seed), ("rounds", rounds)):
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number, at least 0, got {value!r}.")
    random, level = np.random.default_rng(seed), dag.levels.numpy()
    source, target = dag.edges.numpy().T.copy()
    if len(np.unique(source * dag.num_nodes + target)) < len(source):
        raise GraphError("the Dag has an edge twice: drop one, so that degrees mean something.")
    for _ in range(rounds):
        target = _swapped(source, target, level, random)
    return Dag(
        np.stack([source, target], axis=1),
        dag.num_nodes,
        inputs=dag.inputs,
        outputs=dag.outputs,
        names=dag.names,
        node_attributes=dag.node_attributes,
    )


def _swapped(
    source: NDArray[np.int64], target: NDArray[np.int64], level: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """The targets after one round of swaps."""
    count, nodes = len(source), len(level)
    order = random.permutation(count)[: count // 2 * 2].reshape(-1, 2)
    first, second = order.T
    allowed = (level[source[first]] < level[target[second]]) & (level[source[second]] < level[target[first]])
    first, second = first[allowed], second[allowed]
    # An edge that is there now, even one about to go, is refused, and so is one that two pairs would make.
    new = np.stack([source[first] * nodes + target[second], source[second] * nodes + target[first]])
    _, back, uses = np.unique(new, return_inverse=True, return_counts=True)
    fresh = (uses[back.reshape(new.shape)] == 1) & ~np.isin(new, source * nodes + target)
    kept = fresh.all(axis=0)
    first, second = first[kept], second[kept]
    result = target.copy()
    result[first], result[second] = target[second], target[first]
    return result


def shuffled(y: Tensor, random: np.random.Generator) -> Tensor:
    """``y`` in a random order."""
    return y[torch.from_numpy(random.permutation(len(y)))]


def deterministic(y: Tensor, inputs: int) -> Tensor:
    """Inputs that are the label, ``[samples, inputs]``, of mean 0 and variance 1: no input differs from another."""
    spread = y.std(unbiased=False)
    return ((y - y.mean()) / spread).unsqueeze(1).expand(-1, inputs).contiguous()


def with_one_output(dag: Dag, output: Hashable) -> Dag:
    """The same Dag with one output.

    Raises:
        GraphError: no such node; several outputs and none named.
    """
    if output is None:
        if len(dag.outputs) != 1:
            shown = ", ".join(repr(dag.name_of(node)) for node in dag.outputs.tolist()[:5])
            raise GraphError(
                f"the Dag has {len(dag.outputs)} outputs, {shown} ...: say which is trained, with output=."
            )
        node = int(dag.outputs[0])
    else:
        node = dag.index_of(output)
    return Dag(
        dag.edges,
        dag.num_nodes,
        inputs=dag.inputs,
        outputs=torch.tensor([node]),
        names=dag.names,
        node_attributes=dag.node_attributes,
    )
