"""C99 from a `Program`: one source file, one header, one test program; no allocation, nothing but libm.

Activations are written by the same code that writes them for the compiled path (`dagnn.kernels.emit.functions`), with
a writer that prints C instead of LLVM instructions. So they round alike.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn import __version__
from dagnn.errors import ConfigError
from dagnn.export import Program
from dagnn.export.c_functions import CFunction, aggregate_functions, array, bit_functions, bits_type, prologue
from dagnn.export.rounded import RoundedWeights

# Values of up to so many nodes lie on the stack: 32 KiB in float64.
LARGEST_STACK = 4096
# Words of C and C++, names of the headers that are included and of the files' own parameters: not for a function.
_TAKEN = """
size_t ptrdiff_t wchar_t max_align_t offsetof memset memcmp memmove memchr strcat strchr strcmp strcoll strcpy strcspn
strdup strerror strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtok strxfrm puts putchar getchar cbrt
copysign fpclassify isfinite isinf isnan isnormal signbit isgreater isgreaterequal isless islessequal islessgreater
isunordered lrint llrint lround llround nexttoward remquo scalbln float_t double_t bool true false nullptr constexpr
typeof alignas alignof static_assert thread_local noexcept decltype namespace using virtual operator protected friend
explicit export mutable catch typeid typename const_cast static_cast dynamic_cast reinterpret_cast asm and and_eq bitand
bitor compl not not_eq or or_eq xor xor_eq
work samples expected allowed wrong error stdin stdout printf malloc free abs memcpy acos asin atan atan2 ceil cos cosh
erf erfc exp exp2 expm1 fabs fdim floor fma fmaf fmax fmin fmod frexp gamma hypot ilogb j0 j1 jn ldexp lgamma log log10
log1p log2 logb modf nan nearbyint nextafter pow remainder rint round scalbn sin sinh sqrt tan tanh tgamma trunc y0 y1
yn NULL NAN INFINITY class delete new private public template this throw try auto break case char const continue default
do double else enum extern float for goto if inline int long register restrict return short signed sizeof static struct
switch typedef union unsigned void volatile while main
"""


def check_name(name: str) -> str:
    """``name``, if C takes it for a function; else a ConfigError."""
    taken = _TAKEN.split()
    of_library = (
        name in taken or (name.endswith(("f", "l")) and name[:-1] in taken) or re.fullmatch(r"u?int\w*_t", name)
    )
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{1,30}", name) or of_library:
        raise ConfigError(
            f"{name!r} cannot be the name of a C function here: give name= with 2 to 31 letters, digits and "
            "underscores, the first one a letter, and none that C or its library uses."
        )
    return name


@dataclass(frozen=True, eq=False)
class Rounding:
    """Weights in fewer bits, with what is known of the outputs for ``low <= x <= high``."""

    weights: RoundedWeights
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    bounds: NDArray[np.float64]


def c_files(
    program: Program,
    stem: str,
    name: str,
    x: NDArray[np.floating],
    y: NDArray[np.floating],
    rounding: Rounding | None = None,
) -> dict[str, bytes]:
    """The contents of ``stem.c``, ``stem.h`` and ``stem_test.c``, by file name.

    Args:
        stem: the files' name.
        name: of the function, and the beginning of every other name in the files.
        x, y: samples ``[n, inputs]`` and what the network makes of them ``[n, outputs]``, for the test program.
        rounding: of the weights; by default they keep all bits.
    """
    texts = {
        f"{stem}.h": _header(program, name, rounding),
        f"{stem}.c": _source(program, stem, name, None if rounding is None else rounding.weights),
        f"{stem}_test.c": _test(program, stem, name, x, y, rounding),
    }
    return {file: text.encode("ascii") for file, text in texts.items()}


def _header(program: Program, name: str, rounding: Rounding | None) -> str:
    number, upper = _number(program), name.upper()
    inputs, outputs = len(program.inputs), len(program.outputs)
    working = (
        f"\n/* Values of all nodes lie in memory of the function's own: call it from one thread at a time, or use\n"
        f"   {name}_in with {upper}_WORK numbers of memory for each thread. */"
        if program.num_nodes > LARGEST_STACK
        else ""
    )
    return f"""\
