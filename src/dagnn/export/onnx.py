"""ONNX from a `Program`: standard operators of opset 18, any batch size, float32 or float64."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dagnn import __version__
from dagnn.errors import library
from dagnn.export import Program
from dagnn.kernels.emit.formula import ancestors
from dagnn.kernels.emit.functions import ERFC
from dagnn.kernels.nodes import formula_of

_OPSET = 18
_IR_VERSION = 8  # the version of the file format that came with opset 18, for older runtimes
_LEAK = 0.01


def onnx_model(program: Program) -> bytes:
    """The file of a model: ``x [batch, inputs]`` to ``y [batch, outputs]``; ConfigError without the package onnx.

    Values are kept as rows ``[num_nodes, batch]``: a level gathers the rows of its sources, multiplies them by the
    weights, and adds them to the rows of its nodes, which begin at the biases.
    """
    graph = OnnxGraph(program.double)
    values = _values(graph, program)
    y = graph.add("Gather", values, graph.integers(program.outputs), axis=0)
    graph.add("Transpose", y, out="y", perm=[1, 0])
    names: dict[str, str] = {}
    for key, listed in (("input_names", program.input_names), ("output_names", program.output_names)):
        names[key] = json.dumps([name if isinstance(name, str | int) else repr(name) for name in listed])
    columns = len(program.inputs), len(program.outputs)
    return graph.file({"x": ["batch", columns[0]]}, {"y": ["batch", columns[1]]}, metadata=names)


def _values(graph: "OnnxGraph", program: Program) -> str:
    """The rows of all nodes."""
    columns = np.flatnonzero(program.inputs >= 0)
    x = graph.add("Transpose", "x", perm=[1, 0])
    shape = graph.add(
        "Concat",
        graph.integers(np.array([program.num_nodes])),
        graph.add("Slice", graph.add("Shape", "x"), *map(graph.integers, ([0], [1]))),
        axis=0,
    )
    values = graph.add("Expand", graph.numbers(program.bias[:, None]), shape)
    if len(columns):
        if len(columns) < len(program.inputs):
            x = graph.add("Gather", x, graph.integers(columns), axis=0)
        values = graph.add("ScatterND", values, graph.integers(program.inputs[columns][:, None]), x)

    first = np.searchsorted(program.levels, np.arange(int(program.levels.max(initial=-1)) + 2))
    is_input = program.is_input
    for start, stop in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        edges = slice(int(program.offsets[start]), int(program.offsets[stop]))
        if edges.start < edges.stop:
            counts = np.diff(program.offsets[start : stop + 1])
            targets = np.repeat(np.arange(start, stop), counts)
            plain = np.flatnonzero(program.is_plain[targets])
            if len(plain):
                own = plain + edges.start
                sources = graph.add("Gather", values, graph.integers(program.sources[own]), axis=0)
                messages = graph.add("Mul", sources, graph.numbers(program.weight[own][:, None]))
                places = graph.integers(targets[plain][:, None])
                values = graph.add("ScatterND", values, places, messages, reduction="add")
        values = _aggregated(graph, program, values, start, stop)
        rows_of: dict[str, list[int]] = {}
        for node in range(start, stop):
            if not is_input[node] and program.activation[node] != "identity":
                rows_of.setdefault(program.activation[node], []).append(node)
        for name, rows in rows_of.items():
            z = graph.add("Gather", values, graph.integers(np.array(rows)), axis=0)
            values = graph.add("ScatterND", values, graph.integers(np.array(rows)[:, None]), _activated(graph, name, z))
    return values


def _aggregated(graph: "OnnxGraph", program: Program, values: str, start: int, stop: int) -> str:
    """The rows of all nodes, after those of a level that are no plain sums have got their aggregates."""
    groups: dict[tuple[str, int], list[int]] = {}
    for node in np.flatnonzero(~program.is_plain[start:stop]) + start:
        degree = int(program.offsets[node + 1] - program.offsets[node])
        groups.setdefault((program.aggregation[node], degree), []).append(int(node))
    for (kind, degree), nodes in groups.items():
        rows, response = np.array(nodes), program.response[nodes]
        if degree:
            own = program.offsets[rows] + np.arange(degree)[:, None]  # [degree, nodes]
            sources = graph.add("Gather", values, graph.integers(program.sources[own]), axis=0)
            messages = graph.add("Mul", sources, graph.numbers(program.weight[own][:, :, None]))
            found = _aggregate(graph, kind, messages, degree)
        else:  # a product of nothing
            bias = graph.add("Gather", values, graph.integers(rows), axis=0)
            found = graph.add("Add", graph.add("Mul", bias, graph.number(0.0)), graph.number(1.0))
        if kind == "mean":
            response = response / degree
        scaled = graph.add("Mul", found, graph.numbers(response[:, None]))
        total = graph.add("Add", scaled, graph.numbers(program.bias[rows][:, None]))
        values = graph.add("ScatterND", values, graph.integers(rows[:, None]), total)
    return values


def _aggregate(graph: "OnnxGraph", kind: str, messages: str, degree: int) -> str:
    """Messages ``[degree, nodes, batch]`` of nodes of one degree as ``[nodes, batch]``."""
    match kind:
        case "sum" | "mean":
            return graph.folded("Add", messages, degree)
        case "product":
            return graph.folded("Mul", messages, degree)
        case "max" | "min":
            return graph.folded(kind.capitalize(), messages, degree)
        case "maxabs":
            high, low = (graph.folded(operator, messages, degree) for operator in ("Max", "Min"))
            return graph.add("Where", graph.add("GreaterOrEqual", high, graph.add("Neg", low)), high, low)
        case "median":
            ordered = graph.add("TopK", messages, graph.integers([degree]), axis=0, also=["indices"])
            first, last = (degree - 1) // 2, degree // 2
            middle = [graph.add("Gather", ordered, graph.integers(place), axis=0) for place in {first, last}]
            total = middle[0] if len(middle) == 1 else graph.add("Add", *middle)
            return total if len(middle) == 1 else graph.add("Mul", total, graph.number(0.5))
    raise AssertionError(kind)


def _activated(graph: "OnnxGraph", name: str, z: str) -> str:
    """``act(z)``. Written out where runtimes lack an operator for float64."""
    formula = formula_of(name)
    if formula is None:
        return _ACTIVATIONS[name](graph, z)
    (given,), (result,) = formula.inputs, formula.outputs
    made = {given: z}
    for one in ancestors([result]):
        if one not in made:
            arguments = [made[arg] for arg in one.args]
            made[one] = graph.number(one.name) if one.op == "number" else operation(graph, one.op, arguments)
    # A formula of numbers alone has the shape of a number.
    zeros = graph.add("Mul", z, graph.number(0.0))
    return made[result] if given in ancestors([result]) else graph.add("Add", zeros, made[result])


OPERATORS = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "sigmoid": "Sigmoid", "relu": "Relu", "sqrt": "Sqrt", "sin": "Sin", "abs": "Abs", "maximum": "Max",
    "minimum": "Min", "where": "Where", "less": "Less", "less_equal": "LessOrEqual", "equal": "Equal", "both": "And",
    "either": "Or", "no": "Not", "fixed": "Identity",
}  # fmt: skip
"""Operations of formulas, and ONNX's names of them."""


