"""`WidePlan`: what a network with several units a node works out once; and the reference, which walks its tables.

The reference uses operators of PyTorch: any dtype and device, as many derivatives as you like.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.cached import Living, constant, made_once
from dagnn.graph.edges import offsets_of
from dagnn.kernels.autograd import is_recorded
from dagnn.kernels.network.plan import why_not_compiled
from dagnn.kernels.nodes import activation_of

Normalise = Literal["batch", "layer"]
EPSILON = 1e-5
"""Added to variances, as in PyTorch's norms."""


@dataclass(frozen=True, eq=False)
class WidePlan:
    """A network with blocks of weights. Its nodes are numbered: inputs in the order of x, then the rest level by level.

    A node v of ``widths[v]`` units computes ``h = act(b + sum over its sources u of W_uv value_u)``; then, as its
    entries below say, its norm, its dropout, and the mean of its sources of the same width is added.

    Attributes:
        widths: int64 ``[num_nodes]``. The rows of a node's units follow each other, in the order of the nodes.
        levels: int64 ``[num_nodes]``, 0 at inputs; not decreasing behind the inputs.
        num_inputs: the first nodes.
        sources, in_offsets: the sources of node v are ``sources[in_offsets[v] : in_offsets[v + 1]]``.
        weight_first: int64 ``[num_nodes]``, where the weights into a node begin: for every source in turn, and every
            unit of it, ``widths[v]`` of them. So a block is stored as the transpose of its matrix.
        bias_first: int64 ``[num_nodes]``, where its biases begin; -1 for none.
        norm_first: int64 ``[num_nodes]``, where its entries of scale, shift, mean and variance begin; -1 for no norm.
        drop_row: int64 ``[num_nodes]``, its row of the dropout mask; -1 for none.
        has_residual: bool ``[num_nodes]``.
        activations: text for every node; those of inputs are not used.
        reads: int64, the nodes whose units are the results, in this order; each once.
        normalise: which norm nodes have that have one.
        sizes: numbers of weights, biases, entries of a norm, rows of a mask.
    """

    widths: NDArray[np.int64]
    levels: NDArray[np.int64]
    num_inputs: int
    sources: NDArray[np.int64]
    in_offsets: NDArray[np.int64]
    weight_first: NDArray[np.int64]
    bias_first: NDArray[np.int64]
    norm_first: NDArray[np.int64]
    drop_row: NDArray[np.int64]
    has_residual: NDArray[np.bool_]
    activations: Sequence[str]
    reads: NDArray[np.int64]
    normalise: Normalise | None
    sizes: tuple[int, int, int, int]

    @cached_property
    def row_first(self) -> NDArray[np.int64]:
        """int64 ``[num_nodes + 1]``: the first row of every node; last, the number of rows."""
        return offsets_of(self.widths)

    @cached_property
    def columns(self) -> int:
        """Columns of x."""
        return int(self.row_first[self.num_inputs])

    @cached_property
    def fan_in(self) -> NDArray[np.int64]:
        """int64 ``[num_nodes]``: units of all sources of a node."""
        before = offsets_of(self.widths[self.sources])
        return np.diff(before[self.in_offsets])

    @cached_property
    def residuals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The edges (source, target) over which values are passed on, sorted by target."""
        target = np.repeat(np.arange(len(self.widths)), np.diff(self.in_offsets))
        passed = self.has_residual[target] & (self.widths[target] == self.widths[self.sources])
        return self.sources[passed], target[passed]

    @cached_property
    def read_rows(self) -> NDArray[np.int64]:
        return ranges(self.row_first[self.reads], self.widths[self.reads])

    def tables(self, device: torch.device) -> "Tables":
        """What the reference path reads, on a device. Made once for each."""
        return made_once(self.__dict__.setdefault("_tables", {}), device, lambda: _tables(self, device))

    @constant
    def why_not_on_gpu(self) -> str:
        """Why Triton kernels cannot run this network; empty if they can."""
        return why_not_compiled(self.activations[self.num_inputs :])

    def takes_statistics(self, state: "WideState") -> bool:
        """Whether a pass with this state normalises with mean and variance of the batch, and gives them."""
        return self.normalise == "batch" and state.mean is None

    @constant
    def fingerprint(self) -> str:
        """A digest of all of the above, the same in every process; see `plan_of`."""
        found: str | None = self.__dict__.get("_fingerprint")
        if found is None:
            digest = hashlib.sha256()
            for name in self.__dataclass_fields__:
                value = getattr(self, name)
                is_array = isinstance(value, np.ndarray)
                digest.update(f"{name} {value.shape if is_array else value}\n".encode())
                digest.update(np.ascontiguousarray(value).tobytes() if is_array else b"")
            found = self.__dict__["_fingerprint"] = digest.hexdigest()
            _plans.add(found, self)
        return found

    def __getstate__(self) -> dict[str, object]:
        # What is worked out again: compiled code can be neither copied nor pickled.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


_plans = Living[WidePlan]()


def plan_of(fingerprint: str) -> WidePlan:
    """A plan with this fingerprint, while one lives in this process; GraphError where none does."""
    return _plans.of_program(fingerprint, "WideDagNN")


class Gather(NamedTuple):
    """Rows of earlier levels, one after another: of each level in turn, those with these local indices."""

    levels: list[int]
    rows: list[Tensor]

    def of(self, values: Sequence[Tensor]) -> Tensor:
        parts = [values[level].index_select(0, rows) for level, rows in zip(self.levels, self.rows, strict=True)]
        return torch.cat(parts)


class LevelTable(NamedTuple):
    """What one level computes. Rows are local: 0 is the first one of the level.

    Attributes:
        num_rows: how many it has.
        gather, weight, target: of every weight: the source's row, the place in the weight vector, the row it adds to.
        bias: ``[num_rows]``, place in the biases; their number where there is none.
        activations: (text, rows); one with None for all rows.
        order: where `activations` are several: puts their rows, one group after another, back in place.
        normed, rest, norm_order: rows with a norm and without, and the order that puts both back; None for all or none.
        norm: of every row with a norm, its entry of scale and shift.
        node: of every row with a norm, the number of its node; counted from 0 in the level.
        width: of every such node.
        drop: ``[num_rows]``, row of the mask, or their number; None where no node drops.
        residual, residual_target, residual_factor: as above, of the values passed on; None where there are none.
    """

    num_rows: int
    gather: Gather
    weight: Tensor
    target: Tensor
    bias: Tensor
    activations: list[tuple[str, Tensor | None]]
    order: Tensor | None
    normed: Tensor | None
    rest: Tensor | None
    norm_order: Tensor | None
    norm: Tensor
    node: Tensor
    width: Tensor
    drop: Tensor | None
    residual: Gather | None
    residual_target: Tensor | None
    residual_factor: Tensor | None


class Tables(NamedTuple):
    """All levels behind the inputs; the rows that are read; and the order that puts the entries of norms in place."""

    levels: list[LevelTable]
    reads: Gather
    read_order: Tensor
    norm_order: Tensor


def ranges(first: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """``first[i], first[i] + 1, ...``, ``length[i]`` of them, for all i, joined."""
    shift = np.repeat(first - np.cumsum(length) + length, length)
    return shift + np.arange(len(shift))


def _tables(plan: WidePlan, device: torch.device) -> Tables:
    rows_first, widths = plan.row_first, plan.widths
    # Level 0 of the reference is x; constants, which are sources too, are computed with the level behind it.
    level_of = np.where(np.arange(len(widths)) < plan.num_inputs, 0, plan.levels + 1)
    bounds = np.searchsorted(level_of, np.arange(1, int(level_of.max(initial=0)) + 2))
    level_of_row = np.repeat(level_of, widths)
    first_row = np.concatenate([[0], rows_first[bounds]])  # of every level

    def on(values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    def gather(rows: NDArray[np.int64]) -> tuple[Gather, NDArray[np.int64]]:
        order = np.argsort(level_of_row[rows], kind="stable")
        levels = level_of_row[rows][order]
        found = np.unique(levels)
        local = [on(rows[order][levels == level] - first_row[level]) for level in found.tolist()]
        return Gather(found.tolist(), local), order

    residual_source, residual_target = plan.residuals
    share = 1 / np.maximum(1, np.bincount(residual_target, minlength=len(widths)))
    levels = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        nodes = np.arange(start, stop)
        base, count = int(rows_first[start]), int(rows_first[stop] - rows_first[start])
        edges = np.arange(plan.in_offsets[start], plan.in_offsets[stop])
        of_target = np.repeat(nodes, np.diff(plan.in_offsets[start : stop + 1]))
        # Unit by unit of the sources, and for each the units of the target: the order of the weights.
        source_rows = ranges(rows_first[plan.sources[edges]], widths[plan.sources[edges]])
        target_of_row = np.repeat(of_target, widths[plan.sources[edges]])
        fan_out = widths[target_of_row]
        target = ranges(rows_first[target_of_row], fan_out) - base
        weight = ranges(plan.weight_first[nodes], plan.fan_in[nodes] * widths[nodes])
        found, order = gather(np.repeat(source_rows, fan_out))

        of_row = np.repeat(nodes, widths[nodes])
        unit = np.arange(count) - (rows_first[of_row] - base)
        names = [plan.activations[node] for node in nodes.tolist()]
        known = list(dict.fromkeys(names))
        code = np.repeat([known.index(name) for name in names], widths[nodes]).astype(np.int64)
        groups = [np.flatnonzero(code == k) for k in range(len(known))]
        normed = plan.norm_first[of_row] >= 0
        with_norm, without = np.flatnonzero(normed), np.flatnonzero(~normed)
        both = 0 < len(with_norm) < count
        normed_nodes = np.unique(of_row[with_norm])
        passed = (residual_target >= start) & (residual_target < stop)
        passed_width = widths[residual_target[passed]]
        residual, residual_order = gather(ranges(rows_first[residual_source[passed]], passed_width))
        levels.append(
            LevelTable(
                count,
                found,
                on(weight[order]),
                on(target[order]),
                on(np.where(plan.bias_first[of_row] < 0, plan.sizes[1], plan.bias_first[of_row] + unit)),
                [(name, on(rows) if len(known) > 1 else None) for name, rows in zip(known, groups, strict=True)],
                on(np.argsort(np.concatenate(groups))) if len(known) > 1 else None,
                on(with_norm) if both else None,
                on(without) if both else None,
                on(np.argsort(np.concatenate([with_norm, without]))) if both else None,
                on((plan.norm_first[of_row] + unit)[with_norm]),
                on(np.searchsorted(normed_nodes, of_row[with_norm])),
                on(widths[normed_nodes]),
                on(np.where(plan.drop_row[of_row] < 0, plan.sizes[3], plan.drop_row[of_row]))
                if (plan.drop_row[nodes] >= 0).any()
                else None,
                residual if passed.any() else None,
                on((ranges(rows_first[residual_target[passed]], passed_width) - base)[residual_order])
                if passed.any()
                else None,
                on(np.repeat(share[residual_target[passed]], passed_width)[residual_order]) if passed.any() else None,
            )
        )
    reads, read_order = gather(plan.read_rows)
    norm = [table.norm for table in levels]
    placed = torch.argsort(torch.cat(norm)) if norm else torch.empty(0, dtype=torch.int64, device=device)
    return Tables(levels, reads, on(np.argsort(read_order)), placed)


class WideParameters(NamedTuple):
    """The tensors of a network, all of one dtype; see `WidePlan` for where each entry belongs.

    Attributes:
        weight: ``[weights]``.
        bias: ``[biases]``.
        scale, shift: ``[entries of norms]``; None without a norm.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None


