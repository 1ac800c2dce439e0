"""The compiled passes over wide nodes: forward, and backward in reverse, where every node pulls from its children.

A row of the batch for each unit, padded with zeros to whole vectors: a norm wants all samples of a unit at once. One
worker computes a whole node, so nothing depends on how many there are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import activated, keeps_slope, through
from dagnn.kernels.emit.writer import CodeWriter, Value
from dagnn.kernels.wide.plan import EPSILON
from dagnn.kernels.wide.products import WideShape, by_width, call, sums_in, sums_out, weight_gradients

RECORD = (
    "row", "width", "weight", "bias", "norm", "drop", "code", "has_more",
    "in_first", "in_last", "out_first", "out_last", "pass_first", "pass_last", "pull_first", "pull_last", "seeded",
)  # fmt: skip
"""What the table says of a node, each an int64: its first row, units, where its parameters begin (-1: none), its row of
the mask, the code of its activation, whether its value is more than that; then ranges: of the rows it reads, the edges
out of it, the values passed on to it, and those that get its value; last whether its value is read."""
OUT_EDGE = ("row", "width", "weight")
"""What the table says of an edge: the target's first row and units, and where its weights from the source begin."""


@dataclass(frozen=True)
class _Node:
    """The record of one node, read."""

    number: Value
    entries: dict[str, Value]

    def __getitem__(self, name: str) -> Value:
        return self.entries[name]


class _Pass:
    """What both directions share: the code, the node at hand, and loops over its units and vectors."""

    def __init__(self, shape: WideShape, code: CodeWriter) -> None:
        self.shape, self.code, self.build = shape, code, code.build

    def node(self, number: Value) -> _Node:
        code = self.code
        record = code.at(code.field("node_table"), number, 8 * len(RECORD))
        return _Node(number, {name: code.offset_at(record, code.i64(k)) for k, name in enumerate(RECORD)})

    def rows(self, field: str, node: _Node) -> Value:
        """The address of a node's first row in an array of rows."""
        return self.code.offset(self.code.field(field), self.code.field("row_bytes"), node["row"])

    @contextmanager
    def units(self, node: _Node) -> Iterator[Value]:
        with self.code.loop(self.code.i64(0), node["width"]) as unit:
            yield unit

    def row(self, first: Value, unit: Value) -> Value:
        return self.code.offset(first, self.code.field("row_bytes"), unit)

    @contextmanager
    def vectors(self) -> Iterator[tuple[Value, Value]]:
        """The bytes from the start of a row to each vector of it; and which lanes are samples."""
        code, build, lanes = self.code, self.build, self.shape.lanes
        with code.loop(code.i64(0), code.field("row_vectors")) as vector:
            left = build.sub(code.field("batch"), build.mul(vector, code.i64(lanes)))
            yield build.mul(vector, code.i64(lanes * self.shape.size)), code.lanes_below(left)

    def load(self, row: Value, shift: Value) -> Value:
        return self.code.load_vector(self.build.add(row, shift))

    def store(self, value: Value, row: Value, shift: Value) -> None:
        self.code.store_vector(value, self.build.add(row, shift))

    def samples(self, lanes: Value, value: Value) -> Value:
        """The value; 0 behind the last sample."""
        return self.build.select(lanes, value, self.code.constant(0))

    def parameter(self, field: str, index: Value) -> Value:
        """One number, in all lanes."""
        code = self.code
        return code.splat(code.load(code.at(code.field(field), index, self.shape.size), code.number, self.shape.size))

    def put(self, number: Value, field: str, index: Value) -> None:
        self.code.store(number, self.code.at(self.code.field(field), index, self.shape.size), self.shape.size)

    def has(self, index: Value) -> Value:
        return self.build.icmp_signed(">=", index, self.code.i64(0))

    def is_set(self, value: Value) -> Value:
        return self.build.icmp_signed("!=", value, self.code.i64(0))

    def number_of(self, count: Value) -> Value:
        """An i64 as a number in all lanes."""
        return self.code.splat(self.build.sitofp(count, self.code.number))

    def zeroed(self) -> Value:
        place = self.code.variable(self.code.vector)
        self.build.store(self.code.constant(0), place)
        return place

    def add_to(self, place: Value, value: Value) -> None:
        self.build.store(self.build.fadd(self.build.load(place), value), place)

    def by_activation(self, node: _Node, body: Callable[[str], None]) -> None:
        for number, name in enumerate(self.shape.activations):
            with self.build.if_then(self.build.icmp_signed("==", node["code"], self.code.i64(number))):
                body(name)

    def inverse(self, variance: Value) -> Value:
        """``1 / sqrt(variance + epsilon)``."""
        code = self.code
        return self.build.fdiv(
            code.constant(1), code.intrinsic("sqrt", self.build.fadd(variance, code.constant(EPSILON)))
        )

    def of_nodes(
        self, first: Value, unit_sum: Callable[[Value, Value, Value], Value], node: _Node, shift: Value
    ) -> Value:
        """The mean over the units of a node of ``unit_sum(unit, row, shift)``, for the samples of one vector."""
        total = self.zeroed()
        with self.units(node) as unit:
            self.add_to(total, unit_sum(unit, self.row(first, unit), shift))
        return self.build.fdiv(self.build.load(total), self.number_of(node["width"]))


