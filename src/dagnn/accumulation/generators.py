"""Random number generators that a user made: found where a loss, a loop or a loader holds them, and put back."""

import inspect
import itertools
import random
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 4  # of objects that hold objects
_MOST = 100  # elements of a list: a dataset holds no generators


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
        used = [value.__globals__[name] for name in _names_in(value.__code__) if name in value.__globals__]
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


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
