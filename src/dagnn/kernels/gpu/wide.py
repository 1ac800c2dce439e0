"""A network of wide nodes on a GPU: its plan, and the launches of both passes."""

from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.cached import made_once
from dagnn.graph.edges import offsets_of
from dagnn.kernels.gpu import network, wide_code
from dagnn.kernels.gpu.mathematics import activations
from dagnn.kernels.gpu.network import MAX_GRID_Y, launching_on, tensor_on
from dagnn.kernels.wide.autograd_function import WideGradients, run_by
from dagnn.kernels.wide.operators import backward_operator, forward_operator, run_backward, run_forward, unpacked
from dagnn.kernels.wide.plan import WideParameters, WidePlan, WideResult, WideState, ranges


class Saved(NamedTuple):
    """What the forward pass leaves for the backward pass; values and sums ``[units of all nodes, B]``.

    Attributes:
        hidden: of units with a norm, what the norm gives before its scale and shift; None without norms.
        variance: of the batch, or given. inverses: of a layer norm. mask: factors of dropout.
    """

    values: Tensor
    sums: Tensor
    hidden: Tensor | None
    variance: Tensor | None
    inverses: Tensor | None
    mask: Tensor | None
    own_statistics: bool


class _Level(NamedTuple):
    """Nodes ``first_node .. last_node - 1``, which follow each other, and their pieces of ``units`` units."""

    first_node: int
    last_node: int
    first_piece: int
    last_piece: int
    units: int
    has_norm: bool


def is_dotted(units: int) -> bool:
    """Whether pieces of so many units are multiplied as blocks."""
    return units >= wide_code.MOST_UNITS


def launch_options(units: int) -> dict[str, int]:
    """Warps, stages and registers of a program for pieces of so many units."""
    # Left to choose, ptxas stops at 64 or 96 registers here and there, and puts a value or two into memory for it.
    most = {"maxnreg": wide_code.MOST_REGISTERS}
    return {"num_warps": 8, "num_stages": 1, **most} if is_dotted(units) else {"num_warps": 4, **most}


