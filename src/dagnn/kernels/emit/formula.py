"""Formulas, written once: recorded, evaluated on tensors, differentiated, and compiled by `emit.functions.Registers`.

A formula is a Python function over values, written with operators and PyTorch's own functions (`record` lists them)::

    swish = record(lambda z: z * torch.sigmoid(z))
    swish(z)                            # on tensors: the reference, which autograd differentiates as often as you like
    back = swish.pullback()             # the formula of (z, gradient of the result): the gradient of z
    Registers(code, {swish.inputs[0]: z}).value(swish.outputs[0])       # as vector instructions, z a register

`gradients` adds to the graph of the formula, so a derivative finds what the formula has computed already: with
``y = swish.outputs[0]`` and ``g`` another expression, ``gradients({y: g})[swish.inputs[0]]`` is an expression of z, y
and g, and ``ancestors([...], stop)`` says what it needs: where it needs y alone, z need not be kept. ``Formula.pack``
and ``unpack`` turn a formula into plain lists for a file, and back, without running anything.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.kernels.emit.expressions import BOOLEANS, Expr, Graph, called, over, where


def _shares(loses: Expr, a: Expr, b: Expr, g: Expr) -> Expr:
    """What ``a`` of two values gets of the gradient ``g`` of the greater (or smaller) one; equal ones share."""
    return where(loses, 0, where(a == b, g * 0.5, g))


def _largest(y: Expr, g: Expr) -> tuple[Expr, ...]:
    wins = y.args[0] == y
    return (where(wins, g / over(where(wins, 1, 0), y.level), 0),)


@dataclass(frozen=True)
class _Operation:
    """What an operation does on tensors, and what each argument of its result ``y`` gets when ``y`` has got ``g``."""

    tensors: Callable[..., Tensor]
    pull: Callable[[Expr, Expr], tuple[Any, ...]]


_OPERATIONS = {
    "add": _Operation(torch.add, lambda y, g: (g, g)),
    "sub": _Operation(torch.sub, lambda y, g: (g, -g)),
    "mul": _Operation(torch.mul, lambda y, g: (g * y.args[1], g * y.args[0])),
    "div": _Operation(torch.div, lambda y, g: (g / y.args[1], -(g * (y / y.args[1])))),
    "neg": _Operation(torch.neg, lambda y, g: (-g,)),
    "exp": _Operation(torch.exp, lambda y, g: (g * y,)),
    "log": _Operation(torch.log, lambda y, g: (g / y.args[0],)),
    "tanh": _Operation(torch.tanh, lambda y, g: (g * (1 - y * y),)),
    "sigmoid": _Operation(torch.sigmoid, lambda y, g: (g * (y * (1 - y)),)),
    "relu": _Operation(torch.relu, lambda y, g: (where(y <= 0, 0, g),)),
    "sqrt": _Operation(torch.sqrt, lambda y, g: (g / (y * 2),)),
    "sin": _Operation(torch.sin, lambda y, g: (g * y.args[0].cos(),)),
    "cos": _Operation(torch.cos, lambda y, g: (-(g * y.args[0].sin()),)),
    "abs": _Operation(torch.abs, lambda y, g: (g * where(y.args[0] > 0, 1, where(y.args[0] < 0, -1, 0)),)),
    "maximum": _Operation(
        torch.maximum, lambda y, g: tuple(_shares(a < b, a, b, g) for a, b in (y.args, y.args[::-1]))
    ),
    "minimum": _Operation(
        torch.minimum, lambda y, g: tuple(_shares(b < a, a, b, g) for a, b in (y.args, y.args[::-1]))
    ),
    "where": _Operation(torch.where, lambda y, g: (None, where(y.args[0], g, 0), where(y.args[0], 0, g))),
    "fixed": _Operation(torch.detach, lambda y, g: (None,)),
    "less": _Operation(torch.lt, lambda y, g: (None, None)),
    "less_equal": _Operation(torch.le, lambda y, g: (None, None)),
    "equal": _Operation(torch.eq, lambda y, g: (None, None)),
    "both": _Operation(torch.logical_and, lambda y, g: (None, None)),
    "either": _Operation(torch.logical_or, lambda y, g: (None, None)),
    "no": _Operation(torch.logical_not, lambda y, g: (None,)),
}
# Those that need a graph of nodes and edges: `dagnn.kernels.reference` has them on tensors.
_PULLS: dict[str, Callable[[Expr, Expr], tuple[Any, ...]]] = {
    **{op: of.pull for op, of in _OPERATIONS.items()},
    "over": lambda y, g: (g,),
    "largest": _largest,
}


def on_tensors(one: Expr) -> Callable[..., Tensor]:
    """The function of tensors that computes an expression from its arguments; none for a leaf or a reduction."""
    function: Callable[..., Tensor] = one.name if one.op == "torch" else _OPERATIONS[one.op].tensors
    return function


def gradients(seeds: Mapping[Expr, Expr], stop: Callable[[Expr], bool] = lambda one: False) -> dict[Expr, Expr]:
    """The gradient of the sum of every expression times its seed, by all that the expressions are computed from.

    Nothing below a ``stop``: its gradient is what the rest of the formula gives it.
    """
    total: dict[Expr, Expr] = {}

    def give(one: Expr, term: Expr | None, level: int) -> None:
        if term is not None:
            # What was repeated for the rows of a lower level gets the sum over them, also where all terms are equal.
            for below in range(level, one.level, -1):
                term = over(term, below - 1) if term.level == below else term * one.graph.add("count", level=below - 1)
            total[one] = total[one] + term if one in total else term

    for one, seed in seeds.items():
        give(one, seed, seed.level)
    for one in reversed(ancestors(seeds, stop)):
        if one in total and one.op in _PULLS and not stop(one):
            for arg, term in zip(one.args, _PULLS[one.op](one, total[one]), strict=True):
                give(arg, term if arg.op != "number" else None, one.level)
    return total


def ancestors(ends: Iterable[Expr], stop: Callable[[Expr], Any] = lambda one: False) -> list[Expr]:
    """What some expressions are computed from, themselves included, arguments first; nothing below a ``stop``."""
    seen: dict[int, Expr] = {}
    rest = list(ends)
    while rest:
        one = rest.pop()
        if one.place not in seen:
            seen[one.place] = one
            rest.extend(() if stop(one) else one.args)
    return [seen[place] for place in sorted(seen)]


# ---- pointwise formulas ----


class Formula:
    """A pointwise formula: expressions ``outputs`` of ``inputs``, in one graph. Called, it gives the first output."""

    def __init__(self, inputs: Sequence[Expr], outputs: Sequence[Expr]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        # Plain functions and places: torch.compile traces these, and would not see through a dict of expressions.
        order = [one for one in ancestors(outputs) if one not in set(self.inputs)]
        at = {one: k for k, one in enumerate([*inputs, *order])}
        self._steps = [_step(one, at) for one in order]
        self._results = [at[one] for one in outputs]

    def __call__(self, *given: Tensor) -> Tensor:
        return self.values(*given)[0]

    def values(self, *given: Tensor) -> tuple[Tensor, ...]:
        """All outputs on tensors of one shape."""
        values = list(given)
        for function, places in self._steps:
            values.append(function(*(values[place] for place in places)))
        return tuple(values[place].expand(given[0].shape) for place in self._results)

    def pullback(self) -> "Formula":
        """The formula of (inputs, a gradient of each output): the gradient of each input."""
        graph = self.inputs[0].graph
        seeds = [graph.add("input", name=f"gradient of output {k}") for k in range(len(self.outputs))]
        total = gradients(dict(zip(self.outputs, seeds, strict=True)))
        return Formula([*self.inputs, *seeds], [total.get(one, graph.number(0)) for one in self.inputs])

    def pack(self) -> list[list[Any]]:
        """Lists of strings and numbers that `unpack` reads: one expression a row, the outputs last."""
        order = ancestors([*self.inputs, *self.outputs])
        at = {one: k for k, one in enumerate(order)}
        rows = [[one.op, one.name, *(at[arg] for arg in one.args)] for one in order]
        return [*rows, ["outputs", None, *(at[one] for one in self.outputs)]]

    @staticmethod
    def unpack(rows: Sequence[Sequence[Any]]) -> "Formula":
        """The formula that `pack` wrote; ConfigError if these rows are none."""
        graph, made = Graph(), list[Expr]()
        try:
            for op, name, *places in rows[:-1]:
                assert op in (_OPERATIONS if places else ("input", "number"))
                assert all(0 <= place < len(made) for place in places)
                name = float(name) if op == "number" else name
                made.append(graph.add(op, *(made[place] for place in places), name=name))
                assert not places or _is_sound(made[-1])
            last, _, *outputs = rows[-1]
            assert last == "outputs" and outputs
            return Formula([one for one in made if one.op == "input"], [made[place] for place in outputs])
        except (AssertionError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"these {len(rows)} rows are no formula of this version, got {list(rows)!r:.200}."
            ) from error


def record(function: Callable[..., Any], inputs: int | Sequence[str] = 1) -> Formula:
    """The formula that a function writes; a ConfigError quotes the line that does something else.

    It may use ``+ - * /`` and powers, ``< <= > >= & | ~``, numbers, and of PyTorch's functions and methods:
    ``exp log tanh sigmoid silu relu sqrt sin cos abs maximum minimum where clamp square reciprocal addcmul eq ne``.
    ``inputs``: how many values the function takes, or their names.
    """
    graph = Graph()
    names = [f"input {k}" for k in range(inputs)] if isinstance(inputs, int) else inputs
    given = [graph.add("input", name=name) for name in names]
    result = function(*given)
    outputs = result if isinstance(result, tuple) else (result,)
    if not outputs or not all(isinstance(one, Expr) and one.op not in BOOLEANS for one in outputs):
        raise ConfigError(f"{called(function)} must return a value made of its inputs, got {result!r}.")
    for one in ancestors(outputs):
        if one.op == "torch":
            raise ConfigError(f"formulas have no torch.{one.name.function.__name__}: {one.line}.")
    return Formula(given, outputs)


def _step(one: Expr, at: Mapping[Expr, int]) -> tuple[Callable[..., Tensor], tuple[int, ...]]:
    if one.op == "number":  # a tensor, for a function of two numbers must not choose PyTorch's default dtype
        return (lambda like: like.new_full((), one.name)), (0,)
    return on_tensors(one), tuple(at[arg] for arg in one.args)


def _is_sound(one: Expr) -> bool:
    """Whether an expression that was read has the arguments that its operation takes."""
    conditions = [arg.op in BOOLEANS for arg in one.args]
    match one.op:
        case "where":
            return conditions == [True, False, False]
        case "both" | "either":
            return conditions == [True, True]
        case "no":
            return conditions == [True]
        case "add" | "sub" | "mul" | "div" | "maximum" | "minimum" | "less" | "less_equal" | "equal":
            return conditions == [False, False]
    return conditions == [False]
