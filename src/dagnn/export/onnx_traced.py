"""ONNX from a program of ``torch.export`` whose shapes are fixed: standard operators of opset 18.

What depends on constants alone, as the tables of a graph, is worked out while the file is written.
"""

import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import UntranslatedError
from dagnn.export.onnx import OPERATORS, OnnxGraph, gelu, operation


def traced_model(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], *, double: bool
) -> bytes:
    """The file of a model; ``inputs`` and ``outputs`` are names, in the order of the program's.

    UntranslatedError for an operator of the program that is not translated; an error without the package onnx.
    """
    with warnings.catch_warnings():
        # torch's own modules use what torch itself has given up.
        warnings.simplefilter("ignore", FutureWarning)
        program = program.run_decompositions()
    return _Translation(program, inputs, OnnxGraph(double)).file(outputs)


class _Translation:
    """A program, node by node. A value is a tensor, which is constant, or the name of a result; or a list of those."""

    def __init__(self, program: torch.export.ExportedProgram, inputs: Sequence[str], graph: OnnxGraph) -> None:
        self._program, self._graph, self._names = program, graph, list(inputs)
        self._values: dict[torch.fx.Node, Any] = {}
        self._constants: dict[int, tuple[Tensor, str]] = {}
        self._shapes: dict[str, list[int]] = {}
        self._is_whole = False

    def file(self, outputs: Sequence[str]) -> bytes:
        given = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs}
        found: list[Any] = []
        for node in self._program.graph.nodes:
            match node.op:
                case "placeholder":
                    self._values[node] = self._placeholder(node, given[node.name])
                case "call_function":
                    self._values[node] = self._called(node)
                case "output":
                    found = [self._values[one] for one in node.args[0]]
                    shapes = [list(one.meta["val"].shape) for one in node.args[0]]
        for name, value in zip(outputs, found, strict=True):
            self._graph.add("Identity", self._name(value), out=name)
        return self._graph.file(self._shapes, dict(zip(outputs, shapes, strict=True)), whole=self._is_whole)

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> Any:
        if spec.target is not None:
            state = self._program.state_dict | self._program.constants
            value: Tensor = state[spec.target]
            return value.detach()
        name, value = self._names.pop(0), node.meta["val"]
        self._shapes[name], self._is_whole = list(value.shape), not value.is_floating_point()
        return name

    def _called(self, node: torch.fx.Node) -> Any:
        args: Any = torch.fx.node.map_arg(node.args, self._values.__getitem__)
        kwargs: Any = torch.fx.node.map_arg(node.kwargs, self._values.__getitem__)
        function: Any = node.target
        if function is operator.getitem:
            return args[0][args[1]]
        if not any(isinstance(self._values[one], str | list) for one in node.all_input_nodes):
            result: Any = function(*args, **kwargs)
            return result
        op = function.name().removeprefix("aten::").partition(".")[0]
        if op not in _TRANSLATED:
            raise UntranslatedError(f"format='onnx' has no translation of PyTorch's {function.name()}.")
        return _TRANSLATED[op](_Call(self, node, op), *args, **kwargs)

    def _name(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if id(value) not in self._constants:
            self._constants[id(value)] = value, self._graph.constant(value.numpy())
        return self._constants[id(value)][1]


class _Call:
    """One call of the program: what a translation works with."""

    def __init__(self, translation: _Translation, node: torch.fx.Node, op: str) -> None:
        self._translation, self.op = translation, op
        self.graph = translation._graph
        value = node.meta["val"]
        self.shape = list(value.shape) if isinstance(value, Tensor) else []
        like = value if isinstance(value, Tensor) else value[0]
        self._dtype = like.dtype if like.is_floating_point() else None

    def name(self, value: Any) -> str:
        """A tensor or number as an input."""
        if isinstance(value, int | float):
            return self.graph.number(float(value))
        return self._translation._name(value)

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        return self.graph.add(operator, *map(self.name, inputs), **attributes)

    def integers(self, *values: int) -> str:
        return self.graph.integers(list(values))


def _same(call: _Call, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _shaped(call: _Call, x: Any, *_: Any, **__: Any) -> str:
    return call.graph.add("Reshape", call.name(x), call.graph.integers(call.shape))


def _pointwise(call: _Call, *args: Any, alpha: float = 1, **_: Any) -> str:
    if alpha != 1:
        args = args[0], call.add("Mul", args[1], alpha)
    return operation(call.graph, _RENAMED.get(call.op, call.op), [call.name(one) for one in args])


def _turned(call: _Call, a: Any, b: Any) -> str:
    return call.add({"gt": "Less", "ge": "LessOrEqual"}[call.op], b, a)


def _added_product(call: _Call, bias: Any, a: Any, b: Any) -> str:
    return call.add("Add", call.add("MatMul", a, b), bias)


def _put(call: _Call, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> str:
    (index,) = indices
    return call.add("ScatterND", x, index.unsqueeze(1), values, reduction="add" if accumulate else "none")


def _largest(call: _Call, x: Any, dim: int, index: Tensor, source: Any, kind: str, *, include_self: bool = True) -> str:
    if kind != "amax" or include_self or not isinstance(x, Tensor):
        raise UntranslatedError(f"format='onnx' has no translation of a scatter of {kind}.")
    start = x.scatter(dim, index, -math.inf)
    return call.add("ScatterElements", start, index, source, axis=dim, reduction="max")


def _slice(call: _Call, x: Any, dim: int = 0, start: int | None = 0, end: int | None = None, step: int = 1) -> str:
    ends = [start or 0, np.iinfo(np.int64).max if end is None else end, dim, step]
    return call.graph.add("Slice", call.name(x), *(call.integers(one) for one in ends))


def _split(call: _Call, x: Any, sizes: Sequence[int], dim: int = 0) -> list[str]:
    first = call.graph.add(
        "Split", call.name(x), call.integers(*sizes), also=list(map(str, range(1, len(sizes)))), axis=dim
    )
    return [first, *(f"{first}_{k}" for k in range(1, len(sizes)))]


def _reduced(call: _Call, x: Any, dims: Sequence[int], keepdim: bool = False, **_: Any) -> str:
    kind = {"sum": "ReduceSum", "mean": "ReduceMean"}[call.op]
    return call.graph.add(kind, call.name(x), call.integers(*dims), keepdims=int(keepdim))


def _layer_norm(call: _Call, x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> list[str]:
    return [call.add("LayerNormalization", x, weight, bias, axis=-len(shape), epsilon=epsilon)]


def _where(call: _Call, condition: Any, a: Any, b: Any) -> str:
    return call.add("Where", condition, a, b)


_OF_FORMULAS = [op for op in OPERATORS if op != "where"]
_RENAMED = {
    "eq": "equal", "lt": "less", "le": "less_equal", "logical_and": "both", "logical_or": "either", "logical_not": "no",
}  # fmt: skip
_TRANSLATED: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("clone", "alias", "detach", "contiguous", "lift_fresh_copy"), _same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"), _shaped),
    **dict.fromkeys(
        (
            *(op for op in OPERATORS if op != "where"),
            "cos",
            "eq",
            "lt",
            "le",
            "logical_and",
            "logical_or",
            "logical_not",
        ),
        _pointwise,
    ),
    **dict.fromkeys(("gt", "ge"), _turned),
    **dict.fromkeys(("mm", "bmm"), lambda call, a, b: call.add("MatMul", a, b)),
    **dict.fromkeys(("sum", "mean"), _reduced),
    "addmm": _added_product,
    "index_select": lambda call, x, dim, index: call.add("Gather", x, index, axis=dim),
    "embedding": lambda call, table, index, *_: call.add("Gather", table, index, axis=0),
    "index_put": _put,
    "scatter_reduce": _largest,
    "expand": lambda call, x, *_: call.graph.add("Expand", call.name(x), call.graph.integers(call.shape)),
    "cat": lambda call, parts, dim=0: call.add("Concat", *parts, axis=dim),
    "slice": _slice,
    "split_with_sizes": _split,
    "permute": lambda call, x, dims: call.add("Transpose", x, perm=list(dims)),
    "reciprocal": lambda call, x: call.add("Div", 1.0, x),
    "where": _where,
    "native_layer_norm": _layer_norm,
    "_softmax": lambda call, x, dim, _: call.add("Softmax", x, axis=dim),
    "gelu": lambda call, x, *_: gelu(call.graph, call.name(x)),
}
"""PyTorch's operators on what depends on the input, by name."""
