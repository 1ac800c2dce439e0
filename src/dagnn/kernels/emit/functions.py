"""Mathematics as vector instructions: functions, activations with their slopes, a step of SGD, and any formula."""

import ctypes
import math
import os
import struct
from collections.abc import Callable, Mapping

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.expressions import Expr
from dagnn.kernels.emit.formula import ancestors, gradients
from dagnn.kernels.emit.writer import I32, I64, CodeWriter, Value
from dagnn.kernels.nodes import formula_of

# Their slope does not follow from their value: the forward pass stores it. All others need no second array.
_KEEPS_SLOPE = frozenset({"gelu", "silu", "softplus"})
_LEAK = 0.01
_SOFTPLUS_LINEAR = 20.0  # PyTorch's softplus is the identity from here
# In pairs: False for float32, True for float64.
# log1p(t) = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = t / (2 + t) <= 1 / 3 for t <= 1.
_LOG1P_TERMS = {False: 8, True: 17}
# The same series for log, after its first term, with s <= 0.172.
_LOG_TERMS = {False: 4, True: 10}
# sin and cos on |r| <= pi / 4 by their Taylor series, after their first terms. pi / 2 in three parts, the first two of
# 33 bits: n times them is exact for |n| < 2^20.
_SINE_TERMS = {False: 4, True: 8}
_HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_SINE_RANGE = 1e6
# ln 2 in two parts, the first with so few digits that n times it is exact.
_LN2 = {False: (0.693359375, -2.12194440e-4), True: (0.693147180369123816490, 1.90821492927058770002e-10)}
# At these ends 2^n is 0 and infinity.
_EXP_RANGE = {False: (-88.0, 89.0), True: (-709.0, 710.0)}
# e^r on |r| <= ln(2) / 2. float32: minimax, off by at most 3e-9; two terms less than the series.
_SIGMOID_EXP = {
    False: (1.0, 1.0, 0.4999999343211046, 0.16666520398962517, 0.04166839078737933, 0.008368745116345385,
            0.0013814539987888827),
    True: tuple(1 / math.factorial(k) for k in range(14)),
}  # fmt: skip
_ROUNDING = {False: 1.5 * 2**23, True: 1.5 * 2**52}
_EXPONENT_BIAS = {False: 127, True: 1023}
# erfc(z) = t exp(-z^2) P(2 t - 1) with t = 2 / (2 + z), z >= 0. P interpolates at 80 Chebyshev nodes, cut at degree
# 10 and 26; computed with 60 digits. The substitution is that of Numerical Recipes (3rd edition, section 6.2.2).
ERFC = {
    False: (
        0.5107913569159452, 0.34358031871096484, 0.13973573352192914, 0.018221669428387856, -0.010751626186584588,
        -0.0032434519180997083, 0.0015291571607636927, 0.00043067048843585954, -0.0002993827120715652,
        -3.660187694379486e-05, 4.216119719638806e-05,
    ),
    True: (
        0.5107913526210115, 0.34358034220690514, 0.13973604627802688, 0.01822111575345904, -0.010755330944716363,
        -0.003239592534582089, 0.001545306029057641, 0.00041864804327946517, -0.0003315367476195406,
        -1.7185831878126997e-05, 7.223535061577291e-05, -1.7073781115677362e-05, -1.0848057279022937e-05,
        8.057875801236565e-06, -5.628166508222002e-07, -1.8150353482076534e-06, 1.0009184724118868e-06,
        -1.3754769152654088e-08, -2.8554798394706696e-07, 1.7867257772486997e-07, -1.6984980962830133e-09,
        -6.965862471477717e-08, 2.9042146939128123e-08, 1.3216403120628725e-08, -9.744822628085413e-09,
        -1.0590468236053294e-09, 1.2051783485649147e-09,
    ),
}  # fmt: skip
# (2^f - 1) / f on |f| <= 1 / 2, off by 7.8e-9: interpolated at Chebyshev nodes with 30 digits.
_EXP2M1 = (
    0.693147188026228781, 0.240226507605681269, 0.0555035711421907782, 0.00961808255727785149,
    0.00133908633646712344, 0.000154531629451206902,
)  # fmt: skip
# (e^r - 1) / r on |r| <= ln(2) / 2: the same for float32, its Taylor series for float64.
_EXPM1 = {
    False: [c / math.log(2) ** (k + 1) for k, c in enumerate(_EXP2M1)],
    True: [1 / math.factorial(k + 1) for k in range(13)],
}
# From here on tanh is 1 to the last bit.
_TANH_ONE = {False: 10.0, True: 20.0}


