"""What the check computes with: float64 whatever the code casts to, the same random numbers, and exact fits."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dagnn.errors import ConfigError

WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_TO_NUMBER = torch.ops.aten._local_scalar_dense.default
_DRAWS = torch.Tag.nondeterministic_seeded


class Arithmetic(TorchDispatchMode):
    """While active, notes the narrowest dtype that is computed with.

    Args:
        wide: what asks for a narrower dtype gets float64 or complex128.
        still: random numbers are drawn from one seed at each call, for the first item, and repeated for all others.

    Attributes:
        narrowest: of all floating-point tensors that went into or came out of an operation.
        avoided: the narrower dtypes that were asked for and not given.
        draws: random numbers were drawn, from whatever generator.
    """

    def __init__(self, *, wide: bool, still: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wide, self._still = wide, still
        self.avoided: set[torch.dtype] = set()
        self.draws = False
        self._seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Called for every operation, some 1,700 times in one pass of a small T5: all that is looked up is at hand.
        kwargs = kwargs or {}
        if kwargs and self._wide and kwargs.get("dtype") in WIDE:
            self.avoided.add(kwargs["dtype"])
            kwargs = kwargs | {"dtype": WIDE[kwargs["dtype"]]}
        if func is _TO_NUMBER and not isinstance(args[0], Tensor):
            return args[0]  # a number that autograd kept: it reaches a mode as what it is
        draws = (self._still or not self.draws) and _DRAWS in func.tags
        self.draws |= draws
        result = _same_for_each_item(func, args, kwargs) if self._still and draws else func(*args, **kwargs)
        self._look_at((*args, result))
        return result

    @property
    def narrowest(self) -> torch.dtype:
        return reduce(narrower, self._seen, torch.float64)

    def _look_at(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._seen.add(value.dtype)
            elif isinstance(value, (list, tuple)):
                self._look_at(value)


def narrower(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The one of two dtypes that rounds more; a dtype without rounding counts for nothing."""
    if not (b.is_floating_point or b.is_complex):
        return a
    return a if torch.finfo(a).eps >= torch.finfo(b).eps else b


def seed_torch(seed: int) -> None:
    """``torch.manual_seed`` where there is no other device: that one records a stack trace for each, in 1 ms."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and NumPy, which users' code draws from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def widened(tensor: Tensor) -> Tensor:
    """``tensor`` in float64 or complex128, dense; integers as they are."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.to(WIDE.get(tensor.dtype, tensor.dtype))


# What is drawn depends on tensors, row by row.
_BY_ROWS = {"normal", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "multinomial"}


