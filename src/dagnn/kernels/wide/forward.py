"""The compiled forward pass over wide nodes: sums, activation, norm, dropout, what is passed on."""

from dagnn.kernels.emit.functions import activated
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.wide.nodes import Node, NodePass, layer_statistics
from dagnn.kernels.wide.products import WideShape, by_width, call, sums_in


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
