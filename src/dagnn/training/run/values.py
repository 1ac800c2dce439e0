"""Writes values as JSON and named tensors as a safetensors file, and reads them back unchanged."""

import base64
import json
import math
import numbers
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dagnn.errors import ConfigError, RunError

_KIND = "dagnn:kind"
_MAX_DEPTH = 100
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_ARRAYS = "biufcU"  # kinds of NumPy dtypes that are plain numbers or text
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def packed(value: Any, name: str) -> Any:
    """The value as strict JSON values, from which `unpacked` makes an equal one of the same types.

    Args:
        value: None, booleans, numbers, text and bytes; lists, tuples, sets and mappings; NumPy's numbers and arrays;
            dense tensors, dtypes and devices; these inside each other.
        name: what it is, for the message.

    Raises:
        RunError: it holds something else; the message says where.
    """
    try:
        return _packed(value, 0)
    except _Unknown as unknown:
        raise RunError(
            f"{name}{unknown.where} is a {unknown.kind}, which a checkpoint cannot keep: give numbers, text, "
            "arrays, tensors, or lists and mappings of those."
        ) from None


def unpacked(value: Any) -> Any:
    """What `packed` was given; ValueError, KeyError or TypeError for what it does not make."""
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: unpacked(each) for key, each in value.items()}
    kind, inside = value[_KIND], value["value"]
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]([unpacked(each) for each in inside])
    readers: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "complex": lambda parts: complex(*map(float, parts)),
        "bytes": base64.b64decode,
        "mapping": lambda pairs: {unpacked(key): unpacked(each) for key, each in pairs},
        "ordered": lambda pairs: OrderedDict((unpacked(key), unpacked(each)) for key, each in pairs),
        "dtype": lambda name: _DTYPES[name],
        "device": torch.device,
        "size": torch.Size,
        "tensor": lambda text: tensor_of(value["dtype"], value["shape"], bytearray(base64.b64decode(text))),
        "array": lambda text: _array(value, text),
        "scalar": lambda text: _array(value, text)[()],
    }
    return readers[kind](inside)