def write_forward(module: Value, shape: WideShape, name: str) -> None:
    """The function ``name``: a piece is a node, ``first`` plus its number."""
    code = shape.writer(module, name)
    code.fields(
        "pieces", "first", "batch", "row_bytes", "row_vectors", "values", "hidden", "slopes", "node_table",
        "source_rows", "passed_from", "weight", "bias", "zeros", "scale", "shift", "means", "variances",
        "own_statistics", "mask",
    )  # fmt: skip
    one = _Forward(shape, code)
    with code.pieces() as piece:
        one.write(one.node(code.build.add(code.field("first"), piece)))
    code.finish()


class _Forward(_Pass):
    def write(self, node: _Node) -> None:
        code, build = self.code, self.build
        value = self.rows("values", node)
        hidden = build.select(self.is_set(node["has_more"]), self.rows("hidden", node), value)
        self._sums(node, hidden)
        self.by_activation(node, lambda name: self._activate(node, hidden, name))
        with build.if_then(self.is_set(node["has_more"])):
            with build.if_else(self.has(node["norm"])) as (normed, plain):
                with normed:
                    if self.shape.normalise == "batch":
                        self._batch_norm(node, hidden, value)
                    elif self.shape.normalise == "layer":
                        self._layer_norm(node, hidden, value)
                with plain, self.units(node) as unit, self.vectors() as (shift, _):
                    self.store(self.load(self.row(hidden, unit), shift), self.row(value, unit), shift)
            drops = build.and_(self.has(node["drop"]), self.is_set(code.field("mask")))
            with build.if_then(drops):
                mask = code.offset(code.field("mask"), code.field("row_bytes"), node["drop"])
                with self.units(node) as unit, self.vectors() as (shift, _):
                    row = self.row(value, unit)
                    self.store(build.fmul(self.load(row, shift), self.load(mask, shift)), row, shift)
            with build.if_then(build.icmp_signed("<", node["pass_first"], node["pass_last"])):
                self._pass_on(node, value)

    def _sums(self, node: _Node, out: Value) -> None:
        code, build, size = self.code, self.build, self.shape.size
        weight = code.at(code.field("weight"), node["weight"], size)
        own = code.at(code.field("bias"), node["bias"], size)
        bias = build.select(self.has(node["bias"]), own, code.field("zeros"))
        rows = code.at(code.field("source_rows"), node["in_first"], 4)
        count = build.sub(node["in_last"], node["in_first"])

        def part(first: int, units: int, whole: bool) -> None:
            skip = code.i64(first * size)
            call(
                code, sums_in(units), rows, count, build.add(weight, skip), build.mul(node["width"], code.i64(size)),
                build.add(bias, skip), code.field("values"), self.row(out, code.i64(first)), code.field("row_bytes"),
                code.field("row_vectors"),
            )  # fmt: skip

        by_width(code, self.shape, node["width"], part)

    def _activate(self, node: _Node, hidden: Value, name: str) -> None:
        slopes = self.rows("slopes", node)
        with self.units(node) as unit, self.vectors() as (shift, lanes):
            row = self.row(hidden, unit)
            value, slope = activated(self.code, name, self.load(row, shift))
            self.store(self.samples(lanes, value), row, shift)
            if slope is not None:
                self.store(slope, self.row(slopes, unit), shift)

    def _batch_norm(self, node: _Node, hidden: Value, value: Value) -> None:
        code, build = self.code, self.build
        with self.units(node) as unit:
            row, at = self.row(hidden, unit), build.add(node["norm"], unit)
            with build.if_then(self.is_set(code.field("own_statistics"))):
                self._statistics(row, at)
            mean, variance = self.parameter("means", at), self.parameter("variances", at)
            factor = build.fmul(self.parameter("scale", at), self.inverse(variance))
            shifted = self.parameter("shift", at)
            with self.vectors() as (shift, lanes):
                centred = build.fsub(self.load(row, shift), mean)
                normed = code.multiply_add(centred, factor, shifted)
                self.store(self.samples(lanes, normed), self.row(value, unit), shift)

    def _statistics(self, row: Value, at: Value) -> None:
        """Mean and biased variance of a row. In two passes: the difference of two sums would lose digits."""
        code, build = self.code, self.build
        count = build.sitofp(code.field("batch"), code.number)
        total = self.zeroed()
        with self.vectors() as (shift, _):
            self.add_to(total, self.load(row, shift))
        mean = build.fdiv(code.sum(build.load(total)), count)
        self.put(mean, "means", at)
        centre, squares = code.splat(mean), self.zeroed()
        with self.vectors() as (shift, lanes):
            centred = self.samples(lanes, build.fsub(self.load(row, shift), centre))
            build.store(code.multiply_add(centred, centred, build.load(squares)), squares)
        self.put(build.fdiv(code.sum(build.load(squares)), count), "variances", at)

    def _layer_norm(self, node: _Node, hidden: Value, value: Value) -> None:
        build = self.build
        with self.vectors() as (shift, lanes):
            mean, inverse = self.layer_statistics(node, hidden, shift)
            with self.units(node) as unit:
                at = build.add(node["norm"], unit)
                centred = build.fsub(self.load(self.row(hidden, unit), shift), mean)
                factor = build.fmul(self.parameter("scale", at), inverse)
                normed = self.code.multiply_add(centred, factor, self.parameter("shift", at))
                self.store(self.samples(lanes, normed), self.row(value, unit), shift)

    def layer_statistics(self, node: _Node, hidden: Value, shift: Value) -> tuple[Value, Value]:
        return _layer_statistics(self, node, hidden, shift)

    def _pass_on(self, node: _Node, value: Value) -> None:
        code, build = self.code, self.build
        count = build.sub(node["pass_last"], node["pass_first"])
        share = build.fdiv(code.constant(1), self.number_of(count))
        with self.units(node) as unit, self.vectors() as (shift, _):
            total = self.zeroed()
            with code.loop(node["pass_first"], node["pass_last"]) as number:
                source = code.index_at(code.field("passed_from"), number)
                first = code.offset(code.field("values"), code.field("row_bytes"), build.add(source, unit))
                self.add_to(total, self.load(first, shift))
            row = self.row(value, unit)
            self.store(code.multiply_add(share, build.load(total), self.load(row, shift)), row, shift)


