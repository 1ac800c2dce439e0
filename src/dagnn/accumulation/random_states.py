"""Random states, captured and put back: of Python, NumPy and torch (CUDA too), and of generators that a user made.

A `Snapshot` has buffers and metrics besides: all that a failed attempt changes.
"""

import base64
import copy
import inspect
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 4  # of objects that hold objects
_MOST = 100  # elements of a list: a dataset holds no generators
# Odd, so that no two ranks below 2**32 share a seed; the golden ratio's spreads them (Knuth, TAOCP 3, 6.4).
_BETWEEN_RANKS = 0x9E3779B1


class RandomState(NamedTuple):
    """The state of every global random number generator: Python, NumPy, and torch on all devices."""

    python: tuple[Any, ...]
    numpy: Any  # a mapping, as np.random.get_state(legacy=False) returns
    torch: Tensor
    cuda: list[Tensor]  # one per device; empty before the first use of CUDA, which this must not initialise

    @classmethod
    def now(cls) -> "RandomState":
        """A copy of the state at this moment."""
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(legacy=False),  # noqa: NPY002 - users' code draws from the global generator
            torch=torch.get_rng_state(),
            cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
        )

    def restore(self) -> None:
        """Set every generator to this state; those of CUDA only where there is CUDA."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self.cuda)


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch, all devices included. ``seed``: 0 .. 2**32 - 1.

    Each rank draws its own numbers: two processes must not drop the same units of different examples.
    """
    seed = (seed + rank * _BETWEEN_RANKS) % 2**32
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is the one that user code may draw from
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of every global generator, as JSON values."""
    now = RandomState.now()
    version, words, gauss = now.python
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": {
            "key": now.numpy["state"]["key"].tolist(),
            "pos": int(now.numpy["state"]["pos"]),
            "has_gauss": int(now.numpy["has_gauss"]),
            "gauss": float(now.numpy["gauss"]),
        },
        "torch": _text(now.torch),
    }
    if now.cuda:
        state["cuda"] = [_text(each) for each in now.cuda]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put every global generator where `rng_state` found it."""
    version, words, gauss = state["python"]
    saved = state["numpy"]
    RandomState(
        python=(version, tuple(words), gauss),
        numpy={
            "bit_generator": "MT19937",
            "state": {"key": np.array(saved["key"], np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        },
        torch=_tensor(state["torch"]),
        cuda=[_tensor(each) for each in state.get("cuda", [])],
    ).restore()


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace outside."""
    # Not rng_state: for every batch of a loader, the way over JSON would cost more than the batch.
    before = RandomState.now()
    try:
        yield
    finally:
        before.restore()


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


class Snapshot:
    """Random state, buffers of the models and the state of ``others``, to go back to after a failed attempt.

    Args:
        models: their buffers are copied; parameters are not, since nothing steps during an attempt.
        others: objects such as metrics, with ``state_dict`` and ``load_state_dict``, or plain objects whose attributes
            are copied.
    """

    def __init__(self, models: Iterable[nn.Module], others: Sequence[Any] = ()) -> None:
        self._random = RandomState.now()
        self._buffers: list[tuple[Tensor, Tensor]] = [(b, b.detach().clone()) for m in models for b in m.buffers()]
        self._others = [(other, copy.deepcopy(_saved_state(other))) for other in others]

    def restore(self) -> None:
        self._random.restore()
        self.restore_buffers()
        for other, state in self._others:
            if hasattr(other, "load_state_dict"):
                other.load_state_dict(copy.deepcopy(state))
            else:
                vars(other).clear()
                vars(other).update(copy.deepcopy(state))

    @torch.no_grad()
    def restore_buffers(self) -> None:
        for buffer, value in self._buffers:
            buffer.copy_(value)


def _saved_state(other: Any) -> Any:
    return other.state_dict() if hasattr(other, "load_state_dict") else vars(other)


class Generators:
    """Generators with the states in which they were found."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Any]] = {}

    def look_in(self, holder: Any) -> None:
        """Add those that a function, a module or another object holds, in closures, globals and attributes."""
        for generator in generators_in(holder):
            self.add(generator)

    def add(self, generator: Any) -> None:
        """Add one, unless it is there already."""
        if id(generator) not in self._found:
            self._found[id(generator)] = generator, state_of(generator)

    def restore(self) -> None:
        """Give all of them the states in which they were found."""
        for generator, state in self._found.values():
            _set_state(generator, state)

    def seed(self, seed: int) -> None:
        """Seed all of them."""
        for generator, _ in self._found.values():
            seed_generator(generator, seed)


def generators_in(holder: Any) -> Iterator[Any]:
    """Those that a function, a module or another object holds: in closures, globals, attributes and containers."""
    return _held_by(holder, _DEPTH, set())


def seed_generator(generator: Any, seed: int) -> None:
    """Seed one of any kind."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def state_of(generator: Any) -> Any:
    """The state of one of any kind."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _held_by(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen or isinstance(value, (type, str, bytes, int, float, torch.Tensor, np.ndarray, ModuleType)):
        return
    seen.add(id(value))
    if isinstance(value, _KINDS):
        if not isinstance(value, random.SystemRandom):  # it has no state
            yield value
    elif depth:
        for part in _parts_of(value):
            yield from _held_by(part, depth - 1, seen)


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        used = [value.__globals__[name] for name in names_in(value.__code__) if name in value.__globals__]
        wrapped = inspect.unwrap(value)
        return [*cells, *used, *(value.__defaults__ or ()), *(() if wrapped is value else (wrapped,))]
    if isinstance(value, nn.Module):
        return [part for module in value.modules() for part in vars(module).values()]
    if isinstance(value, Mapping):
        return list(itertools.islice(value.values(), _MOST))
    if isinstance(value, (list, tuple, set)):
        return list(itertools.islice(value, _MOST))
    return list(getattr(value, "__dict__", {}).values())


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def names_in(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes that a function uses, those inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
