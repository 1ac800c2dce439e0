"""`explain`: how much of an output's change from a baseline flows through every node and edge of a network."""

from collections.abc import Hashable
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.kernels import ConductancePlan, NetworkPlan, plan_network, run_conductance, run_network
from dagnn.kernels.network.conductance import Rule
from dagnn.nn import DagNN
from dagnn.nn.learnable import value_of
from dagnn.visible.explanation import Explanation, Found

_LINEAR = ("sum", "mean")


def explain(
    net: DagNN,
    x: Any,
    baseline: Any = 0.0,
    *,
    output: Hashable = None,
    rule: Rule = "path",
    steps: int = 32,
) -> Explanation:
    """The conductance of every node and edge: how much of ``F(x) - F(baseline)`` flows through it.

    The path rule integrates the gradient along the straight line from the baseline to x, at ``steps`` points of
    Gauss-Legendre quadrature: for the inputs these are integrated gradients. Its completeness error is near rounding
    where activations are smooth. Where they have a kink, as relu has, take the secant rule: its cuts are complete to
    rounding at any number of steps; with one step it is DeepLIFT's rescale rule.

    The network does not change: its outputs, gradients, mode and random state stay.

    Args:
        net: with one unit a node, in float32 or float64. Nodes that sum or average have a complete explanation, with
            any activation; the others are refused.
        x: the samples, ``[B, inputs]`` or one, ``[inputs]``; or columns by name, as the network takes them.
        baseline: where the path starts: a number for all inputs; one sample, ``[inputs]`` or by name; or one for each
            sample, ``[B, inputs]``.
        output: name of the node to explain, any node of the network; by default its only output.
        rule: ``"path"`` or ``"secant"``.
        steps: points of the path, at least 1.

    Raises:
        GraphError: no samples, x or baseline of another width, an unknown node, several outputs and none named.
        DtypeError: x or baseline of another dtype, or no numbers; a network that is neither float32 nor float64.
        ConfigError: an unknown rule, no step, a node that takes a product, a maximum or the like; x, the baseline or
            an output is not finite.

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
    steps = int(steps)
    # Whatever mode the caller is in: nothing here needs autograd, and what comes out is to be ordinary tensors.
    with torch.inference_mode(False), torch.no_grad():
        samples = _samples(net, x)
        start = _baseline(net, baseline, samples)
        name = _output(net, output)
        place = int(net._layout.place_of[net.dag.index_of(name)])
        network = net._plan_on[torch.device("cpu")]
        weight, bias = (value_of(net, key).detach().cpu().clone() for key in ("edge_weight", "bias"))
        change = _values(network, place, samples, weight, bias) - _values(network, place, start, weight, bias)
        if not change.isfinite().all():
            sample = int((~change.isfinite()).nonzero()[0])
            raise ConfigError(
                f"the output {name!r} is not finite for sample {sample} or its baseline: nothing can be explained. "
                "Look for weights that are NaN or too large."
            )
        plan = _plan(network, place)
        scale = _scales(network)
        if scale is not None:
            weight = weight * scale.to(weight.dtype)[network.edges[:, 1]]
        way = samples - start
        of_rows = torch.cat([bias, bias.new_zeros(1)])[network.bias_index[torch.from_numpy(plan.rows)]]
        is_compiled = not network.why_reference
        of = run_conductance(plan, start, way, weight, of_rows, rule=rule, steps=steps, is_compiled=is_compiled)
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
        if kind not in _LINEAR and node not in inputs:
            raise ConfigError(
                f"the node {net.dag.name_of(node)!r} aggregates by {kind}, of which no rule gives a complete "
                f"explanation: explain takes networks of {' and '.join(_LINEAR)}."
            )


def _samples(net: DagNN, x: Any) -> Tensor:
    """``[B, inputs]``, B at least 1: a copy on the CPU."""
    given = x if isinstance(x, Tensor) else net.input_from(x)
    given = _checked("x", net, given)
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


def _baseline(net: DagNN, baseline: Any, samples: Tensor) -> Tensor:
    """``[B, inputs]``."""
    if isinstance(baseline, Real) and not isinstance(baseline, bool | np.bool_):
        given = torch.full_like(samples, float(baseline))
    else:
        given = _checked("baseline", net, baseline if isinstance(baseline, Tensor) else net.input_from(baseline))
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


def _checked(argument: str, net: DagNN, given: Tensor) -> Tensor:
    if given.dtype != net.edge_weight.dtype or given.layout is not torch.strided:
        raise DtypeError(
            f"{argument} must be a dense tensor of {net.edge_weight.dtype}, the dtype of the network, got a "
            f"{given.layout} one of {given.dtype}."
        )
    return given.detach().cpu().clone()


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
    return plan_network(
        network.edges,
        network.node_levels,
        network.inputs,
        torch.tensor([place]),
        network.has_bias,
        network.activation,
        network.aggregation,
        network.response,
    )


@lru_cache(maxsize=8)
def _plan(network: NetworkPlan, place: int) -> ConductancePlan:
    edges, levels, inputs = (part.numpy() for part in (network.edges, network.node_levels, network.inputs))
    return ConductancePlan(edges, levels, inputs, place, network.activation)


def _scales(network: NetworkPlan) -> Tensor | None:
    """What multiplies the sum of every node, ``[num_nodes]``; None where that is 1."""
    if set(network.aggregation) <= {"sum"} and bool((network.response == 1).all()):
        return None
    is_mean = torch.tensor([name == "mean" for name in network.aggregation])
    degree = torch.bincount(network.edges[:, 1], minlength=network.num_nodes).clamp(min=1)
    return torch.where(is_mean, network.response / degree, network.response)
