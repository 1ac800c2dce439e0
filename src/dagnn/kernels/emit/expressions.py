"""`Expr`: a value of a formula. Operators and PyTorch's functions on it record what they compute into a `Graph`.

Equal expressions are one object, so comparing is ``is``. A value has a *level*: it belongs to a node, to one of its
slots, or to an edge into a slot. Arithmetic between levels repeats the value of the higher one, `over` sums from a
level to the one above. Pointwise formulas have nodes only.
"""

import linecache
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, SupportsFloat

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dagnn.errors import ConfigError

NODE, SLOT, EDGE = range(3)
REDUCTIONS = ("over", "largest")
"""From a level to the one above: the sum, the maximum; 0 of nothing."""
BOOLEANS = frozenset({"less", "less_equal", "equal", "both", "either", "no"})
"""Operations whose results are conditions."""
_ELSEWHERE = (str(Path(__file__).parents[1]) + os.sep, str(Path(torch.__file__).parent) + os.sep)


class Graph(dict[Any, "Expr"]):
    """All expressions of one formula, each after its arguments."""

    def add(self, op: str, *args: "Expr", name: Any = None, level: int = NODE) -> "Expr":
        """The expression; a new one only where there is none like it. ``name``, ``level``: of one without arguments."""
        if op in ("both", "either", "no"):
            if not all(arg.op in BOOLEANS for arg in args):
                raise ConfigError(f"& | ~ are for comparisons, got a number: {quoted()}.")
        elif args:  # a condition counts as 1 or 0 in arithmetic, as in PyTorch
            if op in ("add", "sub") and all(arg.op in BOOLEANS for arg in args):  # PyTorch's True + True is True
                raise ConfigError(f"comparisons are joined with & | ~, not with + and -: {quoted()}.")
            start = {"where": 1, "torch": len(args)}.get(op, 0)
            args = (*args[:start], *(where(one, 1, 0) if one.op in BOOLEANS else one for one in args[start:]))
        level = max((arg.level for arg in args), default=level) - (op in REDUCTIONS)
        key = (op, *(arg.place for arg in args), name.hex() if isinstance(name, float) else name, level)
        if key not in self:
            self[key] = Expr(self, op, args, name, level)
        return self[key]

    def number(self, value: SupportsFloat) -> "Expr":
        return self.add("number", name=float(value))


