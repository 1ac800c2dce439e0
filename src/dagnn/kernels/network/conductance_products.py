"""Conductance where some nodes multiply: an edge's weight then depends on the other messages, so on the step.

With the messages ``m_e = w_e value_u`` of the edges ``e = u -> v``, and z_v = bias_v + response_v * product of m_e:

    path      W_e = response_v w_e * product of the other messages, so that dz_v = sum of W_e t_u
    secant    W_e = response_v w_e * integral over r from 0 to 1 of the product of the others at m + r (next m - m)

and all of `conductance` holds with W_e in place of w_e. The integrand of the secant is a polynomial, so Gauss's points
give it to rounding, and the sum of ``W_e (next value_u - value_u)`` is the change of z_v: secants stay complete. What
an edge gets is its Shapley value: the mean, over all orders in which the messages may change one by one, of what its
own change does. The path rule is the limit of that for many steps.

Plain PyTorch, all nodes and steps at once. Inputs enter as other nodes do, for through a product they are not linear.

Source: Owen, "Multilinear Extensions of Games", Management Science 18(5), 1972: the value as that integral.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.kernels.network.conductance import (
    CHUNK,
    ConductancePlan,
    Conductances,
    Rule,
    points_of,
    secant,
    value_and_slope,
    with_path_to,
)
from dagnn.kernels.network.plan import NetworkPlan

_EMPTY = np.zeros(0, np.int64)


def message_scales(network: NetworkPlan) -> Tensor | None:
    """What multiplies every message of a node, ``[num_nodes]``; None where that is 1. A product's response is none."""
    if set(network.aggregation) <= {"sum"} and bool((network.response == 1).all()):
        return None
    named = np.array(network.aggregation)
    degree = torch.bincount(network.edges[:, 1], minlength=network.num_nodes).clamp(min=1)
    scales = torch.where(torch.from_numpy(named == "mean"), network.response / degree, network.response)
    return scales.masked_fill(torch.from_numpy(named == "product"), 1)


@lru_cache(maxsize=8)
def plan_conductance(network: NetworkPlan, output: int) -> "ConductancePlan | ProductPlan":
    """The network as the node ``output`` sees it."""
    edges, levels, inputs = (part.numpy() for part in (network.edges, network.node_levels, network.inputs))
    if "product" not in network.aggregation:
        return ConductancePlan(edges, levels, inputs, output, network.activation)
    response = network.response.double().numpy()
    return ProductPlan(edges, levels, inputs, output, network.activation, network.aggregation, response)


class ProductPlan:
    """A network with products as one of its nodes sees it: see `ConductancePlan`, whose attributes these are.

    Args:
        edges, levels, inputs, output, activation: as there.
        aggregation: name for every node; all but ``"product"`` sum messages, whose weights hold every factor.
        response: float64 ``[num_nodes]``, what multiplies a product.

    Attributes:
        rows, output_row, output_column, num_inputs: as there.
        entry_edges, entry_columns, entry_rows: empty.
        inner_edges: all edges with a path to the output.
    """

    def __init__(
        self,
        edges: NDArray[np.int64],
        levels: NDArray[np.int64],
        inputs: NDArray[np.int64],
        output: int,
        activation: Sequence[str],
        aggregation: Sequence[str],
        response: NDArray[np.float64],
    ) -> None:
        source, target = np.ascontiguousarray(edges.T)
        column_of = np.full(len(levels), -1)
        column_of[inputs] = np.arange(len(inputs))
        live = with_path_to(output, source, target, levels)
        self.num_inputs = len(inputs)
        self.rows = np.flatnonzero(live & (column_of < 0))
        self.output_row = int(np.searchsorted(self.rows, output)) if column_of[output] < 0 else -1
        self.output_column = int(column_of[output])
        self.entry_edges = self.entry_columns = self.entry_rows = _EMPTY
        self.inner_edges = np.flatnonzero(live[target])

        # Here inputs come first, then rows.
        place_of = np.full(len(levels), -1)
        place_of[inputs] = np.arange(len(inputs))
        place_of[self.rows] = len(inputs) + np.arange(len(self.rows))
        self.sources = torch.from_numpy(place_of[source[self.inner_edges]])
        self.targets = torch.from_numpy(place_of[target[self.inner_edges]])
        self.levels = self._levels(levels, activation, aggregation, response)

    def _levels(
        self, levels: NDArray[np.int64], activation: Sequence[str], aggregation: Sequence[str],
        response: NDArray[np.float64],
    ) -> list["_Level"]:  # fmt: skip
        """The nodes of each level, the edges into those that sum, and the products of each number of messages."""
        found, first = [], self.num_inputs
        targets = self.targets.numpy()
        multiplies = np.array([aggregation[node] == "product" for node in self.rows.tolist()], dtype=bool)
        bounds = np.flatnonzero(np.diff(levels[self.rows], prepend=-1, append=-1)) if len(self.rows) else [0]
        for start, stop in pairwise(map(int, bounds)):
            begin, end = np.searchsorted(targets, [first + start, first + stop]).tolist()
            into = targets[begin:end] - first
            summed = begin + np.flatnonzero(~multiplies[into])
            nodes = start + np.flatnonzero(multiplies[start:stop])
            begins = np.searchsorted(targets, first + nodes)
            degrees = np.searchsorted(targets, first + nodes, side="right") - begins
            products = [
                _Products(
                    torch.from_numpy(first + nodes[degrees == degree]),
                    torch.from_numpy(begins[degrees == degree, None] + np.arange(degree)),
                    torch.from_numpy(response[self.rows[nodes[degrees == degree]]]),
                )
                for degree in np.unique(degrees).tolist()
            ]
            names = [activation[node] for node in self.rows[start:stop].tolist()]
            groups = [
                (name, torch.tensor([first + start + k for k, other in enumerate(names) if other == name]))
                for name in dict.fromkeys(names)
            ]
            edges = torch.from_numpy(np.arange(begin, end))
            found.append(_Level(slice(first + start, first + stop), edges, torch.from_numpy(summed), products, groups))
        return found


