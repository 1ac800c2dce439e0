"""`explain`: how much of an output's change from a baseline flows through every node and edge of a network.

It returns an `Explanation`: the conductances by name, per sample and mean, largest first, as a frame, over cuts.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError, library
from dagnn.kernels import (
    ConductancePlan,
    Conductances,
    NetworkPlan,
    ProductPlan,
    message_scales,
    plan_conductance,
    run_conductance,
    run_network,
)
from dagnn.kernels.network.conductance import Rule
from dagnn.nn import DagNN
from dagnn.nn.learnable import value_of
from dagnn.visible.reading import checked_whole

Kind = Literal["nodes", "edges"]
# Edges of which one array holds all samples at a time.
_EDGES_AT_ONCE = 4096
_EXPLAINED = ("sum", "mean", "product")


class Found(NamedTuple):
    """Conductances, the plan that says where they belong, the weights that were used."""

    plan: ConductancePlan | ProductPlan
    weight: Tensor
    of: Conductances


@final
class Explanation:
    """Conductance of every node and edge for one output of a network: what `explain` returns.

    The conductances of the edges that leave a set of nodes sum to ``F(x) - F(baseline)``, if the set holds every input
    and every predecessor of its nodes, and not the output: see `cut_sums`. Those of the *nodes* of a level do so only
    where no edge skips the level.

    Attributes:
        output: name of the node that is explained.
        rule, steps: as given.
        nodes: ``[B, num_nodes]``, conductance of every node, for every sample. An input has what leaves it, every other
            node what enters it; nodes without a path to the output have 0. On the CPU, in the dtype of the network.
        change: ``[B]``, what is explained: ``F(x) - F(baseline)``.
        error: the completeness error: the largest ``|sum over the inputs - change|`` over the samples. That of every
            cut is the same, but for rounding.

    >>> from dagnn import Dag
    >>> net = DagNN(Dag([("a", "h"), ("b", "h"), ("h", "y"), ("a", "y")]), bias=False)
    >>> net.set_weights({("a", "h"): 1.0, ("b", "h"): 1.0, ("h", "y"): 2.0, ("a", "y"): 0.5})
    >>> found = explain(net, torch.tensor([[1.0, -1.0]]))
    >>> [(name, round(value, 3)) for name, value in zip(found.node_names, found.nodes[0].tolist())]
    [('a', 2.5), ('h', 0.0), ('b', -2.0), ('y', 0.5)]
    >>> found.edges.shape, found.edge_names[0]
    (torch.Size([1, 4]), ('a', 'h'))
    """

    def __init__(
        self, net: DagNN, output: Hashable, way: Tensor, change: Tensor, found: Found, *, rule: Rule, steps: int
    ) -> None:
        self.output, self.rule, self.steps, self.change = output, rule, steps, change
        self._dag, self._way, self._found = net.dag, way, found
        self._edge_ends = net._layout.node_at[net._layout.edges].numpy()

        node_at = net._layout.node_at
        self.nodes = way.new_zeros(len(way), net.dag.num_nodes)
        self.nodes[:, net.dag.inputs] = found.of.inputs.T
        self.nodes[:, node_at[torch.from_numpy(found.plan.rows)]] = found.of.hidden.T
        self.error = float((found.of.inputs.T.double().sum(1) - change.double()).abs().max())

    @cached_property
    def node_names(self) -> tuple[Hashable, ...]:
        """The names of the nodes, in the order of the Dag."""
        return tuple(map(self._dag.name_of, range(self._dag.num_nodes)))

    @cached_property
    def edge_names(self) -> tuple[tuple[Hashable, Hashable], ...]:
        """(source, target) of every edge, in the order of ``net.edge_weight``."""
        names = self.node_names
        return tuple((names[u], names[v]) for u, v in self._edge_ends.tolist())

    @cached_property
    def edges(self) -> Tensor:
        """Conductance of every edge for every sample, ``[B, num_edges]``; computed when it is first read."""
        plan = self._found.plan
        edges = self._way.new_zeros(len(self._way), len(self._edge_ends))
        edges[:, plan.inner_edges] = self._found.of.inner.T
        for chosen, values in self._entries():
            edges[:, plan.entry_edges[chosen]] = values.T
        return edges

    @cached_property
    def node_means(self) -> Tensor:
        """Mean conductance of every node over the samples, float64 ``[num_nodes]``."""
        return torch.from_numpy(self.nodes.numpy().mean(axis=0, dtype=np.float64))

    @cached_property
    def edge_means(self) -> Tensor:
        """Mean conductance of every edge over the samples, float64 ``[num_edges]``; without all of `edges`."""
        return self._edge_moments[0]

    @cached_property
    def node_shares(self) -> Tensor:
        """Mean ``|conductance|`` of every node over the mean ``|change|``, float64 ``[num_nodes]``; NaN for 0 / 0."""
        return torch.from_numpy(np.abs(self.nodes.numpy()).mean(axis=0, dtype=np.float64)) / self._scale

    @cached_property
    def edge_shares(self) -> Tensor:
        """The same of every edge, float64 ``[num_edges]``."""
        return self._edge_moments[1] / self._scale

    def cut_sums(self, *cuts: Collection[Hashable]) -> Tensor:
        """What flows over cuts, each ``change`` up to rounding and the error of the rule: ``[B, cuts]``.

        Args:
            cuts: sets of node names, each with every input and every predecessor of its nodes, and without the output.
                By default one for each level below that of the output: all nodes up to that level.

        Raises:
            GraphError: an unknown node, or a set that is no such cut; the message names a node that is missing.
        """
        inside = [self._checked_cut(cut) for cut in cuts] if cuts else self._level_cuts()
        source, target = self._edge_ends.T
        sums = [self.edges[:, one[source] & ~one[target]].sum(1) for one in inside]
        return torch.stack(sums, dim=1) if sums else self._way.new_zeros(len(self._way), 0)

    def top(self, n: int = 10, of: Kind = "nodes") -> list[tuple[Any, float]]:
        """The ``n`` hidden nodes, or edges, of largest share, with it; equal ones in the order of their names' arrays.

        One network says little about which nodes matter: the shape of the graph alone ranks them. See
        `explain_replicates`.

        Raises:
            ConfigError: ``n`` is no whole number, or ``of`` neither ``"nodes"`` nor ``"edges"``.
        """
        n = checked_whole("n", n)
        _check_kind(of)
        if of == "edges":
            names: Iterable[Any] = self.edge_names
            shares = self.edge_shares.tolist()
        else:
            hidden = [k for k, kind in enumerate(self._kind) if kind == "hidden"]
            names, shares = (self.node_names[k] for k in hidden), self.node_shares[hidden].tolist()
        return sorted(zip(names, shares, strict=True), key=lambda pair: -pair[1])[: max(0, n)]

    def to_frame(self, of: Kind = "nodes") -> Any:
        """A data frame of pandas, a row per node or edge: names, ``mean`` conductance, ``share``.

        Nodes have a column ``kind`` too: input, hidden or output.

        Raises:
            ConfigError: ``of`` is neither ``"nodes"`` nor ``"edges"``.
            MissingPackageError: pandas is not installed.
        """
        _check_kind(of)
        pandas = library("pandas", "to_frame", "pandas")
        if of == "edges":
            source, target = zip(*self.edge_names, strict=True) if self.edge_names else ((), ())
            columns = {"source": source, "target": target, "mean": self.edge_means, "share": self.edge_shares}
        else:
            kinds = tuple(self._kind)
            columns = {"node": self.node_names, "kind": kinds, "mean": self.node_means, "share": self.node_shares}
        return pandas.DataFrame({name: list(map(_plain, column)) for name, column in columns.items()})

    def __repr__(self) -> str:
        return (
            f"Explanation(output={self.output!r}, samples={len(self.change)}, nodes={len(self.node_names)}, "
            f"edges={len(self.edge_names)}, rule={self.rule!r}, steps={self.steps}, error={self.error:.1e})"
        )

    def __str__(self) -> str:
        lines = [
            f"conductance of {len(self.node_names):,} nodes and {len(self.edge_names):,} edges for {self.output!r}, "
            f"{len(self.change):,} samples, {self.rule} rule, {self.steps} steps",
            f"completeness error {self.error:.1e}, of a mean |F(x) - F(baseline)| of {self._scale:.4g}",
            *(f"  {share:8.4f}  {name}" for name, share in self.top()),
            "This is one network. Its ranking follows the graph's shape and the seed: explain_replicates compares.",
        ]
        return "\n".join(lines)

    @cached_property
    def _kind(self) -> list[str]:
        kinds = ["hidden"] * self._dag.num_nodes
        for node in self._dag.inputs.tolist():
            kinds[node] = "input"
        kinds[self._dag.index_of(self.output)] = "output"
        return kinds

    @property
    def _scale(self) -> float:
        return float(np.abs(self.change.numpy()).mean(dtype=np.float64))

    @cached_property
    def _edge_moments(self) -> tuple[Tensor, Tensor]:
        """Means of conductance and of its absolute value."""
        plan, count = self._found.plan, len(self._edge_ends)
        means, sizes = np.zeros(count), np.zeros(count)

        def put(edges: NDArray[np.int64], values: Tensor) -> None:
            means[edges] = values.numpy().mean(axis=1, dtype=np.float64)
            sizes[edges] = np.abs(values.numpy()).mean(axis=1, dtype=np.float64)

        put(plan.inner_edges, self._found.of.inner)
        for chosen, values in self._entries():
            put(plan.entry_edges[chosen], values)
        return torch.from_numpy(means), torch.from_numpy(sizes)

    def _entries(self) -> Iterator[tuple[slice, Tensor]]:
        """Conductances of the edges out of inputs, some edges at a time: ``[edges, B]``."""
        plan, weight = self._found.plan, self._found.weight
        for first in range(0, len(plan.entry_edges), _EDGES_AT_ONCE):
            chosen = slice(first, first + _EDGES_AT_ONCE)
            columns, rows = torch.from_numpy(plan.entry_columns[chosen]), torch.from_numpy(plan.entry_rows[chosen])
            flow = self._found.of.adjoint[rows] * self._way.T[columns]
            yield chosen, flow * weight[torch.from_numpy(plan.entry_edges[chosen])].unsqueeze(1)

    def _level_cuts(self) -> list[NDArray[np.bool_]]:
        levels = self._dag.levels.numpy()
        top = int(levels[self._dag.index_of(self.output)])
        return [levels <= level for level in range(top)]

    def _checked_cut(self, cut: Collection[Hashable]) -> NDArray[np.bool_]:
        if isinstance(cut, str | bytes) or not isinstance(cut, Iterable):
            raise GraphError(f"a cut is a set of node names, got {cut!r}: write {{{cut!r}, ...}}.")
        inside = np.zeros(len(self.node_names), dtype=bool)
        inside[[self._dag.index_of(name) for name in cut]] = True
        if inside[self._dag.index_of(self.output)]:
            raise GraphError(f"a cut must not hold the output, got one with {self.output!r}: leave it out.")
        absent = self._dag.inputs[~torch.from_numpy(inside)[self._dag.inputs]].tolist()
        if absent:
            raise GraphError(
                f"a cut must hold every input, got one without {self._dag.name_of(absent[0])!r} "
                f"({len(absent)} missing in all): add them."
            )
        source, target = self._edge_ends.T
        open_edges = np.flatnonzero(inside[target] & ~inside[source])
        if len(open_edges):
            u, v = self.edge_names[int(open_edges[0])]
            raise GraphError(f"a cut must hold every predecessor of its nodes, got one with {v!r} but without {u!r}.")
        return inside


def _check_kind(of: object) -> None:
    if of not in get_args(Kind):
        raise ConfigError(f"of must be 'nodes' or 'edges', got {of!r}.")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def explain(
    net: DagNN, x: Any, baseline: Any = 0.0, *, output: Hashable = None, rule: Rule = "path", steps: int = 32
) -> Explanation:
    """The conductance of every node and edge: how much of ``F(x) - F(baseline)`` flows through it.

    The path rule integrates the gradient along the straight line from the baseline to x, at ``steps`` points of
    Gauss-Legendre quadrature: for the inputs these are integrated gradients. Its completeness error is near rounding
    where activations are smooth. Where they have a kink, as relu has, take the secant rule: its cuts are complete to
    rounding at any number of steps; with one step it is DeepLIFT's rescale rule.

    The network does not change: its outputs, gradients, mode and random state stay.

    Args:
        net: with one unit a node, in float32 or float64. Nodes that sum, average or multiply have a complete
            explanation, with any activation; the others are refused.
        x: the samples, ``[B, inputs]`` or one, ``[inputs]``; or columns by name, as the network takes them.
        baseline: where the path starts: a number for all inputs; one sample, ``[inputs]`` or by name; or one for each
            sample, ``[B, inputs]``.
        output: name of the node to explain, any node of the network; by default its only output.
        rule: ``"path"`` or ``"secant"``.
        steps: points of the path, at least 1.

    Raises:
        GraphError: no samples, x or baseline of another width, an unknown node, several outputs and none named.
        DtypeError: x or baseline of another dtype, or no numbers; a network that is neither float32 nor float64.
        ConfigError: an unknown rule, no step, a node that takes a maximum or the like; x, the baseline, an output or a
            node on the way is not finite.

    Sources: see `dagnn.kernels.network.conductance`; completeness: Sundararajan, Taly, Yan, "Axiomatic Attribution for
    Deep Networks", ICML 2017.

    >>> from dagnn import Dag
    >>> net = DagNN(Dag([("a", "h"), ("b", "h"), ("h", "y")]), dtype=torch.float64)
    >>> found = explain(net, torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64))
    >>> found.nodes.shape, found.error < 1e-12
    (torch.Size([2, 4]), True)
    >>> torch.allclose(found.cut_sums({"a", "b"}, {"a", "b", "h"}), found.change.unsqueeze(1))
    True
    """
    _check_settings(net, rule, steps)
    weight, bias = (value_of(net, key).detach().cpu().clone() for key in ("edge_weight", "bias"))
    return explain_with(net, weight, bias, x, baseline, output=output, rule=rule, steps=int(steps))


def explain_with(
    net: DagNN, weight: Tensor, bias: Tensor, x: Any, baseline: Any, *, output: Hashable, rule: Rule, steps: int
) -> Explanation:
    """`explain` with other parameters than those of the network; not public."""
    # Nothing here needs autograd, and what comes out is to be ordinary tensors.
    with torch.inference_mode(False), torch.no_grad():
        samples = _samples(net, x)
        start = baseline_of(net, baseline, samples)
        name = _output(net, output)
        place = int(net._layout.place_of[net.dag.index_of(name)])
        network = net._plan_on[torch.device("cpu")]
        change = _values(network, place, samples, weight, bias) - _values(network, place, start, weight, bias)
        if not change.isfinite().all():
            sample = int((~change.isfinite()).nonzero()[0])
            raise ConfigError(
                f"the output {name!r} is not finite for sample {sample} or its baseline: nothing can be explained. "
                "Look for weights that are NaN or too large."
            )
        plan = plan_conductance(network, place)
        scale = message_scales(network)
        if scale is not None:
            weight = weight * scale.to(weight.dtype)[network.edges[:, 1]]
        way = samples - start
        of_rows = torch.cat([bias, bias.new_zeros(1)])[network.bias_index[torch.from_numpy(plan.rows)]]
        is_compiled = not network.why_reference
        of = run_conductance(plan, start, way, weight, of_rows, rule=rule, steps=steps, is_compiled=is_compiled)
        sums = of.inputs.sum(0) + of.hidden.sum(0)  # not finite where one of them is not
        if not sums.isfinite().all():
            sample = int((~sums.isfinite()).nonzero()[0])
            raise ConfigError(f"a node overflows for sample {sample}, though {name!r} does not: scale x or weights.")
        return Explanation(net, name, way, change, Found(plan, weight, of), rule=rule, steps=steps)


def _check_settings(net: object, rule: object, steps: object) -> None:
    if not isinstance(net, DagNN):
        raise DtypeError(f"explain needs a DagNN, got {type(net).__name__}.")
    if net.edge_weight.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"explain needs a network of float32 or float64, got {net.edge_weight.dtype}: use net.float()."
        )
    if rule not in get_args(Rule):
        raise ConfigError(f"rule must be 'path' or 'secant', got {rule!r}.")
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(f"steps must be a whole number, at least 1, got {steps!r}.")
    inputs = set(net.dag.inputs.tolist())
    for node, kind in enumerate(net.aggregations):
        if kind not in _EXPLAINED and node not in inputs:
            raise ConfigError(
                f"the node {net.dag.name_of(node)!r} aggregates by {kind}, of which no rule gives a complete "
                f"explanation: explain takes networks of {', '.join(_EXPLAINED)}."
            )


def _samples(net: DagNN, x: Any) -> Tensor:
    """``[B, inputs]``, B at least 1: a copy on the CPU."""
    given = _checked("x", net, x)
    if given.dim() == 1:
        given = given.unsqueeze(0)
    width = len(net.dag.inputs)
    if given.dim() != 2 or given.shape[1] != width:
        raise GraphError(
            f"x must have the shape [samples, inputs] = [..., {width}], got {list(given.shape)}: "
            "net.input_names lists the columns."
        )
    if not len(given):
        raise GraphError("x holds no samples: an explanation needs at least one.")
    _check_finite("x", net, given)
    return given


def baseline_of(net: DagNN, baseline: Any, samples: Tensor) -> Tensor:
    """Where the path of each sample starts, ``[B, inputs]``; not public."""
    number: Any = baseline.item() if isinstance(baseline, np.generic) else baseline
    if isinstance(baseline, Real) and not isinstance(baseline, bool | np.bool_):
        if not abs(number) <= torch.finfo(samples.dtype).max:
            raise ConfigError(f"baseline must be a finite number in {samples.dtype}, got {baseline!r}.")
        given = torch.full_like(samples, float(baseline))
    else:
        given = _checked("baseline", net, baseline)
    if given.dim() not in (1, 2) or given.shape[-1] != samples.shape[1] or (given.dim() == 2 and len(given) == 0):
        raise GraphError(
            f"baseline must be a number, one sample [{samples.shape[1]}] or one for each, {list(samples.shape)}, "
            f"got the shape {list(given.shape)}."
        )
    if given.dim() == 2 and len(given) not in (1, len(samples)):
        raise GraphError(
            f"baseline has {len(given)} rows for {len(samples)} samples: give one row, or one for each sample."
        )
    given = given.expand_as(samples)
    _check_finite("baseline", net, given)
    return given.contiguous()


def _checked(argument: str, net: DagNN, given: Any) -> Tensor:
    try:
        tensor: Tensor = given if isinstance(given, Tensor) else net.input_from(given)
    except (DtypeError, GraphError) as error:  # in which it is called x
        raise type(error)(re.sub(r"\bx\b", argument, str(error), count=1)) from None
    if tensor.dtype != net.edge_weight.dtype or tensor.layout is not torch.strided:
        raise DtypeError(
            f"{argument} must be a dense tensor of {net.edge_weight.dtype}, the dtype of the network, got a "
            f"{tensor.layout} one of {tensor.dtype}."
        )
    return tensor.detach().cpu().clone()


def _check_finite(argument: str, net: DagNN, given: Tensor) -> None:
    if not given.isfinite().all():
        row, column = (~given.isfinite()).nonzero()[0].tolist()
        raise ConfigError(
            f"{argument} is {given[row, column].item()} for the input {net.input_names[column]!r} of sample {row}: "
            "an explanation needs finite numbers. Fill or drop it."
        )


def _output(net: DagNN, output: Hashable) -> Hashable:
    if output is not None or None in net.output_names:
        return net.dag.name_of(net.dag.index_of(output))
    if len(net.output_names) > 1:
        shown = ", ".join(map(repr, net.output_names[:5]))
        raise GraphError(
            f"the network has {len(net.output_names)} outputs, {shown}{', ...' * (len(net.output_names) > 5)}: "
            "say which one to explain, with output=."
        )
    return net.output_names[0]


def _values(network: NetworkPlan, place: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The values of a node, ``[B]``."""
    outputs = network.outputs.tolist()
    if place in outputs:
        return run_network(network, x, weight, bias)[:, outputs.index(place)]
    return run_network(_with_output(network, place), x, weight, bias)[:, 0]


@lru_cache(maxsize=8)
def _with_output(network: NetworkPlan, place: int) -> NetworkPlan:
    return network.read_at(torch.tensor([place]))
