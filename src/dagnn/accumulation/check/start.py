"""What a run of a loop leaves behind, put back before the next one: modes, values and hooks; the loop's own numbers."""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from dagnn.accumulation.random_states import names_in

_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic)
_CONTAINERS = (list, dict, set, deque, Counter, OrderedDict, defaultdict)
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip
_MINE = "train"  # what the check itself adds to modules that it keeps in eval mode
_DEPTH = 4  # of functions and objects that hold others
_MOST = 10_000  # elements of a container: copied before every run, and a dataset counts nothing
# Objects of these are no user's trainer, and not to be looked into.
_LIBRARIES = {"torch", "numpy", "dagnn", "builtins"} | sys.stdlib_module_names - {"__main__"}


class ModelStart:
    """A model as it was: modes and plain attributes of modules, frozen parameters and what they hold, hooks.

    Values of the other parameters, and of buffers, are kept elsewhere: they go back within a run, too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
        self._needs_gradient = [(p, p.requires_grad) for p in model.parameters()]
        self._frozen = [(p, p.detach().clone()) for p in model.parameters() if not p.requires_grad]
        self._hooked: list[tuple[Any, str, list[Any]]] = [
            (owner, name, list(getattr(owner, name, None) or ()))
            for owner in (*model.modules(), *model.parameters())
            for name in _HOOKS
        ]

    def restore(self) -> None:
        """Put all of it back; modules that the check keeps in eval mode stay so."""
        for attributes, before in self._attributes:
            _put_back(attributes, before if _MINE not in attributes else {**before, "training": False})
        for parameter, needs_gradient in self._needs_gradient:
            parameter.requires_grad_(needs_gradient)
        for frozen, value in self._frozen:
            if not torch.equal(frozen, value):
                frozen.data.copy_(value)
        for owner, name, before_them in self._hooked:
            hooks = getattr(owner, name, None) or {}
            for key in [key for key in hooks if key not in before_them]:
                del hooks[key]


class KeptNumbers:
    """Numbers, texts and containers of them that a function or an object keeps from one call to the next.

    Found in closures, attributes and globals. Of tensors, modules and optimizers nothing is kept: where a run makes
    them anew, the next one does too.
    """

    def __init__(self) -> None:
        self._names: list[tuple[Any, str, Any]] = []  # a closure's cell or a module's globals
        self._objects: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()

    def look_in(self, holder: Any) -> None:
        """Add what a function, a method or another object keeps."""
        self._look_in(holder, _DEPTH)

    def restore(self) -> None:
        """Put all of it back, and take attributes away that were not there."""
        for place, name, value in self._names:
            if name:
                place[name] = value
            else:
                place.cell_contents = value
        for attributes, before in self._objects:
            _put_back(attributes, before)
        for container, before_it in self._containers:
            container.clear()
            container.extend(before_it) if isinstance(container, (list, deque)) else container.update(before_it)

    def _look_in(self, holder: Any, depth: int) -> None:
        if id(holder) in self._seen or not depth:
            return
        self._seen.add(id(holder))
        if type(holder) in _CONTAINERS:
            if len(holder) > _MOST:
                return
            parts = holder.values() if isinstance(holder, dict) else holder
            if all(isinstance(part, _PLAIN) or type(part) in _CONTAINERS for part in parts):
                self._containers.append((holder, holder.copy()))
                for part in parts:
                    self._look_in(part, depth - 1)
        elif isinstance(holder, MethodType):
            self._look_in(holder.__func__, depth)
            self._look_in(holder.__self__, depth)
        elif isinstance(holder, partial):
            for part in (holder.func, *holder.args, *holder.keywords.values()):
                self._look_in(part, depth)
        elif isinstance(holder, FunctionType):
            self._look_in_function(holder, depth)
        elif _is_users(holder):
            self._add_object(vars(holder), depth)

    def _look_in_function(self, function: FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # a name that is bound later
                continue
            if isinstance(value, _PLAIN):
                self._names.append((cell, "", value))
            self._look_in(value, depth - 1)
        given = function.__globals__
        for name in set(names_in(function.__code__)) & given.keys():
            value = given[name]
            if isinstance(value, _PLAIN) and not name.startswith("__"):
                self._names.append((given, name, value))
            elif not isinstance(value, FunctionType) or value.__globals__ is given:
                self._look_in(value, depth - 1)
        self._add_object(vars(function), depth)

    def _add_object(self, attributes: dict[str, Any], depth: int) -> None:
        self._objects.append((attributes, dict(attributes)))
        for value in attributes.values():
            self._look_in(value, depth - 1)


def _put_back(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    """Plain values as before; names that were not there go, and those that are gone come back."""
    for name in [name for name in attributes if name not in before and name != _MINE]:
        del attributes[name]
    for name, value in before.items():
        if isinstance(value, _PLAIN) or name not in attributes:
            attributes[name] = value


def _is_users(holder: Any) -> bool:
    """Whether this is an object of a class that is no library's, and no module."""
    if isinstance(holder, (type, nn.Module, ModuleType, torch.Tensor)) or not hasattr(holder, "__dict__"):
        return False
    return all(kind.__module__.partition(".")[0] not in _LIBRARIES for kind in type(holder).__mro__[:-1])
