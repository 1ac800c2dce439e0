"""Formulas as Triton code: operations, functions from text, and activations with their derivatives.

Triton reads the source of a function. What is written here for a network or a cell exists in memory only, where
``linecache`` finds it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import hashlib
import linecache
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from dagnn.kernels.emit.expressions import Expr
from dagnn.kernels.emit.formula import Formula, ancestors, record
from dagnn.kernels.emit.functions import ERFC
from dagnn.kernels.nodes import formula_of

_OPERATIONS = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "neg": "-{}",
    "exp": "tl.exp({})",
    "log": "tl.log({})",
    "tanh": "tanh({})",
    "sigmoid": "sigmoid({})",
    "relu": "tl.where({0} < 0, {0} * 0, {0})",
    "sqrt": "tl.sqrt({})",
    "sin": "tl.sin({})",
    "cos": "tl.cos({})",
    "abs": "tl.abs({})",
    "maximum": "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "where": "tl.where({}, {}, {})",
    "fixed": "{}",
    "less": "{} < {}",
    "less_equal": "{} <= {}",
    "equal": "{} == {}",
    "both": "{} & {}",
    "either": "{} | {}",
    "no": "~{}",
}
_FORMULAS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda z: z,
    "relu": lambda z: z.relu(),
    "leaky_relu": lambda z: torch.where(z > 0, z, 0.01 * z),
    "tanh": lambda z: z.tanh(),
    "sigmoid": lambda z: z.sigmoid(),
    "silu": lambda z: z * z.sigmoid(),
}
# What formulas lack: the function of z, and its gradient from z and g.
_OTHERS = {
    "elu": ("tl.where(z > 0, z, expm1(z))", "tl.where(z > 0, g, g * tl.exp(z))"),
    "gelu": ("z * normal_cdf(z)", "g * (normal_cdf(z) + z * normal_density(z))"),
    "softplus": ("softplus(z)", "tl.where(z > 20, g, g * sigmoid(z))"),
}


@triton.jit
def sigmoid(z):
    # e^-|z| does not overflow; below 0, e^z / (1 + e^z) keeps the digits of a small result.
    small = tl.exp(-tl.abs(z))
    return tl.where(z < 0, small, 1) / (1 + small)


@triton.jit
def expm1(z):
    # Kahan: the error of u = e^z near 1 leaves (u - 1) and log(u) in the same proportion.
    u = tl.exp(z)
    near = (u - 1) * z / tl.log(tl.where((u == 1) | (u == 0), 2, u))
    return tl.where(u == 1, z, tl.where(u == 0, u - 1, near))


@triton.jit
def log1p(t):
    u = 1 + t
    return tl.where(u == 1, t, tl.log(u) * t / tl.where(u == 1, 1, u - 1))


@triton.jit
def tanh(z):
    # Beyond 20, tanh is 1 to the last bit of float64, and e^2z - 1 need not be computed.
    far = tl.abs(z) > 20
    above = expm1(2 * tl.where(far, z * 0, tl.abs(z)))
    value = tl.where(far, 1, above / (above + 2))
    return tl.where(z < 0, -value, tl.where(z != z, z, value))


@triton.jit
def softplus(z):
    return tl.where(z > 20, z, tl.where(z < 0, z * 0, z) + log1p(tl.exp(-tl.abs(z))))


@triton.jit
def normal_density(z):
    return 0.39894228040143267794 * tl.exp(-0.5 * z * z)


_HELPERS = {one.__name__: one for one in (sigmoid, expm1, log1p, tanh, softplus, normal_density)}


def _normal_cdf(z: Any) -> Any:
    # By the tail: 0.5 + 0.5 erf(z / sqrt(2)) would lose the digits of a small result.
    x = abs(z) * math.sqrt(0.5)
    t = 2 / (2 + x)
    series = ERFC[True][-1] + 0 * t
    for coefficient in reversed(ERFC[True][:-1]):
        series = series * (2 * t - 1) + coefficient
    tail = 0.5 * t * (-x * x).exp() * series
    return torch.where(z < 0, tail, 1 - tail)


def activations(texts: Sequence[str]) -> tuple[Any, Any]:
    """``activated(code, z)`` and ``pulled(code, z, g)`` as Triton functions; a code is the place of its text."""
    return _activations(tuple(texts))


@lru_cache(maxsize=64)
def _activations(texts: tuple[str, ...]) -> tuple[Any, Any]:
    forward, backward = [], []
    for text in texts:
        value, gradient = _written(text)
        forward.append(value)
        backward.append(gradient)
    functions = {"activated(code, z)": _by_code(forward, "z"), "pulled(code, z, g)": _by_code(backward, "g")}
    if "gelu" in texts:
        lines = _lines(record(_normal_cdf), ("z",))
        functions = {"normal_cdf(z)": [*(f"    {line}" for line in lines), "    return result"], **functions}
    source = "\n".join(line for head, body in functions.items() for line in ("@triton.jit", f"def {head}:", *body, ""))
    module = from_text(source)
    return module["activated"], module["pulled"]


def from_text(source: str) -> dict[str, Any]:
    """What a text defines, by name; it may use ``tl`` and what `operation` writes."""
    # A digest in the name: two networks of one process never read each other's lines.
    name = f"<dagnn {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": "dagnn.kernels.gpu.generated", **_HELPERS}
    exec(compile(source, name, "exec"), module)
    return module


def _by_code(bodies: Sequence[list[str]], given: str) -> list[str]:
    """The lines of a function that chooses among bodies, which leave their result in ``result``."""
    lines = [f"    result = {given}"]
    for code, body in enumerate(bodies):
        lines += [f"    if code == {code}:", *(f"        {line}" for line in body)]
    return [*lines, "    return result"]


def _written(text: str) -> tuple[list[str], list[str]]:
    """The lines for the value of an activation, and for its gradient."""
    if text in _OTHERS:
        value, gradient = _OTHERS[text]
        return [f"result = {value}"], [f"result = {gradient}"]
    formula = formula_of(text) or record(_FORMULAS[text])
    return _lines(formula, ("z",)), _lines(formula.pullback(), ("z", "g"))


def _lines(formula: Formula, names: Sequence[str]) -> list[str]:
    known = dict(zip(formula.inputs, names, strict=True))
    lines = []
    for one in ancestors(formula.outputs):
        if one not in known:
            known[one] = f"v{one.place}"
            lines.append(f"v{one.place} = {operation(one, [known[arg] for arg in one.args], 'z')}")
    return [*lines, f"result = {known[formula.outputs[0]]}"]


def operation(one: Expr, args: Sequence[str], like: str) -> str:
    """The text that computes an expression from those of its arguments; ``like`` has their shape and dtype."""
    if one.op == "number":  # of a dtype from the start: a bare number would be rounded to float32 first
        value = float(one.name)
        shown = repr(value) if abs(value) < float("inf") else f'float("{value}")'
        return f"tl.full({like}.shape, {shown}, {like}.dtype)"
    return _OPERATIONS[one.op].format(*args)
