"""Functions of one number as C: what writes instructions for the compiled path prints C here instead."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn import __version__
from dagnn.kernels.emit.expressions import Expr
from dagnn.kernels.emit.functions import Registers, activated
from dagnn.kernels.nodes import formula_of

_VARIABLE = re.compile(r"\bt[0-9]+\b")


def called(activation: str) -> str:
    """What a comment calls an activation. A formula's text is not for comments: it may hold anything."""
    return activation if activation.replace("_", "").replace(".", "").isalnum() else "a formula"


class CFunction:
    """Stands in for a `CodeWriter` where an activation is written: prints C for one number at a time.

    A value is the name of a C variable or an LLVM constant. ``build`` is the object itself: it has those instructions
    that activations use.
    """

    lanes = 1
    halves = (0,)

    def __init__(self, double: bool, prefix: str) -> None:
        self.double = double
        self.number = ir.DoubleType() if double else ir.FloatType()
        self.vector = ir.VectorType(self.number, 1)
        self.size = 8 if double else 4
        self.build = self
        self._prefix, self._suffix = prefix, "" if double else "f"
        self._kind = "double" if double else "float"
        self._lines: list[tuple[str, str]] = []
        self._depth = 1
        self._places = 0

    def text(self, activation: str, name: str) -> str:
        """A static function ``name`` of one number."""
        return self.function(called(activation), name, lambda: self._result(activation))

    def function(self, comment: str, name: str, write: Callable[[], Any]) -> str:
        """A static function ``name`` of one number z, which returns what ``write`` gives."""
        self.statement(f"return {self._shown(write())};")
        head = [f"/* {comment} */", f"static {self._kind} {name}({self._kind} z)", "{"]
        return "\n".join([*head, *self.lines(), "}", ""])

    def lines(self) -> list[str]:
        """All statements so far, without values that nothing uses, as what only a slope needs."""
        used, lines = set[str](), list[str]()
        for name, line in reversed(self._lines):
            if not name or name in used:
                used.update(_VARIABLE.findall(line))
                lines.insert(0, line)
        return lines

    def _result(self, activation: str) -> Any:
        formula = formula_of(activation)
        if formula is None:
            return activated(self, activation, "z")[0]  # type: ignore[arg-type]
        registers = Registers(
            self,  # type: ignore[arg-type]
            {formula.inputs[0]: "z"},
            lambda one: self.from_library(one, registers),
        )
        return registers.value(formula.outputs[0])

    def from_library(self, one: Expr, registers: Registers) -> str | None:
        """``one``, if it is a function that comes from the C library here.

        Those of the compiled path take instructions that are not printed here; these differ in the last digits.
        """
        if one.op not in ("sin", "cos", "log"):
            return None
        return self.made(f"{one.op}{self._suffix}({self._shown(registers.value(one.args[0]))})")

    def statement(self, text: str) -> None:
        """A line of C as it is."""
        self._lines.append(("", "    " * self._depth + text))

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """Statements inside of a loop or a condition."""
        self.statement(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.statement("}")

    def made(self, expression: str) -> str:
        """A number of C as a value."""
        return self._made(self._kind, expression)

    def _made(self, kind: str, expression: str) -> str:
        name = f"t{len(self._lines)}"
        # A statement for each: a C compiler may fuse what stands in one expression.
        self._lines.append((name, f"{'    ' * self._depth}const {kind} {name} = {expression};"))
        return name

    def _shown(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        constant: Any = value.constant[0] if isinstance(value.constant, list) else value.constant
        constant = getattr(constant, "constant", constant)
        if isinstance(getattr(value.type, "element", value.type), ir.IntType):
            return f"{constant}u" if not self.double else f"{constant}ull"
        number = float(constant) if self.double else float(np.float32(constant))
        return literal(number, double=self.double)

    def _operation(self, sign: str, a: Any, b: Any) -> str:
        return self._made(self._kind, f"{self._shown(a)} {sign} {self._shown(b)}")

    # ---- what a CodeWriter offers ----

    def places(self) -> list[str]:
        """A variable that changes."""
        self._places += 1
        self.statement(f"{self._kind} s{self._places};")
        return [f"s{self._places}"]

    def constant(self, value: float) -> Any:
        return ir.Constant(self.vector, [float(value)])

    def splat(self, number: Any) -> Any:
        return number

    def multiply_add(self, x: Any, y: Any, z: Any) -> str:
        a, b, c = map(self._shown, (x, y, z))
        return self._made(self._kind, f"{self._prefix.upper()}_FMA({a}, {b}, {c})")

    def intrinsic(self, name: str, *arguments: Any) -> str:
        assert name in ("fabs", "copysign", "sqrt")  # LLVM's names, and the C library's
        return self._made(self._kind, f"{name}{self._suffix}({', '.join(map(self._shown, arguments))})")

    # ---- what an IRBuilder offers ----

    def load(self, place: str) -> str:
        return place

    def store(self, value: Any, place: str) -> None:
        self.statement(f"{place} = {self._shown(value)};")

    def fadd(self, a: Any, b: Any) -> str:
        return self._operation("+", a, b)

    def fsub(self, a: Any, b: Any) -> str:
        return self._operation("-", a, b)

    def fmul(self, a: Any, b: Any) -> str:
        return self._operation("*", a, b)

    def fdiv(self, a: Any, b: Any) -> str:
        return self._operation("/", a, b)

    def fneg(self, a: Any) -> str:
        return self._made(self._kind, f"-({self._shown(a)})")

    def fcmp_ordered(self, sign: str, a: Any, b: Any) -> str:
        return self._made("int", f"{self._shown(a)} {sign} {self._shown(b)}")

    def fcmp_unordered(self, sign: str, a: Any, b: Any) -> str:
        a, b = self._shown(a), self._shown(b)
        if sign == "uno":
            return self._made("int", f"{a} != {a} || {b} != {b}")
        opposite = {"<": ">=", ">": "<=", "<=": ">", ">=": "<"}[sign]
        return self._made("int", f"!({a} {opposite} {b})")

    def and_(self, a: str, b: str) -> str:
        return self._made("int", f"{a} && {b}")

    def or_(self, a: str, b: str) -> str:
        return self._made("int", f"{a} || {b}")

    def not_(self, a: str) -> str:
        return self._made("int", f"!{a}")

    def select(self, condition: str, a: Any, b: Any) -> str:
        return self._made(self._kind, f"{condition} ? {self._shown(a)} : {self._shown(b)}")

    def bitcast(self, value: Any, kind: Any) -> str:
        to_integer = isinstance(getattr(kind, "element", kind), ir.IntType)
        function = f"{self._prefix}_{'bits' if to_integer else 'number'}"
        return self._made(self._bits if to_integer else self._kind, f"{function}({self._shown(value)})")

    def add(self, a: Any, b: Any) -> str:
        return self._made(self._bits, f"{self._shown(a)} + {self._shown(b)}")

    def shl(self, a: Any, b: Any) -> str:
        return self._made(self._bits, f"{self._shown(a)} << {self._shown(b)}")

    @property
    def _bits(self) -> str:
        return bits_type(self.double)


_AGGREGATES = {
    "product": """\
    {number} z = 1;
    for (; e < stop; ++e) {{
        z = z * ({message});
    }}
    return z;""",
    # A NaN wins, and nothing wins over it.
    "max": """\
    {number} best = -INFINITY;
    for (; e < stop; ++e) {{
        const {number} m = {message};
        if (m > best || m != m) {{
            best = m;
        }}
    }}
    return best;""",
    "min": """\
    {number} best = INFINITY;
    for (; e < stop; ++e) {{
        const {number} m = {message};
        if (m < best || m != m) {{
            best = m;
        }}
    }}
    return best;""",
    "maxabs": """\
    {number} high = -INFINITY, low = INFINITY;
    for (; e < stop; ++e) {{
        const {number} m = {message};
        if (m > high || m != m) {{
            high = m;
        }}
        if (m < low || m != m) {{
            low = m;
        }}
    }}
    return high >= -low ? high : low;""",
    # By counting: no memory to sort in.
    "median": """\
    const size_t start = e, half = (stop - start) / 2;
    {number} low = 0, high = 0;
    for (; e < stop; ++e) {{
        const {number} m = {message};
        size_t f, below = 0, equal = 0;
        if (m != m) {{
            return m;
        }}
        for (f = start; f < stop; ++f) {{
            const {number} other = {other};
            below += other < m;
            equal += other == m;
        }}
        if (below <= half && half < below + equal) {{
            high = m;
        }}
        if (below < half && half <= below + equal) {{
            low = m;
        }}
    }}
    return (stop - start) % 2 ? high : ({number})0.5 * (low + high);""",
}


def aggregate_functions(prefix: str, number: str, kinds: Sequence[str], weight: str) -> list[str]:
    """C functions over all nodes' values and the edges ``e .. stop - 1`` of one, of ``weight``: sums, and ``kinds``."""

    def message(edge: str) -> str:
        return f"{weight.format(e=edge)} * work[{prefix}_sources[{edge}]]"

    def add(to: str, edge: str) -> str:
        return f"{to} = {prefix.upper()}_FMA({weight.format(e=edge)}, work[{prefix}_sources[{edge}]], {to});"

    # As the compiled path for one sample: with one sum, every multiply-add would wait for the one before.
    sums = [add(to, f"e + {number}") for number, to in enumerate(("z", "s1", "s2", "s3"))]
    texts = [
        f"static {number} {prefix}_sum(const {number} *work, size_t e, size_t stop, {number} z)",
        "{",
        "    const size_t rest = e + (stop - e) / 4 * 4;",
        f"    {number} s1 = 0, s2 = 0, s3 = 0;",
        "    for (; e < rest; e += 4) {",
        *(f"        {text}" for text in sums),
        "    }",
        "    for (; e < stop; ++e) {",
        f"        {add('z', 'e')}",
        "    }",
        "    return (z + s1) + (s2 + s3);",
        "}",
        "",
    ]
    for kind in kinds:
        if kind != "sum":
            body = _AGGREGATES[kind].format(number=number, message=message("e"), other=message("f"))
            head = f"static {number} {prefix}_{kind}(const {number} *work, size_t e, size_t stop)"
            texts += [head, "{", body, "}", ""]
    return ["\n".join(texts)]


def bit_functions(name: str, number: str, bits: str) -> str:
    return f"""\
/* The bits of a number as an integer, and back. */
static {bits} {name}_bits({number} x)
{{
    {bits} i;
    memcpy(&i, &x, sizeof i);
    return i;
}}

static {number} {name}_number({bits} i)
{{
    {number} x;
    memcpy(&x, &i, sizeof x);
    return x;
}}
"""


def bits_type(double: bool) -> str:
    # Unsigned: these integers overflow on purpose, which is not defined for signed ones.
    return "uint64_t" if double else "uint32_t"


def literal(value: float, *, double: bool) -> str:
    """A number of C, exact: hexadecimal."""
    if not np.isfinite(value):
        text = "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return f"({text})"
    if value == 0:
        text = "-0.0" if np.signbit(value) else "0.0"
    else:
        text = re.sub(r"0*p", "p", float(value).hex()).replace(".p", ".0p")
    return text if double else f"{text}f"


def array(kind: str, name: str, values: Any) -> str:
    """A constant array; C has none without entries, so an empty one has one zero that nobody reads."""
    listed = np.asarray(values).ravel().tolist() or [0]
    if kind in ("double", "float"):
        texts = [literal(value, double=kind == "double") for value in listed]
    else:
        texts = [str(int(value)) for value in listed]
    lines = [", ".join(texts[i : i + 8]) for i in range(0, len(texts), 8)]
    return f"static const {kind} {name}[{len(texts)}] = {{\n    " + ",\n    ".join(lines) + "\n};\n"


def prologue(stem: str, name: str, double: bool) -> str:
    """The beginning of a source file: its header, what it includes, and how products and sums are rounded."""
    upper = name.upper()
    return f"""\
/* Written by dagnn {__version__}; see {stem}.h. C99, needs libm. */
#include "{stem}.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Where a processor has no fused multiply-add, fma is slow. Define this as ((a) * (b) + (c)) to round twice. */
#ifndef {upper}_FMA
#define {upper}_FMA(a, b, c) fma{"" if double else "f"}((a), (b), (c))
#endif

/* Products and sums that are written apart are rounded apart. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
"""
