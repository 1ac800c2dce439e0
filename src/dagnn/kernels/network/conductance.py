"""Conductance: how much of a change of one output flows through every node and edge, in plain PyTorch.

On the path ``x(s) = baseline + s (x - baseline)``, with z_v the sum that enters v and ``value_v = act(z_v)``:

    tangent   t_v = d value_v / ds = act'(z_v) dz_v,  dz_v = sum over u -> v of w_uv t_u,  t_input = x - baseline
    adjoint   g_v = dF / dz_v = act'(z_v) * sum over v -> q of w_vq g_q;  at the output itself act'(z)
    C_uv = integral of g_v w_uv t_u ds,  C_v = sum over u -> v of C_uv = integral of g_v dz_v ds

What enters from the inputs is linear in s: it is multiplied once, not once a step, and so are the conductances of the
inputs and of the edges out of them, ``w_uv (x - baseline)_u * integral of g_v``. The steps walk the other nodes only.

The secant rule has differences between neighbouring points of an even grid in place of derivatives:
``act' -> (value_1 - value_0) / (z_1 - z_0)``. One step of it is the rescale rule of DeepLIFT.

Sources: Dhamdhere, Sundararajan, Yan, "How Important Is a Neuron?", ICLR 2019 (conductance); Shrikumar, Greenside,
Kundaje, "Learning Important Features Through Propagating Activation Differences", ICML 2017 (rescale rule).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.kernels.nodes import activation_of

Rule = Literal["path", "secant"]
# Numbers in one array of the reference: some chunks of samples of a batch, each with all its steps.
CHUNK = 1 << 22


class Conductances(NamedTuple):
    """Conductance of everything that lies between the inputs and the output; samples are columns.

    Attributes:
        inputs: ``[inputs, B]``.
        hidden: ``[rows, B]``; for rows see `ConductancePlan`.
        inner: of the edges between hidden nodes, ``[inner edges, B]``.
        adjoint: the integral of g, ``[rows, B]``: the conductances of edges out of inputs follow from it.
    """

    inputs: Tensor
    hidden: Tensor
    inner: Tensor
    adjoint: Tensor


class ConductancePlan:
    """A network as one of its nodes sees it: the hidden nodes with a path to that node, in *rows*.

    Args:
        edges: int64 ``[num_edges, 2]`` (source, target), sorted by target and source, as the weights are.
        levels: int64 ``[num_nodes]``, not decreasing.
        inputs: int64, nodes without edges into them, feature by feature.
        output: the node to be explained.
        activation: name or text of a formula, for every node.

    Attributes:
        rows: int64, the node of every row; levels do not decrease.
        output_row: the row of the output; -1 where it is an input itself.
        output_column: the feature that the output is; -1 where it is none.
        entry_edges, entry_columns, entry_rows: edges from inputs: index of the weight, feature of the source, row of
            the target.
        inner_edges, inner_sources, inner_targets: the other edges: index of the weight, rows of both ends.
        activations: of every row.
    """

    def __init__(
        self,
        edges: NDArray[np.int64],
        levels: NDArray[np.int64],
        inputs: NDArray[np.int64],
        output: int,
        activation: Sequence[str],
    ) -> None:
        num_nodes = len(levels)
        source, target = np.ascontiguousarray(edges.T)
        column_of = np.full(num_nodes, -1)
        column_of[inputs] = np.arange(len(inputs))
        live = with_path_to(output, source, target, levels)
        self.num_inputs = len(inputs)
        self.rows = np.flatnonzero(live & (column_of < 0))
        row_of = np.full(num_nodes, -1)
        row_of[self.rows] = np.arange(len(self.rows))
        self.output_row, self.output_column = int(row_of[output]), int(column_of[output])
        self.activations = [activation[node] for node in self.rows.tolist()]

        used = row_of[target] >= 0
        self.entry_edges = np.flatnonzero(used & (column_of[source] >= 0))
        self.inner_edges = np.flatnonzero(used & (column_of[source] < 0))
        self.entry_columns, self.entry_rows = column_of[source[self.entry_edges]], row_of[target[self.entry_edges]]
        self.inner_sources, self.inner_targets = row_of[source[self.inner_edges]], row_of[target[self.inner_edges]]

        self.arrays: object = None  # of the compiled path, which makes them when it first runs

        # Levels of rows, and the inner edges into each of them.
        bounds = np.flatnonzero(np.diff(levels[self.rows], prepend=-1, append=-1)) if len(self.rows) else [0]
        self._levels = []
        for first, last in pairwise(map(int, bounds)):
            start, stop = np.searchsorted(self.inner_targets, [first, last]).tolist()
            names = self.activations[first:last]
            groups = [
                (name, torch.tensor([first + k for k, other in enumerate(names) if other == name]))
                for name in dict.fromkeys(names)
            ]
            self._levels.append((slice(first, last), slice(start, stop), groups))


def with_path_to(
    output: int, source: NDArray[np.int64], target: NDArray[np.int64], levels: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which nodes are ``output`` or have a path to it."""
    marked = np.zeros(len(levels), dtype=bool)
    marked[output] = True
    # Edges are sorted by the place of their target, so by its level: one step per level, from the last.
    bounds = np.flatnonzero(np.diff(levels[target], prepend=-1, append=-1)) if len(target) else np.zeros(1, np.int64)
    for start, stop in reversed(list(pairwise(bounds.tolist()))):
        marked[source[start:stop][marked[target[start:stop]]]] = True
    return marked


def points_of(rule: Rule, steps: int) -> tuple[list[float], list[float]]:
    """Where on the path values are needed, and the weight of every step."""
    if rule == "secant":
        return [k / steps for k in range(steps + 1)], [1 / steps] * steps
    points, weights = np.polynomial.legendre.leggauss(steps)
    return ((points + 1) / 2).tolist(), (weights / 2).tolist()


