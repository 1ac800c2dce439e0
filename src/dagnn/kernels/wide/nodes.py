"""What both compiled passes over wide nodes share: the record of a node, loops over its units and vectors, its norm.

A row of the batch for each unit, padded with zeros to whole vectors: a norm wants all samples of a unit at once. One
worker computes a whole node, so nothing depends on how many there are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dagnn.kernels.emit.writer import CodeWriter, Value
from dagnn.kernels.wide.plan import EPSILON
from dagnn.kernels.wide.products import WideShape

RECORD = (
    "row", "width", "weight", "bias", "norm", "drop", "code", "has_more",
    "in_first", "in_last", "out_first", "out_last", "pass_first", "pass_last", "pull_first", "pull_last", "seeded",
)  # fmt: skip
"""What the table says of a node, each an int64: its first row, units, where its parameters begin (-1: none), its row of
the mask, the code of its activation, whether its value is more than that; then ranges: of the rows it reads, the edges
out of it, the values passed on to it, and those that get its value; last whether its value is read."""
OUT_EDGE = ("row", "width", "weight")
"""What the table says of an edge: the target's first row and units, and where its weights from the source begin."""
_TOGETHER = 4


@dataclass(frozen=True)
class Node:
    """The record of one node, read."""

    number: Value
    entries: dict[str, Value]

    def __getitem__(self, name: str) -> Value:
        return self.entries[name]


class NodePass:
    """What both directions share: the code, the node at hand, and loops over its units and vectors."""

    def __init__(self, shape: WideShape, code: CodeWriter) -> None:
        self.shape, self.code, self.build = shape, code, code.build

    def node(self, number: Value) -> Node:
        code = self.code
        record = code.at(code.field("node_table"), number, 8 * len(RECORD))
        return Node(number, {name: code.offset_at(record, code.i64(k)) for k, name in enumerate(RECORD)})

    def rows(self, field: str, node: Node) -> Value:
        """The address of a node's first row in an array of rows."""
        return self.code.offset(self.code.field(field), self.code.field("row_bytes"), node["row"])

    @contextmanager
    def units(self, node: Node) -> Iterator[Value]:
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

    def sums(self, count: int, terms: Callable[[Value, Value, list[Value]], list[Value]]) -> list[Value]:
        """``count`` sums over a row, each a number.

        Args:
            terms: of the bytes to a vector, the lanes that are samples and the sums so far: the new ones.
        """
        code, build, lanes = self.code, self.build, self.shape.lanes
        # Four sums of each, for an addition waits for the one before it; always added up in the same order.
        totals = [[self.zeroed() for _ in range(_TOGETHER)] for _ in range(count)]
        start = code.i64(0)
        for together in (_TOGETHER, 1):
            end = build.and_(code.field("row_vectors"), code.i64(-together))
            with code.loop(start, end, together) as first:
                for k in range(together):
                    vector = build.add(first, code.i64(k))
                    left = build.sub(code.field("batch"), build.mul(vector, code.i64(lanes)))
                    own = [of_sum[k] for of_sum in totals]
                    shift = build.mul(vector, code.i64(lanes * self.shape.size))
                    before = [build.load(place) for place in own]
                    for place, after in zip(own, terms(shift, code.lanes_below(left), before), strict=True):
                        build.store(after, place)
            start = end
        return [self._total(of_sum) for of_sum in totals]

    def _total(self, places: list[Value]) -> Value:
        parts = [self.build.load(place) for place in places]
        while len(parts) > 1:
            parts = [self.build.fadd(one, two) for one, two in zip(parts[::2], parts[1::2], strict=True)]
        return self.code.sum(parts[0])

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

    def by_activation(self, node: Node, body: Callable[[str], None]) -> None:
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
        self, first: Value, unit_sum: Callable[[Value, Value, Value], Value], node: Node, shift: Value
    ) -> Value:
        """The mean over the units of a node of ``unit_sum(unit, row, shift)``, for the samples of one vector."""
        total = self.zeroed()
        with self.units(node) as unit:
            self.add_to(total, unit_sum(unit, self.row(first, unit), shift))
        return self.build.fdiv(self.build.load(total), self.number_of(node["width"]))


def layer_statistics(own: NodePass, node: Node, hidden: Value, shift: Value) -> tuple[Value, Value]:
    """Mean over the units of a node and ``1 / sqrt(variance + epsilon)``, for the samples of one vector."""
    build = own.build
    mean = own.of_nodes(hidden, lambda _, row, shift: own.load(row, shift), node, shift)

    def square(_: Value, row: Value, shift: Value) -> Value:
        centred = build.fsub(own.load(row, shift), mean)
        return build.fmul(centred, centred)

    return mean, own.inverse(own.of_nodes(hidden, square, node, shift))