def _same_for_each_item(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an operation that draws random numbers, so that they do not depend on how many items there are."""
    name = func._schema.name.removeprefix("aten::")
    kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
    state = torch.get_rng_state()
    seed_torch(0)
    try:
        if name == "native_dropout":
            values, p = args[0], float(args[1])
            mask = _repeated(lambda row: row.uniform_(), values, torch.float64) >= p
            return values * mask / (1 - p), mask
        if name in ("bernoulli", "bernoulli_") and (chance := _probabilities(func, args)) is not None:
            drawn = _repeated(lambda row: row.uniform_(), args[0], torch.float64) < chance
            return args[0].copy_(drawn) if name.endswith("_") else drawn.to(args[0].dtype)
        if name.endswith("_") and args[0].ndim:
            return args[0].copy_(_repeated(lambda row: func(row, *args[1:], **kwargs), args[0], args[0].dtype))
        if name.endswith("_like") and args[0].ndim and len(args[0]):
            row = torch.empty_like(args[0][:1]).expand(_row(args[0].shape))
            return func(row, *args[1:], **kwargs).expand_as(args[0]).clone()
        if name in _BY_ROWS and any(isinstance(a, Tensor) and a.ndim > (name == "multinomial") for a in args):
            return _by_rows(func, args, kwargs)
        where = next((i for i, a in enumerate(args) if isinstance(a, (list, tuple)) and a), None)
        if name in ("rand", "randn", "randint", "normal") and where is not None and args[where][0]:
            size = list(args[where])
            row = getattr(torch.ops.aten, name)(*args[:where], _row(size), *args[where + 1 :], **kwargs)
            return row.expand(size).clone()
        return func(*args, **kwargs)
    finally:
        torch.set_rng_state(state)


def _row(shape: Sequence[int]) -> list[int]:
    """The shape of what is drawn once, and repeated: items are along the first dimension.

    Of three dimensions, they are along the second where the first is time: a recurrent network, or a transformer with
    ``batch_first=False``. So numbers are repeated along both.
    """
    if len(shape) == 3 and shape[2] > 1:
        return [1, 1, shape[2]]
    return [1, *shape[1:]] if len(shape) else []


def _repeated(draw: Callable[[Tensor], Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    return draw(torch.empty(_row(like.shape), dtype=dtype, device=like.device)).expand(like.shape)


def _by_rows(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """The results of ``func`` for each row of its tensors, every time from the same seed."""
    length = next(len(a) for a in args if isinstance(a, Tensor) and a.ndim)
    rows = []
    for i in range(length):
        seed_torch(0)
        row = [a[i : i + 1] if isinstance(a, Tensor) and a.ndim and len(a) == length else a for a in args]
        rows.append(func(*row, **kwargs))
    return torch.cat(rows) if rows else func(*args, **kwargs)


def _probabilities(func: Any, args: Sequence[Any]) -> Tensor | None:
    """The tensor of probabilities of a ``bernoulli``, or None where it is one number for all."""
    if func._overloadname == "default" and func._schema.name == "aten::bernoulli":
        return args[0]  # type: ignore[no-any-return]
    return args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None


class Basis:
    """Gradients of single micro-batches, to write other gradients in.

    Legend: ``g_j`` gradient of micro-batch j, ``c_j`` its coefficient in ``R = sum_j c_j g_j``.

    Raises:
        ConfigError: the ``g_j`` depend on each other, so that coefficients would not be unique.
    """

    def __init__(self, gradients: Sequence[Sequence[Tensor | None]], parameters: Sequence[Tensor]) -> None:
        columns = torch.stack([flatten(gradient, parameters) for gradient in gradients], dim=1)
        self._parameters = parameters
        self._scale = torch.linalg.vector_norm(columns, dim=0).clamp_min(1e-300)
        self._q, self._r = torch.linalg.qr(columns / self._scale)
        diagonal = self._r.diagonal().abs()
        if columns.shape[0] < columns.shape[1] or float(diagonal.min()) < 1e-6:
            raise ConfigError(
                f"the gradients of {columns.shape[1]} micro-batches cannot be told apart in {columns.shape[0]} "
                "parameters: check with a model of more parameters, or a batch of more varied items."
            )

    def coefficients(self, gradient: Sequence[Tensor | None]) -> tuple[list[float], float]:
        """The best ``c_j``, and the size of what no combination explains, relative to the gradient."""
        target = flatten(gradient, self._parameters)
        projected = self._q.T @ target
        found = torch.linalg.solve_triangular(self._r, projected[:, None], upper=True)[:, 0] / self._scale
        rest = torch.linalg.vector_norm(target - self._q @ projected)
        coefficients: list[float] = found.tolist()
        return coefficients, float(rest / torch.linalg.vector_norm(target).clamp_min(1e-300))


def flatten(gradient: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """All elements as float64 ``[elements]``, complex ones as two; zeros for a parameter without gradient."""
    return torch.cat(
        [
            _real(torch.zeros_like(p) if g is None else g + torch.zeros_like(p))
            for g, p in zip(gradient, parameters, strict=True)
        ]
    )


def _real(tensor: Tensor) -> Tensor:
    tensor = widened(tensor)
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten().cpu()


def combine(gradients: Sequence[Sequence[Tensor | None]], coefficients: Sequence[float]) -> list[Tensor | None]:
    """``sum_j c_j g_j``, parameter by parameter; None where no ``g_j`` has a gradient."""
    result: list[Tensor | None] = []
    for parts in zip(*gradients, strict=True):
        terms = [c * widened(g) for c, g in zip(coefficients, parts, strict=True) if g is not None and c]
        result.append(torch.stack(terms).sum(dim=0) if terms else None)
    return result


def close(actual: Sequence[float], expected: Sequence[float], tolerance: float) -> bool:
    """Equal up to ``tolerance``, relative to the largest expected value."""
    scale = max((abs(e) for e in expected), default=0.0) or 1.0
    return all(abs(a - e) <= tolerance * scale for a, e in zip(actual, expected, strict=True))
