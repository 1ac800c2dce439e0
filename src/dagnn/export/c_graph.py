"""C99 from modules over one graph: a source file under construction, and the files around it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn import __version__
from dagnn.errors import ConfigError
from dagnn.export.c import LARGEST_STACK, allowed_errors, check_program, listed
from dagnn.export.c_functions import CFunction, array, bit_functions, bits_type, literal, prologue
from dagnn.kernels.emit.functions import exp

Numbers = NDArray[np.floating]


class CSource:
    """A source file under construction: constant arrays and functions, whose names begin with ``name``."""

    def __init__(self, stem: str, name: str, double: bool) -> None:
        self.name, self.double, self.number = name, double, "double" if double else "float"
        self.fma = f"{name.upper()}_FMA"
        self.stem = stem
        self._arrays: dict[str, str] = {}
        self._functions: dict[str, str] = {}

    def numbers(self, label: str, values: Numbers) -> str:
        """The name of an array of weights; ConfigError where some are NaN or infinite."""
        bad = values[~np.isfinite(values)]
        if len(bad):
            raise ConfigError(
                f"{len(bad)} of the weights are NaN or infinite, first {bad[0]}: load a network that was trained "
                "without them, or set them."
            )
        return self._array(self.number, label, values)

    def indices(self, label: str, values: NDArray[np.integer]) -> str:
        """The name of an array of whole numbers from 0 on."""
        return self._array(index_type(values), label, values)

    def _array(self, kind: str, label: str, values: NDArray[Any]) -> str:
        full = f"{self.name}_{label}"
        self._arrays[full] = array(kind, full, values)
        return full

    def function(self, label: str, text: Callable[[str], str]) -> str:
        """The name of a function; ``text`` writes it for its name, once for each label."""
        full = f"{self.name}_{label}"
        if full not in self._functions:
            written = text(full)  # first: it may add functions that it calls
            self._functions[full] = written
        return full

    def pointwise(self, label: str, write: Callable[[Any, Any], Any]) -> str:
        """A function of one number, as `dagnn.kernels.emit.functions` writes it: ``write(code, "z")``."""
        code = CFunction(self.double, self.name)
        return self.function(label, lambda full: code.function(label, full, lambda: write(code, "z")))

    def product(self) -> str:
        """``y = a w``; terms in the order of the rows of w, from 0 on, as in the compiled products of a sweep."""
        number = self.number
        return self.function(
            "product",
            lambda full: (
                f"""\
/* y = a w, for rows of w that begin stride numbers apart. */
static void {full}(const {number} *a, const {number} *w, {number} *y, size_t rows, size_t stride, size_t columns)
{{
    size_t i, j;
    for (j = 0; j < columns; ++j) {{
        y[j] = 0;
    }}
    for (i = 0; i < rows; ++i) {{
        const {number} factor = a[i];
        for (j = 0; j < columns; ++j) {{
            y[j] = {self.fma}(factor, w[i * stride + j], y[j]);
        }}
    }}
}}
"""
            ),
        )

    def linear(self) -> str:
        """``y = x w + b`` for one row."""
        number = self.number
        return self.function(
            "linear",
            lambda full: (
                f"""\
/* y = x w + b */
static void {full}(const {number} *x, const {number} *w, const {number} *b, {number} *y, size_t inputs, size_t outputs)
{{
    size_t j;
    {self.product()}(x, w, y, inputs, outputs, outputs);
    for (j = 0; j < outputs; ++j) {{
        y[j] = y[j] + b[j];
    }}
}}
"""
            ),
        )

    def literal(self, value: float) -> str:
        """A number of C."""
        return literal(value if self.double else float(np.float32(value)), double=self.double)

    def rows(self) -> str:
        """``y = x w + b`` for many rows."""
        number = self.number
        return self.function(
            "rows",
            lambda full: (
                f"""\
static void {full}(const {number} *x, const {number} *w, const {number} *b, {number} *y, size_t rows, size_t inputs,
    size_t outputs)
{{
    size_t i;
    for (i = 0; i < rows; ++i) {{
        {self.linear()}(x + i * inputs, w, b, y + i * outputs, inputs, outputs);
    }}
}}
"""
            ),
        )

    def added(self) -> str:
        """``y = x + z``, number by number; y may be x."""
        number = self.number
        return self.function(
            "added",
            lambda full: (
                f"""\
