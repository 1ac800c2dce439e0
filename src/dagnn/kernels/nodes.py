"""What a node of a network computes: its activation, by name or formula, and its aggregation."""

import difflib
import json
import math
from collections.abc import Callable
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.errors import ConfigError, DagnnError
from dagnn.graph.cached import ordinary_tensors
from dagnn.kernels.emit.formula import Formula, ancestors, record


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": _identity,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,  # slope 0.01
    "elu": F.elu,  # alpha 1
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "gelu": F.gelu,  # exact, by erf
    "silu": F.silu,
    "softplus": F.softplus,  # beta 1
}

# E[act(z)^2] for z ~ N(0, 1): what is left of a unit second moment. The argument of He et al.,
# "Delving Deep into Rectifiers", ICCV 2015, section 2.2, which finds 1/2 for relu; the others by
# quadrature (tests/kernels/test_activations.py repeats it).
SECOND_MOMENT: dict[str, float] = {
    "identity": 1.0,
    "relu": 0.5,
    "leaky_relu": 0.50005,
    "elu": 0.6449454,
    "tanh": 0.3942945,
    "sigmoid": 0.2933790,
    "gelu": 0.4252215,
    "silu": 0.3557755,
    "softplus": 0.9212459,
}


_SELU, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
# Those of neat-python 2.0 (`neat/activations.py`), as formulas. They are other functions than ours of the same names:
# its sigmoid is that of 5 z. Where Python's max and min drop a NaN, these keep it.
NEAT_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "neat.sigmoid": lambda z: (5 * z).clamp(-60, 60).sigmoid(),
    "neat.tanh": lambda z: (2.5 * z).clamp(-60, 60).tanh(),
    "neat.sin": lambda z: (5 * z).clamp(-60, 60).sin(),
    "neat.gauss": lambda z: (-5 * z.clamp(-3.4, 3.4).square()).exp(),
    "neat.relu": lambda z: z.relu(),
    "neat.elu": lambda z: torch.where(z > 0, z, z.clamp(None, 0).exp() - 1),
    "neat.lelu": lambda z: torch.where(z > 0, z, 0.005 * z),
    "neat.selu": lambda z: torch.where(z > 0, _SELU * z, _SELU * _SELU_ALPHA * (z.clamp(None, 0).exp() - 1)),
    "neat.softplus": lambda z: 0.2 * (1 + (5 * z).clamp(-60, 60).exp()).log(),
    "neat.identity": lambda z: z,
    "neat.clamped": lambda z: z.clamp(-1, 1),
    "neat.inv": lambda z: torch.where(z.eq(0), 0, 1 / torch.where(z.eq(0), 1, z)),
    "neat.log": lambda z: z.clamp(1e-7).log(),
    "neat.exp": lambda z: z.clamp(-60, 60).exp(),
    "neat.abs": lambda z: z.abs(),
    "neat.hat": lambda z: (1 - z.abs()).relu(),
    "neat.square": lambda z: z.square(),
    "neat.cube": lambda z: z * z * z,
}
# Largest second moment that weights are scaled for at the start. That of 1 / z does not exist.
_LARGEST_MOMENT = 100.0


def check_activation(name: object, argument: str = "activation") -> str:
    """``name``, if it is one of `ACTIVATIONS`; errors call it ``argument``.

    The ConfigError lists the names, and says which one a function or module of PyTorch has.
    """
    if isinstance(name, str) and name in ACTIVATIONS:
        return str(name)
    raise ConfigError(f"{argument} must be one of {', '.join(ACTIVATIONS)}, got {name!r}{_hint(name, argument)}.")


def activation_text(given: object, argument: str = "activation", or_else: str = "") -> str:
    """The activation of a node as text: a name, or the formula of a function, packed as JSON.

    The text of a formula is data: `activation_of` reads it and runs none of it. Equal formulas have equal texts.

    Args:
        given: one of `ACTIVATIONS` or `NEAT_ACTIVATIONS`, a function of one value, or such a text.
        argument: what an error calls it.
        or_else: what else the argument may be.

    Raises:
        ConfigError: an unknown name; a function that does what formulas lack, whose line the message quotes.
    """
    if isinstance(given, str):
        if given in ACTIVATIONS or given in NEAT_ACTIVATIONS:
            return str(given)
        if given.startswith("["):
            _formula(given)
            return str(given)
    elif isinstance(given, Formula):
        return json.dumps(given.pack())
    elif callable(given) and not _is_pytorchs(given):
        try:
            formula = record(given)
        except DagnnError as error:
            raise ConfigError(f"{argument} is no formula: {error}") from error
        except Exception as error:  # the user's code can raise anything
            raise ConfigError(f"{argument} must be a function of one value, got {given!r}: {error}") from error
        if len(formula.outputs) != 1:
            raise ConfigError(f"{argument} must return one value, got {len(formula.outputs)}: return the activation.")
        return json.dumps(formula.pack())
    raise ConfigError(
        f"{argument} must be one of {', '.join(ACTIVATIONS)}, one of neat-python's such as 'neat.sin', or a formula "
        f"such as lambda z: z * torch.sigmoid(z){or_else}, got {given!r}{_hint(given, argument)}."
    )


