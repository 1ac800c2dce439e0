"""The activations a node may have: their functions, and what they do to the size of a value."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from dagnn.errors import ConfigError


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


def check_activation(name: object, argument: str = "activation", or_else: str = "") -> str:
    """``name``, if it is one of `ACTIVATIONS`.

    Args:
        argument: what an error calls it.
        or_else: what else the argument may be.

    Raises:
        ConfigError: it is not; the message lists the names, and says which one a function or module of PyTorch has.
    """
    if isinstance(name, str) and name in ACTIVATIONS:
        return str(name)
    raise ConfigError(
        f"{argument} must be one of {', '.join(ACTIVATIONS)}{or_else}, got {name!r}{_hint(name, argument)}."
    )


def _hint(given: object, argument: str) -> str:
    called = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    plain = "identity" if given is None else str(called).replace("_", "").lower()
    close = [name for name in ACTIVATIONS if name.replace("_", "") == plain]
    return f": write {argument}={close[0]!r}" if close else ""
