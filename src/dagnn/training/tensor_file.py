"""Named tensors as the bytes of a safetensors file, and back: every dtype of torch, and extra state beside them.

safetensors has no word for some dtypes (complex128, float4, ...), nor for what is no tensor
(`nn.Module.get_extra_state`). The bytes of the former and the JSON of the latter are kept as uint8, and the file's
metadata say for which names: ``{"weight": "complex128 [2, 3]", "head._extra_state": "value"}``.
"""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dagnn.errors import RunError
from dagnn.training.plain_values import is_dense, packed, tensor_bytes, tensor_of, unpacked

_VALUE = "value"
_PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)
_IN_SAFETENSORS = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}


def tensor_file(entries: Mapping[str, Any], what: str) -> bytes:
    """The bytes of the file.

    Args:
        entries: tensors, and other values that `packed` takes, by name.
        what: whose they are, for the message; such as "the model's state".

    Raises:
        RunError: one cannot be kept; names it.
    """
    kept: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    for name, value in entries.items():
        kept[name], note = _kept(name, value, what)
        if note:
            notes[name] = note
    return bytes(safetensors.torch.save(kept, metadata=notes or None))


def tensors_in_file(content: bytes) -> dict[str, Any]:
    """The entries that `tensor_file` was given.

    Raises:
        SafetensorError, ValueError, KeyError, TypeError: it is no such file.
    """
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
    """What the file holds under this name, and what its metadata say of it."""
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
                safetensors.torch.save({name: copy})  # what is a tensor by name only fails here
            return copy, ""
        raw = bytearray(tensor_bytes(value))
    except (RuntimeError, NotImplementedError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{what} {name} is {_described(value)}, which a checkpoint cannot keep ({error}).") from error
    told = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8), told


def _described(value: Tensor) -> str:
    if nn.parameter.is_lazy(value):
        return "not initialised yet (call the model once before training)"
    kind = "quantized" if value.is_quantized else "on the device meta" if value.is_meta else str(value.layout)
    return f"a tensor of {value.dtype} ({type(value).__name__}, {kind.removeprefix('torch.')})"
