"""Weights of 8 or 16 bits: how they are rounded, and a proved bound on what that does to the outputs.

The bound comes from interval arithmetic with outward rounding (Arb, through python-flint; Johansson, "Arb: efficient
arbitrary-precision midpoint-radius interval arithmetic", IEEE Transactions on Computers 66(8), 2017).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import ConfigError, GraphError, library
from dagnn.export import Program

Storage = Literal["bfloat16", "int8"]


@dataclass(frozen=True, eq=False)
class RoundedWeights:
    """The weights of a `Program` in fewer bits.

    Attributes:
        storage: "bfloat16" or "int8".
        stored: ``[num_edges]``, uint16 (the upper half of a float32) or int8.
        scale: ``[num_nodes]`` of the program's dtype: a weight into v is ``scale[v] * stored[e]`` for "int8"; else 1.
        weight: float64 ``[num_edges]``, the exact values that are stored.
    """

    storage: Storage
    stored: NDArray[np.integer]
    scale: NDArray[np.floating]
    weight: NDArray[np.float64]


def check_storage(given: object) -> Storage:
    """``given``, if it is a `Storage`; else a ConfigError."""
    if given not in get_args(Storage):
        listed = ", ".join(get_args(Storage))
        raise ConfigError(f"weights must be one of {listed}, or None for all bits (without within=), got {given!r}.")
    return given  # type: ignore[return-value]


def rounded(program: Program, storage: Storage) -> RoundedWeights:
    """The weights to the nearest that can be stored: bfloat16, or 8 bits with a scale for every node."""
    if not program.is_plain.all():
        kind = program.aggregation[int(np.flatnonzero(~program.is_plain)[0])]
        raise ConfigError(
            f"weights of fewer bits are for nodes that sum with a response of 1, got aggregation={kind!r} or another "
            "response: export all bits."
        )
    target = np.repeat(np.arange(program.num_nodes), np.diff(program.offsets))
    one = np.ones(program.num_nodes, program.weight.dtype)
    if storage == "bfloat16":
        bits = program.weight.astype(np.float32).view(np.uint32).astype(np.uint64)
        stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
        exact = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if not np.isfinite(exact).all():
            raise ConfigError(
                f"the weight {program.weight[~np.isfinite(exact)][0]} is too large for bfloat16: export all bits."
            )
        return RoundedWeights(storage, stored, one, exact)
    largest = np.zeros(program.num_nodes, program.weight.dtype)
    np.maximum.at(largest, target, np.abs(program.weight))
    scale = np.where(largest > 0, largest / 127, 1).astype(program.weight.dtype)
    scale[scale == 0] = np.finfo(scale.dtype).smallest_subnormal
    eighths = np.clip(np.rint(program.weight / scale[target]), -127, 127).astype(np.int8)
    return RoundedWeights(storage, eighths, scale, scale[target].astype(np.float64) * eighths)


def box_of(program: Program, within: object) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lowest and highest value of every input, float64 ``[num_inputs]`` each.

    ``within`` is ``(low, high)`` for all inputs, or such a pair for each, by name; else a ConfigError, and a GraphError
    for names that are missing or unknown.
    """
    pairs: list[Any]
    if isinstance(within, Mapping):
        unknown = [name for name in within if name not in program.input_names]
        missing = [name for name in program.input_names if name not in within]
        if unknown or missing:
            raise GraphError(f"within= must have every input by name: missing {missing[:5]}, unknown {unknown[:5]}.")
        pairs = [within[name] for name in program.input_names]
    else:
        pairs = [within] * len(program.input_names)
    try:
        low, high = np.array(pairs, dtype=np.float64).reshape(len(pairs), 2).T
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"within= must be a pair (low, high), or one for each input by name, got {within!r}."
        ) from error
    if not (np.isfinite(low) & np.isfinite(high) & (low <= high)).all():
        raise ConfigError(f"within= must have finite bounds, low <= high, got {within!r}.")
    return low, high