class Expr:
    """A value of a formula: ``op`` of ``args``, or what has the ``name``.

    Attributes:
        place: its place in the graph; those of its arguments are lower.
        level: NODE, SLOT or EDGE.
        line: the user's line that it comes from, as an error quotes it.
    """

    def __init__(self, graph: Graph, op: str, args: tuple["Expr", ...], name: Any, level: int) -> None:
        self.graph, self.place, self.op, self.args, self.name, self.level = graph, len(graph), op, args, name, level
        self._frame = _users_frame()

    def __repr__(self) -> str:
        return f"<a value of {self.line}>"

    @property
    def line(self) -> str:
        file, number = self._frame
        text = linecache.getline(file, number).strip()
        return f"line {number} of {Path(file).name}" + (f", `{text}`" if text else "")

    def __add__(self, other: Any) -> "Expr":
        b = self.like(other)
        return self.graph.add("sub", self, b.args[0]) if b.op == "neg" else self.graph.add("add", self, b)

    def __sub__(self, other: Any) -> "Expr":
        b = self.like(other)
        return self.graph.add("add", self, b.args[0]) if b.op == "neg" else self.graph.add("sub", self, b)

    def __mul__(self, other: Any) -> "Expr":
        a, b = sorted((self, self.like(other)), key=lambda one: one.place)  # ``a * b`` is ``b * a``
        if is_number(a, 1) or is_number(b, 1):
            one = b if is_number(a, 1) else a
            return where(one, 1, 0) if one.op in BOOLEANS else one
        return self.graph.add("mul", a, b)

    def __truediv__(self, other: Any) -> "Expr":
        return self.graph.add("div", self, self.like(other))

    def __pow__(self, exponent: Any) -> "Expr":
        return _power(self, exponent)

    def __neg__(self) -> "Expr":
        return self.args[0] if self.op == "neg" else self.graph.add("neg", self)

    def __pos__(self) -> "Expr":
        return self

    def __abs__(self) -> "Expr":
        return self.graph.add("abs", self)

    def __radd__(self, other: Any) -> "Expr":
        return self.like(other) + self

    def __rmul__(self, other: Any) -> "Expr":
        return self.__mul__(other)

    def __rsub__(self, other: Any) -> "Expr":
        return self.like(other) - self

    def __rtruediv__(self, other: Any) -> "Expr":
        return self.like(other) / self

    def __lt__(self, other: Any) -> "Expr":
        return self.graph.add("less", self, self.like(other))

    def __le__(self, other: Any) -> "Expr":
        return self.graph.add("less_equal", self, self.like(other))

    def __gt__(self, other: Any) -> "Expr":
        return self.graph.add("less", self.like(other), self)

    def __ge__(self, other: Any) -> "Expr":
        return self.graph.add("less_equal", self.like(other), self)

    def __eq__(self, other: Any) -> "Expr":  # type: ignore[override]  # recorded; the same object is ``is``
        return self.graph.add("equal", self, self.like(other))

    def __ne__(self, other: Any) -> "Expr":  # type: ignore[override]
        return self.graph.add("no", self.graph.add("equal", self, self.like(other)))

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> "Expr":
        return self.graph.add("both", self, self.like(other))

    def __or__(self, other: Any) -> "Expr":
        return self.graph.add("either", self, self.like(other))

    def __invert__(self) -> "Expr":
        return self.graph.add("no", self)

    def __getattr__(self, name: str) -> Callable[..., "Expr"]:
        if name.startswith("__"):
            raise AttributeError(f"a value of a formula has no {name}")
        if name not in FUNCTIONS:
            more = f"; torch.{name} may take it" if callable(getattr(torch, name, None)) else ""
            raise AttributeError(f"a value of a formula has no .{name}{more}: {quoted()}.")

        def method(*args: Any, **kwargs: Any) -> "Expr":
            try:
                return FUNCTIONS[name](self, *args, **kwargs)
            except TypeError as error:
                raise ConfigError(f".{name} in a formula does not take these arguments: {quoted()}.") from error

        return method

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> "Expr":
        name = getattr(function, "__name__", str(function))
        given = next((one for one in args if isinstance(one, Expr)), None)
        # What is off, as ``inplace=False``, changes nothing. A 0 is not off: it equals False.
        on = {key: one for key, one in (kwargs or {}).items() if one is not None and one is not False}
        if (name.endswith("_") and not name.endswith("__")) or on.keys() & {"inplace", "out"}:
            raise ConfigError(f"a formula cannot change a value in place, as torch.{name} does: {quoted()}.")
        known = FUNCTIONS.get(name.strip("_"))
        if known is not None and not any(isinstance(one, Tensor) for one in args):
            with suppress(TypeError):  # an argument that the language does not have, such as ``alpha``
                return known(*args, **on)
        if given is None or any(isinstance(one, Expr) for one in on.values()):
            raise ConfigError(f"torch.{name} takes values of a formula as arguments by place only: {quoted()}.")
        call = Call(function, args, kwargs, quoted())
        return given.graph.add("torch", *(one for one in args if isinstance(one, Expr)), name=call)

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> "Expr":
        known = FUNCTIONS.get(function.__name__)
        # A number of NumPy's times a value comes here; an array does not fit.
        if known is None or method != "__call__" or kwargs or any(getattr(one, "ndim", 0) for one in args):
            raise ConfigError(f"a formula has PyTorch's functions, not numpy.{function.__name__}: {quoted()}.")
        return known(*(one if isinstance(one, Expr) else float(one) for one in args))

    def like(self, other: Any) -> "Expr":
        """``other`` as an expression of this graph."""
        if isinstance(other, Expr):
            if other.graph is not self.graph:
                raise ConfigError(f"a formula may not use values of another one: {quoted()}.")
            return other
        if isinstance(other, Tensor) or getattr(other, "ndim", False) or not isinstance(other, SupportsFloat):
            raise ConfigError(
                f"a formula is made of its values and numbers, got {type(other).__name__}: {quoted()}. In a cell, a "
                "trained vector is weights.NAME."
            )
        try:
            return self.graph.number(other)
        except OverflowError as error:  # 10**400
            raise ConfigError(f"a number of a formula must fit into a float: {quoted()}.") from error

    def _refuse(self, *_: Any) -> NoReturn:
        raise ConfigError(
            "a formula is recorded once, for all inputs, so its values have no truth, number or entries yet: "
            f"{quoted()}. Write torch.where(condition, a, b) for a choice, and PyTorch's functions for those of math."
        )

    __bool__ = __float__ = __int__ = __index__ = __iter__ = __len__ = __getitem__ = __array__ = __contains__ = _refuse

    def _lack(self, *_: Any) -> NoReturn:
        raise ConfigError(f"a formula has + - * / **, comparisons and & | ~, and changes no value: {quoted()}.")

    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __rpow__ = __round__ = _lack
    __xor__ = __rxor__ = __setitem__ = __delitem__ = _lack


