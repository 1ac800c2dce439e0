"""A Dag as JSON text: format "dagnn.Dag", version 1, nothing lost.

``{"format", "version", "num_nodes", "edges": [[u, v], ...], "names": [...] or null, "inputs", "outputs",
"node_attributes": {name: values}, "edge_attributes"}``, where values are ``{"dtype", "shape", "data": [flat]}`` for a
tensor and ``{"items": [...]}`` for a tuple. Values that JSON does not know are ``{"float": "nan"}`` (or "inf", "-inf"),
``{"tuple": [...]}``, ``{"bytes": hex digits}`` and ``{"frozenset": [...]}``. In the data of a tensor, NaN is ``"nan"``.
"""

import json
import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph.attributes import Attribute, Attributes, plain
from dagnn.graph.content import Content
from dagnn.graph.names import sort_key

FORMAT, VERSION = "dagnn.Dag", 1
_KEYS = {
    "format",
    "version",
    "num_nodes",
    "edges",
    "names",
    "inputs",
    "outputs",
    "node_attributes",
    "edge_attributes",
}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}


def to_json(dag: Content) -> str:
    """The content of ``dag``; see `Dag.to_json`."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "num_nodes": dag.num_nodes,
        "edges": dag.edges.tolist(),
        "names": None if dag.names is None else [_written(name, "names") for name in dag.names],
        "inputs": dag.inputs.tolist(),
        "outputs": dag.outputs.tolist(),
        "node_attributes": _written_attributes(dag.node_attributes, "node"),
        "edge_attributes": _written_attributes(dag.edge_attributes, "edge"),
    }
    return json.dumps(document, allow_nan=False)


def arguments_from(document: str | bytes) -> dict[str, Any]:
    """Arguments of ``Dag(...)`` from JSON text.

    Raises:
        GraphError: no JSON, another format or version, or a part of the wrong form. `Dag` checks the graph itself.
    """
    try:
        content = json.loads(document, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"not a JSON document: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise GraphError(f'not a Dag: the document must be an object with "format": "{FORMAT}".')
    version = content.get("version")
    if version != VERSION:
        raise GraphError(f"the document has version {version!r}, this dagnn reads {VERSION}: update dagnn.")
    if content.keys() != _KEYS:
        missing, unknown = sorted(_KEYS - content.keys()), sorted(content.keys() - _KEYS)
        raise GraphError(f"the document misses the keys {missing} and has the unknown keys {unknown}.")
    try:
        return {
            "edges": _read_integers(content["edges"], 2),
            "num_nodes": content["num_nodes"],
            "names": None if content["names"] is None else tuple(_read(name) for name in content["names"]),
            "inputs": _read_integers(content["inputs"], 1),
            "outputs": _read_integers(content["outputs"], 1),
            "node_attributes": {name: _read_attribute(values) for name, values in content["node_attributes"].items()},
            "edge_attributes": {name: _read_attribute(values) for name, values in content["edge_attributes"].items()},
        }
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, OverflowError, RecursionError) as error:
        raise GraphError(f"the document is damaged: {type(error).__name__}: {error}.") from None


def _written_attributes(attributes: Attributes, of: str) -> dict[str, Any]:
    return {
        name: _written_tensor(values, f"{of}_attributes[{name!r}]")
        if isinstance(values, Tensor)
        else {"items": [_written(value, f"{of}_attributes[{name!r}]") for value in values]}
        for name, values in attributes.items()
    }


def _written_tensor(tensor: Tensor, where: str) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise GraphError(f"{where} has the dtype {dtype}, which JSON cannot keep: convert it first.")
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    data = numbers.flatten().tolist()
    if numbers.is_floating_point() and not bool(numbers.isfinite().all()):
        data = [number if math.isfinite(number) else str(number) for number in data]
    return {"dtype": dtype, "shape": list(tensor.shape), "data": data}


def _written(value: Any, where: str) -> Any:
    """A name or attribute value as JSON has it."""
    value = plain(value)
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is tuple:
        return {"tuple": [_written(item, where) for item in value]}
    if kind is list:
        return [_written(item, where) for item in value]
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is frozenset:
        return {"frozenset": [_written(item, where) for item in sorted(value, key=sort_key)]}
    raise GraphError(
        f"{where} holds {value!r}, which JSON cannot keep: use None, bool, int, float, str, bytes, or "
        "tuples, lists or frozensets."
    )


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "float":
            return float(content)
        if kind == "tuple":
            return tuple(_read(item) for item in content)
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind == "frozenset":
            return frozenset(_read(item) for item in content)
        raise ValueError(f"unknown kind of value {kind!r}")
    return [_read(item) for item in value] if isinstance(value, list) else value


def _read_attribute(values: dict[str, Any]) -> Attribute:
    if values.keys() == {"items"}:
        return tuple(_read(item) for item in values["items"])
    dtype, shape, data = _DTYPES[values["dtype"]], values["shape"], values["data"]
    if dtype.is_complex:
        pairs = _read_numbers(data, torch.float32 if dtype == torch.complex64 else torch.float64)
        return torch.view_as_complex(pairs.reshape(*shape, 2))
    return _read_numbers(data, dtype).reshape(shape)


def _read_numbers(data: list[Any], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.tensor([float(number) for number in data], dtype=torch.float64, device="cpu").to(dtype)
    kind: type = bool if dtype == torch.bool else int
    if not all(type(number) is kind for number in data):
        raise ValueError(f"data of dtype {dtype} holds something else")
    return torch.tensor(data, dtype=dtype, device="cpu")


def _read_integers(data: list[Any], ndim: int) -> Tensor:
    if data == []:
        return torch.empty((0, 2) if ndim == 2 else 0, dtype=torch.int64, device="cpu")
    integers = torch.tensor(data, device="cpu")
    if integers.dtype != torch.int64 or integers.ndim != ndim:
        raise ValueError(f"expected integers, got {data[:3]}")
    return integers


def _refuse_constant(constant: str) -> Hashable:
    raise ValueError(f"{constant} is no JSON")