def error_bounds(
    program: Program, weights: RoundedWeights, low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """For every output, how far the network with the rounded weights can be from that with all bits, rounded up.

    float64 ``[num_outputs]``; it holds for every x with ``low <= x <= high``, for both networks computed in exact
    arithmetic. ConfigError for an activation whose slope has no bound here.
    """
    missing = sorted({name for name in program.activation if name not in _SLOPES})
    if missing:
        raise ConfigError(
            f"there is no proved bound through the activation {missing[0]!r}: export all bits, or use one of "
            f"{', '.join(_SLOPES)}."
        )
    values: list[Any] = [None] * program.num_nodes  # what a node can be, with all bits
    errors: list[Any] = [arb(0)] * program.num_nodes  # rounded minus exact
    for column, node in enumerate(program.inputs.tolist()):
        if node >= 0:
            values[node] = _hull(arb(float(low[column])), arb(float(high[column])))
    exact, stored = program.weight.astype(np.float64).tolist(), weights.weight.tolist()
    sources, offsets, biases = program.sources.tolist(), program.offsets.tolist(), program.bias.tolist()
    for node, name in enumerate(program.activation):
        if values[node] is not None:
            continue
        z, error = arb(biases[node]), arb(0)
        for edge in range(offsets[node], offsets[node + 1]):
            source, weight = sources[edge], arb(exact[edge])
            z += weight * values[source]
            # w' v' - w v = w' (v' - v) + (w' - w) v
            error += arb(stored[edge]) * errors[source] + (arb(stored[edge]) - weight) * values[source]
        values[node], slope = _VALUES[name](z), _SLOPES[name](_hull(z, z + error))
        errors[node] = slope * error + _jump(name, _hull(z, z + error))
    return np.array([_up(errors[node]) for node in program.outputs.tolist()])


def _jump(name: str, z: Any) -> Any:
    """What a slope does not show: softplus becomes the identity at 20, where it is 2.07e-9 above."""
    crosses = name == "softplus" and not (z < 20 or z > 20)
    return arb(0, 2.1e-9) if crosses else arb(0)


def arb(*parts: object) -> Any:
    """A ball of Arb: the exact number, or a middle and a radius."""
    return _flint().arb(*parts)


@cache
def _flint() -> Any:
    return library("flint", "a proved bound", "dagnn[export]")


def _hull(*parts: Any) -> Any:
    found = parts[0]
    for part in parts[1:]:
        found = found.union(part)
    return found


def _up(error: Any) -> float:
    """A float64 that is no smaller than the absolute value of anything in an interval."""
    return float(np.nextafter(float(abs(error).upper()), np.inf))


def _rising(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that rises everywhere, on an interval: from its ends, which is as narrow as can be."""
    return lambda z: _hull(function(z.lower()), function(z.upper()))


def _relu(z: Any) -> Any:
    return z.max(arb(0))


def _logistic(z: Any) -> Any:
    return 1 / (1 + (-z).exp())


def _tanh_slope(z: Any) -> Any:
    """1 - tanh(z)^2: falls with |z|."""
    nearest, farthest = abs(z).lower().max(arb(0)), abs(z).upper()
    return _hull(1 - nearest.tanh() ** 2, 1 - farthest.tanh() ** 2)


def _logistic_slope(z: Any) -> Any:
    return _tanh_slope(z / 2) / 4


def _leak() -> Any:
    return arb(0.01, 1e-9)  # in float32 it is another number than in float64


def _step(z: Any, below: Any) -> Any:
    """The slope of a function that is ``below z`` under 0 and z above."""
    if z > 0:
        return arb(1)
    return below if z < 0 else _hull(below, arb(1))


def _gelu(z: Any) -> Any:
    return z * (1 + (z * arb(0.5).sqrt()).erf()) / 2


# Slopes of gelu lie in (-0.13, 1.13), of silu in (-0.1, 1.1): their extremes are at |z| = sqrt(2) and near 2.3994.
_SLOPES: dict[str, Callable[[Any], Any]] = {
    "identity": lambda z: arb(1),
    "relu": lambda z: _step(z, arb(0)),
    "leaky_relu": lambda z: _step(z, _leak()),
    "elu": lambda z: _hull(z.lower().min(arb(0)).exp(), z.upper().min(arb(0)).exp()),
    "tanh": _tanh_slope,
    "sigmoid": _logistic_slope,
    "softplus": _rising(_logistic),
    "gelu": lambda z: _hull(arb(-0.13), arb(1.13)),
    "silu": lambda z: _hull(arb(-0.1), arb(1.1)),
}
_VALUES: dict[str, Callable[[Any], Any]] = {
    "identity": lambda z: z,
    "relu": _relu,
    "leaky_relu": _rising(lambda z: z.max(z * _leak())),
    "elu": _rising(lambda z: z.max(arb(0)) + z.min(arb(0)).expm1()),
    "tanh": _rising(lambda z: z.tanh()),
    "sigmoid": _rising(_logistic),
    "softplus": _rising(lambda z: (1 + (-abs(z)).exp()).log() + _relu(z)),
    "gelu": lambda z: _hull(_gelu(z.lower()), _gelu(z.upper()), arb(-0.17)) if z.lower() < 0 else _rising(_gelu)(z),
    "silu": lambda z: (
        _hull(z.lower() * _logistic(z.lower()), z.upper() * _logistic(z.upper()), arb(-0.279))
        if z.lower() < 0
        else _rising(lambda x: x * _logistic(x))(z)
    ),
}
