"""The weights in a ``.pt`` file of another program: the only place of dagnn that reads a pickle.

A ``.pt`` file is a zip archive with a pickle in it that says how its tensors are made. torch reads it here with
``weights_only=True``, which builds tensors and plain containers and calls nothing else. Before that, the archive's
sizes are compared with the file's, and the tensors' sizes with it too (they are first built without memory, on the
device "meta"): a kilobyte that claims a terabyte is refused. What cannot be read that way is not read at all; there
is no second try with fewer checks.

Older versions of torch had holes in that mode (CVE-2025-32434 up to 2.5.1, CVE-2026-24747 below 2.10): they are
refused.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dagnn.errors import CheckpointError
from dagnn.training.text import printable

SAFE_TORCH = (2, 10)
_MAX_PICKLE_BYTES = 1 << 26  # what names and shapes of a model take; a million tensors fit
_MAX_ENTRIES = 1_000_000
# Tied weights are stored once and count twice.
_LARGEST_RATIO = 2


def read_foreign(path: str | Path, *, key: str | None = None) -> dict[str, Tensor]:
    """The tensors of a ``.pt`` file by name, on the CPU.

    Args:
        path: as ``torch.save`` writes it since torch 1.6.
        key: where the file is a mapping of several things, which of them; such as ``"model"``.

    Raises:
        CheckpointError: torch is too old; the file is a link, no such archive, claims more than it holds, holds
            something else than tensors and plain containers, or no mapping of names to tensors.
    """
    path = Path(path)
    _check_torch()
    size = _check_archive(path)
    claimed = _state_of(_loaded(path, "meta"), path, key)
    wanted = sum(tensor.numel() * tensor.element_size() for tensor in claimed.values())
    if wanted > _LARGEST_RATIO * size:
        raise CheckpointError(f"{path} claims tensors of {wanted:,} bytes and has {size:,}: it is refused.")
    return _state_of(_loaded(path, "cpu"), path, key)


def _check_torch() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < SAFE_TORCH:
        raise CheckpointError(
            f"torch {torch.__version__} cannot be trusted with a foreign file, even with weights_only=True: "
            f"it takes torch {'.'.join(map(str, SAFE_TORCH))} or newer."
        )


def _check_archive(path: Path) -> int:
    """Size of the file in bytes."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is no plain file: name the file itself.")
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{path} is no archive of torch.save ({printable(str(error))}): files from before torch 1.6 are not read."
        ) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(f"{path} holds compressed entries, which torch.save never writes: it is refused.")
    names = [entry.filename.partition("/")[2] for entry in entries]
    if "data.pkl" not in names or "constants.pkl" in names:
        raise CheckpointError(f"{path} is no archive of torch.save: it has no data.pkl, or is a TorchScript program.")
    pickled = sum(entry.file_size for entry, name in zip(entries, names, strict=True) if name.endswith(".pkl"))
    if (
        sum(entry.file_size for entry in entries) > size
        or pickled > _MAX_PICKLE_BYTES
        or len(entries) > _MAX_ENTRIES
        or len(set(names)) < len(names)
    ):
        raise CheckpointError(f"{path} claims more than its {size:,} bytes: it is refused.")
    return size


def _loaded(path: Path, device: str) -> Any:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # whatever a hostile pickle makes torch raise, it ends here
        told = printable((str(error).strip().splitlines() or [""])[0])
        raise CheckpointError(
            f"{path} cannot be read safely: it holds more than tensors and plain containers, or is damaged "
            f"({type(error).__name__}: {told[:160]}). It is not tried in another way."
        ) from None


def _state_of(loaded: Any, path: Path, key: str | None) -> dict[str, Tensor]:
    where = str(path) if key is None else f"{path}, key {printable(key)!r},"
    if key is not None:
        if not isinstance(loaded, Mapping) or key not in loaded:
            raise CheckpointError(f"{path} has no key {printable(key)!r}: it has {_keys(loaded)}.")
        loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded:
        raise CheckpointError(f"{where} is no mapping of names to tensors: it is a {type(loaded).__name__}.")
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.is_sparse or value.is_quantized:
            inside = [str(each) for each, held in loaded.items() if isinstance(held, Mapping)]
            advice = f"; perhaps --key {printable(inside[0])}" if inside and key is None else ""
            raise CheckpointError(
                f"{where} is no mapping of names to dense tensors: {printable(repr(name))} is a "
                f"{type(value).__name__}{advice}."
            )
    return dict(loaded)


def _keys(loaded: Any) -> str:
    return ", ".join(printable(str(each)) for each in list(loaded)[:10]) if isinstance(loaded, Mapping) else "no keys"