static void {full}(const {number} *x, const {number} *z, {number} *y, size_t n)
{{
    size_t i;
    for (i = 0; i < n; ++i) {{
        y[i] = x[i] + z[i];
    }}
}}
"""
            ),
        )

    def norm(self) -> str:
        """A layer norm of rows; y may be x."""
        number, root = self.number, f"sqrt{'' if self.double else 'f'}"
        return self.function(
            "norm",
            lambda full: (
                f"""\
/* Rows with mean 0 and variance 1, scaled and shifted. */
static void {full}(const {number} *x, const {number} *scale, const {number} *shift, {number} *y, size_t rows,
    size_t width, {number} epsilon)
{{
    size_t i, j;
    for (i = 0; i < rows; ++i, x += width, y += width) {{
        {number} mean = 0, variance = 0, factor;
        for (j = 0; j < width; ++j) {{
            mean = mean + x[j];
        }}
        mean = mean / ({number})width;
        for (j = 0; j < width; ++j) {{
            const {number} off = x[j] - mean;
            variance = {self.fma}(off, off, variance);
        }}
        factor = 1 / {root}(variance / ({number})width + epsilon);
        for (j = 0; j < width; ++j) {{
            y[j] = {self.fma}((x[j] - mean) * factor, scale[j], shift[j]);
        }}
    }}
}}
"""
            ),
        )

    def attention(self) -> str:
        """Queries attend to rows of keys and values, head by head."""
        number, exponential = self.number, self.pointwise("exp", exp)
        return self.function(
            "attention",
            lambda full: (
                f"""\
/* Every query takes a mean of the values, weighted by the softmax of its product with the keys. A row of memory is
   a key and a value; score has room for one number a row. */
static void {full}(const {number} *query, const {number} *memory, {number} *y, {number} *score, size_t queries,
    size_t rows, size_t width, size_t heads, {number} root)
{{
    const size_t part = width / heads;
    size_t i, h, r, j;
    for (i = 0; i < queries; ++i) {{
        for (h = 0; h < heads; ++h) {{
            const {number} *const q = query + i * width + h * part;
            const {number} *const key = memory + h * part, *const value = key + width;
            {number} *const out = y + i * width + h * part;
            {number} highest = -INFINITY, total = 0;
            for (r = 0; r < rows; ++r) {{
                {number} sum = 0;
                for (j = 0; j < part; ++j) {{
                    sum = {self.fma}(q[j], key[r * 2 * width + j], sum);
                }}
                score[r] = sum / root;
                highest = score[r] <= highest ? highest : score[r];
            }}
            for (r = 0; r < rows; ++r) {{
                score[r] = {exponential}(score[r] - highest);
                total = total + score[r];
            }}
            for (j = 0; j < part; ++j) {{
                out[j] = 0;
            }}
            for (r = 0; r < rows; ++r) {{
                const {number} share = score[r] / total;
                for (j = 0; j < part; ++j) {{
                    out[j] = {self.fma}(share, value[r * 2 * width + j], out[j]);
                }}
            }}
        }}
    }}
}}
"""
            ),
        )

    def activation(self, name: str) -> str:
        """One of `dagnn.kernels.ACTIVATIONS`, number by number in place."""
        number, code = self.number, CFunction(self.double, self.name)
        one = self.function(name, lambda full: code.text(name, full))
        return self.function(
            f"each_{name}",
            lambda full: (
                f"""\
static void {full}({number} *x, size_t n)
{{
    size_t i;
    for (i = 0; i < n; ++i) {{
        x[i] = {one}(x[i]);
    }}
}}
"""
            ),
        )

    def aggregate(self, kind: str, label: str, offsets: NDArray[np.integer], sources: NDArray[np.integer]) -> str:
        """``y_v = y_v + `` sum, mean or maximum of ``message[source]`` over the edges into v; 0 without any."""
        number = self.number
        before, step, after = {
            "sum": ("0", "total + m", "total"),
            "mean": ("0", "total + m", f"total / ({number})(start < stop ? stop - start : 1)"),
            "max": ("-INFINITY", "m > total || m != m ? m : total", "(start < stop ? total : 0)"),
        }[kind]
        table, ends = self.indices(f"{label}_sources", sources), self.indices(f"{label}_edges", offsets)
        return self.function(
            f"{label}_{kind}",
            lambda full: (
                f"""\
