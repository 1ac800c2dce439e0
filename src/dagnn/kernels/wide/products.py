"""Products of blocks with rows of the batch: sums into a node, sums out of it, and the gradients of its weights.

Each is a function of the module's own, made for a number of units: so many rows of sums stay in registers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dagnn.kernels.emit.native import Target
from dagnn.kernels.emit.writer import CodeWriter, Value

_MOST_UNITS = 6


@dataclass(frozen=True)
class WideShape:
    """What a set of compiled functions is made for.

    Attributes:
        double: float64, else float32.
        widths: those that occur, sorted.
        activations: those that occur, sorted; the code of one is its place.
        normalise: as of the plan.
        target: the processor.
    """

    double: bool
    widths: tuple[int, ...]
    activations: tuple[str, ...]
    normalise: str | None
    target: Target

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 8 if self.double else 4

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.target.vector_bytes // self.size

    @property
    def registers(self) -> int:
        """Vectors that the processor holds."""
        return 32 if self.target.vector_bytes == 64 else 16

    def writer(self, module: Value, name: str, num_arguments: int | None = None) -> CodeWriter:
        return CodeWriter(
            module, name, double=self.double, lanes=self.lanes, target=self.target, num_arguments=num_arguments
        )


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
