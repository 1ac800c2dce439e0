"""The packed layout, and matrix products in it.

A *pack* is two vectors of columns: a row of a pack is one *line*, and the lines of a pack's rows lie one after another.
A product then walks through both of its factors line by line, and its inner loop has no remainder.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from torch import Tensor

from dagnn.kernels.emit.writer import CodeWriter, TargetShape, Value


@dataclass(frozen=True)
class PackedLayout(TargetShape):
    """What a set of compiled functions of a sweep is made for, and the layout that follows from it."""

    @property
    def width(self) -> int:
        """Columns of a pack."""
        return 2 * self.lanes

    @property
    def line(self) -> int:
        """Bytes of a pack's row."""
        return self.width * self.size

    @property
    def row_blocks(self) -> tuple[int, ...]:
        """Rows that a product computes at once, with two sums each in registers, largest first; the last is 1."""
        # AVX-512 has 32 registers: 24 sums, two vectors of the right factor, the numbers of the left one. Otherwise
        # there are 16: 12 sums. A sum that does not fit would be loaded and stored in every step.
        return (12, 6, 4, 2, 1) if self.target.vector_bytes == 64 else (6, 4, 2, 1)

    def count(self, columns: int) -> int:
        """Packs of a matrix with so many columns; the last one is filled up with zeros."""
        return -(-columns // self.width)

    def packed(self, weight: Tensor, hidden: int) -> Tensor:
        """``[operators, rows, columns]`` as ``[operators, packs of columns, rows, width]``."""
        wide = self.widened(self.widened(weight, hidden), hidden, 1)
        operators, rows, columns = wide.shape
        return wide.reshape(operators, rows, columns // self.width, self.width).permute(0, 2, 1, 3).contiguous()

    def packed_transposed(self, weight: Tensor, hidden: int) -> Tensor:
        """``[operators, rows, columns]`` as ``[operators, packs of rows, columns, width]``."""
        wide = self.widened(self.widened(weight, hidden), hidden, 1)
        operators, rows, columns = wide.shape
        return wide.reshape(operators, rows // self.width, self.width, columns).permute(0, 1, 3, 2).contiguous()

    def widened(self, values: Tensor, hidden: int, dim: int = -1) -> Tensor:
        """With every ``hidden`` entries of a dimension filled up to whole packs; contiguous in the last."""
        # Every gate begins with a pack of its own: no vector holds numbers of two gates.
        wide = self.count(hidden) * self.width
        if wide == hidden:
            return values.contiguous()
        dim = dim % values.dim()
        parts = _split(values, dim, hidden)
        after = [0, 0] * (parts.dim() - dim - 2)
        return F.pad(parts, (*after, 0, wide - hidden)).flatten(dim, dim + 1)

    def narrowed(self, values: Tensor, hidden: int, dim: int) -> Tensor:
        """What `widened` took."""
        wide = self.count(hidden) * self.width
        return values if wide == hidden else _split(values, dim, wide).narrow(dim + 1, 0, hidden).flatten(dim, dim + 1)


def _split(values: Tensor, dim: int, size: int) -> Tensor:
    """A dimension as two, the second of them of this size."""
    shape = values.shape
    return values.reshape(*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :])


class PackedWriter(CodeWriter):
    """A `CodeWriter` whose vectors are the halves of a pack's row.

    Loads and stores assume no alignment but a number's: rows may lie in the user's tensors, and where they happen to be
    aligned, unaligned instructions are as fast.

    Args:
        module, name, num_arguments: as for `CodeWriter`.
        layout: the precision and the processor.
    """

    halves = (0, 1)

    def __init__(self, module: Value, layout: PackedLayout, name: str, num_arguments: int | None = None) -> None:
        super().__init__(
            module, name, double=layout.double, lanes=layout.lanes, target=layout.target, num_arguments=num_arguments
        )
        self.layout = layout

    def half(self, line: Value, half: int) -> Value:
        """The address of a half (0 or 1) of a pack's row."""
        return self.build.add(line, self.i64(half * self.lanes * self.size))

    def load_half(self, line: Value, half: int) -> Value:
        return self.load(self.half(line, half), self.vector, self.size)

    def store_half(self, value: Value, line: Value, half: int) -> None:
        self.store(value, self.half(line, half), self.size)

    def add_to_half(self, value: Value, line: Value, half: int) -> None:
        self.store_half(self.build.fadd(self.load_half(line, half), value), line, half)

    def line(self, base: Value, pack: Value) -> Value:
        """The address of a pack's part of a row whose packs lie side by side."""
        return self.at(base, pack, self.layout.line)

    def places(self, count: int = 2) -> list[Value]:
        """New variables for vectors, all 0: one for each half, or ``count`` of them."""
        result = [self.variable(self.vector) for _ in range(count)]
        for place in result:
            self.build.store(self.constant(0), place)
        return result

    def number_at(self, base: Value, index: Value) -> Value:
        """Entry of an array of numbers."""
        return self.load(self.at(base, index, self.size), self.number, self.size)

    def number_constant(self, value: float) -> Value:
        return ir.Constant(self.number, value)


PRODUCT = (
    "left", "left_pack", "left_packs", "right", "right_pack", "right_packs", "out", "out_row", "out_pack", "rows",
    "width",
)  # fmt: skip
OUTER = ("left", "right", "out", "out_row", "left_row", "right_row", "rows")
# Steps of a sum that are written out. The width is an argument, not a constant: LLVM would unroll the whole loop, keep
# too many loads in flight and spill the sums (measured: 32 GF/s instead of 89).
_UNROLL = 2


def write_product(module: Value, layout: PackedLayout, name: str, *, adds: bool) -> None:
    """The function ``name``: ``out = left @ right``, or with ``adds`` ``out += left @ right``.

    Arguments, in the order of `PRODUCT`: of ``left [rows, left_packs * width]`` the first row to work on and the bytes
    from pack to pack; of ``right [left_packs * width, right_packs * width]`` the same; of ``out`` the first row,
    the bytes from row to row and from pack to pack; and the number of rows.
    """
    code = PackedWriter(module, layout, name, len(PRODUCT))
    build, part = code.build, dict(zip(PRODUCT, code.arguments, strict=True))
    with code.loop(code.i64(0), part["right_packs"]) as pack:
        right = code.offset(part["right"], part["right_pack"], pack)
        out = code.offset(part["out"], part["out_pack"], pack)
        first = code.i64(0)
        # As many of the largest blocks as fit, then smaller ones: no row is computed that nobody needs.
        for size in layout.row_blocks:
            count = build.sdiv(build.sub(part["rows"], first), code.i64(size))
            last = build.add(first, build.mul(count, code.i64(size)))
            with code.loop(first, last, size) as row:
                places = [code.offset(out, part["out_row"], build.add(row, code.i64(k))) for k in range(size)]
                _product_block(code, layout, part, row, right, places, adds)
            first = last
    code.finish()


def _product_block(
    code: PackedWriter,
    layout: PackedLayout,
    part: dict[str, Value],
    row: Value,
    right: Value,
    places: list[Value],
    adds: bool,
) -> None:
    """Some rows of one pack: two vectors of sums for each, in registers."""
    build, line = code.build, layout.line
    sums = _sums(code, len(places))
    for pair in sums:
        for total in pair:
            build.store(code.constant(0), total)
    # Terms in the order of the packs: a sum has one order, whatever block of rows it is computed in.
    with code.loop(code.i64(0), part["left_packs"]) as pack:
        left = code.at(code.offset(part["left"], part["left_pack"], pack), row, line)
        terms = code.at(right, pack, layout.width * line)
        with code.loop(code.i64(0), part["width"], _UNROLL) as step:
            for further in range(_UNROLL):
                term = build.add(step, code.i64(further))
                vectors = _halves(code, code.at(terms, term, line))
                for k, pair in enumerate(sums):
                    factor = code.at(build.add(left, code.i64(k * line)), term, layout.size)
                    _add(code, pair, code.splat(code.load(factor, code.number)), vectors)
    # What is there already is added in the end: sums that start from it are rounded at its size in every term, which
    # made the gradients of a chain of GRUs 1.4 times as far off.
    for place, pair in zip(places, sums, strict=True):
        for half, total in enumerate(pair):
            value = build.load(total)
            code.store_half(build.fadd(code.load_half(place, half), value) if adds else value, place, half)


def write_outer(module: Value, layout: PackedLayout, name: str) -> None:
    """The function ``name``: ``out += left.T @ right`` for one pack of each, over some rows.

    Arguments, in the order of `OUTER`: the first rows of both packs; ``out [width, width]`` and the bytes from row to
    row; the bytes from row to row of ``left`` and ``right``; and the number of rows. The sum starts at zero and is
    added at the end: a sum of sums, which loses less than one long sum.
    """
    code = PackedWriter(module, layout, name, len(OUTER))
    build, part = code.build, dict(zip(OUTER, code.arguments, strict=True))
    # In parts of equal size: as few as keep their sums in registers, and no small one at the end.
    parts = -(-layout.width // layout.row_blocks[0])
    bounds = [layout.width * k // parts for k in range(parts + 1)]
    for first, last in pairwise(bounds):
        sums = _sums(code, last - first)
        for pair in sums:
            for total in pair:
                build.store(code.constant(0), total)
        with code.loop(code.i64(0), part["rows"]) as row:
            left = code.offset(part["left"], part["left_row"], row)
            vectors = _halves(code, code.offset(part["right"], part["right_row"], row))
            for k, pair in enumerate(sums):
                factor = build.add(left, code.i64((first + k) * layout.size))
                _add(code, pair, code.splat(code.load(factor, code.number)), vectors)
        for k, pair in enumerate(sums):
            place = code.offset(part["out"], part["out_row"], code.i64(first + k))
            for half, total in enumerate(pair):
                code.store_half(build.fadd(code.load_half(place, half), build.load(total)), place, half)
    code.finish()


def call(code: PackedWriter, name: str, names: tuple[str, ...], **arguments: Value) -> None:
    """Call a function of this module with arguments by name."""
    code.build.call(code.module.globals[name], [arguments[argument] for argument in names])


def _sums(code: PackedWriter, rows: int) -> list[tuple[Value, Value]]:
    return [(code.variable(code.vector), code.variable(code.vector)) for _ in range(rows)]


def _add(code: PackedWriter, pair: tuple[Value, Value], factor: Value, vectors: list[Value]) -> None:
    for total, vector in zip(pair, vectors, strict=True):
        code.build.store(code.multiply_add(factor, vector, code.build.load(total)), total)


def _halves(code: PackedWriter, line: Value) -> list[Value]:
    return [code.load_half(line, half) for half in (0, 1)]
