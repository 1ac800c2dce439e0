"""What the code of both passes over wide nodes shares: products of blocks, the record of a node, its norm.

**Products** of blocks with rows of the batch: sums into a node, sums out of it, and the gradients of its weights.
Each is a function of the module's own, made for a number of units: so many rows of sums stay in registers.

**A node** has a row of the batch for each unit, padded with zeros to whole vectors: a norm wants all samples of a unit
at once. One worker computes a whole node, so nothing depends on how many there are.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from dagnn.kernels.emit.writer import CodeWriter, TargetShape, Value
from dagnn.kernels.wide.plan import EPSILON

_MOST_UNITS = 6


@dataclass(frozen=True)
class WideShape(TargetShape):
    """What a set of compiled functions is made for.

    Attributes:
        widths: those that occur, sorted.
        activations: those that occur, sorted; the code of one is its place.
        normalise: as of the plan.
    """

    widths: tuple[int, ...]
    activations: tuple[str, ...]
    normalise: str | None

    @property
    def registers(self) -> int:
        """Vectors that the processor holds."""
        return 32 if self.target.vector_bytes == 64 else 16


def chunks(width: int) -> list[tuple[int, int]]:
    """(first unit, units) of each part of a node that is computed at once: as equal as can be, at most six units.

    >>> chunks(6), chunks(8)
    ([(0, 6)], [(0, 4), (4, 4)])
    """
    count = -(-width // _MOST_UNITS)
    bounds = [width * k // count for k in range(count + 1)]
    return [(first, last - first) for first, last in pairwise(bounds)]


def write_products(module: Value, shape: WideShape) -> None:
    """The functions that `call` finds, for all units at once that some width needs."""
    units = sorted({count for width in shape.widths for _, count in chunks(width)})
    for count in units:
        _write_sums_in(module, shape, count)
        _write_sums_out(module, shape, count)
        for whole in (True, False):
            _write_weight_gradients(module, shape, count, whole=whole)


def call(code: CodeWriter, name: str, *arguments: Value) -> None:
    code.build.call(code.module.globals[name], list(arguments))


def sums_in(units: int) -> str:
    return f"sums_in_{units}"


def sums_out(units: int) -> str:
    return f"sums_out_{units}"


def weight_gradients(units: int, *, whole: bool) -> str:
    """``whole``: the units are all of the node's, so that the gradients of a source follow each other."""
    return f"weight_gradients_{units}_{'whole' if whole else 'part'}"


def _tiles(code: CodeWriter, shape: WideShape, units: int, vectors: Value) -> list[tuple[Value, Value, int]]:
    """(first, end, step): ranges of vectors of a row, each for a number of vectors at once."""
    build, start, found = code.build, code.i64(0), []
    most = 4 if units * 4 + 5 <= shape.registers else 2
    for together in (size for size in (4, 2, 1) if size <= most):
        end = build.add(start, build.and_(build.sub(vectors, start), code.i64(-together)))
        found.append((start, end, together))
        start = end
    return found


def _write_sums_in(module: Value, shape: WideShape, units: int) -> None:
    """``out[i] = bias[i] + sum over r of weight[r, i] * row(rows[r])``, for ``units`` rows i of ``out``."""
    code = shape.writer(module, sums_in(units), num_arguments=9)
    build = code.build
    rows, num_rows, weight, weight_step, bias, base, out, row_bytes, vectors = code.arguments
    for first, end, together in _tiles(code, shape, units, vectors):
        with code.loop(first, end, together) as vector:
            shift = build.mul(vector, code.i64(shape.lanes * shape.size))
            totals = [[code.variable(code.vector) for _ in range(together)] for _ in range(units)]
            for unit, of_unit in enumerate(totals):
                start = code.splat(code.load(code.at(bias, code.i64(unit), shape.size), code.number, shape.size))
                for total in of_unit:
                    build.store(start, total)
            with code.loop(code.i64(0), num_rows) as number:
                row = build.add(code.offset(base, row_bytes, code.index_at(rows, number)), shift)
                values = [code.load_vector(_vector(code, shape, row, k)) for k in range(together)]
                at = code.offset(weight, weight_step, number)
                for unit, of_unit in enumerate(totals):
                    factor = code.splat(code.load(code.at(at, code.i64(unit), shape.size), code.number, shape.size))
                    for total, value in zip(of_unit, values, strict=True):
                        build.store(code.multiply_add(factor, value, build.load(total)), total)
            for unit, of_unit in enumerate(totals):
                row = build.add(code.offset(out, row_bytes, code.i64(unit)), shift)
                for k, total in enumerate(of_unit):
                    code.store_vector(build.load(total), _vector(code, shape, row, k))
    code.finish()


