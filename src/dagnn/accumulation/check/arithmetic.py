"""How the check computes: in float64 whatever the code casts to, with equal random numbers, and relative to norms."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dagnn.accumulation.random_states import Generators

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
    """A mode that records the dtypes of all operations, and changes dtypes and random numbers if it should.

    Args:
        wide: an operation with a narrower ``dtype=`` argument gets float64 or complex128 in its place.
        still: each random operation starts from the same seed, draws for the first item, and repeats that for all
            others.
        generators: gets each generator that an operation draws from, but the global one.

    Attributes:
        narrowest: of all floating-point tensors that went into or came out of an operation.
        avoided: the narrower dtypes that ``wide`` replaced.
        draws: an operation drew random numbers, from whatever generator.
    """

    def __init__(self, *, wide: bool, still: bool, generators: Generators) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wide, self._still, self._generators = wide, still, generators
        self.avoided: set[torch.dtype] = set()
        self.draws = False
        self._seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Runs for every operation, some 1,700 times in one pass of a small T5: so no lookups but these.
        kwargs = kwargs or {}
        if kwargs and self._wide and kwargs.get("dtype") in WIDE:
            self.avoided.add(kwargs["dtype"])
            kwargs = kwargs | {"dtype": WIDE[kwargs["dtype"]]}
        if func is _TO_NUMBER and not isinstance(args[0], Tensor):
            return args[0]  # autograd keeps some numbers as such, and they reach a mode unwrapped
        draws = (self._still or not self.draws) and _DRAWS in func.tags
        self.draws |= draws
        if kwargs and (generator := kwargs.get("generator")) is not None:
            self._generators.add(generator)
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


def dtype_name(dtype: torch.dtype) -> str:
    """``"float64"`` for ``torch.float64``."""
    return str(dtype).removeprefix("torch.")


def narrower(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype that rounds more; integers and booleans as ``b`` leave ``a``."""
    if not (b.is_floating_point or b.is_complex):
        return a
    return a if torch.finfo(a).eps >= torch.finfo(b).eps else b


def seed_torch(seed: int) -> None:
    """Seed the CPU and CUDA. ``torch.manual_seed`` would record a stack trace for other devices, in 1 ms a call."""
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


# Operations whose distribution differs between rows.
_BY_ROWS = {"normal", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "multinomial"}


def _same_for_each_item(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a random operation so that an item's numbers do not depend on how many items there are."""
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
    """The shape to draw once and repeat: that of one item, along the first dimension.

    With three dimensions the first may be time and the second the items, as in a recurrent network or a transformer
    with ``batch_first=False``. So numbers are repeated along both.
    """
    if len(shape) == 3 and shape[2] > 1:
        return [1, 1, shape[2]]
    return [1, *shape[1:]] if len(shape) else []


def _repeated(draw: Callable[[Tensor], Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    return draw(torch.empty(_row(like.shape), dtype=dtype, device=like.device)).expand(like.shape)


def _by_rows(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Call ``func`` for each row of its tensors, every time from the same seed, and concatenate."""
    length = next(len(a) for a in args if isinstance(a, Tensor) and a.ndim)
    rows = []
    for i in range(length):
        seed_torch(0)
        row = [a[i : i + 1] if isinstance(a, Tensor) and a.ndim and len(a) == length else a for a in args]
        rows.append(func(*row, **kwargs))
    return torch.cat(rows) if rows else func(*args, **kwargs)


def _probabilities(func: Any, args: Sequence[Any]) -> Tensor | None:
    """The tensor of probabilities of a ``bernoulli``, or None if one number serves all."""
    if func._overloadname == "default" and func._schema.name == "aten::bernoulli":
        return args[0]  # type: ignore[no-any-return]
    return args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None


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


def relative_error(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """Norm of the difference over the norm of ``expected``, over all tensors together; None counts as zero.

    Infinite if anything is nan; 1 if ``expected`` is zero and ``actual`` is not.
    """
    error, scale = total_norm(difference(a, e) for a, e in zip(actual, expected, strict=True)), total_norm(expected)
    if math.isnan(error) or math.isnan(scale):
        return math.inf
    return error / scale if scale else float(error > 0)


def ratio_of(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> tuple[float, float]:
    """The best ``r`` in ``actual = r * expected``, and the relative error that it leaves."""
    pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if a is not None and e is not None]
    square = sum(float((e.conj() * e).real.sum()) for _, e in pairs)
    ratio = sum(float((e.conj() * a).real.sum()) for a, e in pairs) / square if square else 0.0
    return ratio, relative_error(actual, [None if e is None else e * ratio for e in expected])


def total_norm(tensors: Iterable[Tensor | None]) -> float:
    """L2 norm of all tensors together, in float64."""
    return math.sqrt(sum(norm_of(tensor) ** 2 for tensor in tensors))


def norm_of(tensor: Tensor | None) -> float:
    """L2 norm in float64; that of None is 0."""
    return 0.0 if tensor is None else float(torch.linalg.vector_norm(widened(tensor)))


def difference(actual: Tensor | None, expected: Tensor | None) -> Tensor | None:
    """``actual - expected`` up to its sign, widened; None counts as zero."""
    if actual is None or expected is None:
        return actual if expected is None else expected
    return widened(actual) - widened(expected)
