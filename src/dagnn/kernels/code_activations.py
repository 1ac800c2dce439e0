"""The activations as vector instructions, and their slopes: from the output where that is enough.

gelu and silu fall and rise again, so their output does not tell the slope, and that of softplus tells it only roughly
around 20, where PyTorch makes it jump. Those three write it down on the way forward. Names, constants and values at
kinks are those of `dagnn.kernels.activations`.
"""

from dagnn.kernels import code_math as math
from dagnn.kernels.activations import ACTIVATIONS
from dagnn.kernels.code_writer import CodeWriter, Value

INPUT = 0  # the code of a node whose value is given
CODES = {name: code for code, name in enumerate(ACTIVATIONS, start=1)}
KEEPS_SLOPE = frozenset({"gelu", "silu", "softplus"})

_LEAK = 0.01
_SOFTPLUS_LINEAR = 20.0  # PyTorch's softplus is the identity from here


def activated(code: CodeWriter, name: str, z: Value) -> tuple[Value, Value | None]:
    """``act(z)``, and its slope if it is one of `KEEPS_SLOPE`."""
    build, zero, one = code.build, code.constant(0), code.constant(1)
    match name:
        case "identity":
            return z, None
        case "relu":  # select, not maxnum: NaN stays
            return build.select(build.fcmp_ordered(">", zero, z), zero, z), None
        case "leaky_relu":
            scaled = build.fmul(z, code.constant(_LEAK))
            return build.select(build.fcmp_ordered(">", z, zero), z, scaled), None
        case "elu":
            return build.select(build.fcmp_ordered(">", z, zero), z, math.expm1(code, z)), None
        case "tanh":
            return math.tanh(code, z), None
        case "sigmoid":
            return _sigmoid(code, z), None
        case "gelu":
            cdf, density = math.normal_cdf_and_density(code, z)
            return build.fmul(z, cdf), code.multiply_add(z, density, cdf)
        case "silu":
            sigma = _sigmoid(code, z)
            value = build.fmul(z, sigma)
            # sigma (1 + z (1 - sigma)) = sigma + value (1 - sigma)
            return value, code.multiply_add(value, build.fsub(one, sigma), sigma)
        case "softplus":
            # log(1 + e^z) = max(z, 0) + log(1 + e^-|z|)
            above = build.select(build.fcmp_ordered(">", zero, z), zero, z)
            small = math.exp(code, build.fneg(math.absolute(code, z)))
            value = build.fadd(above, math.log1p(code, small))
            part = build.select(build.fcmp_ordered(">", zero, z), small, one)
            slope = build.fdiv(part, build.fadd(small, one))
            is_linear = build.fcmp_ordered(">", z, code.constant(_SOFTPLUS_LINEAR))
            return build.select(is_linear, z, value), build.select(is_linear, one, slope)
    raise AssertionError(name)


def through(code: CodeWriter, name: str, gradient: Value, y: Value) -> Value:
    """``gradient * act'(z)`` from the output ``y = act(z)``; not for `KEEPS_SLOPE`."""
    build, zero, one = code.build, code.constant(0), code.constant(1)
    match name:
        case "identity":
            return gradient
        case "relu":
            return build.select(build.fcmp_ordered("<=", y, zero), zero, gradient)
        case "leaky_relu":
            return build.select(build.fcmp_ordered(">", y, zero), gradient, build.fmul(gradient, code.constant(_LEAK)))
        case "elu":
            falling = build.fmul(gradient, build.fadd(y, one))
            return build.select(build.fcmp_ordered(">", y, zero), gradient, falling)
        case "tanh":
            return build.fmul(gradient, build.fsub(one, build.fmul(y, y)))
        case "sigmoid":
            return build.fmul(gradient, build.fmul(y, build.fsub(one, y)))
    raise AssertionError(name)


def _sigmoid(code: CodeWriter, z: Value) -> Value:
    one = code.constant(1)
    return code.build.fdiv(one, code.build.fadd(one, math.exp(code, code.build.fneg(z))))