def _write_sums_out(module: Value, shape: WideShape, units: int) -> None:
    """``out[i] += sum over j of weight[i, j] * rows[j]``, for ``units`` rows i; ``rows`` follow each other."""
    code = shape.writer(module, sums_out(units), num_arguments=7)
    build = code.build
    rows, num_rows, weight, weight_step, out, row_bytes, vectors = code.arguments
    for first, end, together in _tiles(code, shape, units, vectors):
        with code.loop(first, end, together) as vector:
            shift = build.mul(vector, code.i64(shape.lanes * shape.size))
            totals, places = [], []
            for unit in range(units):
                row = build.add(code.offset(out, row_bytes, code.i64(unit)), shift)
                places.append([_vector(code, shape, row, k) for k in range(together)])
                totals.append([code.variable(code.vector) for _ in range(together)])
                for place, total in zip(places[-1], totals[-1], strict=True):
                    build.store(code.load_vector(place), total)
            with code.loop(code.i64(0), num_rows) as number:
                row = build.add(code.offset(rows, row_bytes, number), shift)
                values = [code.load_vector(_vector(code, shape, row, k)) for k in range(together)]
                at = code.at(weight, number, shape.size)
                for unit, of_unit in enumerate(totals):
                    one = code.offset(at, weight_step, code.i64(unit))
                    factor = code.splat(code.load(one, code.number, shape.size))
                    for total, value in zip(of_unit, values, strict=True):
                        build.store(code.multiply_add(factor, value, build.load(total)), total)
            for of_unit, at_unit in zip(totals, places, strict=True):
                for total, place in zip(of_unit, at_unit, strict=True):
                    code.store_vector(build.load(total), place)
    code.finish()


def _write_weight_gradients(module: Value, shape: WideShape, units: int, *, whole: bool) -> None:
    """``out[r, i] = sum over the batch of row(rows[r]) * delta[i]``, for ``units`` rows i of ``delta``."""
    code = shape.writer(module, weight_gradients(units, whole=whole), num_arguments=8)
    build = code.build
    rows, num_rows, base, delta, out, out_step, row_bytes, vectors = code.arguments
    start = code.i64(0)
    most = max(1, (shape.registers - 8) // units)
    for together in (size for size in (4, 2, 1) if size <= most):
        end = build.add(start, build.and_(build.sub(num_rows, start), code.i64(-together)))
        with code.loop(start, end, together) as number:
            sources = [
                code.offset(base, row_bytes, code.index_at(rows, build.add(number, code.i64(k))))
                for k in range(together)
            ]
            totals = [[code.variable(code.vector) for _ in range(units)] for _ in range(together)]
            for total in (one for of_row in totals for one in of_row):
                build.store(code.constant(0), total)
            with code.loop(code.i64(0), vectors) as vector:
                shift = build.mul(vector, code.i64(shape.lanes * shape.size))
                deltas = [
                    code.load_vector(build.add(code.offset(delta, row_bytes, code.i64(unit)), shift))
                    for unit in range(units)
                ]
                for source, of_row in zip(sources, totals, strict=True):
                    value = code.load_vector(build.add(source, shift))
                    for total, one in zip(of_row, deltas, strict=True):
                        build.store(code.multiply_add(value, one, build.load(total)), total)
            places = [code.offset(out, out_step, build.add(number, code.i64(k))) for k in range(together)]
            if whole:
                _store_sums(code, shape, [build.load(one) for of_row in totals for one in of_row], places[0])
            else:
                for place, of_row in zip(places, totals, strict=True):
                    _store_sums(code, shape, [build.load(one) for one in of_row], place)
        start = end
    code.finish()


def _store_sums(code: CodeWriter, shape: WideShape, vectors: Sequence[Value], place: Value) -> None:
    """The sum of the lanes of each vector, one number after another."""
    done = 0
    while done < len(vectors):
        # As many at once as a butterfly takes: a power of two.
        count = min(shape.lanes, 1 << ((len(vectors) - done).bit_length() - 1))
        part = vectors[done : done + count]
        total = code.sums(part) if count > 1 else code.sum(part[0])
        code.store(total, code.at(place, code.i64(done), shape.size), shape.size)
        done += count


def _vector(code: CodeWriter, shape: WideShape, row: Value, k: int) -> Value:
    return code.build.add(row, code.i64(k * shape.lanes * shape.size))


def by_width(code: CodeWriter, shape: WideShape, width: Value, body: Callable[[int, int, bool], None]) -> None:
    """``body(first unit, units, whether those are all)`` for each part of a node of this width, known when it runs."""
    for one in shape.widths:
        with code.build.if_then(code.build.icmp_signed("==", width, code.i64(one))):
            for first, units in chunks(one):
                body(first, units, units == one)


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

        ``terms``: of the bytes to a vector, the lanes that are samples and the sums so far: the new ones.
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
