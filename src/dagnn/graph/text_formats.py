"""A Dag as text and back: JSON, expressions in Polish notation, and text as a chain of characters.

JSON is the format "dagnn.Dag", version 1; nothing is lost:
``{"format", "version", "num_nodes", "edges": [[u, v], ...], "names": [...] or null, "inputs", "outputs",
"node_attributes": {name: values}, "edge_attributes"}``, where values are ``{"dtype", "shape", "data": [flat]}`` for a
tensor and ``{"items": [...]}`` for a tuple. Values that JSON does not know are ``{"float": "nan"}`` (or "inf", "-inf"),
``{"tuple": [...]}``, ``{"bytes": hex digits}`` and ``{"frozenset": [...]}``. In the data of a tensor, NaN is ``"nan"``.
"""

import json
import math
import re
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, ExpressionError, GraphError, library
from dagnn.graph.attributes import Attribute, Attributes, plain
from dagnn.graph.content import Content
from dagnn.graph.names import sort_key

FORMAT, VERSION = "dagnn.Dag", 1
_JSON_KEYS = {
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


def json_arguments(document: str | bytes) -> dict[str, Any]:
    """Arguments of ``Dag(...)`` from JSON text; `Dag` checks the graph itself.

    GraphError for no JSON, another format or version, or a part of the wrong form.
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
    if content.keys() != _JSON_KEYS:
        missing, unknown = sorted(_JSON_KEYS - content.keys()), sorted(content.keys() - _JSON_KEYS)
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


_TOKEN = re.compile(r"[()]|[^\s()]+")


def parse_polish(
    expression: str, share: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """The graph of an expression: operands before operators, the whole expression last.

    Returns:
        edges int64 ``[num_edges, 2]`` by (target, position); positions int64 ``[num_edges]``; levels int64
        ``[num_nodes]``; labels, one per node.

    Raises:
        DtypeError: ``expression`` is no str.
        ExpressionError: not an expression; the message gives the character.
    """
    if not isinstance(expression, str):
        raise DtypeError(f"expression must be a str, got {type(expression).__name__}.")
    nodes = _Nodes(share)
    open_at, operators, operands = list[int](), list[str | None](), list[list[int]]()  # one entry per open parenthesis
    root = None
    for match in _TOKEN.finditer(expression):
        token, at = match.group(), match.start()
        if root is not None:
            raise _error(expression, at, f"{token!r} follows a complete expression")
        if token == "(":
            if operators and operators[-1] is None:
                raise _error(expression, at, "the operator of an application must be a word, got '('")
            open_at.append(at)
            operators.append(None)
            operands.append([])
            continue
        if token == ")":
            if not operators:
                raise _error(expression, at, "')' closes nothing")
            start, operator, children = open_at.pop(), operators.pop(), operands.pop()
            if operator is None:
                raise _error(expression, start, "'()' is empty: write (operator operand ...)")
            if not children:
                raise _error(expression, start, f"'({operator})' has no operands: write {operator} for a leaf")
            node = nodes.add(operator, tuple(children))
        elif operators and operators[-1] is None:
            operators[-1] = token
            continue
        else:
            node = nodes.add(token, ())
        if operands:
            operands[-1].append(node)
        else:
            root = node
    if operators:
        raise _error(expression, open_at[-1], "'(' is never closed")
    if root is None:
        raise _error(expression, 0, "there is no expression, the text is blank")
    return nodes.arrays()


class _Nodes:
    """The nodes made so far."""

    def __init__(self, share: bool) -> None:
        self.labels = list[str]()
        self.levels = list[int]()
        self.operands = list[tuple[int, ...]]()
        self.node_of: dict[tuple[str, tuple[int, ...]], int] | None = {} if share else None

    def add(self, label: str, operands: tuple[int, ...]) -> int:
        """The node of a leaf or an application; with sharing, an equal one if there is one."""
        node = len(self.labels)
        if self.node_of is not None:
            known = self.node_of.setdefault((label, operands), node)
            if known != node:
                return known
        self.labels.append(label)
        self.levels.append(1 + max([self.levels[operand] for operand in operands], default=-1))
        self.operands.append(operands)
        return node

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        edges = [(source, target) for target, sources in enumerate(self.operands) for source in sources]
        positions = [position for sources in self.operands for position in range(len(sources))]
        return (
            np.array(edges, dtype=np.int64).reshape(-1, 2),
            np.array(positions, dtype=np.int64),
            np.array(self.levels, dtype=np.int64),
            tuple(self.labels),
        )


def to_polish(dag: Content, max_tokens: int) -> str:
    """The expression that ends at the one sink of ``dag``; see `Dag.to_polish`."""
    root, labels, operands = _expression_parts(dag)
    _check_size(dag, root, operands, max_tokens)

    pieces, pending = list[str](), [(root, False)]
    while pending:
        node, is_end = pending.pop()
        if is_end:
            pieces.append(")")
        elif not operands[node]:
            pieces += (" ", labels[node])
        else:
            pieces += (" (", labels[node])
            pending.append((node, True))
            pending += [(operand, False) for operand in reversed(operands[node])]
    return "".join(pieces)[1:]


def _expression_parts(dag: Content) -> tuple[int, tuple[str, ...], list[list[int]]]:
    """Root, labels and ordered operands of an expression graph; GraphError for any other graph."""
    sinks = (dag.out_degree == 0).nonzero().flatten().tolist()
    if len(sinks) != 1:
        raise GraphError(f"an expression has one node without out-edges, its root, but this graph has {len(sinks)}.")
    labels = dag.node_attributes.get("label")
    if not isinstance(labels, tuple):
        raise GraphError("an expression needs the node attribute 'label', a str for every node.")
    for node, label in enumerate(labels):
        if not isinstance(label, str) or _TOKEN.fullmatch(label) is None or label in "()":
            raise GraphError(
                f"the label of node {dag.name_of(node)} is {label!r}, expected a str without blanks and parentheses."
            )

    offsets = dag.csr_by_target.offsets.tolist()
    positions = dag.edge_attributes.get("position")
    if positions is None:
        if dag.num_edges:
            raise GraphError("an expression needs the edge attribute 'position', 0 for the first operand of a node.")
    else:
        expected = np.arange(dag.num_edges) - np.repeat(offsets[:-1], dag.in_degree.numpy())
        wrong = np.flatnonzero(np.asarray(positions) != expected)
        if wrong.size:
            edge = int(wrong[0])
            node = int(dag.edges[edge, 1])
            raise GraphError(
                f"operand {int(expected[edge])} of node {dag.name_of(node)} ({labels[node]}) is missing: the next one "
                f"has position {int(positions[edge])}."
            )
    sources = dag.edges[:, 0].tolist()
    return sinks[0], labels, [sources[offsets[node] : offsets[node + 1]] for node in range(dag.num_nodes)]


def _check_size(dag: Content, root: int, operands: list[list[int]], max_tokens: int) -> None:
    """GraphError if the expression, written out, has more than ``max_tokens`` operators and leaves."""
    size = [1] * dag.num_nodes
    for node in dag.order.tolist():
        # Capped: a chain of (* x x) doubles at every node, and exact sizes would grow to as many bits as it has nodes.
        size[node] = min(1 + sum(size[operand] for operand in operands[node]), max_tokens + 1)
    if size[root] > max_tokens:
        raise GraphError(
            f"written out, with every shared node repeated, the expression has more than {max_tokens} tokens: raise "
            "max_tokens, or keep the graph (to_json)."
        )


def _error(expression: str, at: int, reason: str) -> ExpressionError:
    start = max(at - 20, 0)
    excerpt = ("..." if start else "") + expression[start : at + 20] + ("..." if at + 20 < len(expression) else "")
    return ExpressionError(f"character {at}: {reason}, in {excerpt!r}.")


def grapheme_clusters(string: str) -> tuple[str, ...]:
    """The characters of ``string`` as a reader sees them: "e" with a combining accent is one."""
    if not isinstance(string, str):
        raise DtypeError(f"the text must be a str, got {type(string).__name__}.")
    regex = library("regex", "Dag.from_text", "dagnn[text]")
    return tuple(regex.findall(r"\X", string))