class Call:
    """A call of PyTorch's that the language has no operation for: on tensors only; ConfigError for another shape."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, line: str) -> None:
        self.function, self._args, self._kwargs, self._line = function, args, kwargs or {}, line

    def __call__(self, *tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        result = self.function(*(next(rest) if isinstance(a, Expr) else a for a in self._args), **self._kwargs)
        expected = torch.broadcast_shapes(*(one.shape for one in tensors))  # type: ignore[no-untyped-call]
        if not isinstance(result, Tensor) or result.shape != expected:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(
                f"torch.{self.function.__name__} in a formula must keep the shape {list(expected)}, got {got}: "
                f"{self._line}."
            )
        return result

    def check(self, hidden: int) -> None:
        """Raise ConfigError where it does not take values of this width, or mixes those of different nodes."""
        held = [one for one in self._args if isinstance(one, Tensor)]
        if not all(type(one) in (Tensor, torch.nn.Parameter) and one.is_cpu for one in held):
            return
        dtype = next((one.dtype for one in held if one.is_floating_point()), torch.get_default_dtype())
        values = torch.rand(len(self._args), 3, hidden, generator=torch.Generator().manual_seed(0), dtype=dtype)
        pairs = zip(self._args, values, strict=True)
        given = [v > 0.5 if a.op in BOOLEANS else v for a, v in pairs if isinstance(a, Expr)]

        def run(nodes: slice, seed: int) -> Tensor:
            # On copies of what the user holds: batch norm writes to the means that it is given.
            copies = [one.detach().clone() if isinstance(one, Tensor) else one for one in self._args]
            torch.manual_seed(seed)
            of_copies = Call(self.function, tuple(copies), self._kwargs, self._line)
            return of_copies(*(one[nodes] for one in given)).double()  # a condition has no distance

        name = f"torch.{self.function.__name__}"
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                whole = run(slice(0, 3), 0)
                is_random = not torch.allclose(whole, run(slice(0, 3), 1), rtol=0, atol=0, equal_nan=True)
                apart = whole if is_random else torch.cat([run(slice(k, k + 1), 0) for k in range(3)])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, ConfigError):
                raise
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ConfigError(
                f"{name} does not take values of the shape [nodes, {hidden}], {reason:.200}: {self._line}."
            ) from error
        if not torch.allclose(whole, apart, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ConfigError(
                f"{name} mixes the values of different nodes, and the shape of a value is [nodes, {hidden}]: "
                f"{self._line}."
            )


class NoNumbers(TorchFunctionMode):
    """While a formula is recorded: an error where it makes a number of a tensor, which would stay as it is."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__bool__"):
            raise ConfigError(
                f"a formula is recorded once, and the numbers of a tensor may change later: {quoted()}. Write a number "
                "of Python, or weights.NAME for what is trained."
            )
        return function(*args, **(kwargs or {}))


def maximum(a: Expr, b: Any) -> Expr:
    return a.graph.add("maximum", a, a.like(b))


def minimum(a: Expr, b: Any) -> Expr:
    return a.graph.add("minimum", a, a.like(b))