def keeps_slope(name: str) -> bool:
    """Whether the slope of an activation, as `nodes.activation_text` writes it, does not follow from its value."""
    return name in _KEEPS_SLOPE or formula_of(name) is not None


def activated(code: CodeWriter, name: str, z: Value) -> tuple[Value, Value | None]:
    """``act(z)``, and its slope if it `keeps_slope`."""
    formula = formula_of(name)
    if formula is not None:
        (given,), (result,) = formula.inputs, formula.outputs
        slope = gradients({result: given.graph.number(1)}).get(given, given.graph.number(0))
        registers, order = Registers(code, {given: z}), ancestors([result, slope])
        for one in order if len(order) > 60 else ():  # one asks for another, and a long formula would be too deep
            registers.value(one)
        return registers.value(result), registers.value(slope)
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
            return build.select(build.fcmp_ordered(">", z, zero), z, expm1(code, z)), None
        case "tanh":
            return tanh(code, z), None
        case "sigmoid":
            return sigmoid(code, z), None
        case "gelu":
            cdf, density = normal_cdf_and_density(code, z)
            return build.fmul(z, cdf), code.multiply_add(z, density, cdf)
        case "silu":
            sigma = sigmoid(code, z)
            value = build.fmul(z, sigma)
            # sigma (1 + z (1 - sigma)) = sigma + value (1 - sigma)
            return value, code.multiply_add(value, build.fsub(one, sigma), sigma)
        case "softplus":
            # log(1 + e^z) = max(z, 0) + log(1 + e^-|z|)
            above = build.select(build.fcmp_ordered(">", zero, z), zero, z)
            small = exp(code, build.fneg(absolute(code, z)))
            value = build.fadd(above, log1p(code, small))
            part = build.select(build.fcmp_ordered(">", zero, z), small, one)
            slope = build.fdiv(part, build.fadd(small, one))
            is_linear = build.fcmp_ordered(">", z, code.constant(_SOFTPLUS_LINEAR))
            return build.select(is_linear, z, value), build.select(is_linear, one, slope)
    raise AssertionError(name)


def through(code: CodeWriter, name: str, gradient: Value, y: Value) -> Value:
    """``gradient * act'(z)`` from the output ``y = act(z)``; not if it `keeps_slope`."""
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


def sgd_step(code: CodeWriter, gradient: Value, address: Value) -> None:
    """``parameter -= lr * gradient``, for a number or a vector of them; `Frame.set_step` sets ``lr``."""
    build = code.build
    if code.double:
        lr = build.bitcast(code.field("lr"), code.number)
    else:
        lr = build.bitcast(build.trunc(code.field("lr"), I32), code.number)
    if gradient.type == code.vector:
        lr = code.splat(lr)
    parameter = code.load(address, gradient.type, code.size)
    code.store(code.multiply_add(build.fneg(lr), gradient, parameter), address, code.size)


