"""C99 from a `Program`: one source file, one header, one test program; no allocation, nothing but libm.

Activations are written by the same code that writes them for the compiled path (`dagnn.kernels.emit.functions`), with
a writer that prints C instead of LLVM instructions. So they round alike.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray

from dagnn import __version__
from dagnn.errors import ConfigError
from dagnn.export.program import Program
from dagnn.kernels.emit.functions import activated

# Values of up to so many nodes lie on the stack: 32 KiB in float64.
_LARGEST_STACK = 4096
# Words of C99 and C++, names of libm and of the files' own parameters: not for a function.
_TAKEN = """
work samples expected allowed wrong error stdin stdout printf malloc free abs memcpy acos asin atan atan2 ceil cos cosh
erf erfc exp exp2 expm1 fabs fdim floor fma fmaf fmax fmin fmod frexp gamma hypot ilogb j0 j1 jn ldexp lgamma log log10
log1p log2 logb modf nan nearbyint nextafter pow remainder rint round scalbn sin sinh sqrt tan tanh tgamma trunc y0 y1
yn NULL NAN INFINITY class delete new private public template this throw try auto break case char const continue default
do double else enum extern float for goto if inline int long register restrict return short signed sizeof static struct
switch typedef union unsigned void volatile while main
"""
_VARIABLE = re.compile(r"\bt[0-9]+\b")
# As the compiled path for one sample: with one sum, every multiply-add would wait for the one before.
_SUMS = 4


def check_name(name: str) -> str:
    """``name``, if C takes it for a function.

    Raises:
        ConfigError: it does not.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{1,30}", name) or name in _TAKEN.split():
        raise ConfigError(
            f"{name!r} cannot be the name of a C function here: give name= with 2 to 31 letters, digits and "
            "underscores, the first one a letter, and none that C or its library uses."
        )
    return name


def c_files(
    program: Program, stem: str, name: str, x: NDArray[np.floating], y: NDArray[np.floating]
) -> dict[str, bytes]:
    """The contents of ``stem.c``, ``stem.h`` and ``stem_test.c``, by file name.

    Args:
        stem: the files' name.
        name: of the function, and the beginning of every other name in the files.
        x, y: samples ``[n, inputs]`` and what the network makes of them ``[n, outputs]``, for the test program.
    """
    texts = {
        f"{stem}.h": _header(program, name),
        f"{stem}.c": _source(program, stem, name),
        f"{stem}_test.c": _test(program, stem, name, x, y),
    }
    return {file: text.encode("ascii") for file, text in texts.items()}