class WideState(NamedTuple):
    """What a pass needs beside x and the parameters; nothing here gets a gradient.

    Attributes:
        mean, variance: running statistics ``[entries of norms]`` to normalise with; None: those of the batch.
        mask: ``[rows of the mask, B]``, the factors of dropout; None: no dropout.
    """

    mean: Tensor | None = None
    variance: Tensor | None = None
    mask: Tensor | None = None


class WideResult(NamedTuple):
    """What a pass computes.

    Attributes:
        values: ``[rows read, B]``.
        mean, variance: of the batch, ``[entries of norms]``, the variance biased; None where they were given, and
            without a batch norm. Without gradient.
    """

    values: Tensor
    mean: Tensor | None
    variance: Tensor | None


def run_reference(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """Values of the nodes that are read, for ``x [B, columns]``."""
    tables = plan.tables(x.device)
    bias = torch.cat([parameters.bias, parameters.bias.new_zeros(1)])
    mask = None if state.mask is None else torch.cat([state.mask, state.mask.new_ones(1, x.shape[0])])
    values, means, variances = [x.t()], list[Tensor](), list[Tensor]()
    if is_recorded():
        # No row of each parameter: where no edge leads to an output, gradients are zeros, as of the compiled path.
        nothing = torch.cat([one[:0] for one in parameters if one is not None]).unsqueeze(1)
        values = [torch.cat([x.t(), nothing.expand(0, x.shape[0])])]
    for level in tables.levels:
        total = bias.index_select(0, level.bias).unsqueeze(1).expand(level.num_rows, x.shape[0])
        if len(level.weight):
            terms = parameters.weight.index_select(0, level.weight).unsqueeze(1) * level.gather.of(values)
            total = total.index_add(0, level.target, terms)
        value = _activated(level, total)
        if plan.normalise is not None and len(level.norm):
            value, mean, variance = _normalised(plan, level, value, parameters, state)
            means.append(mean)
            variances.append(variance)
        if mask is not None and level.drop is not None:
            value = value * mask.index_select(0, level.drop)
        if level.residual is not None:
            assert level.residual_target is not None and level.residual_factor is not None
            factor = level.residual_factor.to(value.dtype).unsqueeze(1)
            value = value.index_add(0, level.residual_target, factor * level.residual.of(values))
        values.append(value)
    read = tables.reads.of(values).index_select(0, tables.read_order) if len(plan.reads) else x.new_empty(0, x.shape[0])
    if plan.normalise != "batch" or state.mean is not None or not means:
        return WideResult(read, None, None)
    mean, variance = (
        torch.cat(each).detach().index_select(0, tables.norm_order).squeeze(1) for each in (means, variances)
    )
    return WideResult(read, mean, variance)


def _activated(level: LevelTable, total: Tensor) -> Tensor:
    if level.order is None:
        name, _ = level.activations[0] if level.activations else ("identity", None)
        return activation_of(name)(total)
    parts = [activation_of(name)(total.index_select(0, rows)) for name, rows in level.activations if rows is not None]
    return torch.cat(parts).index_select(0, level.order)


def _normalised(
    plan: WidePlan, level: LevelTable, value: Tensor, parameters: WideParameters, state: WideState
) -> tuple[Tensor, Tensor, Tensor]:
    """The values with the norm of those that have one; and their mean and variance, rows as there."""
    assert parameters.scale is not None and parameters.shift is not None
    own = value if level.normed is None else value.index_select(0, level.normed)
    if plan.normalise == "layer":
        mean, variance = _of_nodes(level, own)
    elif state.mean is not None and state.variance is not None:
        mean, variance = (each.index_select(0, level.norm).unsqueeze(1) for each in (state.mean, state.variance))
    else:
        mean = own.mean(1, keepdim=True)
        variance = (own - mean).square().mean(1, keepdim=True)
    scale, shift = (each.index_select(0, level.norm).unsqueeze(1) for each in (parameters.scale, parameters.shift))
    normed = (own - mean) * (variance + EPSILON).rsqrt() * scale + shift
    if level.normed is not None:
        assert level.rest is not None and level.norm_order is not None
        normed = torch.cat([normed, value.index_select(0, level.rest)]).index_select(0, level.norm_order)
    return normed, mean, variance


def _of_nodes(level: LevelTable, own: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the units of every node, repeated for its units: ``[rows, B]`` each."""
    width = level.width.to(own.dtype).unsqueeze(1)

    def mean_of(rows: Tensor) -> Tensor:
        total = rows.new_zeros(len(width), rows.shape[1]).index_add(0, level.node, rows)
        return (total / width).index_select(0, level.node)

    mean = mean_of(own)
    return mean, mean_of((own - mean).square())