def sigmoid(code: CodeWriter, z: Value) -> Value:
    """1 / (1 + e^-z): near 0 as exact, relatively, as near 1. By way of tanh it would lose the digits there."""
    build, double = code.build, code.double
    low, high = _EXP_RANGE[double]
    z = clamped(code, z, -high, -low)
    # -z = n ln 2 + r. The bias of the exponent is in the number that rounds, so that n has it when it becomes bits.
    magic, mantissa_bits = code.constant(_ROUNDING[double] + _EXPONENT_BIAS[double]), 52 if double else 23
    shifted = code.multiply_add(z, code.constant(-1 / math.log(2)), magic)
    n = build.fsub(shifted, magic)
    r = build.fneg(z)
    for part in _LN2[double]:
        r = code.multiply_add(n, code.constant(-part), r)
    integer = ir.VectorType(I64 if double else I32, code.lanes)
    scale = build.shl(build.bitcast(shifted, integer), ir.Constant(integer, [mantissa_bits] * code.lanes))
    power, one = polynomial(code, r, _SIGMOID_EXP[double]), code.constant(1)
    return build.fdiv(one, code.multiply_add(build.bitcast(scale, code.vector), power, one))


def exp(code: CodeWriter, x: Value) -> Value:
    """e^x; 0 where it is too small for a normal number, and infinity where it is too large."""
    scale, part = _scale_and_expm1(code, clamped(code, x, *_EXP_RANGE[code.double]))
    return code.build.fmul(scale, code.build.fadd(part, code.constant(1)))  # infinity * part might cancel infinity


def expm1(code: CodeWriter, x: Value) -> Value:
    """e^x - 1 for x below 88, also for small x to full relative precision."""
    return _expm1(code, clamped(code, x, *_EXP_RANGE[code.double]))


def log1p(code: CodeWriter, t: Value) -> Value:
    """log(1 + t) for 0 <= t <= 1."""
    s = code.build.fdiv(t, code.build.fadd(t, code.constant(2)))
    series = [1 / (2 * k + 1) for k in range(_LOG1P_TERMS[code.double])]
    return code.build.fmul(code.build.fadd(s, s), polynomial(code, code.build.fmul(s, s), series))


def tanh(code: CodeWriter, x: Value) -> Value:
    """To a few units of its last digit; exactly 1 at the far ends, so that a saturated slope is 0."""
    # em1 / (em1 + 2) with em1 = e^(2 |x|) - 1. Below 0, em1 would come near to -1 and double its own error.
    build, double = code.build, code.double
    size, end = absolute(code, x), code.constant(_TANH_ONE[double])
    size = build.select(build.fcmp_ordered(">", size, end), end, size)  # NaN stays
    if double:
        em1 = _expm1(code, build.fadd(size, size))
    else:
        # 2^n (2^f - 1) + 2^n - 1 with u = n + f, |f| <= 1 / 2. u is never rounded, and its factor is two numbers: one
        # alone made every tanh too small by a tenth of its last digit, and so all slopes too large.
        high, low = code.constant(2.885390043258667), code.constant(3.851926e-8)  # of 2 / ln 2
        magic = code.constant(_ROUNDING[double] + _EXPONENT_BIAS[double])
        shifted = code.multiply_add(size, high, magic)
        f = code.multiply_add(size, low, code.multiply_add(size, high, build.fsub(magic, shifted)))
        integer = ir.VectorType(I32, code.lanes)
        places = ir.Constant(integer, [23] * code.lanes)
        scale = build.bitcast(build.shl(build.bitcast(shifted, integer), places), code.vector)
        part = build.fmul(f, polynomial(code, f, _EXP2M1))
        em1 = code.multiply_add(scale, part, build.fsub(scale, code.constant(1)))
    return code.intrinsic("copysign", build.fdiv(em1, build.fadd(em1, code.constant(2))), x)


def normal_cdf_and_density(code: CodeWriter, x: Value) -> tuple[Value, Value]:
    """The standard normal distribution at x: P(Z <= x), to full absolute precision, and its density."""
    build = code.build
    z = build.fmul(absolute(code, x), code.constant(math.sqrt(0.5)))
    t = build.fdiv(code.constant(2), build.fadd(z, code.constant(2)))
    argument = build.fsub(build.fadd(t, t), code.constant(1))
    gauss = exp(code, build.fneg(build.fmul(z, z)))
    tail = build.fmul(build.fmul(t, gauss), polynomial(code, argument, ERFC[code.double]))
    half = build.fmul(tail, code.constant(0.5))
    is_below = build.fcmp_ordered("<", x, code.constant(0))
    cdf = build.select(is_below, half, build.fsub(code.constant(1), half))
    return cdf, build.fmul(gauss, code.constant(1 / math.sqrt(2 * math.pi)))


