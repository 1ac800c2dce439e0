"""Matrix products between panels, as functions for a compiled module's own use.

The products of PyTorch would do, but what bits they give for how many threads is theirs to say. Here a number is
always the sum of the same terms in the same order, and a sweep may compute its products where it needs them, between
the gates of one level and the next, without a way back to Python.
"""

from itertools import pairwise

from dagnn.kernels.code_panels import PanelWriter
from dagnn.kernels.code_writer import Value
from dagnn.kernels.panels import Panels

PRODUCT = (
    "left", "left_panel", "left_panels", "right", "right_panel", "right_panels", "out", "out_row", "out_panel", "rows",
    "width",
)  # fmt: skip
OUTER = ("left", "right", "out", "out_row", "left_row", "right_row", "rows")
# Steps of a sum that are written out. The width is an argument, not a constant: LLVM would unroll the whole loop, keep
# too many loads in flight and spill the sums (measured: 32 GF/s instead of 89).
_UNROLL = 2


def write_product(module: Value, panels: Panels, name: str, *, adds: bool) -> None:
    """The function ``name``: ``out = left @ right``, or with ``adds`` ``out += left @ right``.

    Arguments, in the order of `PRODUCT`: of ``left [rows, left_panels * width]`` the first row to work on and the bytes
    from panel to panel; of ``right [left_panels * width, right_panels * width]`` the same; of ``out`` the first row,
    the bytes from row to row and from panel to panel; and the number of rows.
    """
    code = PanelWriter(module, panels, name, len(PRODUCT))
    build, part = code.build, dict(zip(PRODUCT, code.arguments, strict=True))
    with code.loop(code.i64(0), part["right_panels"]) as panel:
        right = code.offset(part["right"], part["right_panel"], panel)
        out = code.offset(part["out"], part["out_panel"], panel)
        first = code.i64(0)
        for size in panels.row_blocks:
            count = build.sdiv(build.sub(part["rows"], first), code.i64(size))
            last = build.add(first, build.mul(count, code.i64(size)))
            with code.loop(first, last, size) as row:
                places = [code.offset(out, part["out_row"], build.add(row, code.i64(k))) for k in range(size)]
                _product_block(code, panels, part, row, right, places, adds)
            first = last
    code.finish()


def _product_block(
    code: PanelWriter,
    panels: Panels,
    part: dict[str, Value],
    row: Value,
    right: Value,
    places: list[Value],
    adds: bool,
) -> None:
    """Some rows of one panel: two vectors of sums for each, in registers."""
    build, line = code.build, panels.line
    sums = _sums(code, len(places))
    for place, pair in zip(places, sums, strict=True):
        for half, total in enumerate(pair):
            build.store(code.load_half(place, half) if adds else code.constant(0), total)
    with code.loop(code.i64(0), part["left_panels"]) as panel:
        left = code.at(code.offset(part["left"], part["left_panel"], panel), row, line)
        terms = code.at(right, panel, panels.width * line)
        with code.loop(code.i64(0), part["width"], _UNROLL) as step:
            for further in range(_UNROLL):
                term = build.add(step, code.i64(further))
                vectors = _halves(code, code.at(terms, term, line))
                for k, pair in enumerate(sums):
                    factor = code.at(build.add(left, code.i64(k * line)), term, panels.size)
                    _add(code, pair, code.splat(code.load(factor, code.number)), vectors)
    for place, pair in zip(places, sums, strict=True):
        for half, total in enumerate(pair):
            code.store_half(build.load(total), place, half)


def write_outer(module: Value, panels: Panels, name: str) -> None:
    """The function ``name``: ``out += left.T @ right`` for one panel of each, over some rows.

    Arguments, in the order of `OUTER`: the first rows of both panels; ``out [width, width]`` and the bytes from row to
    row; the bytes from row to row of ``left`` and ``right``; and the number of rows. The sum starts at zero and is
    added at the end: a sum of sums, which loses less than one long sum.
    """
    code = PanelWriter(module, panels, name, len(OUTER))
    build, part = code.build, dict(zip(OUTER, code.arguments, strict=True))
    parts = -(-panels.width // panels.row_blocks[0])
    bounds = [panels.width * k // parts for k in range(parts + 1)]
    for first, last in pairwise(bounds):
        sums = _sums(code, last - first)
        for pair in sums:
            for total in pair:
                build.store(code.constant(0), total)
        with code.loop(code.i64(0), part["rows"]) as row:
            left = code.offset(part["left"], part["left_row"], row)
            vectors = _halves(code, code.offset(part["right"], part["right_row"], row))
            for k, pair in enumerate(sums):
                factor = build.add(left, code.i64((first + k) * panels.size))
                _add(code, pair, code.splat(code.load(factor, code.number)), vectors)
        for k, pair in enumerate(sums):
            place = code.offset(part["out"], part["out_row"], code.i64(first + k))
            for half, total in enumerate(pair):
                code.store_half(build.fadd(code.load_half(place, half), build.load(total)), place, half)
    code.finish()


def call(code: PanelWriter, name: str, names: tuple[str, ...], **arguments: Value) -> None:
    """Call a function of this module with arguments by name."""
    code.build.call(code.module.globals[name], [arguments[argument] for argument in names])


def _sums(code: PanelWriter, rows: int) -> list[tuple[Value, Value]]:
    return [(code.variable(code.vector), code.variable(code.vector)) for _ in range(rows)]


def _add(code: PanelWriter, pair: tuple[Value, Value], factor: Value, vectors: list[Value]) -> None:
    for total, vector in zip(pair, vectors, strict=True):
        code.build.store(code.multiply_add(factor, vector, code.build.load(total)), total)


def _halves(code: PanelWriter, line: Value) -> list[Value]:
    return [code.load_half(line, half) for half in (0, 1)]