def json_value(value: Any, name: str) -> Any:
    """The value as plain JSON that any reader takes: numbers of every kind become Python's, arrays become lists.

    ConfigError, which says where, for something that is no number, text, list or mapping by text.
    """
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) or hasattr(value, "as_integer_ratio"):  # NumPy's, fractions, decimal.Decimal
        try:
            return float(value)
        except (ValueError, OverflowError) as error:  # a signaling NaN, a fraction that is too large
            raise ConfigError(f"{name} is {value!r:.60}, which is no float ({error}): give a number.") from None
    if isinstance(value, Tensor) and not is_dense(value):
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
        raise ConfigError(f"{name} is a tensor on {value.device} ({kind}): give a dense one, such as value.to_dense().")
    if isinstance(value, Tensor | np.ndarray):
        return json_value(value.tolist(), name)
    if isinstance(value, list | tuple):
        return [json_value(each, f"{name}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): json_value(each, f"{name}[{key!r}]") for key, each in value.items()}
    raise ConfigError(
        f"{name} is {str(value)[:60]}, of the type {type(value).__name__}: give a number, text, or lists and mappings "
        "of those by text."
    )


def tensor_bytes(tensor: Tensor) -> bytes:
    """The bytes of a dense tensor of any dtype, row by row."""
    raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(raw.view(torch.uint8).numpy().tobytes())


def tensor_of(dtype: str, shape: list[int], content: bytearray) -> Tensor:
    """The tensor that `tensor_bytes` gave."""
    if not content:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(content, dtype=torch.uint8).view(_DTYPES[dtype]).reshape(shape)


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor is plain numbers in memory, and nothing else is needed to rebuild it."""
    plain = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested
    return plain and not tensor.is_quantized and not torch.nn.parameter.is_lazy(tensor)


class _Unknown(Exception):
    """A value that no form fits, and where it is."""

    def __init__(self, kind: str) -> None:
        self.kind, self.where = kind, ""


def _packed(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else _of("float", str(value))
    if depth > _MAX_DEPTH:
        raise _Unknown(f"{kind.__name__}, nested more than {_MAX_DEPTH} deep")
    if kind in (list, tuple):
        inside = [_at(index, each, depth) for index, each in enumerate(value)]
        return inside if kind is list else _of("tuple", inside)
    if kind is dict and all(type(key) is str for key in value) and _KIND not in value:
        return {key: _at(key, each, depth) for key, each in value.items()}
    if kind in (dict, OrderedDict):
        pairs = [[_packed(key, depth + 1), _at(key, each, depth)] for key, each in value.items()]
        return _of("mapping" if kind is dict else "ordered", pairs)
    if kind in (set, frozenset):
        inside = [_packed(each, depth + 1) for each in value]
        return _of(kind.__name__, sorted(inside, key=lambda each: json.dumps(each, sort_keys=True)))
    if kind is complex:
        return _of("complex", [str(value.real), str(value.imag)])
    if kind is bytes:
        return _of("bytes", base64.b64encode(value).decode())
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in _ARRAYS:
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        described = {"dtype": value.dtype.str, "shape": list(value.shape)}
        return _of("array" if isinstance(value, np.ndarray) else "scalar", text, **described)
    if isinstance(value, Tensor) and is_dense(value):
        text = base64.b64encode(tensor_bytes(value)).decode()
        return _of("tensor", text, dtype=str(value.dtype).removeprefix("torch."), shape=list(value.shape))
    if kind is torch.Size:
        return _of("size", list(value))
    if kind in (torch.dtype, torch.device):
        return _of(kind.__name__, str(value).removeprefix("torch."))
    raise _Unknown(kind.__name__)


def _at(place: Any, value: Any, depth: int) -> Any:
    try:
        return _packed(value, depth + 1)
    except _Unknown as unknown:
        unknown.where = f"[{place!r}]{unknown.where}"
        raise


def _of(kind: str, value: Any, **described: Any) -> dict[str, Any]:
    return {_KIND: kind, **described, "value": value}


def _array(described: Mapping[str, Any], text: str) -> Any:
    dtype = np.dtype(described["dtype"])
    if dtype.kind not in _ARRAYS:
        raise ValueError(f"an array of dtype {dtype} is none of a checkpoint's")
    content = bytearray(base64.b64decode(text))
    if not content or not dtype.itemsize:
        return np.zeros(described["shape"], dtype)
    return np.frombuffer(content, dtype).reshape(described["shape"])


_VALUE = "value"
_PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)
_IN_SAFETENSORS = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}


def tensor_file(entries: Mapping[str, Any], what: str) -> bytes:
    """The bytes of the file; a RunError names what cannot be kept.

    Args:
        entries: tensors, and other values that `packed` takes, by name.
        what: whose they are, for the message; such as "the model's state".
    """
    kept: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    for name, value in entries.items():
        kept[name], note = _kept(name, value, what)
        if note:
            notes[name] = note
    return bytes(safetensors.torch.save(kept, metadata=notes or None))


def tensors_in_file(content: bytes) -> dict[str, Any]:
    """The entries that `tensor_file` was given; SafetensorError, ValueError, KeyError or TypeError for another file."""
    tensors: dict[str, Any] = safetensors.torch.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    for name, note in header.get("__metadata__", {}).items():
        if name not in tensors:
            continue
        raw = bytearray(tensors[name].numpy().tobytes())
        dtype, _, shape = note.partition(" ")
        tensors[name] = unpacked(json.loads(raw)) if note == _VALUE else tensor_of(dtype, json.loads(shape), raw)
    return tensors


def check_kept(entries: Mapping[str, Any], what: str) -> None:
    """Raise RunError, as `tensor_file`, without a copy of ordinary tensors."""
    for name, value in entries.items():
        if type(value) not in _PLAIN_TYPES or value.dtype not in _IN_SAFETENSORS or not is_dense(value):
            _kept(name, value, what)


def _kept(name: str, value: Any, what: str) -> tuple[Tensor, str]:
    """What the file holds under this name, and what its metadata say about it."""
    if not isinstance(value, Tensor):
        content = json.dumps(packed(value, f"{what} {name}"), sort_keys=True, separators=(",", ":")).encode()
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), _VALUE
    if not is_dense(value):
        raise RunError(
            f"{what} {name} is {_described(value)}, which a checkpoint cannot keep: keep a dense tensor, or leave it "
            "out of the state dict (register_buffer(..., persistent=False))."
        )
    try:
        if value.dtype in _IN_SAFETENSORS:
            # Copies: safetensors refuses tensors that share memory, such as tied weights.
            copy = value.detach().cpu().resolve_conj().resolve_neg().contiguous().clone()
            if type(copy) is not Tensor:
                safetensors.torch.save({name: copy})  # a subclass that is no real tensor fails here
            return copy, ""
        raw = bytearray(tensor_bytes(value))
    except (RuntimeError, NotImplementedError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{what} {name} is {_described(value)}, which a checkpoint cannot keep ({error}).") from error
    form = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8), form


def _described(value: Tensor) -> str:
    if nn.parameter.is_lazy(value):
        return "not initialised yet (call the model once before training)"
    kind = "quantized" if value.is_quantized else "on the device meta" if value.is_meta else str(value.layout)
    return f"a tensor of {value.dtype} ({type(value).__name__}, {kind.removeprefix('torch.')})"