def polynomial(code: CodeWriter, x: Value, coefficients: tuple[float, ...] | list[float]) -> Value:
    """``sum_k coefficients[k] x^k`` by Horner's rule."""
    value = code.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = code.multiply_add(value, x, code.constant(coefficient))
    return value


def absolute(code: CodeWriter, x: Value) -> Value:
    return code.intrinsic("fabs", x)


def clamped(code: CodeWriter, x: Value, low: float, high: float) -> Value:
    """x between two bounds; NaN stays NaN, which LLVM's minnum and maxnum would drop."""
    build = code.build
    x = build.select(build.fcmp_ordered(">", x, code.constant(high)), code.constant(high), x)
    return build.select(build.fcmp_ordered("<", x, code.constant(low)), code.constant(low), x)


def _expm1(code: CodeWriter, x: Value) -> Value:
    scale, part = _scale_and_expm1(code, x)
    return code.multiply_add(scale, part, code.build.fsub(scale, code.constant(1)))


def _scale_and_expm1(code: CodeWriter, x: Value) -> tuple[Value, Value]:
    """2^n and e^r - 1 with x = n ln 2 + r, |r| <= ln(2) / 2; so e^x = 2^n (e^r - 1) + 2^n. For x in `_EXP_RANGE`."""
    build, double = code.build, code.double
    # Adding 1.5 * 2^52 rounds to a whole number and leaves it in the low bits; with the bias, as an exponent's bits.
    magic = code.constant(_ROUNDING[double] + _EXPONENT_BIAS[double])
    shifted = code.multiply_add(x, code.constant(1 / math.log(2)), magic)
    n = build.fsub(shifted, magic)
    high, low = _LN2[double]
    r = code.multiply_add(n, code.constant(-high), x)
    r = code.multiply_add(n, code.constant(-low), r)

    part = build.fmul(r, polynomial(code, r, _EXPM1[double]))
    integer = ir.VectorType(I64 if double else I32, code.lanes)
    mantissa_bits = ir.Constant(integer, [52 if double else 23] * code.lanes)
    scale = build.shl(build.bitcast(shifted, integer), mantissa_bits)
    return build.bitcast(scale, code.vector), part


# ---- formulas ----


class Registers:
    """Expressions of a formula as vectors in registers, computed where they are asked for first.

    Args:
        code: where the instructions go.
        known: vectors that are there already.
        load: the vector of an expression that lies in memory; None for one that has to be computed.
    """

    def __init__(
        self, code: CodeWriter, known: Mapping[Expr, Value], load: Callable[[Expr], Value | None] = lambda one: None
    ) -> None:
        self.code, self.known, self._load = code, dict(known), load

    def value(self, one: Expr) -> Value:
        if one not in self.known:
            loaded = self._load(one)
            self.known[one] = self._computed(one) if loaded is None else loaded
        return self.known[one]

    def added(self, one: Expr, total: Value) -> Value:
        """``one + total``; a product is added as it is computed, rounded once."""
        if self._is_open(one):
            x, y = (self.value(arg) for arg in one.args)
            return self.code.multiply_add(x, y, total)
        return self.code.build.fadd(self.value(one), total)

    def _computed(self, one: Expr) -> Value:
        match one.op:
            case "number":
                return self.code.constant(one.name)
            case "add":
                a, b = reversed(one.args) if self._is_open(one.args[1]) else one.args
                return self.added(a, self.value(b))
            case "sub":
                first = self.value(one.args[0])  # before the question: it may be made of that product
                if self._is_open(one.args[1]):
                    x, y = (self.value(arg) for arg in one.args[1].args)
                    return self.code.multiply_add(self.code.build.fneg(x), y, first)
        return OPERATIONS[one.op](self.code, *(self.value(arg) for arg in one.args))

    def _is_open(self, one: Expr) -> bool:
        """Whether it is a product that nobody has computed: one that can be fused with an addition."""
        if one.op == "mul" and one not in self.known and (loaded := self._load(one)) is not None:
            self.known[one] = loaded
        return one.op == "mul" and one not in self.known