def _is_pytorchs(given: object) -> bool:
    """Whether it is no function of one value but a module or a class, or PyTorch's own function with a name of ours."""
    if isinstance(given, FunctionType) and not str(given.__module__).startswith("torch."):
        return False
    return isinstance(given, type | nn.Module) or bool(_hint(given, ""))


def formula_of(text: str) -> Formula | None:
    """The formula behind a text of `activation_text`; None for one of `ACTIVATIONS`."""
    return None if text in ACTIVATIONS else _formula(text)


@lru_cache(maxsize=1024)
def _formula(text: str) -> Formula:
    if text in NEAT_ACTIVATIONS:
        return record(NEAT_ACTIVATIONS[text])
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no formula: {error}") from error
    formula = Formula.unpack(rows)
    if len(formula.inputs) != 1 or len(formula.outputs) != 1:
        raise ConfigError(
            f"an activation is a formula of one value, got one of {len(formula.inputs)} with {len(formula.outputs)}."
        )
    return formula


def num_operations(text: str) -> int:
    """How many expressions a formula is made of; 0 for one of `ACTIVATIONS`."""
    formula = formula_of(text)
    return 0 if formula is None else len(ancestors(formula.outputs))


def activation_of(text: str) -> Callable[[Tensor], Tensor]:
    """The function of tensors behind a text of `activation_text`."""
    return ACTIVATIONS.get(text) or _formula(text)


@cache
def second_moment(text: str) -> float:
    """E[act(z)^2] for z ~ N(0, 1), at most 100; 1 where that is 0 or does not exist."""
    if text in SECOND_MOMENT:
        return SECOND_MOMENT[text]
    with ordinary_tensors(), torch.no_grad():
        z = torch.linspace(-12, 12, 24_001, dtype=torch.float64, device="cpu")
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        moment = torch.trapezoid(activation_of(text)(z).square() * density, z).item()
    return min(moment, _LARGEST_MOMENT) if 0 < moment < math.inf else 1.0


def _hint(given: object, argument: str) -> str:
    called = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    plain = "identity" if given is None else str(called).replace("_", "").lower()
    close = [name for name in ACTIVATIONS if name.replace("_", "") == plain]
    if not close and isinstance(given, str):
        close = [name for name in (f"neat.{plain}", plain) if name in NEAT_ACTIVATIONS]
        close = close or difflib.get_close_matches(plain, [*ACTIVATIONS, *NEAT_ACTIVATIONS], 1)
    return f": write {argument}={close[0]!r}" if close else ""


def _product(messages: Tensor) -> Tensor:
    # Pairs, then pairs of those. Unlike `torch.prod`, whose gradient divides by each factor and takes other ways where
    # one is 0, this has the same gradient where that is right, and the right one where a product over- or underflows.
    while messages.shape[1] > 1:
        half = messages.shape[1] // 2
        pairs = messages[:, :half] * messages[:, half : 2 * half]
        messages = torch.cat([pairs, messages[:, 2 * half :]], dim=1)
    return messages.squeeze(1)


def _maxabs(messages: Tensor) -> Tensor:
    highest, lowest = messages.amax(1), messages.amin(1)
    return torch.where(highest >= -lowest, highest, lowest)


def _median(messages: Tensor) -> Tensor:
    count = messages.shape[1]
    ordered = messages.sort(dim=1, stable=True).values  # NaN comes last
    middle = ordered[:, count // 2]
    if count % 2 == 0:
        middle = 0.5 * (ordered[:, count // 2 - 1] + middle)
    return torch.where(ordered[:, -1].isnan(), ordered[:, -1], middle)


AGGREGATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda messages: messages.sum(1),
    "mean": lambda messages: messages.mean(1),
    "product": _product,
    "max": lambda messages: messages.amax(1),
    "min": lambda messages: messages.amin(1),
    "maxabs": _maxabs,  # the one of largest absolute value, with its sign; the positive one of a pair
    "median": _median,  # the mean of the two in the middle of an even number
}
"""``[nodes, edges of each, B]`` -> ``[nodes, B]``, where each node has at least one edge. NaN stays.

Equal winners of max, min and maxabs share the gradient evenly, as in ``torch.amax``. The product of nothing is 1, every
other aggregate of nothing is 0.
"""


def check_aggregation(name: object, argument: str = "aggregation", or_else: str = "") -> str:
    """``name``, if it is one of `AGGREGATIONS`; else a ConfigError that lists them."""
    if isinstance(name, str) and name in AGGREGATIONS:
        return str(name)
    other = {"maximum": "max", "minimum": "min", "prod": "product", "mul": "product", "average": "mean", "add": "sum"}
    called = name if isinstance(name, str) else getattr(name, "__name__", "")
    close = other.get(called.lower()) or next(iter(difflib.get_close_matches(called, AGGREGATIONS, 1)), None)
    hint = f": write {argument}={close!r}" if close else ""
    raise ConfigError(f"{argument} must be one of {', '.join(AGGREGATIONS)}{or_else}, got {name!r}{hint}.")