/* A network of {program.num_nodes} nodes and {program.num_edges} edges, written by dagnn {__version__}.

   x[i], i < {upper}_INPUTS:
{listed(program.input_names)}

   y[j], j < {upper}_OUTPUTS:
{listed(program.output_names)}
{_promise(program, rounding)}*/
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


def _promise(program: Program, rounding: Rounding | None) -> str:
    """What the header says of weights in fewer bits."""
    if rounding is None:
        return ""
    box = [
        f"     {low!r} <= x[{i}] <= {high!r}"
        for i, (low, high) in enumerate(zip(rounding.low.tolist(), rounding.high.tolist(), strict=True))
    ]
    bounds = [f"     y[{j}]: {bound!r}" for j, bound in enumerate(rounding.bounds.tolist())]
    return f"""
   The weights are stored as {rounding.weights.storage}. Where
{chr(10).join(box)}
   that moves the outputs by at most, by interval arithmetic and apart from rounding in float,
{chr(10).join(bounds)}
"""


def _source(program: Program, stem: str, name: str, rounded: RoundedWeights | None) -> str:
    number, upper = _number(program), name.upper()
    is_input = program.is_input
    computed = np.flatnonzero(~is_input)
    names = list(dict.fromkeys(program.activation[node] for node in computed.tolist()))
    codes = {activation: code for code, activation in enumerate(names)}
    functions = [
        CFunction(program.double, name).text(activation, f"{name}_act{code}") for activation, code in codes.items()
    ]
    uses_bits = any(f"{name}_bits(" in text for text in functions)
    bits = bits_type(program.double)
    index = "uint16_t" if program.num_nodes <= 1 << 16 else "uint32_t"
    arrays = [array("uint32_t", f"{name}_outputs", program.outputs)]
    if (program.inputs >= 0).any():
        arrays.append(array("int32_t", f"{name}_inputs", program.inputs))
    if len(computed):
        spans = np.stack([program.offsets[computed], program.offsets[computed + 1]], 1)
        arrays += [
            array("uint32_t", f"{name}_offsets", spans.ravel()),
            array(index, f"{name}_sources", program.sources),
            array(*_stored(program, rounded, name)),
            array(number, f"{name}_biases", program.bias[computed]),
            array(index, f"{name}_nodes", computed),
        ]
    of_nodes, scales = _aggregates(program)
    kinds = list(dict.fromkeys(kind for kind in of_nodes if kind))
    if kinds:
        listed = [1 + kinds.index(of_nodes[node]) if of_nodes[node] else 0 for node in computed.tolist()]
        arrays.append(array("unsigned char", f"{name}_kinds", listed))
        arrays.append(array(number, f"{name}_scales", scales[computed]))
    if rounded is not None and rounded.storage == "int8":
        arrays.append(array(number, f"{name}_scales", rounded.scale[computed]))
    if len(names) > 1:
        listed = [codes[program.activation[node]] for node in computed.tolist()]
        arrays.append(array("unsigned char" if len(names) <= 256 else "uint16_t", f"{name}_codes", listed))
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
    by_scale = rounded is not None and rounded.storage == "int8"
    if len(computed):
        weight = _weight(name, number, rounded)
        functions += aggregate_functions(name, number, kinds, weight)
        plain = f"z = {name}_sum(work, start, stop, {'0' if by_scale else f'{name}_biases[i]'});"
        others = [
            f"z = {upper}_FMA({name}_scales[i], {name}_{kind}(work, start, stop{', 0' if kind == 'sum' else ''}), "
            f"{name}_biases[i]);"
            for kind in kinds
        ]
        aggregate = [f"        {plain}"]
        if kinds:
            cases = [f"        case {code}: {text} break;" for code, text in enumerate(others, start=1)]
            aggregate = [
                f"        switch ({name}_kinds[i]) {{",
                *cases,
                f"        default: {plain} break;",
                "        }",
            ]
        computes = [
            f"    for (i = 0; i < {len(computed)}; ++i) {{",
            f"        const size_t start = {name}_offsets[2 * i], stop = {name}_offsets[2 * i + 1];",
            f"        {number} z;",
            *aggregate,
            *([f"        z = {upper}_FMA({name}_scales[i], z, {name}_biases[i]);"] if by_scale else []),
            *activate,
            f"        work[{name}_nodes[i]] = z;",
            "    }",
        ]
    return f"""\
{prologue(stem, name, program.double)}
{bit_functions(name, number, bits) if uses_bits else ""}
{_decoder(name) if rounded is not None and rounded.storage == "bfloat16" and len(computed) else ""}
{chr(10).join(arrays)}
{chr(10).join(functions)}
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
    {"static " if program.num_nodes > LARGEST_STACK else ""}{number} work[{program.num_nodes}];
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


def _stored(program: Program, rounded: RoundedWeights | None, name: str) -> tuple[str, str, NDArray[Any]]:
    """Kind, name and entries of the array of weights."""
    if rounded is None:
        return _number(program), f"{name}_weights", program.weight
    return {"int8": "int8_t", "bfloat16": "uint16_t"}[rounded.storage], f"{name}_weights", rounded.stored


def _weight(name: str, number: str, rounded: RoundedWeights | None) -> str:
    """A weight as a number, before the scale of its node; {e} is its index."""
    stored = f"{name}_weights[{{e}}]"
    if rounded is None:
        return stored
    return f"{name}_wide({stored})" if rounded.storage == "bfloat16" else f"({number}){stored}"


def _aggregates(program: Program) -> tuple[list[str], NDArray[np.floating]]:
    """For every node what it aggregates by, "" for a plain sum, and the factor of the aggregate."""
    degree = np.diff(program.offsets)
    kinds = np.array(program.aggregation, dtype=np.str_)
    scales = np.where(kinds == "mean", program.response / np.maximum(degree, 1), program.response)
    names = np.where(program.is_plain, "", np.where(kinds == "mean", "sum", kinds))
    return names.tolist(), scales.astype(program.weight.dtype)


def _decoder(name: str) -> str:
    return f"""\
