"""Conductance, compiled: a tile of samples walks all steps of its path while its rows stay in the caches.

Samples are lanes, so a row is one vector, and no sum runs over samples: how tiles go to threads changes no bit. What
enters from the inputs is summed once for a tile, and the inputs' own conductances follow once at its end.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache, partial

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.edges import offsets_of, stable_order
from dagnn.kernels.emit.functions import absolute, activated, through
from dagnn.kernels.emit.native import Frame, NativeFunction, compiled, host_target
from dagnn.kernels.emit.workers import num_workers, run
from dagnn.kernels.emit.writer import CodeWriter, Value
from dagnn.kernels.network import Shape
from dagnn.kernels.network.conductance import ConductancePlan, Conductances, Rule, points_of
from dagnn.kernels.network.forward import by_activation

# Arrays of rows that a worker holds for its tile; see `_Tile`.
_SCRATCH = ("start", "slant", "values", "tangents", "rates", "adjoints", "slopes")
# Node visits times samples below which one thread does everything; see `PARALLEL_WORK` of compiled plans.
_PARALLEL_WORK = 1 << 18


class ConductanceArrays:
    """The edges of a `ConductancePlan` as the compiled function walks them: into rows, out of rows, out of inputs."""

    def __init__(self, plan: ConductancePlan) -> None:
        rows = len(plan.rows)
        self.names = tuple(sorted(set(plan.activations)))
        code_of = {name: code for code, name in enumerate(self.names, start=1)}
        out_edges = stable_order(plan.inner_sources, max(1, rows))
        columns = stable_order(plan.entry_columns, max(1, plan.num_inputs))
        self.out_edges, self.columns = torch.from_numpy(out_edges), torch.from_numpy(columns)
        self.arrays: dict[str, NDArray[np.generic]] = {
            "codes": np.array([code_of[name] for name in plan.activations], np.uint8),
            "in_offsets": offsets_of(np.bincount(plan.entry_rows, minlength=rows)),
            "in_sources": plan.entry_columns.astype(np.int32),
            "inner_offsets": offsets_of(np.bincount(plan.inner_targets, minlength=rows)),
            "inner_sources": plan.inner_sources.astype(np.int32),
            "out_offsets": offsets_of(np.bincount(plan.inner_sources, minlength=rows)),
            "out_targets": plan.inner_targets[out_edges].astype(np.int32),
            "out_edges": out_edges.astype(np.int32),
            "column_offsets": offsets_of(np.bincount(plan.entry_columns, minlength=plan.num_inputs)),
            "column_rows": plan.entry_rows[columns].astype(np.int32),
        }
        self.frame = Frame()
        self.frame.set(
            num_nodes=rows,
            num_edges=len(plan.inner_edges),
            num_inputs=plan.num_inputs,
            output_row=plan.output_row,
            **{name: array.__array_interface__["data"][0] for name, array in self.arrays.items()},
        )


def run_compiled(
    plan: ConductancePlan, x: Tensor, way: Tensor, weight: Tensor, bias: Tensor, *, rule: Rule, steps: int
) -> Conductances:
    """The same as `conductance.run_conductance`, for tensors on the CPU; the output is no input."""
    arrays, rows, double = _arrays(plan), len(plan.rows), x.dtype == torch.float64
    target = host_target()
    lanes = target.vector_bytes // (8 if double else 4)
    shape = Shape(double, target, lanes, arrays.names, apart=False, far=False)
    tiles = -(-len(x) // lanes)
    starts, ways = (_as_tiles(part, tiles, lanes) for part in (x, way))
    of_entries = weight[torch.from_numpy(plan.entry_edges)]
    of_inner = weight[torch.from_numpy(plan.inner_edges)]
    by_source, by_column = of_inner[arrays.out_edges], of_entries[arrays.columns]
    points, shares = (x.new_tensor(numbers) for numbers in points_of(rule, steps))

    inputs = x.new_empty(tiles, plan.num_inputs, lanes)
    inner = x.new_empty(tiles, len(plan.inner_edges), lanes)
    hidden, adjoint = x.new_empty(2, tiles, rows, lanes)
    is_shared = len(x) * steps * rows >= _PARALLEL_WORK
    workers = num_workers(tiles) if is_shared else 1
    scratch = x.new_empty(workers, len(_SCRATCH), rows, lanes)
    frame = arrays.frame.copy(steps=steps, delta_worker_bytes=len(_SCRATCH) * rows * lanes * shape.size)
    frame.set_addresses(x=starts, way=ways, weight=of_entries, inner_weight=of_inner, out_weight=by_source)
    frame.set_addresses(column_weight=by_column, bias=bias.contiguous(), points=points, shares=shares)
    frame.set_addresses(grad_x=inputs, hidden=hidden, node_sums=adjoint, edge_sums=inner, values=scratch)
    run(_function(shape, rule)["conductance"], frame, tiles, is_shared=is_shared)

    back = partial(_from_tiles, samples=len(x))
    return Conductances(back(inputs), back(hidden), back(inner) * of_inner.unsqueeze(1), back(adjoint))


def _arrays(plan: ConductancePlan) -> ConductanceArrays:
    if plan.arrays is None:
        plan.arrays = ConductanceArrays(plan)
    assert isinstance(plan.arrays, ConductanceArrays)
    return plan.arrays


def _as_tiles(x: Tensor, tiles: int, lanes: int) -> Tensor:
    """``[B, n]`` as ``[tiles, n, lanes]``; lanes behind the last sample repeat it, so that they overflow only as it."""
    missing = tiles * lanes - len(x)
    whole = torch.cat([x, x[-1:].expand(missing, -1)]) if missing else x
    return whole.reshape(tiles, lanes, -1).transpose(1, 2).contiguous()


def _from_tiles(tiles: Tensor, samples: int) -> Tensor:
    """``[tiles, n, lanes]`` as ``[n, B]``."""
    return tiles.transpose(0, 1).reshape(tiles.shape[1], tiles.shape[0] * tiles.shape[2])[:, :samples]


@cache
def _function(shape: Shape, rule: Rule) -> Mapping[str, NativeFunction]:
    module = ir.Module("dagnn")
    write_conductance(module, shape, rule, "conductance")
    return compiled(str(module), ("conductance",), shape.target)


def write_conductance(module: Value, shape: Shape, rule: Rule, name: str) -> None:
    """The function ``name``: every conductance of the tiles that the worker takes; a tile is one vector wide."""
    code = shape.writer(module, name)
    code.fields(
        "pieces", "num_nodes", "num_edges", "num_inputs", "output_row", "steps", "points", "shares", "codes", "bias",
        "x", "way", "in_offsets", "in_sources", "weight", "inner_offsets", "inner_sources", "inner_weight",
        "out_offsets", "out_targets", "out_edges", "out_weight", "column_offsets", "column_rows", "column_weight",
        "values", "delta_worker_bytes", "grad_x", "hidden", "node_sums", "edge_sums",
    )  # fmt: skip
    worker = code.ticket("next_worker")
    scratch = code.offset(code.field("values"), code.field("delta_worker_bytes"), worker)
    with code.pieces() as number:
        tile = _Tile(code, shape, scratch, number)
        tile.enter()
        if rule == "secant":
            tile.forward(code.i64(0), "first")
        with code.loop(code.i64(0), code.field("steps")) as step:
            if rule == "secant":
                tile.forward(code.build.add(step, code.i64(1)), "secant")
            else:
                tile.forward(step, "path")
            tile.backward(step)
        tile.leave()
    code.finish()


class _Tile:
    """Writes what happens to one tile. Rows of `_SCRATCH` are the worker's, those of results the tile's."""

    def __init__(self, code: CodeWriter, shape: Shape, scratch: Value, number: Value) -> None:
        self.code, self.shape = code, shape
        self._row_bytes = code.i64(shape.tile * shape.size)
        of_array = code.build.mul(code.field("num_nodes"), self._row_bytes)
        self._base = {name: code.offset(scratch, of_array, code.i64(k)) for k, name in enumerate(_SCRATCH)}
        for name, length in (
            ("x", "num_inputs"), ("way", "num_inputs"), ("grad_x", "num_inputs"),
            ("hidden", "num_nodes"), ("node_sums", "num_nodes"), ("edge_sums", "num_edges"),
        ):  # fmt: skip
            of_tile = code.build.mul(code.field(length), self._row_bytes)
            self._base[name] = code.offset(code.field(name), of_tile, number)

    def enter(self) -> None:
        """What enters every row from the inputs, at the start of the path and along it; results begin with 0."""
        code, zero = self.code, self.code.constant(0)
        with code.loop(code.i64(0), code.field("num_nodes")) as row:
            bias = code.splat(code.load(code.at(code.field("bias"), row, code.size), code.number))
            sums = self._sums("in_offsets", "in_sources", "weight", row, {"x": bias, "way": zero})
            for name, value in zip(("start", "slant"), sums, strict=True):
                self._store(name, row, value)
            for name in ("hidden", "node_sums"):
                self._store(name, row, zero)
        with code.loop(code.i64(0), code.field("num_edges")) as edge:
            self._store("edge_sums", edge, zero)

    def forward(self, point: Value, how: str) -> None:
        """Values, and t, dz and act' of every row; ``how``: path, secant, or first for the start of secants."""
        code, build = self.code, self.code.build
        place = code.splat(code.load(code.at(code.field("points"), point, code.size), code.number))
        with code.loop(code.i64(0), code.field("num_nodes")) as row:
            slant = self._load("slant", row)
            begin = {"values": code.multiply_add(place, slant, self._load("start", row))}
            if how != "first":
                begin["tangents"] = slant
            z, *rest = self._sums("inner_offsets", "inner_sources", "inner_weight", row, begin)

            def activate(name: str, z: Value = z, rest: list[Value] = rest, row: Value = row) -> None:
                value, slope = activated(code, name, z)
                if slope is None:
                    slope = through(code, name, code.constant(1), value)
                if how == "first":
                    self._store("slopes", row, slope)
                elif how == "path":
                    self._store("tangents", row, build.fmul(slope, rest[0]))
                    self._store("adjoints", row, slope)
                else:
                    self._secant(row, z, value, slope, rest[0])
                self._store("values", row, value)

            by_activation(code, self.shape, code.byte_at(code.field("codes"), row), activate)
            if how != "first":
                self._store("rates", row, rest[0])

    def _secant(self, row: Value, z: Value, value: Value, slope: Value, rate: Value) -> None:
        """See `conductance.secant`."""
        code, build = self.code, self.code.build
        steps = code.splat(build.sitofp(code.field("steps"), code.number))
        tangent = build.fmul(build.fsub(value, self._load("values", row)), steps)
        before = self._load("slopes", row)
        quotient = build.fdiv(tangent, rate)
        is_lower = build.fcmp_ordered("<", before, slope)
        low, high = build.select(is_lower, before, slope), build.select(is_lower, slope, before)
        held = build.select(build.fcmp_ordered("<", quotient, low), low, quotient)
        held = build.select(build.fcmp_ordered(">", held, high), high, held)
        held = build.select(build.fcmp_ordered("==", rate, code.constant(0)), before, held)
        size, one = absolute(code, z), code.constant(1)
        size = build.select(build.fcmp_ordered(">", size, one), size, one)
        eps = float(np.finfo(np.float64 if code.double else np.float32).eps)
        close = build.fmul(build.fmul(size, steps), code.constant(eps ** (1 / 3)))
        is_apart = build.fcmp_ordered(">", absolute(code, rate), close)
        self._store("tangents", row, tangent)
        self._store("adjoints", row, build.select(is_apart, quotient, held))
        self._store("slopes", row, slope)

    def backward(self, step: Value) -> None:
        """g of every row, last one first, in place of its act'; and the step's part of every integral."""
        code, build = self.code, self.code.build
        share = code.splat(code.load(code.at(code.field("shares"), step, code.size), code.number))
        rows, one, zero = code.field("num_nodes"), code.constant(1), code.constant(0)
        with code.loop(code.i64(0), rows) as count:
            row = build.sub(build.sub(rows, code.i64(1)), count)
            is_output = build.icmp_signed("==", row, code.field("output_row"))
            total = code.variable(code.vector)
            build.store(build.select(is_output, one, zero), total)
            tangent = build.fmul(share, self._load("tangents", row))
            with self._edges("out_offsets", row) as edge:
                g = self._load("adjoints", code.index_at(code.field("out_targets"), edge))
                weight = code.splat(code.load(code.at(code.field("out_weight"), edge, code.size), code.number))
                build.store(code.multiply_add(weight, g, build.load(total)), total)
                self._add("edge_sums", code.index_at(code.field("out_edges"), edge), g, tangent)
            g = build.fmul(self._load("adjoints", row), build.load(total))
            self._store("adjoints", row, g)
            self._add("node_sums", row, share, g)
            self._add("hidden", row, build.fmul(share, g), self._load("rates", row))

    def leave(self) -> None:
        """The conductances of the inputs."""
        code = self.code
        with code.loop(code.i64(0), code.field("num_inputs")) as column:
            begin = {"node_sums": code.constant(0)}
            (pulled,) = self._sums("column_offsets", "column_rows", "column_weight", column, begin)
            self._store("grad_x", column, code.build.fmul(pulled, self._load("way", column)))

    def _sums(self, offsets: str, nodes: str, weights: str, row: Value, begin: Mapping[str, Value]) -> list[Value]:
        """For each array: its first value plus the sum over the edges of weight times the other end's row."""
        code, build = self.code, self.code.build
        totals = {name: code.variable(code.vector) for name in begin}
        for name, value in begin.items():
            build.store(value, totals[name])
        with self._edges(offsets, row) as edge:
            weight = code.splat(code.load(code.at(code.field(weights), edge, code.size), code.number))
            node = code.index_at(code.field(nodes), edge)
            for name, total in totals.items():
                build.store(code.multiply_add(weight, self._load(name, node), build.load(total)), total)
        return [build.load(total) for total in totals.values()]

    def _edges(self, offsets: str, row: Value) -> AbstractContextManager[Value]:
        code = self.code
        start = code.offset_at(code.field(offsets), row)
        return code.loop(start, code.offset_at(code.field(offsets), code.build.add(row, code.i64(1))))

    def _add(self, name: str, row: Value, x: Value, y: Value) -> None:
        self._store(name, row, self.code.multiply_add(x, y, self._load(name, row)))

    def _load(self, name: str, row: Value) -> Value:
        return self.code.load_vector(self.code.offset(self._base[name], self._row_bytes, row))

    def _store(self, name: str, row: Value, value: Value) -> None:
        self.code.store_vector(value, self.code.offset(self._base[name], self._row_bytes, row))