def _layer_statistics(own: _Pass, node: _Node, hidden: Value, shift: Value) -> tuple[Value, Value]:
    """Mean over the units of a node and ``1 / sqrt(variance + epsilon)``, for the samples of one vector."""
    build = own.build
    mean = own.of_nodes(hidden, lambda _, row, shift: own.load(row, shift), node, shift)

    def square(_: Value, row: Value, shift: Value) -> Value:
        centred = build.fsub(own.load(row, shift), mean)
        return build.fmul(centred, centred)

    return mean, own.inverse(own.of_nodes(hidden, square, node, shift))


def write_backward(module: Value, shape: WideShape, name: str) -> None:
    """The function ``name``: a piece is a node, ``last - 1`` minus its number. Inputs only get a gradient."""
    code = shape.writer(module, name)
    code.fields(
        "pieces", "last", "batch", "row_bytes", "row_vectors", "values", "hidden", "slopes", "deltas",
        "value_gradients", "node_table", "source_rows", "out_table", "passed_to", "weight", "scale", "means",
        "variances", "own_statistics", "mask", "grad_weight", "grad_bias", "grad_scale", "grad_shift", "num_inputs",
    )  # fmt: skip
    one = _Backward(shape, code)
    with code.pieces() as piece:
        number = code.build.sub(code.build.sub(code.field("last"), code.i64(1)), piece)
        one.write(one.node(number))
    code.finish()