/* A bfloat16: the upper half of a float. */
static float {name}_wide(uint16_t upper)
{{
    const uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}}
"""


def _test(
    program: Program, stem: str, name: str, x: NDArray[np.floating], y: NDArray[np.floating], rounding: Rounding | None
) -> str:
    within = allowed_errors(y)
    if rounding is not None:
        within = within + rounding.bounds
    return check_program(stem, name, _number(program), x, y, within)


def allowed_errors(y: NDArray[np.floating]) -> NDArray[np.float64]:
    """How far a test program lets each column of ``y [n, outputs]`` be off."""
    # Sums in another order differ by rounding; a mistake differs by much more.
    allowed = 1e-9 if y.dtype == np.float64 else 1e-3
    within: NDArray[np.float64] = allowed * np.maximum(np.abs(y).max(0, initial=0.0), 1.0).astype(np.float64)
    return within


def check_program(
    stem: str, name: str, number: str, x: NDArray[Any], y: NDArray[np.floating], within: NDArray[np.float64]
) -> str:
    """A program that compares the function ``name`` with what the network computed.

    Args:
        number: the kind of y in C; that of x too, where x does not hold whole numbers.
        x, y: samples ``[n, inputs]`` and ``[n, outputs]``.
        within: ``[outputs]``, how far each output may be off.
    """
    upper, samples = name.upper(), len(x)
    return f"""\
/* Does {stem}.c compute what the network computed? Written by dagnn {__version__}.

   cc -std=c99 -O2 {stem}_test.c {stem}.c -lm -o {stem}_test && ./{stem}_test
*/
#include "{stem}.h"

#include <math.h>
#include <stdio.h>

{array("int32_t" if x.dtype.kind == "i" else number, "samples", x.ravel())}
{array(number, "expected", y.ravel())}
{array("double", "allowed", within)}
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


def listed(names: Sequence[object]) -> str:
    """Names as lines of a comment: ASCII, and nothing that ends the comment or the line."""
    shown = [json.dumps(name) if isinstance(name, str) else ascii(name) for name in names]
    return "\n".join(f"     {i}: {_harmless(text)}" for i, text in enumerate(shown))


def _harmless(text: str) -> str:
    # No end or beginning of a comment, no trigraph, no line that goes on.
    text = text.replace("*/", "*\\/").replace("/*", "/\\*").replace("??", "?\\?")
    return f"{text} " if text.endswith("\\") else text
