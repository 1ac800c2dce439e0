"""Functions of one number as C: what writes instructions for the compiled path prints C here instead."""

import re
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.functions import activated

_VARIABLE = re.compile(r"\bt[0-9]+\b")


class CFunction:
    """Stands in for a `CodeWriter` where an activation is written: prints C for one number at a time.

    A value is the name of a C variable or an LLVM constant. ``build`` is the object itself: it has those instructions
    that activations use.
    """

    lanes = 1

    def __init__(self, double: bool, prefix: str) -> None:
        self.double = double
        self.number = ir.DoubleType() if double else ir.FloatType()
        self.vector = ir.VectorType(self.number, 1)
        self.size = 8 if double else 4
        self.build = self
        self._prefix, self._suffix = prefix, "" if double else "f"
        self._kind = "double" if double else "float"
        self._lines: list[tuple[str, str]] = []

    def text(self, activation: str, name: str) -> str:
        """A static function ``name`` of one number."""
        y, _ = activated(self, activation, "z")  # type: ignore[arg-type]
        body = [f"    return {self._shown(y)};"]
        used = set(_VARIABLE.findall(body[0]))
        for name_of, line in reversed(self._lines):  # without what only the slope needs
            if name_of in used:
                used.update(_VARIABLE.findall(line))
                body.insert(0, line)
        return "\n".join([f"/* {activation} */", f"static {self._kind} {name}({self._kind} z)", "{", *body, "}", ""])

    def _made(self, kind: str, expression: str) -> str:
        name = f"t{len(self._lines)}"
        # A statement for each: a C compiler may fuse what stands in one expression.
        self._lines.append((name, f"    const {kind} {name} = {expression};"))
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