def rows_of_block(units: int) -> int:
    """Rows that a block of weights reads, for pieces of so many units."""
    return min(wide_code.BLOCK // units, wide_code.MOST_ROWS)


class GpuWide:
    """A network of wide nodes as its Triton kernels read it, on one device.

    Args:
        device: a GPU; the CPU only within Triton's interpreter.
        most_units: of a piece; a power of two.
        most_programs: of a launch, along its pieces.
    """

    def __init__(
        self,
        plan: WidePlan,
        device: torch.device,
        *,
        most_units: int = wide_code.MOST_UNITS,
        most_programs: int = MAX_GRID_Y,
    ) -> None:
        self.plan, self.device, self._most_units, self._most_programs = plan, device, most_units, most_programs
        count, widths, row_first = len(plan.widths), plan.widths, plan.row_first[:-1]
        self.num_rows = int(plan.row_first[-1])
        inner = plan.activations[plan.num_inputs :]
        self._texts = tuple(dict.fromkeys(inner))
        code_of = {text: code for code, text in enumerate(self._texts)}
        passed_from, passed_to = plan.residuals
        self._passes = len(passed_from) > 0
        # Gradients of values replace those of sums where nothing reads them again.
        self._is_kept = self._passes or plan.normalise is not None
        by_passed = np.argsort(passed_from, kind="stable")
        num_passed = np.bincount(passed_to, minlength=count)
        pass_first, pull_first = offsets_of(num_passed), offsets_of(np.bincount(passed_from, minlength=count))

        source_rows = ranges(row_first[plan.sources], widths[plan.sources])
        in_first = offsets_of(widths[plan.sources])[plan.in_offsets]
        targets = np.repeat(np.arange(count), np.diff(plan.in_offsets))
        # Where the block of each edge begins: behind those of the sources before it.
        blocks = offsets_of(widths[plan.sources] * widths[targets])
        block_first = blocks[:-1] - blocks[plan.in_offsets[targets]] + plan.weight_first[targets]
        by_source = np.argsort(plan.sources, kind="stable")
        readers = targets[by_source]
        out_first = offsets_of(np.bincount(plan.sources, weights=widths[targets], minlength=count).astype(np.int64))
        read = np.full(count, -1)
        read[plan.reads] = offsets_of(widths[plan.reads])[:-1]
        columns = {
            "row": row_first,
            "width": widths,
            "weight": plan.weight_first,
            "bias": plan.bias_first,
            "norm": plan.norm_first,
            "drop": plan.drop_row,
            "code": np.array([0] * plan.num_inputs + [code_of[text] for text in inner]),
            "in_first": in_first[:-1],
            "in_last": in_first[1:],
            "out_first": out_first[:-1],
            "out_last": out_first[1:],
            "pass_first": pass_first[:-1],
            "pass_last": pass_first[1:],
            "pull_first": pull_first[:-1],
            "pull_last": pull_first[1:],
            "read": read,
        }
        put = partial(tensor_on, device)
        self._nodes = put(np.stack([columns[name] for name in wide_code.RECORD], axis=1), torch.int64)
        self._source_rows, self._passed_rows = put(source_rows), put(row_first[passed_from])
        self._out_rows = put(ranges(row_first[readers], widths[readers]))
        self._out_weights = put(ranges(block_first[by_source], widths[readers]), torch.int64)
        self._out_steps = put(np.repeat(widths[readers], widths[readers]))
        self._pulled_rows = put(row_first[passed_to[by_passed]])
        self._shares = put(1 / num_passed[passed_to[by_passed]], torch.float64)
        with_bias = np.flatnonzero(plan.bias_first >= 0)
        bias_rows = np.zeros(plan.sizes[1], np.int64)
        bias_rows[ranges(plan.bias_first[with_bias], widths[with_bias])] = ranges(
            row_first[with_bias], widths[with_bias]
        )
        self._bias_rows, self._reads = put(bias_rows), put(plan.read_rows, torch.int64)
        pieces, self._inputs, self._levels = self._cut()
        self._pieces = put(pieces)
        gradients, self._groups = self._blocks()
        self._blocks_of_weights = put(gradients)

    def _cut(self) -> tuple[NDArray[np.int64], _Level, list[_Level]]:
        """(node, first unit) of every piece, level by level; the inputs; the levels behind them."""
        plan, count = self.plan, len(self.plan.widths)
        levels = plan.levels[plan.num_inputs :]
        starts = (np.flatnonzero(np.diff(levels, prepend=-1)) + plan.num_inputs).tolist()
        found, cut, done = [], [], 0
        for first, last in [(0, plan.num_inputs), *pairwise([*starts, count])]:
            nodes = np.arange(first, last)
            units = self._units(int(plan.widths[nodes].max(initial=1)))
            number = -(-plan.widths[nodes] // units)
            part = np.stack([np.repeat(nodes, number), units * ranges(np.zeros(len(nodes), np.int64), number)], axis=1)
            has_norm = bool((plan.norm_first[nodes] >= 0).any())
            found.append(part)
            cut.append(_Level(first, last, done, done + len(part), units, has_norm))
            done += len(part)
        return np.concatenate(found), cut[0], cut[1:]

    def _units(self, width: int) -> int:
        return min(1 << (width - 1).bit_length(), self._most_units)

    def _blocks(self) -> tuple[NDArray[np.int64], list[tuple[int, int, int]]]:
        """(node, first unit, first of its source rows) of every block of weights; and (first, number, units) of each
        group of blocks that have as many units."""
        plan = self.plan
        units = np.array([self._units(width) for width in plan.widths.tolist()])
        found, groups, done = [np.empty((0, 3), np.int64)], [], 0
        for size in np.unique(units).tolist():
            nodes = np.flatnonzero((units == size) & (plan.fan_in > 0))
            rows = rows_of_block(size)
            across, down = -(-plan.widths[nodes] // size), -(-plan.fan_in[nodes] // rows)
            number = ranges(np.zeros(len(nodes), np.int64), across * down)
            each = np.repeat(across, across * down)
            node = np.repeat(nodes, across * down)
            found.append(np.stack([node, number % each * size, number // each * rows], axis=1))
            if len(node):
                groups.append((done, len(node), size))
            done += len(node)
        return np.concatenate(found), groups

    @cached_property
    def _functions(self) -> tuple[Any, Any]:
        """The activations, and their gradients."""
        return activations(self._texts or ("identity",))

    def _grid(self, batch: int, pieces: int, tile: int = wide_code.TILE) -> tuple[int, int]:
        return -(-batch // tile), min(pieces, self._most_programs)

    def _norm(self, *, own: bool, has_norm: bool = True) -> int:
        """What the first launch of a level does about norms."""
        if self.plan.normalise is None or not has_norm:
            return 0
        return int((wide_code.GIVEN if self.plan.normalise == "batch" and not own else wide_code.LATER).value)

    def forward(self, x: Tensor, parameters: WideParameters, state: WideState) -> tuple[WideResult, Saved]:
        """Values of the nodes that are read. All tensors contiguous and of one dtype; x has at least one row."""
        plan, batch = self.plan, len(x)
        own = plan.normalise == "batch" and state.mean is None
        values, sums = x.new_empty(self.num_rows, batch), x.new_empty(self.num_rows, batch)
        hidden = inverses = None
        mean, variance, mask = (None if each is None else each.contiguous() for each in state)
        if plan.normalise is not None:
            hidden = torch.empty_like(values)
        if own:
            mean, variance = x.new_empty(plan.sizes[2]), x.new_empty(plan.sizes[2])
        if plan.normalise == "layer":
            inverses = x.new_empty(len(plan.widths), batch)
        values[: plan.columns].copy_(x.t())
        weight, bias, scale, shift = (values if each is None else each for each in parameters)
        of_hidden, of_mean, of_variance, of_mask = (
            values if each is None else each for each in (hidden, mean, variance, mask)
        )
        more = {"drops": mask is not None, "passes": self._passes}
        with launching_on(self.device):
            for level in self._levels:
                norm = self._norm(own=own, has_norm=level.has_norm)
                size = {"units": level.units, **launch_options(level.units)}
                wide_code.forward[self._grid(batch, level.last_piece - level.first_piece)](
                    values, sums, of_hidden, weight, bias, scale, shift, of_mean, of_variance, of_mask, self._pieces,
                    self._nodes, self._source_rows, self._passed_rows, level.first_piece, level.last_piece, batch,
                    activated=self._functions[0], norm=norm, dotted=is_dotted(level.units), tile=wide_code.TILE, **more,
                    **size,
                )  # fmt: skip
                if norm == wide_code.LATER.value and own:
                    wide_code.batch_norm[(level.last_piece - level.first_piece,)](
                        values, of_hidden, scale, shift, of_mean, of_variance, of_mask, self._pieces, self._nodes,
                        self._passed_rows, level.first_piece, batch, tile=wide_code.BATCH_TILE, **more, **size,
                    )  # fmt: skip
                elif norm == wide_code.LATER.value:
                    tile = wide_code.LAYER_TILE
                    wide_code.layer_norm[self._grid(batch, level.last_node - level.first_node, tile)](
                        values, of_hidden, inverses, scale, shift, of_mask, self._nodes, self._passed_rows,
                        level.first_node, level.last_node, batch, **more, tile=tile,
                    )  # fmt: skip
        read = values.index_select(0, self._reads)
        result = WideResult(read, mean if own else None, variance if own else None)
        return result, Saved(values, sums, hidden, variance, inverses, mask, own)

    def backward(self, gradient: Tensor, parameters: WideParameters, saved: Saved, *, needs_x: bool) -> WideGradients:
        """Gradients for that of the values that were read, ``[rows read, B]``, contiguous."""
        plan, batch = self.plan, gradient.shape[1]
        gradients = torch.empty_like(saved.values)
        deltas = torch.empty_like(saved.values) if self._is_kept else gradients
        into = WideGradients(
            None,
            torch.empty_like(parameters.weight),
            torch.empty_like(parameters.bias),
            *(None if each is None else torch.empty_like(each) for each in (parameters.scale, parameters.shift)),
        )
        scale = gradients if parameters.scale is None else parameters.scale
        hidden, variance, mask = (
            gradients if each is None else each for each in (saved.hidden, saved.variance, saved.mask)
        )
        drops, pulled = saved.mask is not None, self._functions[1]
        with launching_on(self.device):
            for level in [*reversed(self._levels), *([self._inputs] if needs_x else [])]:
                norm = self._norm(own=saved.own_statistics, has_norm=level.has_norm)
                size = {"units": level.units, **launch_options(level.units)}
                if level.last_piece > level.first_piece:
                    wide_code.backward[self._grid(batch, level.last_piece - level.first_piece)](
                        gradient, parameters.weight, saved.sums, gradients, deltas, scale, variance, mask, self._pieces,
                        self._nodes, self._out_rows, self._out_weights, self._out_steps, self._pulled_rows,
                        self._shares, level.first_piece, level.last_piece, batch, plan.num_inputs,
                        pulled=pulled, norm=norm, drops=drops, passes=self._passes, is_kept=self._is_kept,
                        dotted=is_dotted(level.units), tile=wide_code.TILE, **size,
                    )  # fmt: skip
                if norm == wide_code.LATER.value and not saved.own_statistics:
                    tile = wide_code.LAYER_TILE
                    wide_code.layer_norm_backward[self._grid(batch, level.last_node - level.first_node, tile)](
                        saved.sums, hidden, saved.inverses, gradients, deltas, scale, mask, self._nodes,
                        level.first_node, level.last_node, batch, pulled=pulled, drops=drops, tile=tile,
                    )  # fmt: skip
                if norm:
                    wide_code.norm_backward[(level.last_piece - level.first_piece,)](
                        saved.sums, hidden, gradients, deltas, scale, variance, mask, self._pieces, self._nodes,
                        into.scale, into.shift, level.first_piece, batch,
                        pulled=pulled, is_own=saved.own_statistics, drops=drops, tile=wide_code.BATCH_TILE, **size,
                    )  # fmt: skip
            self._of_parameters(saved.values, deltas, into, batch)
        if not needs_x:
            return into
        return into._replace(x=gradients[: plan.columns].t().contiguous())

    def _of_parameters(self, values: Tensor, deltas: Tensor, into: WideGradients, batch: int) -> None:
        for first, number, units in self._groups:
            wide_code.weight_gradients[(number,)](
                values, deltas, into.weight, self._blocks_of_weights, self._nodes, self._source_rows, first, batch,
                rows=rows_of_block(units), units=units, tile=wide_code.BATCH_TILE,
            )  # fmt: skip
        if len(into.bias):
            network.sums_over_batch[(-(-len(into.bias) // network.SUMS),)](
                values, self._bias_rows, deltas, self._bias_rows, deltas, into.bias, len(into.bias), batch,
                multiplied=False, scaled=False, tile=network.TILE, rows=network.SUMS,
            )  # fmt: skip


def gpu_wide(plan: WidePlan, device: torch.device) -> GpuWide:
    """The plan of a network on a GPU, made when it first runs there."""
    return made_once(plan.__dict__.setdefault("_on_gpu", {}), device, lambda: GpuWide(plan, device))


def run_wide(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """The same as `kernels.wide.plan.run_reference`, for tensors on one GPU of one floating dtype."""
    return run_by(gpu_wide(plan, x.device), x, parameters, state)


@forward_operator.register_kernel("cuda")
def _(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    plan, parameters, state = unpacked(given)
    return run_forward(gpu_wide(plan, x.device), x, parameters, state)


@backward_operator.register_kernel("cuda")
def _(gradient: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan, parameters, state = unpacked(given)
    return run_backward(gpu_wide(plan, x.device), gradient, x, parameters, state)
