"""One checkpoint on disk: tensors as safetensors, the rest as JSON, and a manifest that proves them whole.

    step-00001234/
        model.safetensors       parameters, buffers and extra state by name
        optimizer.safetensors   moments by "<parameter name>/<slot>"
        ema.safetensors         the model's averaged tensors by name, tied ones under each, when there are any
        state.json              everything else that decides how training goes on
        clock.json              seconds spent: the one part that differs between two equal runs
        manifest.json           format, run, step, score, and size and sha256 of every other file

Nothing here is pickled, and no name in a file is imported or becomes a path: file names are a closed list.
The manifest is written last and carries its own sha256, so a checkpoint is whole exactly when it verifies.
safetensors refuses a truncated file by itself, but loads a flipped bit without a word: hence the hashes.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dagnn._version import __version__
from dagnn.errors import CheckpointError
from dagnn.files import sync_directory, write_new
from dagnn.training.run.values import tensor_file, tensors_in_file

FORMAT = 1
TENSOR_GROUPS = ("model", "optimizer", "ema")
_MANIFEST = "manifest.json"
_JSON_FILES = ("state.json", "clock.json")
_TENSOR_FILES = tuple(f"{group}.safetensors" for group in TENSOR_GROUPS)
_MAX_MANIFEST_BYTES = 1 << 20
# A pipe in the place of a file is not waited for; Windows would else take \r\n for \n.
_UNALTERED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class DamagedCheckpointError(CheckpointError):
    """Not whole: an older checkpoint of the run may still be."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        run_id: the run that it belongs to.
        step: optimizer steps made.
        score: the monitored metric at this very step, or None when it was not evaluated (or not finite).
        tensors: group (of `TENSOR_GROUPS`) -> name -> tensor; in "model" also extra state that is no tensor.
        state: JSON values, finite numbers only.
        clock: ``seconds`` and ``cpu_seconds`` of training so far.
    """

    run_id: str
    step: int
    score: float | None
    tensors: Mapping[str, Mapping[str, Any]]
    state: Mapping[str, Any]
    clock: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The head of a checkpoint, proved by its own hash; the files are not looked at."""

    run_id: str
    step: int
    score: float | None
    files: Mapping[str, tuple[int, str]]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write into the new directory ``path``, every file on the disk when it returns, the manifest last.

    Raises:
        OSError: as the system says; ``path`` is then a part of a checkpoint that does not verify.
        RunError: a tensor or value cannot be kept.
    """
    path.mkdir()
    listed = {}
    for name, content in _file_contents(checkpoint):
        write_new(path / name, content)
        listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "format": FORMAT,
        "dagnn": __version__,
        "run": checkpoint.run_id,
        "step": checkpoint.step,
        "score": checkpoint.score,
        "files": listed,
    }
    write_new(path / _MANIFEST, _manifest_bytes(manifest))
    sync_directory(path)


def read_manifest(path: Path) -> Manifest:
    """The verified manifest of the checkpoint in ``path``.

    Raises:
        CheckpointError: damaged, missing, a symbolic link, or of a newer format.
    """
    if path.is_symlink():
        raise CheckpointError(f"{path} is a symbolic link: a checkpoint is a directory of its own.")
    content = _read(path, _MANIFEST, _MAX_MANIFEST_BYTES)
    manifest = _parse_json(path, _MANIFEST, content)
    # Written again it must give the same bytes, hash included: no byte of the file is left unproved.
    if not isinstance(manifest, dict) or content != _rewritten(manifest):
        raise DamagedCheckpointError(f"{path / _MANIFEST} is damaged: its own sha256 does not match.")
    written = manifest.get("format")
    if type(written) is not int or written < 1:
        raise CheckpointError(f"{path / _MANIFEST} is no manifest of dagnn: its format is {written!r}.")
    if written > FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {written} (dagnn {manifest.get('dagnn')}), this is dagnn "
            f"{__version__} with format {FORMAT}: update dagnn to read it."
        )
    try:
        score = None if manifest["score"] is None else float(manifest["score"])
        files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
        found = Manifest(str(manifest["run"]), int(manifest["step"]), score, files)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise CheckpointError(f"{path / _MANIFEST} is no manifest of dagnn: {error!r}.") from error
    unknown = set(files) - {*_JSON_FILES, *_TENSOR_FILES}
    if unknown or not set(_JSON_FILES) <= set(files):
        raise CheckpointError(f"{path / _MANIFEST} lists the wrong files: {', '.join(sorted(files))}.")
    return found


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in ``path``, every byte verified before any is interpreted.

    Raises:
        CheckpointError: a file is missing, damaged, a symbolic link, or of a newer format; names the file.
    """
    manifest = read_manifest(path)
    contents = {name: _verified(path, name, *entry) for name, entry in manifest.files.items()}
    tensors = {}
    for group, name in zip(TENSOR_GROUPS, _TENSOR_FILES, strict=True):
        if name in contents:
            try:
                tensors[group] = tensors_in_file(contents[name])
            except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
                raise DamagedCheckpointError(f"{path / name} cannot be read: {error}.") from error
    state, clock = (_parse_json(path, name, contents[name]) for name in _JSON_FILES)
    return Checkpoint(manifest.run_id, manifest.step, manifest.score, tensors, state, clock)