class _Backward(_Pass):
    def write(self, node: _Node) -> None:
        code, build = self.code, self.build
        gradient, delta = self.rows("value_gradients", node), self.rows("deltas", node)
        is_seeded = self.is_set(node["seeded"])
        with build.if_then(build.not_(is_seeded)), self.units(node) as unit, self.vectors() as (shift, _):
            self.store(code.constant(0), self.row(gradient, unit), shift)
        with code.loop(node["out_first"], node["out_last"]) as edge:
            self._pull(node, gradient, edge)
        with code.loop(node["pull_first"], node["pull_last"]) as number:
            self._pull_passed(node, gradient, code.index_at(code.field("passed_to"), number))
        with build.if_then(build.icmp_signed(">=", node.number, code.field("num_inputs"))):
            self._through_node(node, gradient, delta)

    def _pull(self, node: _Node, gradient: Value, edge: Value) -> None:
        code, build, size = self.code, self.build, self.shape.size
        record = code.at(code.field("out_table"), edge, 8 * len(OUT_EDGE))
        row, width, weight = (code.offset_at(record, code.i64(k)) for k in range(len(OUT_EDGE)))
        deltas = code.offset(code.field("deltas"), code.field("row_bytes"), row)
        step = build.mul(width, code.i64(size))

        def part(first: int, units: int, whole: bool) -> None:
            block = build.add(code.at(code.field("weight"), weight, size), build.mul(step, code.i64(first)))
            call(
                code, sums_out(units), deltas, width, block, step, self.row(gradient, code.i64(first)),
                code.field("row_bytes"), code.field("row_vectors"),
            )  # fmt: skip

        by_width(code, self.shape, node["width"], part)

    def _pull_passed(self, node: _Node, gradient: Value, target: Value) -> None:
        """From a node that adds the mean of values of which this is one."""
        code, build, other = self.code, self.build, self.node(target)
        count = build.sub(other["pass_last"], other["pass_first"])
        share = build.fdiv(code.constant(1), self.number_of(count))
        theirs = self.rows("value_gradients", other)
        with self.units(node) as unit, self.vectors() as (shift, _):
            row = self.row(gradient, unit)
            self.store(
                code.multiply_add(share, self.load(self.row(theirs, unit), shift), self.load(row, shift)), row, shift
            )

    def _through_node(self, node: _Node, gradient: Value, delta: Value) -> None:
        code, build, size = self.code, self.build, self.shape.size
        value = self.rows("values", node)
        hidden = build.select(self.is_set(node["has_more"]), self.rows("hidden", node), value)
        current = code.variable(gradient.type)  # where the gradient is now: its own rows, or already those of deltas
        build.store(gradient, current)
        drops = build.and_(self.has(node["drop"]), self.is_set(code.field("mask")))
        with build.if_then(drops):
            mask = code.offset(code.field("mask"), code.field("row_bytes"), node["drop"])
            with self.units(node) as unit, self.vectors() as (shift, _):
                product = build.fmul(self.load(self.row(gradient, unit), shift), self.load(mask, shift))
                self.store(product, self.row(delta, unit), shift)
            build.store(delta, current)
        if self.shape.normalise is not None:
            with build.if_then(self.has(node["norm"])):
                norm = self._batch_norm if self.shape.normalise == "batch" else self._layer_norm
                norm(node, hidden, build.load(current), delta)
                build.store(delta, current)
        before = build.load(current)
        self.by_activation(node, lambda name: self._activation(node, hidden, before, delta, name))
        rows = code.at(code.field("source_rows"), node["in_first"], 4)
        count = build.sub(node["in_last"], node["in_first"])
        out = code.at(code.field("grad_weight"), node["weight"], size)

        def part(first: int, units: int, whole: bool) -> None:
            call(
                code, weight_gradients(units, whole=whole), rows, count, code.field("values"),
                self.row(delta, code.i64(first)), build.add(out, code.i64(first * size)),
                build.mul(node["width"], code.i64(size)), code.field("row_bytes"), code.field("row_vectors"),
            )  # fmt: skip

        by_width(code, self.shape, node["width"], part)

    def _batch_norm(self, node: _Node, hidden: Value, gradient: Value, delta: Value) -> None:
        """With own statistics: ``scale / s * (g - mean(g) - normed * mean(g * normed))``; else ``scale / s * g``."""
        code, build = self.code, self.build
        count, own = self.number_of(code.field("batch")), self.is_set(code.field("own_statistics"))
        with self.units(node) as unit:
            at, row = build.add(node["norm"], unit), self.row(gradient, unit)
            of_hidden = self.row(hidden, unit)
            mean, inverse = self.parameter("means", at), self.inverse(self.parameter("variances", at))
            total, product = self.zeroed(), self.zeroed()
            with self.vectors() as (shift, _):
                g = self.load(row, shift)
                normed = build.fmul(build.fsub(self.load(of_hidden, shift), mean), inverse)
                self.add_to(total, g)
                build.store(code.multiply_add(g, normed, build.load(product)), product)
            of_shift, of_scale = code.sum(build.load(total)), code.sum(build.load(product))
            self.put(of_shift, "grad_shift", at)
            self.put(of_scale, "grad_scale", at)
            factor = build.fmul(self.parameter("scale", at), inverse)
            zero = code.constant(0)
            centre = build.select(own, build.fdiv(code.splat(of_shift), count), zero)
            slope = build.select(own, build.fdiv(code.splat(of_scale), count), zero)
            with self.vectors() as (shift, _):
                normed = build.fmul(build.fsub(self.load(of_hidden, shift), mean), inverse)
                centred = build.fsub(self.load(row, shift), centre)
                through_norm = build.fsub(centred, build.fmul(normed, slope))
                self.store(build.fmul(factor, through_norm), self.row(delta, unit), shift)

    def _layer_norm(self, node: _Node, hidden: Value, gradient: Value, delta: Value) -> None:
        code, build = self.code, self.build
        with self.units(node) as unit:
            at = build.add(node["norm"], unit)
            for field in ("grad_shift", "grad_scale"):
                self.put(ir.Constant(code.number, 0), field, at)
        with self.vectors() as (shift, _):
            mean, inverse = _layer_statistics(self, node, hidden, shift)

            def normed(unit: Value, shift: Value, mean: Value = mean, inverse: Value = inverse) -> Value:
                return build.fmul(build.fsub(self.load(self.row(hidden, unit), shift), mean), inverse)

            def scaled(unit: Value, shift: Value) -> Value:
                scale = self.parameter("scale", build.add(node["norm"], unit))
                return build.fmul(scale, self.load(self.row(gradient, unit), shift))

            centre = self.of_nodes(gradient, lambda unit, _, shift: scaled(unit, shift), node, shift)
            slope = self.of_nodes(
                gradient, lambda unit, _, shift: build.fmul(scaled(unit, shift), normed(unit, shift)), node, shift
            )
            with self.units(node) as unit:
                at, g, own = (
                    build.add(node["norm"], unit),
                    self.load(self.row(gradient, unit), shift),
                    normed(unit, shift),
                )
                for field, term in (("grad_shift", g), ("grad_scale", build.fmul(g, own))):
                    place = code.at(code.field(field), at, self.shape.size)
                    before = code.load(place, code.number, self.shape.size)
                    code.store(build.fadd(before, code.sum(term)), place, self.shape.size)
                centred = build.fsub(scaled(unit, shift), centre)
                through_norm = build.fsub(centred, build.fmul(own, slope))
                self.store(build.fmul(inverse, through_norm), self.row(delta, unit), shift)

    def _activation(self, node: _Node, hidden: Value, gradient: Value, delta: Value, name: str) -> None:
        code, build = self.code, self.build
        slopes = self.rows("slopes", node)
        with self.units(node) as unit:
            total = self.zeroed()
            with self.vectors() as (shift, lanes):
                g = self.load(self.row(gradient, unit), shift)
                if keeps_slope(name):
                    result = build.fmul(g, self.load(self.row(slopes, unit), shift))
                else:
                    result = through(code, name, g, self.load(self.row(hidden, unit), shift))
                # Also where a slope is no number behind the last sample.
                result = self.samples(lanes, result)
                self.store(result, self.row(delta, unit), shift)
                self.add_to(total, result)
            with build.if_then(self.has(node["bias"])):
                self.put(code.sum(build.load(total)), "grad_bias", build.add(node["bias"], unit))