def operation(graph: "OnnxGraph", op: str, arguments: list[str]) -> str:
    if op == "cos":  # runtimes have Cos for float32 only
        return graph.add("Sin", graph.add("Add", arguments[0], graph.number(math.pi / 2)))
    return graph.add(OPERATORS[op], *arguments)


def _relu(graph: "OnnxGraph", z: str) -> str:
    return graph.add("Relu", z)


def _leaky_relu(graph: "OnnxGraph", z: str) -> str:
    return graph.where_positive(z, z, graph.add("Mul", z, graph.number(_LEAK)))


def _elu(graph: "OnnxGraph", z: str) -> str:
    # e^z - 1 = 2 tanh(z / 2) / (1 - tanh(z / 2)): no digits lost near 0. The exponent of a positive z is not used.
    below = graph.add("Min", z, graph.number(0.0))
    t = graph.add("Tanh", graph.add("Mul", below, graph.number(0.5)))
    part = graph.add("Div", graph.add("Add", t, t), graph.add("Sub", graph.number(1.0), t))
    return graph.where_positive(z, z, part)


def gelu(graph: "OnnxGraph", z: str) -> str:
    half = graph.add("Mul", z, graph.number(0.5))
    if graph.double:  # runtimes have no Erf of float64: as `emit.functions.normal_cdf_and_density`
        scaled = graph.add("Mul", graph.add("Abs", z), graph.number(0.5**0.5))
        t = graph.add("Div", graph.number(2.0), graph.add("Add", scaled, graph.number(2.0)))
        argument = graph.add("Sub", graph.add("Add", t, t), graph.number(1.0))
        gauss = graph.add("Exp", graph.add("Neg", graph.add("Mul", scaled, scaled)))
        series = graph.number(ERFC[True][-1])
        for coefficient in reversed(ERFC[True][:-1]):
            series = graph.add("Add", graph.add("Mul", series, argument), graph.number(coefficient))
        tail = graph.add("Mul", graph.add("Mul", t, gauss), series)  # erfc(|z| / sqrt(2))
        return graph.add("Mul", half, graph.where_positive(z, graph.add("Sub", graph.number(2.0), tail), tail))
    erf = graph.add("Erf", graph.add("Mul", z, graph.number(0.5**0.5)))
    return graph.add("Mul", half, graph.add("Add", erf, graph.number(1.0)))