def where(condition: Expr, x: Any, y: Any) -> Expr:
    if condition.op not in BOOLEANS:
        raise ConfigError(f"where needs a comparison, got a number: {quoted()}.")
    return condition.graph.add("where", condition, condition.like(x), condition.like(y))


def over(x: Expr, level: int = NODE) -> Expr:
    """Summed up to the level: over the edges into each slot, over the slots of a node; 0 without any."""
    while x.level > level:
        x = x.graph.add("over", x)
    return x


def is_number(x: Expr, value: float) -> bool:
    return x.op == "number" and bool(x.name == value)


def _power(x: Expr, exponent: Any) -> Expr:
    match None if isinstance(exponent, Expr | Tensor) else exponent:
        case 0.5:
            return x.sqrt()
        case -1:
            return x.like(1) / x
        case 1 | 2 | 3 | 4:
            return math.prod([x] * (int(exponent) - 1), start=x)
    raise ConfigError(f"a formula has the powers -1, 0.5, 1, 2, 3 and 4, got {exponent!r}: {quoted()}.")


def _clamp(x: Expr, min: Any = None, max: Any = None) -> Expr:  # PyTorch's names
    if min is None and max is None:
        raise TypeError
    # As in PyTorch, a bound itself passes the gradient on, and NaN stays and does not, that of a bound too.
    x = x if min is None else where(x >= min, x, where(x < min, min, _nan(x, min)))
    return x if max is None else where(x <= max, x, where(x > max, max, _nan(x, max)))


def _nan(x: Expr, bound: Any) -> Expr:
    return (x + bound if isinstance(bound, Expr) else x).detach()


def _dropout(x: Expr, p: float = 0.5, training: bool = False) -> Expr:
    # In eval mode it changes nothing. In training it is PyTorch's, which no formula has.
    if training or not 0 <= p <= 1:
        raise TypeError
    return x


def _unary(op: str) -> Callable[[Expr], Expr]:
    return lambda x: x.graph.add(op, x)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{op: _unary(op) for op in ("exp", "log", "tanh", "sigmoid", "relu", "sqrt", "sin", "cos", "abs")},
    **{name: lambda x, y: x + y if isinstance(x, Expr) else y.__radd__(x) for name in ("add", "radd")},
    **{name: lambda x, y: x * y for name in ("mul", "multiply", "rmul")},
    **{name: lambda x, y: x - y if isinstance(x, Expr) else y.__rsub__(x) for name in ("sub", "subtract")},
    **{name: lambda x, y: x / y for name in ("div", "divide", "true_divide")},
    **{name: lambda x: -x for name in ("neg", "negative")},
    **{name: lambda x, y: x < y for name in ("lt", "less")},
    **{name: lambda x, y: x <= y for name in ("le", "less_equal")},
    **{name: lambda x, y: x > y for name in ("gt", "greater")},
    **{name: lambda x, y: x >= y for name in ("ge", "greater_equal")},
    **{name: lambda x, y: x != y for name in ("ne", "not_equal")},
    "eq": lambda x, y: x == y,
    **dict.fromkeys(("clamp", "clip"), _clamp),
    "absolute": _unary("abs"),
    "logical_and": lambda x, y: x & y,
    "logical_or": lambda x, y: x | y,
    "logical_not": lambda x: ~x,
    "maximum": maximum,
    "minimum": minimum,
    "where": where,
    "pow": _power,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "silu": lambda x: x * x.sigmoid(),
    "addcmul": lambda x, y, z: x + y * z,
    "detach": _unary("fixed"),
    "dropout": _dropout,
}
"""PyTorch's functions and methods that a formula may use, by name."""


def called(function: Any) -> str:
    """What an error calls a function: its name, and where it is."""
    code, name = getattr(function, "__code__", None), getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name} (line {code.co_firstlineno} of {Path(code.co_filename).name})"


def quoted() -> str:
    """The user's line that runs now, for an error."""
    file, number = _users_frame()
    text = linecache.getline(file, number).strip()
    return f"line {number} of {Path(file).name}" + (f", `{text}`" if text else "")


def _users_frame() -> tuple[str, int]:
    """File and line of the innermost frame outside of the kernels and PyTorch."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_ELSEWHERE) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