static void {full}(const {number} *message, {number} *y, size_t width)
{{
    size_t v, e, j;
    for (v = 0; v < {len(offsets) - 1}; ++v) {{
        const size_t start = {ends}[v], stop = {ends}[v + 1];
        for (j = 0; j < width; ++j) {{
            {number} total = {before};
            for (e = start; e < stop; ++e) {{
                const {number} m = message[{table}[e] * width + j];
                total = {step};
            }}
            y[v * width + j] = y[v * width + j] + {after};
        }}
    }}
}}
"""
            ),
        )

    def text(self, body: str) -> str:
        """The file: all that was added, then ``body``."""
        functions = "\n".join(self._functions.values())
        bits = ""
        if f"{self.name}_bits(" in functions:
            bits = bit_functions(self.name, self.number, bits_type(self.double))
        return "\n".join(
            [prologue(self.stem, self.name, self.double), bits, *self._arrays.values(), functions, body, ""]
        )


def index_type(values: NDArray[np.integer]) -> str:
    """The kind of whole numbers of C that holds them."""
    return "uint16_t" if int(values.max(initial=0)) < 1 << 16 else "uint32_t"


@dataclass(frozen=True)
class Interface:
    """What a header says.

    Attributes:
        what: it is, the first sentence.
        given: the kind of x in C.
        inputs, outputs: how many numbers x and y have.
        x, y: lines about them.
        sizes: further sizes by name, such as ``NODES``.
        names: of the nodes, if they have any.
    """

    what: str
    given: str
    inputs: int
    outputs: int
    x: str
    y: str
    sizes: Mapping[str, int]
    names: Sequence[object] | None = None


def graph_files(
    source: CSource, interface: Interface, body: Sequence[str], work: int, x: NDArray[Any], y: Numbers
) -> dict[str, bytes]:
    """The contents of ``stem.c``, ``stem.h`` and ``stem_test.c``, by file name.

    Args:
        body: statements that compute y from x with ``work`` numbers of memory at work.
        x, y: samples ``[n, inputs]`` and ``[n, outputs]``, for the test program.
    """
    stem, number = source.stem, source.number
    texts = {
        f"{stem}.h": _header(source, interface, work),
        f"{stem}.c": source.text(_functions(source, interface, body, work)),
        f"{stem}_test.c": check_program(stem, source.name, number, x, y, allowed_errors(y)),
    }
    return {file: text.encode("ascii") for file, text in texts.items()}


def _header(source: CSource, interface: Interface, work: int) -> str:
    name, upper, number = source.name, source.name.upper(), source.number
    sizes = {**interface.sizes, "INPUTS": interface.inputs, "OUTPUTS": interface.outputs, "WORK": work}
    defines = "\n".join(f"#define {upper}_{key} {size}" for key, size in sizes.items())
    nodes = "" if interface.names is None else f"\n   v is a node:\n{listed(interface.names)}\n"
    of_its_own = f"""
/* Its memory is static: call it from one thread at a time, or use {name}_in with {upper}_WORK numbers of memory for
   each thread. */"""
    return f"""\
/* {interface.what}, written by dagnn {__version__}.

   {interface.x}
   {interface.y}
{nodes}*/
#ifndef {upper}_H
#define {upper}_H

#include <stddef.h>
{"#include <stdint.h>" if interface.given == "int32_t" else ""}

{defines}

#ifdef __cplusplus
extern "C" {{
#endif
{of_its_own if work > LARGEST_STACK else ""}
/* One sample: {interface.inputs} numbers at x, {interface.outputs} numbers at y; they may not overlap. */
void {name}(const {interface.given} *x, {number} *y);

/* n samples, one after another: n * {interface.inputs} numbers at x, n * {interface.outputs} at y. */
void {name}_batch(const {interface.given} *x, {number} *y, size_t n);

/* One sample, with {upper}_WORK numbers of memory at work. */
void {name}_in(const {interface.given} *x, {number} *y, {number} *work);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _functions(source: CSource, interface: Interface, body: Sequence[str], work: int) -> str:
    name, number, given = source.name, source.number, interface.given
    lines = "\n".join(f"    {line}" for line in body)
    return f"""\
void {name}_in(const {given} *x, {number} *y, {number} *work)
{{
{lines}
}}

void {name}(const {given} *x, {number} *y)
{{
    {"static " if work > LARGEST_STACK else ""}{number} work[{max(1, work)}];
    {name}_in(x, y, work);
}}

void {name}_batch(const {given} *x, {number} *y, size_t n)
{{
    size_t i;
    for (i = 0; i < n; ++i) {{
        {name}(x + i * {interface.inputs}, y + i * {interface.outputs});
    }}
}}
"""