def _header(program: Program, name: str) -> str:
    number, upper = _number(program), name.upper()
    inputs, outputs = len(program.inputs), len(program.outputs)
    working = (
        f"\n/* Values of all nodes lie in memory of the function's own: call it from one thread at a time, or use\n"
        f"   {name}_in with {upper}_WORK numbers of memory for each thread. */"
        if program.num_nodes > _LARGEST_STACK
        else ""
    )
    return f"""\
/* A network of {program.num_nodes} nodes and {program.num_edges} edges, written by dagnn {__version__}.

   x[i], i < {upper}_INPUTS:
{_columns(program.input_names)}

   y[j], j < {upper}_OUTPUTS:
{_columns(program.output_names)}
*/
#ifndef {upper}_H
#define {upper}_H

#include <stddef.h>

#define {upper}_INPUTS {inputs}
#define {upper}_OUTPUTS {outputs}
#define {upper}_WORK {program.num_nodes}

#ifdef __cplusplus
extern "C" {{
#endif
{working}
/* One sample: {inputs} numbers at x, {outputs} numbers at y; they may not overlap. */
void {name}(const {number} *x, {number} *y);

/* n samples, one after another: n * {inputs} numbers at x, n * {outputs} at y. */
void {name}_batch(const {number} *x, {number} *y, size_t n);

/* One sample, with {upper}_WORK numbers of memory at work. */
void {name}_in(const {number} *x, {number} *y, {number} *work);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _source(program: Program, stem: str, name: str) -> str:
    number, upper = _number(program), name.upper()
    suffix = "" if program.double else "f"
    is_input = program.is_input
    computed = np.flatnonzero(~is_input)
    names = list(dict.fromkeys(program.activation[node] for node in computed.tolist()))
    codes = {activation: code for code, activation in enumerate(names)}
    functions = [
        _Function(program.double, name).text(activation, f"{name}_act{code}") for activation, code in codes.items()
    ]
    uses_bits = any(f"{name}_bits(" in text for text in functions)
    bits = _bits_type(program.double)
    index = "unsigned short" if program.num_nodes <= 1 << 16 else "unsigned int"
    arrays = [_array("unsigned int", f"{name}_outputs", program.outputs)]
    if (program.inputs >= 0).any():
        arrays.append(_array("int", f"{name}_inputs", program.inputs))
    if len(computed):
        arrays += [
            _array("unsigned int", f"{name}_offsets", _spans(program, computed)),
            _array(index, f"{name}_sources", program.sources),
            _array(number, f"{name}_weights", program.weight),
            _array(number, f"{name}_biases", program.bias[computed]),
            _array(index, f"{name}_nodes", computed),
        ]
    if len(names) > 1:
        listed = [codes[program.activation[node]] for node in computed.tolist()]
        arrays.append(_array("unsigned char", f"{name}_codes", listed))
    cases = [f"        case {code}: z = {name}_act{code}(z); break;" for code in codes.values()]
    activate = (
        [f"        switch ({name}_codes[i]) {{", *cases, "        default: break;", "        }"]
        if len(names) > 1
        else [f"        z = {name}_act0(z);"]
        if names
        else []
    )
    reads = [
        f"    for (i = 0; i < {len(program.inputs)}; ++i) {{",
        f"        if ({name}_inputs[i] >= 0) {{",
        f"            work[{name}_inputs[i]] = x[i];",
        "        }",
        "    }",
    ]
    if not (program.inputs >= 0).any():
        reads = ["    (void)x;"]
    computes = []
    if len(computed):
        edges = [
            f"        for (e = start; e < rest; e += {_SUMS}) {{",
            *(
                f"            {s} = {upper}_FMA({name}_weights[e + {i}], work[{name}_sources[e + {i}]], {s});"
                for i, s in enumerate(("z", "s1", "s2", "s3"))
            ),
            "        }",
            "        for (; e < stop; ++e) {",
            f"            z = {upper}_FMA({name}_weights[e], work[{name}_sources[e]], z);",
            "        }",
        ]
        computes = [
            f"    for (i = 0; i < {len(computed)}; ++i) {{",
            f"        const size_t start = {name}_offsets[2 * i], stop = {name}_offsets[2 * i + 1];",
            f"        const size_t rest = start + (stop - start) / {_SUMS} * {_SUMS};",
            "        size_t e;",
            f"        {number} z = {name}_biases[i], s1 = 0, s2 = 0, s3 = 0;",
            *edges,
            "        z = (z + s1) + (s2 + s3);",
            *activate,
            f"        work[{name}_nodes[i]] = z;",
            "    }",
        ]
    return f"""\
/* Written by dagnn {__version__}; see {stem}.h. C99, needs libm. */
#include "{stem}.h"

#include <math.h>
#include <string.h>

/* Where a processor has no fused multiply-add, fma is slow. Define this as ((a) * (b) + (c)) to round twice. */
#ifndef {upper}_FMA
#define {upper}_FMA(a, b, c) fma{suffix}((a), (b), (c))
#endif

