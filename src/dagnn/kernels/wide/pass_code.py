"""The code of both compiled passes over wide nodes.

Forward: sums, activation, norm, dropout, what is passed on. Backward, in reverse: every node pulls from its children,
without atomics.
"""

from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import activated, keeps_slope, through
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.wide.node_code import (
    OUT_EDGE,
    Node,
    NodePass,
    WideShape,
    by_width,
    call,
    layer_statistics,
    sums_in,
    sums_out,
    weight_gradients,
)


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


class _Forward(NodePass):
    def write(self, node: Node) -> None:
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

    def _sums(self, node: Node, out: Value) -> None:
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

    def _activate(self, node: Node, hidden: Value, name: str) -> None:
        slopes = self.rows("slopes", node)
        with self.units(node) as unit, self.vectors() as (shift, lanes):
            row = self.row(hidden, unit)
            value, slope = activated(self.code, name, self.load(row, shift))
            self.store(self.samples(lanes, value), row, shift)
            if slope is not None:
                self.store(slope, self.row(slopes, unit), shift)

    def _batch_norm(self, node: Node, hidden: Value, value: Value) -> None:
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

        def plain(shift: Value, _: Value, sums: list[Value]) -> list[Value]:
            return [build.fadd(sums[0], self.load(row, shift))]

        mean = build.fdiv(self.sums(1, plain)[0], count)
        self.put(mean, "means", at)
        centre = code.splat(mean)

        def squares(shift: Value, lanes: Value, sums: list[Value]) -> list[Value]:
            centred = self.samples(lanes, build.fsub(self.load(row, shift), centre))
            return [code.multiply_add(centred, centred, sums[0])]

        self.put(build.fdiv(self.sums(1, squares)[0], count), "variances", at)

    def _layer_norm(self, node: Node, hidden: Value, value: Value) -> None:
        build = self.build
        with self.vectors() as (shift, lanes):
            mean, inverse = layer_statistics(self, node, hidden, shift)
            with self.units(node) as unit:
                at = build.add(node["norm"], unit)
                centred = build.fsub(self.load(self.row(hidden, unit), shift), mean)
                factor = build.fmul(self.parameter("scale", at), inverse)
                normed = self.code.multiply_add(centred, factor, self.parameter("shift", at))
                self.store(self.samples(lanes, normed), self.row(value, unit), shift)

    def _pass_on(self, node: Node, value: Value) -> None:
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


class _Backward(NodePass):
    def write(self, node: Node) -> None:
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

    def _pull(self, node: Node, gradient: Value, edge: Value) -> None:
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

    def _pull_passed(self, node: Node, gradient: Value, target: Value) -> None:
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

    def _through_node(self, node: Node, gradient: Value, delta: Value) -> None:
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
        if self.shape.normalise == "layer":
            with build.if_then(self.has(node["norm"])):
                self._layer_norm(node, hidden, build.load(current), delta)
                build.store(delta, current)
        before = build.load(current)
        self.by_activation(node, lambda name: self._through(node, hidden, before, delta, name))
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

    def _through(self, node: Node, hidden: Value, gradient: Value, delta: Value, name: str) -> None:
        """Through a batch norm, where there is one, and the activation."""
        if self.shape.normalise != "batch":
            self._activation(node, hidden, gradient, delta, name, is_normed=False)
            return
        with self.build.if_else(self.has(node["norm"])) as (normed, plain):
            with normed:
                self._activation(node, hidden, gradient, delta, name, is_normed=True)
            with plain:
                self._activation(node, hidden, gradient, delta, name, is_normed=False)

    def _batch_norm(self, node: Node, of_hidden: Value, row: Value, unit: Value) -> Callable[[Value, Value], Value]:
        """Of a vector ``scale / s * (g - mean(g) - normed * mean(g * normed))``; given means: ``scale / s * g``."""
        code, build = self.code, self.build
        count, own = self.number_of(code.field("batch")), self.is_set(code.field("own_statistics"))
        at = build.add(node["norm"], unit)
        mean, inverse = self.parameter("means", at), self.inverse(self.parameter("variances", at))

        def normed(shift: Value) -> Value:
            return build.fmul(build.fsub(self.load(of_hidden, shift), mean), inverse)

        def products(shift: Value, _: Value, sums: list[Value]) -> list[Value]:
            g = self.load(row, shift)
            return [build.fadd(sums[0], g), code.multiply_add(g, normed(shift), sums[1])]

        of_shift, of_scale = self.sums(2, products)
        self.put(of_shift, "grad_shift", at)
        self.put(of_scale, "grad_scale", at)
        factor, zero = build.fmul(self.parameter("scale", at), inverse), code.constant(0)
        centre = build.select(own, build.fdiv(code.splat(of_shift), count), zero)
        slope = build.select(own, build.fdiv(code.splat(of_scale), count), zero)

        def through_norm(row: Value, shift: Value) -> Value:
            centred = build.fsub(self.load(row, shift), centre)
            return build.fmul(factor, build.fsub(centred, build.fmul(normed(shift), slope)))

        return through_norm

    def _layer_norm(self, node: Node, hidden: Value, gradient: Value, delta: Value) -> None:
        code, build = self.code, self.build
        with self.units(node) as unit:
            at = build.add(node["norm"], unit)
            for field in ("grad_shift", "grad_scale"):
                self.put(ir.Constant(code.number, 0), field, at)
        with self.vectors() as (shift, _):
            mean, inverse = layer_statistics(self, node, hidden, shift)

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

    def _activation(
        self, node: Node, hidden: Value, gradient: Value, delta: Value, name: str, *, is_normed: bool
    ) -> None:
        code, build = self.code, self.build
        slopes = self.rows("slopes", node)
        with self.units(node) as unit:
            row, of_hidden, out = (self.row(first, unit) for first in (gradient, hidden, delta))
            arriving = self._batch_norm(node, of_hidden, row, unit) if is_normed else self.load

            def through_one(shift: Value, lanes: Value, sums: list[Value]) -> list[Value]:
                g = arriving(row, shift)
                if keeps_slope(name):
                    result = build.fmul(g, self.load(self.row(slopes, unit), shift))
                else:
                    result = through(code, name, g, self.load(of_hidden, shift))
                # Also where a slope is no number behind the last sample.
                result = self.samples(lanes, result)
                self.store(result, out, shift)
                return [build.fadd(sums[0], result)]

            total = self.sums(1, through_one)[0]
            with build.if_then(self.has(node["bias"])):
                self.put(total, "grad_bias", build.add(node["bias"], unit))