def log(code: CodeWriter, x: Value) -> Value:
    """The natural logarithm; minus infinity of 0, NaN below."""
    build, double = code.build, code.double
    integer, bits, bias = (I64, 52, 1023) if double else (I32, 23, 127)

    def whole(value: int) -> Value:
        return ir.Constant(ir.VectorType(integer, code.lanes), [value] * code.lanes)

    # Numbers below the normal ones are first made normal: their exponent does not say how small they are.
    is_tiny = build.fcmp_ordered("<", x, code.constant(2.0 ** (1 - bias)))
    normal = build.select(is_tiny, build.fmul(x, code.constant(2.0**bits)), x)
    # x = 2^n m with sqrt(1/2) <= m < sqrt(2): counted from the bits of sqrt(1/2), the exponent is n.
    (root,) = struct.unpack("<q", struct.pack("<d", math.sqrt(0.5))) if double else (0x3F3504F3,)
    raw = build.bitcast(normal, ir.VectorType(integer, code.lanes))
    n = build.ashr(build.sub(raw, whole(root)), whole(bits))
    m = build.bitcast(build.sub(raw, build.shl(n, whole(bits))), code.vector)
    exponent = build.sitofp(n, code.vector)
    exponent = build.fsub(exponent, build.select(is_tiny, code.constant(bits), code.constant(0)))
    # log m = 2 (s + s^3 / 3 + ...) with s = (m - 1) / (m + 1).
    r = build.fsub(m, code.constant(1))
    s = build.fdiv(r, build.fadd(r, code.constant(2)))
    square = build.fmul(s, s)
    series = [2 / (2 * k + 3) for k in range(_LOG_TERMS[double])]
    tail = build.fmul(square, polynomial(code, square, series))
    # log m = r - s (r - tail): r is exact, and what is subtracted from it is small.
    high, low = _LN2[double]
    small = code.multiply_add(build.fneg(s), build.fsub(r, tail), build.fmul(exponent, code.constant(low)))
    value = code.multiply_add(exponent, code.constant(high), build.fadd(r, small))
    value = build.select(build.fcmp_ordered("==", x, code.constant(math.inf)), x, value)
    value = build.select(build.fcmp_ordered("==", x, code.constant(0)), code.constant(-math.inf), value)
    return build.select(build.fcmp_unordered("<", x, code.constant(0)), code.constant(math.nan), value)