class _Products(NamedTuple):
    """The products of a level with one number of messages: nodes and responses ``[n]``, edges ``[n, messages]``."""

    nodes: Tensor
    edges: Tensor
    response: Tensor


class _Level(NamedTuple):
    """A level: its nodes, all edges into them, those into sums, the products, the nodes of each activation."""

    nodes: slice
    edges: Tensor
    summed: Tensor
    products: list[_Products]
    groups: list[tuple[str, Tensor]]


def run_products(
    plan: ProductPlan, x: Tensor, way: Tensor, weight: Tensor, bias: Tensor, *, rule: Rule, steps: int
) -> Conductances:
    """The conductances of all rows; arguments as of `conductance.run_conductance`."""
    points, shares = points_of(rule, steps)
    per_chunk = max(1, CHUNK // max(1, max(plan.num_inputs + len(plan.rows), len(plan.inner_edges)) * len(points)))
    of_edges = weight[torch.from_numpy(plan.inner_edges)]
    parts = [
        _run_chunk(plan, one.T, slant.T, of_edges, bias, points, shares)
        for one, slant in zip(torch.split(x, per_chunk), torch.split(way, per_chunk), strict=True)
    ]
    return Conductances(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))


def _run_chunk(
    plan: ProductPlan, x: Tensor, way: Tensor, weight: Tensor, bias: Tensor, points: Sequence[float],
    shares: Sequence[float],
) -> Conductances:  # fmt: skip
    inputs, steps = plan.num_inputs, len(shares)
    effective, slopes, tangents, rates = _forward(plan, x, way, weight, bias, points, steps)

    adjoints = torch.zeros_like(slopes)
    adjoints[plan.output_column if plan.output_row < 0 else inputs + plan.output_row] = 1
    for level in reversed(plan.levels):
        adjoints[level.nodes] *= slopes[level.nodes]
        edges = level.edges
        adjoints.index_add_(0, plan.sources[edges], effective[edges] * adjoints[plan.targets[edges]])

    share = x.new_tensor(shares).view(1, -1, 1)
    weighted = share * adjoints
    inner = (weighted[plan.targets] * effective * tangents[plan.sources]).sum(1)
    hidden = (weighted * rates).sum(1)[inputs:]
    adjoint = weighted.sum(1)
    return Conductances(way * adjoint[:inputs], hidden, inner, adjoint[inputs:])


def _forward(
    plan: ProductPlan, x: Tensor, way: Tensor, weight: Tensor, bias: Tensor, points: Sequence[float], steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W of every edge, and act'(z), t and dz of every node: ``[edges or nodes, steps, B]``."""
    is_secant = len(points) > steps
    place = x.new_tensor(points).view(1, -1, 1)
    biases = torch.cat([bias.new_zeros(plan.num_inputs), bias]).view(-1, 1, 1)
    sums = biases.repeat(1, len(points), x.shape[1])
    values = torch.zeros_like(sums)
    rates = sums.new_zeros(len(sums), steps, x.shape[1])
    slopes, tangents = torch.zeros_like(rates), torch.zeros_like(rates)
    effective = weight.view(-1, 1, 1).repeat(1, steps, x.shape[1])
    values[: plan.num_inputs] = x.unsqueeze(1) + place * way.unsqueeze(1)
    tangents[: plan.num_inputs] = way.unsqueeze(1)

    for level in plan.levels:
        edges = level.summed
        sums.index_add_(0, plan.targets[edges], weight[edges].view(-1, 1, 1) * values[plan.sources[edges]])
        for group in level.products:
            messages = weight[group.edges].unsqueeze(2).unsqueeze(3) * values[plan.sources[group.edges]]
            response = group.response.to(x.dtype).view(-1, 1, 1)
            sums[group.nodes] += response * messages.prod(1)
            others = response.unsqueeze(1) * (_between(messages) if is_secant else _others(messages))
            effective[group.edges] *= others
        rates.index_add_(0, plan.targets[level.edges], effective[level.edges] * tangents[plan.sources[level.edges]])
        for name, chosen in level.groups:
            values[chosen], slope = value_and_slope(name, sums[chosen])
            if is_secant:
                z, value = sums[chosen], values[chosen]
                tangents[chosen] = (value[:, 1:] - value[:, :-1]) * steps
                slopes[chosen] = secant(tangents[chosen], rates[chosen], z[:, 1:], slope[:, :-1], slope[:, 1:], steps)
            else:
                slopes[chosen] = slope
                tangents[chosen] = slope * rates[chosen]
    return effective, slopes, tangents, rates


def _others(messages: Tensor) -> Tensor:
    """The product of all messages but each, along dimension 1: ``[n, messages, points, B]``."""
    # Before times behind, without a division: a message may be 0.
    count = messages.shape[1]
    before, behind = torch.ones_like(messages), torch.ones_like(messages)
    for k in range(1, count):
        before[:, k] = before[:, k - 1] * messages[:, k - 1]
        behind[:, count - 1 - k] = behind[:, count - k] * messages[:, count - k]
    return before * behind


def _between(messages: Tensor) -> Tensor:
    """The same on average between neighbouring points, by as many of Gauss's points as make that exact."""
    start, change = messages[:, :, :-1], messages[:, :, 1:] - messages[:, :, :-1]
    total = torch.zeros_like(start)
    points, weights = np.polynomial.legendre.leggauss(max(1, (messages.shape[1] + 1) // 2))
    for point, share in zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True):
        total += share * _others(start + point * change)
    return total
