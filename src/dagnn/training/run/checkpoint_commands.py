"""What `dagnn checkpoint` does: verify and list checkpoints, take weights out, bring foreign ones in."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from dagnn.errors import CheckpointError, RunError
from dagnn.files import new_file
from dagnn.training.log import printable
from dagnn.training.run.checkpoints import Checkpoint, CheckpointStore, read_manifest, verify_checkpoint
from dagnn.training.run.directory import RunDirectory
from dagnn.training.run.resume import find_run
from dagnn.training.run.tensors import averaged_tensors

SAFE_TORCH = (2, 10)
_MAX_PICKLE_BYTES = 1 << 26  # what names and shapes of a model take; a million tensors fit
_MAX_ENTRIES = 1_000_000
# Tied weights are stored once and count twice.
_LARGEST_RATIO = 2


def verify(path: str | Path) -> list[str]:
    """Compares every byte of a checkpoint, or of all checkpoints of a run, with its manifest; a line for each of them.

    Args:
        path: a run directory or a checkpoint; the latter may stand alone, away from its run.

    Raises:
        CheckpointError: one is damaged, foreign, or of another run; the message names every such file.
        RunError: there is no run.
    """
    lines, problems = [], []
    for place, run_id in _checkpoints(Path(path)):
        try:
            manifest = verify_checkpoint(place)
            if run_id is not None and manifest.run_id != run_id:
                raise CheckpointError(f"{place} belongs to run {manifest.run_id}, this is run {run_id}.")
            if run_id is not None and place.name != f"step-{manifest.step:08d}":
                raise CheckpointError(f"{place} holds step {manifest.step}: it was moved there from elsewhere.")
        except CheckpointError as error:
            problems.append(printable(str(error)))
        else:
            size = sum(num_bytes for num_bytes, _ in manifest.files.values())
            lines.append(f"step {manifest.step:,} is whole: {len(manifest.files)} files, {size:,} bytes")
    if problems:
        raise CheckpointError(" ".join(problems))
    return lines or ["no checkpoint yet"]


def _checkpoints(path: Path) -> list[tuple[Path, str | None]]:
    """The checkpoints to look at, each with the id of the run that it must belong to (None: any)."""
    directory, step = find_run(path)
    if step is None and (path / "manifest.json").exists():
        return [(path, None)]
    if step is not None and not (directory / "run.json").exists():
        return [(path, None)]
    run = RunDirectory.read(directory)
    if step is not None:
        return [(path, run.run_id)]
    store = CheckpointStore(run.checkpoints_path, run.run_id)
    return [(store.path_of(each), run.run_id) for each in store.all_steps()]


def list_checkpoints(path: str | Path) -> list[str]:
    """One line per checkpoint of a run, by step: score, size, and whether it is the newest or the best.

    Only manifests are read; `verify` finds a flipped bit elsewhere. RunError where there is no run.
    """
    run = RunDirectory.read(path)
    config = run.config()
    store = CheckpointStore(run.checkpoints_path, run.run_id, mode=config.monitor_mode)
    steps, best = store.steps(), store.best()
    lines = []
    for step in store.all_steps():
        try:
            manifest = read_manifest(store.path_of(step))
        except CheckpointError as error:
            lines.append(f"step {step:,}  damaged: {printable(str(error))}")
            continue
        if step not in steps:
            lines.append(f"step {step:,}  foreign: step {manifest.step:,} of run {printable(manifest.run_id)}")
            continue
        size = sum(num_bytes for num_bytes, _ in manifest.files.values())
        score = "" if manifest.score is None else f"  {printable(config.monitor)} {manifest.score:.4f}"
        marks = "  newest" * (step == steps[-1]) + "  best" * (step == best)
        lines.append(f"step {step:,}{score}  {size:,} bytes{marks}")
    return lines or ["no checkpoint yet"]


def export_weights(path: str | Path, target: str | Path, *, averaged: bool = True) -> int:
    """Writes the weights of a checkpoint as one safetensors file, which many programs read; returns how many tensors.

    Args:
        path: a run directory (its newest whole checkpoint), or one of its checkpoints.
        target: a new file.
        averaged: the averaged weights, where there are any; else those of the last step.

    Raises:
        CheckpointError: there is no whole checkpoint.
        RunError: there is no run, or the file exists or cannot be written.
    """
    checkpoint = checkpoint_of(path)
    state = averaged_tensors(checkpoint.tensors) if averaged else checkpoint.tensors["model"]
    # Extra state that is no tensor is none of the weights.
    weights = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    metadata = {"run": checkpoint.run_id, "step": str(checkpoint.step), "averaged": str(averaged).lower()}
    write_weights(Path(target), weights, metadata)
    return len(weights)


def checkpoint_of(path: str | Path) -> Checkpoint:
    """The newest whole checkpoint of a run directory, or the one that ``path`` names. Errors as of `export_weights`."""
    return run_and_checkpoint(path)[1]


def run_and_checkpoint(path: str | Path) -> tuple[RunDirectory, Checkpoint]:
    """A run, and its newest whole checkpoint or the one that ``path`` names. Errors as of `export_weights`."""
    directory, step = find_run(path)
    run = RunDirectory.read(directory)
    store = CheckpointStore(run.checkpoints_path, run.run_id)
    checkpoint = store.latest() if step is None else store.load(step)
    if checkpoint is None:
        raise CheckpointError(
            f"{run.checkpoints_path} holds no checkpoint yet: let the run train until its first save."
        )
    return run, checkpoint


def import_weights(source: str | Path, target: str | Path, *, key: str | None = None) -> int:
    """Writes the tensors of a foreign ``.pt`` file as a safetensors file, and returns how many; see `read_foreign`.

    Nothing in the file runs. ``key``: which part of it, where it is a mapping of several things.

    Raises:
        CheckpointError: the file cannot be read safely.
        RunError: the target exists or cannot be written.
    """
    weights = read_foreign(source, key=key)
    write_weights(Path(target), weights, {})
    return len(weights)


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
        reason = printable((str(error).strip().splitlines() or [""])[0])
        raise CheckpointError(
            f"{path} cannot be read safely: it holds more than tensors and plain containers, or is damaged "
            f"({type(error).__name__}: {reason[:160]}). It is not tried in another way."
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


def write_weights(target: Path, weights: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """A new safetensors file, on the disk when it returns; never over an old one. Raises RunError."""
    try:
        separate = {name: tensor.detach().contiguous().clone() for name, tensor in weights.items()}
        with new_file(target) as temporary:
            safetensors.torch.save_file(separate, temporary, metadata=metadata)
    except KeyError as error:  # a dtype that safetensors cannot express
        odd = ", ".join(sorted(name for name, each in weights.items() if str(each.dtype) in str(error)))
        raise RunError(f"cannot write {target}: a safetensors file cannot hold {error.args[0]} ({odd}).") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}.") from error