/* Products and sums that are written apart are rounded apart. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

{_bit_functions(name, number, bits) if uses_bits else ""}
{chr(10).join(functions)}
{chr(10).join(arrays)}
void {name}_in(const {number} *x, {number} *y, {number} *work)
{{
    size_t i;
{chr(10).join([*reads, *computes])}
    for (i = 0; i < {len(program.outputs)}; ++i) {{
        y[i] = work[{name}_outputs[i]];
    }}
}}

void {name}(const {number} *x, {number} *y)
{{
    {"static " if program.num_nodes > _LARGEST_STACK else ""}{number} work[{program.num_nodes}];
    {name}_in(x, y, work);
}}

void {name}_batch(const {number} *x, {number} *y, size_t n)
{{
    size_t i;
    for (i = 0; i < n; ++i) {{
        {name}(x + i * {len(program.inputs)}, y + i * {len(program.outputs)});
    }}
}}
"""


def _spans(program: Program, computed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the edges of every computed node begin and end, one after another."""
    return np.stack([program.offsets[computed], program.offsets[computed + 1]], 1).ravel()


def _test(program: Program, stem: str, name: str, x: NDArray[np.floating], y: NDArray[np.floating]) -> str:
    number, upper = _number(program), name.upper()
    samples = len(x)
    # Sums in another order differ by rounding; a mistake differs by much more.
    allowed = 1e-9 if program.double else 1e-3
    scale = np.maximum(np.abs(y).max(0, initial=0.0), 1.0)
    return f"""\
/* Does {stem}.c compute what the network computed? Written by dagnn {__version__}.

   cc -std=c99 -O2 {stem}_test.c {stem}.c -lm -o {stem}_test && ./{stem}_test
*/
#include "{stem}.h"

#include <math.h>
#include <stdio.h>

{_array(number, "samples", x.ravel())}
{_array(number, "expected", y.ravel())}
{_array("double", "allowed", (allowed * scale).astype(np.float64))}
int main(void)
{{
    static {number} y[{max(1, samples)} * {upper}_OUTPUTS];
    size_t i, wrong = 0;
    {name}_batch(samples, y, {samples});
    for (i = 0; i < {samples} * {upper}_OUTPUTS; ++i) {{
        const double error = fabs((double)y[i] - (double)expected[i]);
        if (!(error <= allowed[i % {upper}_OUTPUTS]) && y[i] != expected[i]) {{
            printf("number %lu: %.9g, expected %.9g\\n", (unsigned long)i, (double)y[i], (double)expected[i]);
            ++wrong;
        }}
    }}
    printf("%lu of %lu numbers wrong\\n", (unsigned long)wrong, (unsigned long)i);
    return wrong != 0;
}}
"""


def _number(program: Program) -> str:
    return "double" if program.double else "float"


def _columns(names: Sequence[object]) -> str:
    """Names as lines of a comment: ASCII, and nothing that ends the comment or the line."""
    shown = [json.dumps(name) if isinstance(name, str) else ascii(name) for name in names]
    return "\n".join(f"     {i}: {_harmless(text)}" for i, text in enumerate(shown))


def _harmless(text: str) -> str:
    # No end or beginning of a comment, no trigraph, no line that goes on.
    text = text.replace("*/", "*\\/").replace("/*", "/\\*").replace("??", "?\\?")
    return f"{text} " if text.endswith("\\") else text


def _array(kind: str, name: str, values: Any) -> str:
    """A constant array; C has none without entries, so an empty one has one zero that nobody reads."""
    listed = np.asarray(values).ravel().tolist() or [0]
    if kind in ("double", "float"):
        texts = [_literal(value, double=kind == "double") for value in listed]
    else:
        texts = [str(int(value)) for value in listed]
    lines = [", ".join(texts[i : i + 8]) for i in range(0, len(texts), 8)]
    return f"static const {kind} {name}[{len(texts)}] = {{\n    " + ",\n    ".join(lines) + "\n};\n"


def _literal(value: float, *, double: bool) -> str:
    """A number of C, exact: hexadecimal."""
    if not np.isfinite(value):
        text = "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return f"({text})"
    if value == 0:
        text = "-0.0" if np.signbit(value) else "0.0"
    else:
        text = re.sub(r"0*p", "p", float(value).hex()).replace(".p", ".0p")
    return text if double else f"{text}f"


def _bit_functions(name: str, number: str, bits: str) -> str:
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


class _Function:
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
        return _literal(number, double=self.double)

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
        function = {"fabs": "fabs", "sqrt": "sqrt", "floor": "floor", "sin": "sin", "cos": "cos", "log": "log"}[name]
        return self._made(self._kind, f"{function}{self._suffix}({', '.join(map(self._shown, arguments))})")

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
        return _bits_type(self.double)


def _bits_type(double: bool) -> str:
    # Unsigned: these integers overflow on purpose, which is not defined for signed ones.
    return "unsigned long long" if double else "unsigned int"