def sine(code: CodeWriter, x: Value, quarters: int = 0) -> Value:
    """sin(x + quarters pi/2)."""
    build = code.build
    wide, integer = ir.VectorType(ir.DoubleType(), code.lanes), ir.VectorType(I64, code.lanes)

    def number(value: float) -> Value:
        return ir.Constant(wide, [value] * code.lanes)

    def whole(value: int) -> Value:
        return ir.Constant(integer, [value] * code.lanes)

    # x = n pi/2 + r in float64, with pi/2 in three parts, the first two so short that n times them is exact.
    exact = x if code.double else build.fpext(x, wide)
    shifted = build.fadd(build.fmul(exact, number(2 / math.pi)), number(_ROUNDING[True]))
    n = build.fsub(shifted, number(_ROUNDING[True]))
    r = exact
    for part in _HALF_PI:
        r = build.fsub(r, build.fmul(n, number(part)))
    r = r if code.double else build.fptrunc(r, code.vector)
    square = build.fmul(r, r)
    sines = [(-1) ** (k + 1) / math.factorial(2 * k + 3) for k in range(_SINE_TERMS[code.double])]
    cosines = [(-1) ** k / math.factorial(2 * k) for k in range(1, 2 + _SINE_TERMS[code.double])]
    sin = code.multiply_add(build.fmul(r, square), polynomial(code, square, sines), r)
    cos = code.multiply_add(square, polynomial(code, square, cosines), code.constant(1))
    quadrant = build.add(build.bitcast(shifted, integer), whole(quarters))
    is_cos, is_negative = (build.icmp_signed("!=", build.and_(quadrant, whole(bit)), whole(0)) for bit in (1, 2))
    value = build.select(is_cos, cos, sin)
    value = build.select(is_negative, build.fneg(value), value)

    # Beyond, n needs more digits than it has: the C library's function, number by number. NaN and infinity too.
    place, flags = code.variable(code.vector), ir.IntType(code.lanes)
    build.store(value, place)
    is_far = build.fcmp_unordered(">", absolute(code, exact), number(_SINE_RANGE))
    with build.if_then(build.icmp_unsigned("!=", build.bitcast(is_far, flags), ir.Constant(flags, 0)), likely=False):
        build.store(build.select(is_far, _from_library(code, "cos" if quarters else "sin", exact), value), place)
    return build.load(place)


def _from_library(code: CodeWriter, name: str, x: Value) -> Value:
    """A function of the C library for each lane of a vector of float64, as a vector of the code's numbers."""
    # By its address, not its name: compiled code and the library may lie farther apart than a call by name reaches.
    library = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
    kind, build = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()]), code.build
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    function = build.inttoptr(code.i64(address or 0), ir.PointerType(kind))
    place = code.variable(x.type)
    build.store(x, place)
    start = build.ptrtoint(place, I64)
    with code.loop(code.i64(0), code.i64(code.lanes)) as lane:
        at = code.at(start, lane, 8)
        code.store(build.call(function, [code.load(at, ir.DoubleType())]), at)
    result = build.load(place)
    return result if code.double else build.fptrunc(result, code.vector)


def _greater(code: CodeWriter, a: Value, b: Value) -> Value:
    """The greater one; NaN wins."""
    build = code.build
    larger = build.select(build.fcmp_unordered(">", a, b), a, b)  # a where a is NaN or b is
    return build.select(build.fcmp_unordered("uno", b, b), b, larger)


def _smaller(code: CodeWriter, a: Value, b: Value) -> Value:
    return code.build.fneg(_greater(code, code.build.fneg(a), code.build.fneg(b)))


OPERATIONS: dict[str, Callable[..., Value]] = {
    "sub": lambda code, x, y: code.build.fsub(x, y),
    "mul": lambda code, x, y: code.build.fmul(x, y),
    "div": lambda code, x, y: code.build.fdiv(x, y),
    "neg": lambda code, x: code.build.fneg(x),
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "relu": lambda code, x: code.build.select(code.build.fcmp_ordered("<", x, code.constant(0)), code.constant(0), x),
    "sqrt": lambda code, x: code.intrinsic("sqrt", x),
    "sin": sine,
    "cos": lambda code, x: sine(code, x, 1),
    "abs": absolute,
    "maximum": _greater,
    "minimum": _smaller,
    "where": lambda code, condition, x, y: code.build.select(condition, x, y),
    "fixed": lambda code, x: x,
    "less": lambda code, x, y: code.build.fcmp_ordered("<", x, y),
    "less_equal": lambda code, x, y: code.build.fcmp_ordered("<=", x, y),
    "equal": lambda code, x, y: code.build.fcmp_ordered("==", x, y),
    "both": lambda code, x, y: code.build.and_(x, y),
    "either": lambda code, x, y: code.build.or_(x, y),
    "no": lambda code, x: code.build.not_(x),
}
"""What each operation of a formula is in registers; `Registers` has numbers and additions."""
