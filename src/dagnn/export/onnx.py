"""ONNX from a `Program`: standard operators of opset 18, any batch size, float32 or float64."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from dagnn import __version__
from dagnn.errors import ConfigError
from dagnn.export import Program
from dagnn.kernels.emit.functions import ERFC

_OPSET = 18
_IR_VERSION = 8  # the version of the file format that came with opset 18, for older runtimes
_LEAK = 0.01


def onnx_model(program: Program) -> bytes:
    """The file of a model: ``x [batch, inputs]`` to ``y [batch, outputs]``.

    Values are kept as rows ``[num_nodes, batch]``: a level gathers the rows of its sources, multiplies them by the
    weights, and adds them to the rows of its nodes, which begin at the biases.

    Raises:
        ConfigError: the package onnx is not installed, or an activation has no operators here.
    """
    graph = _Graph(program)
    values = _values(graph, program)
    y = graph.add("Gather", values, graph.integers(program.outputs), axis=0)
    graph.add("Transpose", y, out="y", perm=[1, 0])
    return graph.file()


def _values(graph: "_Graph", program: Program) -> str:
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
    for level, (start, stop) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
        edges = slice(int(program.offsets[start]), int(program.offsets[stop]))
        if level and edges.start < edges.stop:
            counts = np.diff(program.offsets[start : stop + 1])
            targets = np.repeat(np.arange(start, stop), counts)
            sources = graph.add("Gather", values, graph.integers(program.sources[edges]), axis=0)
            messages = graph.add("Mul", sources, graph.numbers(program.weight[edges][:, None]))
            values = graph.add("ScatterND", values, graph.integers(targets[:, None]), messages, reduction="add")
        rows_of: dict[str, list[int]] = {}
        for node in range(start, stop):
            if not is_input[node] and program.activation[node] != "identity":
                rows_of.setdefault(program.activation[node], []).append(node)
        for name, rows in rows_of.items():
            z = graph.add("Gather", values, graph.integers(np.array(rows)), axis=0)
            values = graph.add("ScatterND", values, graph.integers(np.array(rows)[:, None]), _activated(graph, name, z))
    return values


def _activated(graph: "_Graph", name: str, z: str) -> str:
    """``act(z)``. Written out where runtimes lack an operator for float64."""
    write = _ACTIVATIONS.get(name)
    if write is None:
        raise ConfigError(
            f"the activation {name!r} has no operators of ONNX here: export to C, or use one of "
            f"{', '.join(_ACTIVATIONS)}."
        )
    return write(graph, z)


def _relu(graph: "_Graph", z: str) -> str:
    return graph.add("Relu", z)


def _leaky_relu(graph: "_Graph", z: str) -> str:
    return graph.where_positive(z, z, graph.add("Mul", z, graph.number(_LEAK)))


def _elu(graph: "_Graph", z: str) -> str:
    # e^z - 1 = 2 tanh(z / 2) / (1 - tanh(z / 2)): no digits lost near 0. The exponent of a positive z is not used.
    below = graph.add("Min", z, graph.number(0.0))
    t = graph.add("Tanh", graph.add("Mul", below, graph.number(0.5)))
    part = graph.add("Div", graph.add("Add", t, t), graph.add("Sub", graph.number(1.0), t))
    return graph.where_positive(z, z, part)


def _gelu(graph: "_Graph", z: str) -> str:
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


def _silu(graph: "_Graph", z: str) -> str:
    # Not Sigmoid: that of ONNX Runtime is off by 2e-7 where it is small, which z multiplies.
    return graph.add("Div", z, graph.add("Add", graph.add("Exp", graph.add("Neg", z)), graph.number(1.0)))


def _softplus(graph: "_Graph", z: str) -> str:
    # max(z, 0) + log(1 + e^-|z|); PyTorch's is the identity above 20, where the rest is below 2.1e-9.
    small = graph.add("Exp", graph.add("Neg", graph.add("Abs", z)))
    rest = graph.add("Log", graph.add("Add", small, graph.number(1.0)))
    return graph.add("Add", graph.add("Relu", z), rest)


_ACTIVATIONS: dict[str, Callable[["_Graph", str], str]] = {
    "identity": lambda graph, z: z,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "tanh": lambda graph, z: graph.add("Tanh", z),
    "sigmoid": lambda graph, z: graph.add("Sigmoid", z),
    "gelu": _gelu,
    "silu": _silu,
    "softplus": _softplus,
}


class _Graph:
    """A graph of ONNX under construction: operators in order, and constants."""

    def __init__(self, program: Program) -> None:
        try:
            import onnx  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ConfigError(f"format='onnx' cannot be written ({error}): pip install dagnn[onnx].") from error
        self._onnx: Any = onnx
        self._program, self.double = program, program.double
        self._dtype = np.dtype(np.float64 if program.double else np.float32)
        self._kind = onnx.TensorProto.DOUBLE if program.double else onnx.TensorProto.FLOAT
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._numbers: dict[float, str] = {}

    def add(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """One more operator; the name of its result."""
        out = out or f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), [out], **attributes))
        return out

    def integers(self, values: Any) -> str:
        return self._constant(np.asarray(values, dtype=np.int64))

    def numbers(self, values: Any) -> str:
        return self._constant(np.asarray(values, dtype=self._dtype))

    def number(self, value: float) -> str:
        """A constant for every place: one tensor for each value."""
        if value not in self._numbers:
            self._numbers[value] = self.numbers(value)
        return self._numbers[value]

    def where_positive(self, z: str, then: str, otherwise: str) -> str:
        return self.add("Where", self.add("Greater", z, self.number(0.0)), then, otherwise)

    def file(self) -> bytes:
        """The model, checked."""
        onnx, helper, program = self._onnx, self._onnx.helper, self._program
        x = helper.make_tensor_value_info("x", self._kind, ["batch", len(program.inputs)])
        y = helper.make_tensor_value_info("y", self._kind, ["batch", len(program.outputs)])
        graph = helper.make_graph(self._nodes, "dagnn", [x], [y], self._constants)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="dagnn",
            producer_version=__version__,
        )
        for key, names in (("input_names", program.input_names), ("output_names", program.output_names)):
            entry = model.metadata_props.add()
            plain = [name if isinstance(name, str | int) else repr(name) for name in names]
            entry.key, entry.value = key, json.dumps(plain)
        onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content

    def _constant(self, values: np.ndarray[Any, Any]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name