def _silu(graph: "OnnxGraph", z: str) -> str:
    # Not Sigmoid: that of ONNX Runtime is off by 2e-7 where it is small, which z multiplies.
    return graph.add("Div", z, graph.add("Add", graph.add("Exp", graph.add("Neg", z)), graph.number(1.0)))


def _softplus(graph: "OnnxGraph", z: str) -> str:
    # max(z, 0) + log(1 + e^-|z|); PyTorch's is the identity above 20, where the rest is below 2.1e-9.
    small = graph.add("Exp", graph.add("Neg", graph.add("Abs", z)))
    rest = graph.add("Log", graph.add("Add", small, graph.number(1.0)))
    return graph.add("Add", graph.add("Relu", z), rest)


_ACTIVATIONS: dict[str, Callable[["OnnxGraph", str], str]] = {
    "identity": lambda graph, z: z,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "tanh": lambda graph, z: graph.add("Tanh", z),
    "sigmoid": lambda graph, z: graph.add("Sigmoid", z),
    "gelu": gelu,
    "silu": _silu,
    "softplus": _softplus,
}


class OnnxGraph:
    """A graph of ONNX under construction: operators in order, and constants."""

    def __init__(self, double: bool) -> None:
        onnx = self._onnx = library("onnx", "format='onnx'", "dagnn[export]")
        self.double = double
        self._dtype = np.dtype(np.float64 if double else np.float32)
        self._kind = onnx.TensorProto.DOUBLE if double else onnx.TensorProto.FLOAT
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._numbers: dict[float, str] = {}

    def add(self, operator: str, *inputs: str, out: str = "", also: Sequence[str] = (), **attributes: Any) -> str:
        """One more operator; the name of its result. ``also``: results that nobody reads."""
        out = out or f"v{len(self._nodes)}"
        outputs = [out, *(f"{out}_{name}" for name in also)]
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), outputs, **attributes))
        return out

    def folded(self, operator: str, values: str, count: int) -> str:
        """An operator over the first axis, of ``count``: pairs, then pairs of those."""
        while count > 1:
            half = count // 2
            low, high, rest = (
                self.add("Slice", values, *map(self.integers, ([start], [stop])))
                for start, stop in ((0, half), (half, 2 * half), (2 * half, count))
            )
            values = self.add("Concat", self.add(operator, low, high), rest, axis=0)
            count -= half
        return self.add("Squeeze", values, self.integers([0]))

    def integers(self, values: Any) -> str:
        return self.constant(np.asarray(values, dtype=np.int64))

    def numbers(self, values: Any) -> str:
        return self.constant(np.asarray(values, dtype=self._dtype))

    def number(self, value: float) -> str:
        """A constant for every place: one tensor for each value."""
        if value not in self._numbers:
            self._numbers[value] = self.numbers(value)
        return self._numbers[value]

    def where_positive(self, z: str, then: str, otherwise: str) -> str:
        return self.add("Where", self.add("Greater", z, self.number(0.0)), then, otherwise)

    def file(
        self,
        inputs: Mapping[str, Sequence[int | str]],
        outputs: Mapping[str, Sequence[int | str]],
        *,
        metadata: Mapping[str, str] | None = None,
        whole: bool = False,
    ) -> bytes:
        """The model, checked.

        Args:
            inputs, outputs: their shapes by name.
            whole: inputs are whole numbers, int64.
        """
        onnx, helper = self._onnx, self._onnx.helper
        given = onnx.TensorProto.INT64 if whole else self._kind
        x = [helper.make_tensor_value_info(name, given, shape) for name, shape in inputs.items()]
        y = [helper.make_tensor_value_info(name, self._kind, shape) for name, shape in outputs.items()]
        model = helper.make_model(
            helper.make_graph(self._nodes, "dagnn", x, y, self._constants),
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="dagnn",
            producer_version=__version__,
        )
        for key, value in (metadata or {}).items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content

    def constant(self, values: np.ndarray[Any, Any]) -> str:
        """The name of an array of any kind."""
        name = f"c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.array(values, order="C"), name))
        return name