def run_conductance(
    plan: ConductancePlan, x: Tensor, way: Tensor, weight: Tensor, bias: Tensor, *, rule: Rule, steps: int
) -> Conductances:
    """The conductances of all rows, by the reference.

    Args:
        x: where the path starts, ``[B, inputs]``.
        way: from there to its end, ``[B, inputs]``.
        weight: ``[num_edges]``, by which values are multiplied before they are summed.
        bias: ``[rows]``, 0 where a node has none.
    """
    rows = len(plan.rows)
    points, weights = points_of(rule, steps)
    per_chunk = max(1, CHUNK // max(1, max(rows, len(plan.inner_edges)) * len(points), len(plan.entry_edges)))
    chunks = zip(torch.split(x, per_chunk), torch.split(way, per_chunk), strict=True)
    parts = [_run_chunk(plan, one.T, slant.T, weight, bias, points, weights) for one, slant in chunks]
    return Conductances(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))


def _run_chunk(
    plan: ConductancePlan,
    x: Tensor,
    way: Tensor,
    weight: Tensor,
    bias: Tensor,
    points: Sequence[float],
    weights: Sequence[float],
) -> Conductances:
    rows, batch = len(plan.rows), x.shape[1]
    columns, entry_rows = torch.from_numpy(plan.entry_columns), torch.from_numpy(plan.entry_rows)
    sources, targets = torch.from_numpy(plan.inner_sources), torch.from_numpy(plan.inner_targets)
    of_entries = weight[torch.from_numpy(plan.entry_edges)].unsqueeze(1)
    of_inner = weight[torch.from_numpy(plan.inner_edges)].view(-1, 1, 1)

    def entering(values: Tensor) -> Tensor:
        return values.new_zeros(rows, batch).index_add(0, entry_rows, of_entries * values[columns])

    start, slant = entering(x) + bias.unsqueeze(1), entering(way)
    slopes, tangents, rates = _forward(plan, start, slant, points, len(weights), sources, targets, of_inner)

    adjoints = torch.zeros_like(slopes)
    if plan.output_row >= 0:
        adjoints[plan.output_row] = 1
    for of_rows, of_edges, _ in reversed(plan._levels):
        adjoints[of_rows] *= slopes[of_rows]
        adjoints.index_add_(0, sources[of_edges], of_inner[of_edges] * adjoints[targets[of_edges]])

    adjoint, hidden = torch.zeros_like(start), torch.zeros_like(start)
    inner = x.new_zeros(len(sources), batch)
    for k, share in enumerate(weights):
        weighted = share * adjoints[:, k]
        adjoint += weighted
        hidden.addcmul_(weighted, rates[:, k])
        inner.addcmul_(weighted[targets], tangents[sources, k])
    pulled = torch.zeros_like(x).index_add(0, columns, of_entries * adjoint[entry_rows])
    if plan.output_column >= 0:
        pulled[plan.output_column] = 1
    return Conductances(way * pulled, hidden, inner * of_inner[:, 0], adjoint)


def _forward(
    plan: ConductancePlan,
    start: Tensor,
    slant: Tensor,
    points: Sequence[float],
    steps: int,
    sources: Tensor,
    targets: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """act'(z), t and dz of every row at every step: ``[rows, steps, B]`` each."""
    is_secant = len(points) > steps
    place = start.new_tensor(points).view(1, -1, 1)
    sums = start.unsqueeze(1) + place * slant.unsqueeze(1)
    values = torch.empty_like(sums)
    rates = slant.unsqueeze(1).repeat(1, steps, 1)
    slopes, tangents = torch.empty_like(rates), torch.empty_like(rates)
    for of_rows, of_edges, groups in plan._levels:
        source, target = sources[of_edges], targets[of_edges]
        sums.index_add_(0, target, weight[of_edges] * values[source])
        rates.index_add_(0, target, weight[of_edges] * tangents[source])
        for name, chosen in groups:
            values[chosen], slope = value_and_slope(name, sums[chosen])
            if is_secant:
                z, value = sums[chosen], values[chosen]
                tangents[chosen] = (value[:, 1:] - value[:, :-1]) * steps
                slopes[chosen] = secant(tangents[chosen], rates[chosen], z[:, 1:], slope[:, :-1], slope[:, 1:], steps)
            else:
                slopes[chosen] = slope
        if not is_secant:
            tangents[of_rows] = slopes[of_rows] * rates[of_rows]
    return slopes, tangents, rates


def value_and_slope(name: str, z: Tensor) -> tuple[Tensor, Tensor]:
    """``act(z)`` and ``act'(z)``."""
    with torch.enable_grad():
        given = z.detach().requires_grad_()
        value = activation_of(name)(given)
        if not value.requires_grad:  # a formula without z
            return value.detach().expand_as(z), torch.zeros_like(z)
        (slope,) = torch.autograd.grad(value.sum(), given)
    return value.detach(), slope


def secant(tangent: Tensor, rate: Tensor, z: Tensor, slope: Tensor, next_slope: Tensor, steps: int) -> Tensor:
    """``tangent / rate``, the slope of the line between two points; near 0 / 0 the best that is known of it.

    Where the points are closer than the cube root of the rounding error, rounding may decide the quotient. It is then
    held between the slopes at both points: that changes its product with the rate by no more than rounding does.
    """
    quotient = tangent / rate
    close = torch.finfo(z.dtype).eps ** (1 / 3) * steps
    held = quotient.clamp(torch.minimum(slope, next_slope), torch.maximum(slope, next_slope))
    held = torch.where(rate == 0, slope, held)
    return torch.where(rate.abs() > close * z.abs().clamp(min=1), quotient, held)