def verify_checkpoint(path: Path) -> Manifest:
    """The manifest, after every file was compared with it, and nothing else is there. Raises as `read_checkpoint`."""
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        _verified(path, name, *entry)
    foreign = sorted({each.name for each in path.iterdir()} - {_MANIFEST, *manifest.files})
    if foreign:
        raise CheckpointError(f"{path / foreign[0]} is not in the manifest: a checkpoint holds nothing else.")
    return manifest


def json_bytes(value: Any) -> bytes:
    """Strict JSON (no NaN), one form for equal values."""
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _file_contents(checkpoint: Checkpoint) -> list[tuple[str, bytes]]:
    contents = []
    for group in TENSOR_GROUPS:
        if group in checkpoint.tensors:
            contents.append((f"{group}.safetensors", tensor_file(checkpoint.tensors[group], f"the {group}'s")))
    contents.append(("state.json", json_bytes(checkpoint.state)))
    contents.append(("clock.json", json_bytes(checkpoint.clock)))
    return contents


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json_bytes(manifest)).hexdigest()
    return json_bytes({**manifest, "sha256": digest})


def _rewritten(manifest: dict[str, Any]) -> bytes | None:
    """The bytes that this version would have written; None where JSON has no word for a value."""
    try:
        return _manifest_bytes(_without_hash(manifest))
    except ValueError:
        return None


def _without_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key != "sha256"}


def _verified(path: Path, name: str, num_bytes: int, sha256: str) -> bytes:
    content = _read(path, name, num_bytes, exactly=True)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedCheckpointError(f"{path / name} is damaged: its sha256 is not the manifest's.")
    return content


def _read(path: Path, name: str, num_bytes: int, *, exactly: bool = False) -> bytes:
    """The bytes of a plain file of at most (or exactly) ``num_bytes``.

    Its size is looked at before memory is taken for it: neither a file nor a manifest that lies about one fills it.
    """
    try:
        # Not followed, not waited for: a link or a pipe in the place of a file is refused.
        descriptor = os.open(path / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _UNALTERED)
    except OSError as error:
        if (path / name).is_symlink():
            raise CheckpointError(f"{path / name} is not a plain file: a checkpoint holds no links.") from error
        raise DamagedCheckpointError(f"cannot read {path / name}: {error.strerror or error}.") from error
    try:
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path / name} is not a plain file: a checkpoint holds no links.")
            if status.st_size > num_bytes or (exactly and status.st_size != num_bytes):
                expected = f"the manifest says {num_bytes}" if exactly else f"at most {num_bytes} are allowed"
                raise DamagedCheckpointError(f"{path / name} is damaged: {status.st_size} bytes, {expected}.")
            return file.read(status.st_size)
    except OSError as error:
        raise DamagedCheckpointError(f"cannot read {path / name}: {error.strerror or error}.") from error


def _parse_json(path: Path, name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path / name} is damaged: {error}.") from error
